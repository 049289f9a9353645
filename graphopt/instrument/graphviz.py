"""Export a model to Graphviz: ``dot -Tsvg model.dot``."""

from __future__ import annotations

import json
from collections.abc import Iterator

from graphopt import ir
from graphopt.ir.printer import Types


def to_dot(model: ir.Model, types: Types | None = None) -> str:
    """``model`` in the DOT language: a box for each node, a frame for each body and function.

    Args:
        types: the labels of edges, by default the declared types.
    """
    return "\n".join(_Dot(model, types or ir.declared_type).lines()) + "\n"


class _Dot:
    def __init__(self, model: ir.Model, types: Types) -> None:
        self._model = model
        self._types = types
        self._names = ir.Names.of(model)
        self._ids: dict[ir.Value | ir.Node, str] = {}
        for graph in ir.graphs_of(model):
            for item in (*graph.inputs, *graph.initializers.values(), *graph):
                self._ids.setdefault(item, f"n{len(self._ids)}")

    def lines(self) -> Iterator[str]:
        yield "digraph model {"
        yield "  node [shape=box, fontname=monospace]; edge [fontname=monospace];"
        yield from self._graph(self._model.graph)
        for index, value in enumerate(self._model.graph.outputs):
            yield f"  out{index} [label={quoted(self._names(value))}, shape=ellipse];"
            yield self._edge(value, f"out{index}")
        for function in self._model.functions.values():
            yield from self._frame(f"{function.domain}::{function.name}", function.graph)
        for graph in ir.graphs_of(self._model):
            for node in graph:
                read = [value for value in node.inputs if value is not None and ir.constant_of(value) is None]
                for value in (*read, *(output for body in ir.bodies(node) for output in body.outputs)):
                    yield self._edge(value, self._ids[node])
        yield "}"

    def _graph(self, graph: ir.Graph) -> Iterator[str]:
        for value in graph.inputs:
            yield f"  {self._ids[value]} [label={quoted(self._names(value))}, shape=ellipse];"
        for node in graph:
            constants = [ir.constant_text(t) for t in map(ir.constant_of, node.inputs) if t is not None]
            text = "\n".join([node.op_type, *(text for text in constants if len(text) <= 40)])
            yield f"  {self._ids[node]} [label={quoted(text)}, tooltip={quoted(ir.label(node))}];"
            for body in ir.bodies(node):
                yield from self._frame(body.name or node.op_type, body)

    def _frame(self, title: str, graph: ir.Graph) -> Iterator[str]:
        first = next((self._ids[node] for node in graph), title.encode().hex())
        yield f"  subgraph cluster_{first} {{ label={quoted(title)};"
        yield from self._graph(graph)
        yield "  }"

    def _edge(self, value: ir.Value, target: str) -> str:
        source = self._ids.get(value.producer() or value, "unknown")
        return f"  {source} -> {target} [label={quoted(self._types(value) or '')}];"


def quoted(text: str) -> str:
    """``text`` as a string of the DOT language."""
    return json.dumps(text, ensure_ascii=False)
