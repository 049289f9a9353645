"""Risks of running a model: crashes and divergence."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.ops import traits

_INTEGER_RESULTS = traits.SHAPE_ONLY | {"ArgMax", "ArgMin", "NonZero", "Unique"}
_BOOLEAN_RESULTS = traits.BOOLEAN_RESULTS | {"Not"}
#: Number of nodes, and of loop iterations, beyond which onnxruntime may be very slow.
_MOST_NODES = 20_000
_MOST_TRIPS = 10_000


def crash_risk(model: ir.Model) -> str | None:
    """The reason why running ``model`` may crash the process, or ``None``.

    onnxruntime does not guard integer Div and Mod: division of the smallest integer of a type by -1 and, in
    older versions, division by 0 raise SIGFPE. A Loop may accumulate more data than fits into memory. A Scan
    over an empty axis other than the first divides by zero. onnxruntime's optimizer (1.31) moves a
    DequantizeLinear, and aborts if only bodies read its result.
    """
    dtypes: dict[ir.Value, ir.DataType | None] = {}
    graphs = list(ir.graphs_of(model))
    has_bodies = any(ir.bodies(node) for graph in graphs for node in graph)
    for graph in graphs:
        for node in graph:
            if node.op_type == "DequantizeLinear" and has_bodies:
                return f"{ir.label(node)} may be moved into a body"
            if node.domain == "" and node.op_type == "Scan" and "scan_input_axes" in node.attributes:
                return f"{ir.label(node)} may scan an axis without elements"
            if node.domain == "" and node.op_type == "Loop":
                return f"{ir.label(node)} may accumulate more than fits into memory"
            if node.domain == "" and node.op_type in ("Div", "Mod") and len(node.inputs) == 2:
                divisor = node.inputs[1]
                dtype = dtype_of(divisor, dtypes)
                if dtype is not None and dtype.is_integer() and not is_safe_divisor(ir.constant_of(divisor)):
                    return f"{ir.label(node)} divides integers"
    return None


def divergence_risk(model: ir.Model) -> str | None:
    """The reason why loading or running ``model`` may be very slow, or ``None``.

    onnxruntime can't be interrupted while it creates a session, which includes inlining functions and folding
    constants. The iterations of a Loop are unbounded.
    """
    size = _inlined_size(model)
    if size > _MOST_NODES:
        return f"with its functions inlined it has more than {_MOST_NODES:,} nodes"
    graphs = [(graph, 1) for graph in (model.graph, *(call.graph for call in model.functions.values()))]
    while graphs:
        graph, times = graphs.pop()
        for node in graph:
            within = times
            if node.op_type == "Loop" and node.domain == "":
                trips = ir.scalar_of(node.inputs[0]) if node.inputs else None
                within = times * max(1, trips) if isinstance(trips, int) else _MOST_TRIPS + 1
                if within > _MOST_TRIPS:
                    return f"{ir.label(node)} may run forever"
            graphs.extend((body, within) for body in ir.bodies(node))
    return None


def _inlined_size(model: ir.Model) -> int:
    """Number of nodes of ``model`` after inlining all functions."""
    graphs = {key: function.graph for key, function in model.functions.items()}
    if not graphs:
        return 0
    calls = {key: [node.op_identifier() for node in ir.walk_nodes(graph)] for key, graph in graphs.items()}
    sizes: dict[tuple[str, str, str], int] = {}
    for key in ir.feed_order(calls):
        sizes[key] = sum(sizes.get(callee, 1) for callee in calls[key])
    return sum(sizes.get(node.op_identifier(), 1) for node in ir.walk_nodes(model.graph))


def is_safe_divisor(tensor: ir.TensorProtocol | None, dividend: ir.TensorProtocol | None = None) -> bool:
    """Whether division by ``tensor`` is safe for ``dividend``, or for all integers if that is ``None``."""
    if tensor is None:
        return False
    divisors = tensor.numpy()
    if (divisors == 0).any():
        return False
    if not tensor.dtype.is_signed() or not (divisors == -1).any():
        return True
    return dividend is not None and not (dividend.numpy() == np.iinfo(divisors.dtype).min).any()


def dtype_of(value: ir.Value | None, known: dict[ir.Value, ir.DataType | None]) -> ir.DataType | None:
    """The element type of ``value``, traced back through the graph if it is not declared."""
    path: list[ir.Value] = []
    found: ir.DataType | None = None
    while value is not None and value not in known:
        path.append(value)
        known[value] = None  # ends cycles of malformed graphs
        found = _declared(value)
        if found is not None:
            break
        value = _origin(value)
    else:
        found = known.get(value) if value is not None else None
    for passed in path:
        known[passed] = found
    return found


def _declared(value: ir.Value) -> ir.DataType | None:
    if value.dtype is not None and value.dtype != ir.DataType.UNDEFINED:
        return value.dtype
    tensor = ir.constant_of(value)
    if tensor is not None:
        return tensor.dtype
    node = value.producer()
    if node is None or node.domain != "":
        return None
    if node.op_type in _INTEGER_RESULTS or (node.op_type == "TopK" and value.index() == 1):
        return ir.DataType.INT64
    if node.op_type in _BOOLEAN_RESULTS:
        return ir.DataType.BOOL
    if node.op_type == "Cast" and "to" in node.attributes and not node.attributes["to"].is_ref():
        return ir.named_dtype(node.attributes["to"])
    return None


def _origin(value: ir.Value) -> ir.Value | None:
    """The input that determines the element type of ``value``, if known."""
    node = value.producer()
    if node is None or node.domain != "" or ir.bodies(node):
        return None
    index = {"Where": 1, "OneHot": 2, "CastLike": 1}.get(node.op_type, 0)
    return node.inputs[index] if index < len(node.inputs) else None
