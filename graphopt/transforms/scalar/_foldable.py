"""Nodes that constant folding may compute, because they depend only on constants of limited size."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.loops import loop_form, trips_of
from graphopt.ops import traits

#: The pass that folds.
NAME = "constant-propagation"
#: Never folded: onnxruntime keeps weights quantized only if they are read through this operator.
_KEPT = frozenset({"DequantizeLinear"})
#: Maximum size of an intermediate value, in bytes.
_INTERIOR_LIMIT = 64 << 20
#: Maximum trip count of a body while folding.
_TRIPS_LIMIT = 1000


def constant_nodes(graph: ir.Graph, cx: Context) -> list[ir.Node]:
    """Nodes of ``graph`` that depend only on constants, in order.

    In the main graph, these may be weights that change later, if a constant graph can contain the node.
    """
    found: list[ir.Node] = []
    computed: dict[ir.Value, None] = {}
    tensor_of = ir.computable if graph is cx.model.graph else ir.constant_of

    def is_constant(value: ir.Value | None) -> bool:
        if value is None or value in computed:
            return True
        producer = value.producer()
        return (producer is None or producer.op_type == "Constant") and tensor_of(value) is not None

    for node in graph:
        if not all(map(is_constant, node.inputs)) or not may_fold(node):
            continue
        if not cx.is_deterministic(node) or not all(map(is_constant, ir.captured(node))):
            continue
        if not _ends_soon(node, cx):
            remark_unfolded(node, "a loop in it may have too many trips", cx)
            continue
        if any(
            (size := nbytes_of(output, cx)) is None or size > _INTERIOR_LIMIT
            for output in named_outputs(node)
        ):
            remark_unfolded(node, "its result is too large, or of unknown size", cx)
            continue
        found.append(node)
        computed.update((output, None) for output in node.outputs)
    return found if ir.constant_graph_of(graph) is None else _recordable(found)


def _recordable(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """The subset of ``nodes`` that can be folded although weights change later.

    A constant graph has no bodies and no calls of functions, and it does not compute outputs of the model.
    """
    found: list[ir.Node] = []
    varying: dict[ir.Value, None] = {}
    beyond: dict[ir.Value, None] = {}
    lost: dict[ir.Value, None] = {}
    for node in nodes:
        read = ir.reads(node)
        is_varying = any(value in varying or ir.depends_on_weights(value) for value in read)
        is_beyond = bool(node.domain or ir.bodies(node)) or any(value in beyond for value in read)
        is_output = any(output.is_graph_output() for output in node.outputs)
        if any(value in lost for value in read) or (is_varying and (is_beyond or is_output)):
            lost.update((output, None) for output in node.outputs)
            continue
        found.append(node)
        if is_varying or is_beyond:
            (varying if is_varying else beyond).update((output, None) for output in node.outputs)
    return found


def may_fold(node: ir.Node) -> bool:
    """Whether ``node`` may be folded: no attribute refers to a function's parameter."""
    if node.op_type == "Constant" or node.op_type in _KEPT:
        return False
    if _has_reference(node):
        return False
    return not any(_has_reference(inner) for body in ir.bodies(node) for inner in ir.walk_nodes(body))


def _has_reference(node: ir.Node) -> bool:
    """Whether an attribute of ``node`` refers to a function's parameter."""
    return any(attribute.is_ref() for attribute in node.attributes.data.values())


def _ends_soon(node: ir.Node, cx: Context) -> bool:
    """Whether every loop in ``node`` provably has few trips."""
    pending = [(node, 1)]
    while pending:
        current, times = pending.pop()
        if traits.is_loop(current):
            trips = _trip_count(current, cx)
            if trips is None or trips * times > _TRIPS_LIMIT:
                return False
            times *= max(trips, 1)
        pending.extend((inner, times) for body in ir.bodies(current) for inner in body)
    return True


def _trip_count(node: ir.Node, cx: Context) -> int | None:
    """The maximum trip count of a Loop or Scan."""
    form = loop_form(node, cx, short=True)
    return None if form is None else trips_of(form, cx).most


def named_outputs(node: ir.Node) -> list[ir.Value]:
    """The outputs of ``node`` that are not omitted."""
    return [output for output in node.outputs if output.name]


def nbytes_of(value: ir.Value, cx: Context) -> int | None:
    """The size of ``value`` in bytes, if it is known."""
    size = cx.facts.nbytes(value)
    return size if isinstance(size, int) else None


def remark_unfolded(node: ir.Node, reason: str, cx: Context) -> None:
    """Remark that ``node`` is not folded, with the ``reason``."""
    cx.say(NAME, lambda: f"{ir.label(node)} is not folded: {reason}")


def varying_outputs(nodes: Iterable[ir.Node]) -> dict[ir.Value, None]:
    """The outputs of ``nodes``, in topological order, that depend on weights which change later."""
    varying: dict[ir.Value, None] = {}
    for node in nodes:
        if any(value in varying or ir.depends_on_weights(value) for value in ir.reads(node)):
            varying.update((output, None) for output in node.outputs)
    return varying
