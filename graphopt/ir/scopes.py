"""Graphs, bodies and functions of a model, and how they nest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from graphopt.ir._onnx_ir import onnx_ir

_GRAPH = onnx_ir.AttributeType.GRAPH
_GRAPHS = onnx_ir.AttributeType.GRAPHS


def bodies(node: onnx_ir.Node) -> list[onnx_ir.Graph]:
    """The graphs that ``node`` holds as attributes (branches of If, bodies of Loop and Scan)."""
    found: list[onnx_ir.Graph] = []
    for attribute in node.attributes.data.values():  # UserDict's own iteration costs three times as much
        kind = attribute.type
        if kind is _GRAPH and not attribute.is_ref():
            found.append(attribute.value)
        elif kind is _GRAPHS and not attribute.is_ref():
            found.extend(attribute.value)
    return found


def with_bodies(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Graph]:
    """``graph`` and every body nested in it, outer before inner, in the order of their nodes."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        nested = [body for node in current if node.attributes.data for body in bodies(node)]
        stack.extend(reversed(nested))


def graphs_of(model: onnx_ir.Model) -> Iterator[onnx_ir.Graph]:
    """Every graph of ``model``: the main one, its bodies, then each function with its bodies."""
    yield from with_bodies(model.graph)
    for function in model.functions.values():
        yield from with_bodies(function.graph)


def values_of(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    """The inputs and initializers of ``graph`` and the outputs of its nodes, each once."""
    yield from dict.fromkeys([*graph.inputs, *graph.initializers.values()])
    for node in graph:
        yield from node.outputs


#: What happens, in which graph, to which node; for ``enter`` and ``leave``, the node that holds the graph.
Step = tuple[Literal["enter", "leave", "read", "define"], onnx_ir.Graph, onnx_ir.Node | None]


def in_order(root: onnx_ir.Graph) -> Iterator[Step]:
    """Walk ``root`` as it runs: a node reads, its bodies are entered and left, and it defines its outputs."""
    # what is still to do, last first
    pending: list[Iterator[Step]] = [_steps(root, None)]
    while pending:
        step = next(pending[-1], None)
        if step is None:
            pending.pop()
            continue
        yield step
        kind, _, node = step
        if kind == "read" and node is not None and node.attributes:
            pending += [_steps(body, node) for body in reversed(bodies(node))]


def _steps(graph: onnx_ir.Graph, holder: onnx_ir.Node | None) -> Iterator[Step]:
    yield "enter", graph, holder
    for node in graph:
        yield "read", graph, node
        yield "define", graph, node
    yield "leave", graph, holder


def walk_nodes(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Node]:
    """Every node of ``graph`` and of the bodies nested in it."""
    for nested in with_bodies(graph):
        yield from nested


def count_nodes(graph: onnx_ir.Graph) -> int:
    """How many nodes ``graph`` and its bodies have, without Constant: what reports call nodes."""
    return sum(node.op_type != "Constant" or node.domain != "" for node in walk_nodes(graph))


def count_all_nodes(model: onnx_ir.Model) -> int:
    """The same for all of ``model``, functions too."""
    return sum(map(count_nodes, (model.graph, *(function.graph for function in model.functions.values()))))


def normal_imports(imports: Mapping[str, int]) -> dict[str, int]:
    """Opset versions by domain, with the standard one called ``""`` however the file spells it."""
    return {"" if domain == "ai.onnx" else domain: version for domain, version in imports.items()}


def standard_version(imports: Mapping[str, int], default: int = 1) -> int:
    """The version of the standard's operators that ``imports`` tell, or ``default``."""
    return imports.get("", imports.get("ai.onnx", default))


class Scopes:
    """Which node holds a body, and which function (or the main graph) a graph belongs to.

    onnx-ir keeps no link from a body to its node. The links are found by one walk, repeated
    when a graph turns up that the last walk did not meet.
    """

    def __init__(self, model: onnx_ir.Model) -> None:
        self._model = model
        self._holder: dict[onnx_ir.Graph, onnx_ir.Node | None] = {}
        self._root: dict[onnx_ir.Graph, onnx_ir.Graph | onnx_ir.Function] = {}
        self._unheld: dict[onnx_ir.Graph, onnx_ir.Graph] = {}
        self._walk()

    def _walk(self) -> None:
        self._holder.clear()
        self._root.clear()
        model = self._model
        roots: list[onnx_ir.Graph | onnx_ir.Function] = [model.graph, *model.functions.values()]
        for root in roots:
            top = root.graph if isinstance(root, onnx_ir.Function) else root
            self._holder[top] = None
            for graph in with_bodies(top):
                self._root[graph] = root
                for node in graph:
                    if node.attributes:
                        for body in bodies(node):
                            self._holder[body] = node
        for body, around in self._unheld.items():
            if body not in self._root and around in self._root:
                self._adopt_body(body, self._root[around])

    def begin(self, body: onnx_ir.Graph, around: onnx_ir.Graph) -> None:
        """Learn a body that no node holds yet; one in ``around`` is going to, which :meth:`adopt` notices."""
        self._known(around)
        self._unheld[body] = around
        self._adopt_body(body, self._root[around])

    def _adopt_body(self, body: onnx_ir.Graph, root: onnx_ir.Graph | onnx_ir.Function) -> None:
        for graph in with_bodies(body):
            self._root[graph] = root
            for node in graph:
                if node.attributes:
                    self._holder.update((inner, node) for inner in bodies(node))

    def adopt(self, node: onnx_ir.Node) -> None:
        """Learn the bodies of ``node``, which has just been put into a graph, without a walk of the model."""
        root = None if node.graph is None else self._root.get(node.graph)
        holders = [node] if root is not None else []
        while holders and root is not None:
            holder = holders.pop()
            for body in bodies(holder):
                self._root[body], self._holder[body] = root, holder
                self._unheld.pop(body, None)
                holders.extend(inner for inner in body if inner.attributes)

    def adopt_function(self, function: onnx_ir.Function) -> None:
        """Learn a new function, whose nodes may have stood elsewhere, without a walk of the model."""
        self._holder[function.graph] = None
        for graph in with_bodies(function.graph):
            self._root[graph] = function
            for node in graph:
                if node.attributes:
                    self._holder.update((body, node) for body in bodies(node))

    def _known(self, graph: onnx_ir.Graph) -> None:
        if graph not in self._root:
            self._walk()

    def holder(self, graph: onnx_ir.Graph) -> onnx_ir.Node | None:
        """The node whose body ``graph`` is; ``None`` for the main graph and function bodies."""
        self._known(graph)
        return self._holder[graph]

    def function(self, graph: onnx_ir.Graph) -> onnx_ir.Function | None:
        """The function that ``graph`` is part of, if any."""
        self._known(graph)
        root = self._root[graph]
        return root if isinstance(root, onnx_ir.Function) else None

    def version(self, node: onnx_ir.Node) -> int:
        """The opset version of ``node``'s domain where it stands; 1 if the domain is not imported."""
        graph = node.graph
        imports = self._model.graph.opset_imports
        if graph is not None and graph is not self._model.graph:
            imports = self.imports(graph)
        version = imports.get(node.domain)
        if version is None and node.domain == "":
            version = imports.get("ai.onnx")
        return version if version is not None else 1

    def imports(self, graph: onnx_ir.Graph) -> dict[str, int]:
        """The opset imports in force in ``graph``: its function's, or the model's."""
        self._known(graph)
        return self._root[graph].opset_imports
