"""Structural fingerprints, independent of the names of values and nodes.

A Merkle tree: the fingerprint of a node includes the fingerprints of its bodies, a call includes the
fingerprint of its function, and a weight is represented by its contents. Nodes are numbered in the post-order
of a traversal from the outputs. Therefore neither names nor the order in the file matter, but a value that is
read twice differs from two equal values.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import is_overridable
from graphopt.ir.nested_graphs import bodies, normal_imports, walk_nodes, with_bodies
from graphopt.ir.opaque_parts import opaque_type
from graphopt.ir.topological_order import feed_order
from graphopt.ir.weights import hash_of

_Key = tuple[str, str, str]
_Digests = dict[_Key, str]


def fingerprint(item: onnx_ir.Model | onnx_ir.Graph | onnx_ir.Function, *, names: bool = False) -> str:
    """32 hex digits, equal for equal structure only.

    Structure is: operators with their opset versions, attributes (floats by their bits), constants, bodies,
    functions, the edges between nodes, types and order of the inputs, order of the outputs.

    Args:
        item: calls in a graph or function without its model are identified by the function's name.
        names: whether to include the names of inputs and outputs.
    """
    if isinstance(item, onnx_ir.Function):
        return _function(item, {})
    if isinstance(item, onnx_ir.Graph):
        return _root(item, item.opset_imports, {}, names)
    functions = function_fingerprints(item)
    called = {node.op_identifier() for graph in _roots(item) for node in walk_nodes(graph)}
    uncalled = sorted(digest for key, digest in functions.items() if key not in called)
    return _hash("model", _root(item.graph, item.graph.opset_imports, functions, names), uncalled)


def function_fingerprints(model: onnx_ir.Model) -> dict[tuple[str, str, str], str]:
    """The fingerprint of each function of ``model``, in order. A call includes that of its callee."""
    digests: _Digests = {}
    for key in functions_callees_first(model):
        digests[key] = _function(model.functions[key], digests)
    return {key: digests[key] for key in model.functions}


def _roots(model: onnx_ir.Model) -> list[onnx_ir.Graph]:
    return [model.graph, *(function.graph for function in model.functions.values())]


def functions_callees_first(model: onnx_ir.Model) -> list[_Key]:
    """The keys of the functions of ``model``, callees before callers; recursive functions are omitted."""
    return feed_order({key: _callees(model, key) for key in model.functions})


def _callees(model: onnx_ir.Model, key: _Key) -> list[_Key]:
    callees = dict.fromkeys(node.op_identifier() for node in walk_nodes(model.functions[key].graph))
    return [callee for callee in callees if callee in model.functions]


def _function(function: onnx_ir.Function, functions: _Digests) -> str:
    attributes = sorted((name, attribute_key(attribute)) for name, attribute in function.attributes.items())
    body = _bodies(function.graph, function.opset_imports, functions)[function.graph][0]
    return _hash("function", attributes, body)


def _root(graph: onnx_ir.Graph, imports: Mapping[str, int], functions: _Digests, names: bool) -> str:
    digest = _bodies(graph, imports, functions)[graph][0]
    interface: list[Hashable] = [
        (str(value.type), str(value.shape), str(opaque_type(value))) for value in graph.inputs
    ]
    if names:
        interface += [
            tuple(value.name for value in graph.inputs),
            tuple(value.name for value in graph.outputs),
        ]
    return _hash("graph", interface, digest)


def _bodies(
    root: onnx_ir.Graph, imports: Mapping[str, int], functions: _Digests
) -> dict[onnx_ir.Graph, tuple[str, list[onnx_ir.Value]]]:
    """The digests of ``root`` and of its bodies, each with its captured outer values."""
    done: dict[onnx_ir.Graph, tuple[str, list[onnx_ir.Value]]] = {}
    for graph in reversed(list(with_bodies(root))):
        done[graph] = _Walk(graph, imports, functions, done).run()
    return done


class _Walk:
    """Numbers the values of one graph and hashes its nodes."""

    def __init__(
        self,
        graph: onnx_ir.Graph,
        imports: Mapping[str, int],
        functions: _Digests,
        inner: Mapping[onnx_ir.Graph, tuple[str, list[onnx_ir.Value]]],
    ) -> None:
        self._graph = graph
        self._imports = normal_imports(imports)
        self._functions = functions
        self._inner = inner
        self._hasher = hashlib.blake2b(digest_size=16)
        self._numbers: dict[onnx_ir.Value, int] = {}
        self._captures: list[onnx_ir.Value] = []
        self._finished: set[onnx_ir.Node] = set()

    def run(self) -> tuple[str, list[onnx_ir.Value]]:
        """The digest, and the captured values in the order of the walk."""
        graph = self._graph
        for value in graph.inputs:
            default = value.const_value if value.is_initializer() else None
            self._number(value, "input", None if default is None else hash_of(default), is_overridable(value))
        for value in graph.outputs:
            self._visit(value)
        for node in self._unread():
            if node not in self._finished:
                self._finish_from(node)
        for value in graph.initializers.values():
            self._visit(value)
        self._feed("outputs", [self._numbers[value] for value in graph.outputs])
        return self._hasher.hexdigest(), self._captures

    def _feed(self, *record: object) -> None:
        self._hasher.update(repr(record).encode("utf-8", "surrogatepass"))

    def _number(self, value: onnx_ir.Value, *record: object) -> None:
        self._numbers[value] = len(self._numbers)
        self._feed(*record)

    def _visit(self, value: onnx_ir.Value) -> None:
        if value in self._numbers:
            return
        node = value.producer()
        if value.graph is not self._graph:
            self._number(value, "capture", len(self._captures))
            self._captures.append(value)
        elif node is not None:
            self._finish_from(node)
        else:
            tensor = value.const_value
            self._number(
                value, "initializer", None if tensor is None else hash_of(tensor), is_overridable(value)
            )

    def _finish_from(self, root: onnx_ir.Node) -> None:
        """Finish the dependencies of ``root``, depth first, then ``root``."""
        opened = {root}
        stack = [(root, iter(self._operands(root)))]
        while stack:
            node, operands = stack[-1]
            value = next(operands, None)
            if value is None:
                stack.pop()
                self._finish(node)
                continue
            producer = value.producer()
            if producer is None or value.graph is not self._graph:
                self._visit(value)
            elif producer not in self._finished and producer not in opened:
                opened.add(producer)
                stack.append((producer, iter(self._operands(producer))))

    def _operands(self, node: onnx_ir.Node) -> list[onnx_ir.Value]:
        values = [value for value in node.inputs if value is not None]
        for body in bodies(node) if node.attributes else ():
            values += self._inner[body][1]
        return values

    def _finish(self, node: onnx_ir.Node) -> None:
        self._finished.add(node)
        self._feed(self._record(node, self._numbers.__getitem__))
        for output in node.outputs:
            self._numbers[output] = len(self._numbers)

    def _record(self, node: onnx_ir.Node, show: Callable[[onnx_ir.Value], object]) -> object:
        """The identity of ``node``: all of its parts, with operands in the form of ``show``."""
        operands = [None if value is None else show(value) for value in node.inputs]
        attributes: list[object] = []
        for name in sorted(node.attributes) if node.attributes else ():
            attribute = node.attributes[name]
            held = [attribute.value] if attribute.type == onnx_ir.AttributeType.GRAPH else attribute.value
            if attribute.type in _GRAPHS and not attribute.is_ref():
                inner = [self._inner[body] for body in held]
                captured = [(digest, list(map(show, values))) for digest, values in inner]
                attributes.append((name, str(attribute.type), captured))
            else:
                attributes.append((name, attribute_key(attribute)))
        used = [bool(output.name) for output in node.outputs]
        return self._operator(node), operands, attributes, used

    def _unread(self) -> list[onnx_ir.Node]:
        """The nodes that no output depends on, ordered by their computations."""
        digests: dict[onnx_ir.Node, str] = {}

        def show(value: onnx_ir.Value) -> object:
            producer = value.producer()
            if value in self._numbers or producer not in digests:
                return self._numbers.get(value)
            return digests[producer], value.index()

        for node in self._graph:
            if node not in self._finished:
                digests[node] = _hash(self._record(node, show))
        return sorted(digests, key=digests.__getitem__)

    def _operator(self, node: onnx_ir.Node) -> Hashable:
        key = node.op_identifier()
        if key in self._functions:
            return self._functions[key]
        return (*key, self._imports.get(node.domain, 1))


_GRAPHS = frozenset({onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS})


def attribute_key(attribute: onnx_ir.Attr) -> Hashable:
    """A key, equal for equal attributes only; floats by their bits: 0.0 is not -0.0.

    Does not accept graphs.
    """
    kind = str(attribute.type)
    if attribute.is_ref():
        return kind, "ref", attribute.ref_attr_name
    value: Any = attribute.value
    match attribute.type:
        case onnx_ir.AttributeType.TENSOR:
            value = hash_of(value)
        case onnx_ir.AttributeType.TENSORS:
            value = tuple(map(hash_of, value))
        case onnx_ir.AttributeType.FLOAT:
            value = struct.pack("<d", value)
        case onnx_ir.AttributeType.FLOATS:
            value = struct.pack(f"<{len(value)}d", *value)
        case onnx_ir.AttributeType.INTS:
            value = tuple(value)
        case onnx_ir.AttributeType.STRING:
            value = _as_bytes(value)
        case onnx_ir.AttributeType.STRINGS:
            value = tuple(map(_as_bytes, value))
        case onnx_ir.AttributeType.INT | onnx_ir.AttributeType.UNDEFINED:
            pass
        case _:
            value = repr(value)
    return kind, value


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def _hash(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
