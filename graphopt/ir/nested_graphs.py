"""The nesting of graphs, bodies and functions of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from graphopt.ir._onnx_ir_without_sympy import onnx_ir

_GRAPH = onnx_ir.AttributeType.GRAPH
_GRAPHS = onnx_ir.AttributeType.GRAPHS


def bodies(node: onnx_ir.Node) -> list[onnx_ir.Graph]:
    """The graphs in attributes of ``node`` (branches of If, bodies of Loop and Scan)."""
    return bodies_of((node,))


def bodies_of(nodes: Iterable[onnx_ir.Node]) -> list[onnx_ir.Graph]:
    """The graphs in attributes of ``nodes``, without those nested in them, in order."""
    found: list[onnx_ir.Graph] = []
    for node in nodes:
        for attribute in node.attributes.data.values():  # UserDict's own iteration costs three times as much
            kind = attribute.type
            if kind is _GRAPH and not attribute.is_ref():
                found.append(attribute.value)
            elif kind is _GRAPHS and not attribute.is_ref():
                found.extend(attribute.value)
    return found


def with_bodies(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Graph]:
    """``graph`` and all bodies nested in it, outer graphs before inner ones, in the order of their nodes."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(bodies_of(current)))


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


#: An event, its graph, and its node; for ``enter`` and ``leave``, the node with the body.
Step = tuple[Literal["enter", "leave", "read", "define"], onnx_ir.Graph, onnx_ir.Node | None]


def in_order(root: onnx_ir.Graph) -> Iterator[Step]:
    """Traverse ``root`` in execution order: the reads of a node, its bodies, then its outputs."""
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
    """All nodes of ``graph`` and of the bodies nested in it."""
    for nested in with_bodies(graph):
        yield from nested


def count_nodes(graph: onnx_ir.Graph) -> int:
    """The number of nodes of ``graph`` and its bodies without Constant nodes, as shown in reports."""
    return sum(node.op_type != "Constant" or node.domain != "" for node in walk_nodes(graph))


def count_all_nodes(model: onnx_ir.Model) -> int:
    """Like :func:`count_nodes`, for all of ``model``, including functions."""
    return sum(map(count_nodes, (model.graph, *(function.graph for function in model.functions.values()))))


def normal_imports(imports: Mapping[str, int]) -> dict[str, int]:
    """Opset versions by domain, with ``""`` for the standard domain, even if the file has ``ai.onnx``."""
    return {"" if domain == "ai.onnx" else domain: version for domain, version in imports.items()}


def standard_version(imports: Mapping[str, int], default: int = 1) -> int:
    """The version of the standard domain in ``imports``, or ``default``."""
    return imports.get("", imports.get("ai.onnx", default))


class Scopes:
    """Maps bodies to their nodes, and graphs to their function or the main graph.

    onnx-ir has no link from a body to its node. One traversal collects the links; it is repeated for an
    unknown graph.
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

    def register_body(self, body: onnx_ir.Graph, around: onnx_ir.Graph) -> None:
        """Register a body whose node will be inserted into ``around``; :meth:`adopt` registers the node."""
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
        """Register the bodies of ``node``, which was just inserted, without a traversal of the model."""
        root = None if node.graph is None else self._root.get(node.graph)
        holders = [node] if root is not None else []
        while holders and root is not None:
            holder = holders.pop()
            for body in bodies(holder):
                self._root[body], self._holder[body] = root, holder
                self._unheld.pop(body, None)
                holders.extend(inner for inner in body if inner.attributes)

    def adopt_function(self, function: onnx_ir.Function) -> None:
        """Register a new function, whose nodes may have moved there, without a traversal of the model."""
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
        """The node with body ``graph``; ``None`` for the main graph and function bodies."""
        self._known(graph)
        return self._holder[graph]

    def function(self, graph: onnx_ir.Graph) -> onnx_ir.Function | None:
        """The function that contains ``graph``, if any."""
        self._known(graph)
        root = self._root[graph]
        return root if isinstance(root, onnx_ir.Function) else None

    def version(self, node: onnx_ir.Node) -> int:
        """The opset version of ``node``'s domain in its graph; 1 if the domain is not imported."""
        graph = node.graph
        imports = self._model.graph.opset_imports
        if graph is not None and graph is not self._model.graph:
            imports = self.imports(graph)
        version = imports.get(node.domain)
        if version is None and node.domain == "":
            version = imports.get("ai.onnx")
        return version if version is not None else 1

    def imports(self, graph: onnx_ir.Graph) -> dict[str, int]:
        """The opset imports of ``graph``: those of its function, or of the model."""
        self._known(graph)
        return self._root[graph].opset_imports
