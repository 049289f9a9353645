"""What in a model can kill the process that runs it."""

from __future__ import annotations

import numpy as np

from graphopt import ir

_INTEGER_RESULTS = frozenset({"Shape", "Size", "ArgMax", "ArgMin", "NonZero", "Unique"})
_BOOLEAN_RESULTS = frozenset(
    {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not"}
)
#: Beyond these, running a model is not tried.
_MOST_NODES = 5_000_000
_MOST_TRIPS = 20_000_000
_LONGEST_STRING = 1 << 24


def may_crash(model: ir.Model) -> str | None:
    """Why running ``model`` may kill the process, or ``None``.

    onnxruntime does not guard integer Div and Mod: the least integer of a type divided by -1
    raises SIGFPE, and in older versions a divisor of 0 does.
    """
    dtypes: dict[ir.Value, ir.DataType | None] = {}
    for graph in ir.graphs_of(model):
        for node in graph:
            if node.domain == "" and node.op_type in ("Div", "Mod") and len(node.inputs) == 2:
                divisor = node.inputs[1]
                dtype = dtype_of(divisor, dtypes)
                if dtype is not None and dtype.is_integer() and not is_safe_divisor(ir.constant_of(divisor)):
                    return f"{ir.label(node)} divides integers"
    return None


def never_ends(model: ir.Model) -> str | None:
    """Why it makes no sense to hand ``model`` to the runtime, which would not come back, or ``None``.

    onnxruntime inlines functions and folds what is constant while it makes a session, and can't
    be stopped then; and some of what it computes can be told to have no end.
    """
    graphs = {key: function.graph for key, function in model.functions.items()}
    if graphs:
        calls = {key: [node.op_identifier() for node in ir.walk_nodes(graphs[key])] for key in graphs}
        sizes: dict[tuple[str, str, str], int] = {}
        for key in ir.feed_order(calls):
            sizes[key] = sum(sizes.get(callee, 1) for callee in calls[key])
        size = sum(sizes.get(node.op_identifier(), 1) for node in ir.walk_nodes(model.graph))
        if size > _MOST_NODES:
            return f"with its functions inlined it has {_told(size)} nodes"
    for graph in ir.graphs_of(model):
        for node in graph:
            trips = _certain_trips(node) if node.op_type == "Loop" and node.domain == "" else 0
            if trips > _MOST_TRIPS:
                return f"{ir.label(node)} runs its body {_told(trips)} times"
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.dtype == ir.DataType.STRING:
                longest = max(map(len, tensor.string_data()), default=0)  # type: ignore[attr-defined]
                if longest > _LONGEST_STRING:
                    return f"initializer {value.name!r} has a string of {longest:,} bytes"
    return None


def _told(number: int) -> str:
    return f"{number:,}" if number < 10**9 else f"{float(min(number, 10**300)):.0e}"


def _certain_trips(loop: ir.Node) -> int:
    """How often the body of ``loop`` runs at least; 0 where its condition may end it."""
    trips = ir.constant_of(loop.inputs[0]) if loop.inputs else None
    bodies = ir.bodies(loop)
    if trips is None or trips.size != 1 or len(bodies) != 1 or len(bodies[0].inputs) < 2:
        return 0
    body = bodies[0]
    condition: ir.Value | None = body.outputs[0] if body.outputs else None
    while condition is not None and (node := condition.producer()) is not None and node.op_type == "Identity":
        condition = node.inputs[0]
    lasting = condition is body.inputs[1]
    start: ir.Value | None = loop.inputs[1] if len(loop.inputs) > 1 else None
    for value in (start, None if lasting else condition):
        if value is not None:
            tensor = ir.constant_of(value)
            if tensor is None or not tensor.numpy().all():
                return 0
    return int(trips.numpy().reshape(-1)[0])


def is_safe_divisor(tensor: ir.TensorProtocol | None, dividend: ir.TensorProtocol | None = None) -> bool:
    """Whether integers can be divided by ``tensor``, whatever they are, or if they are ``dividend``."""
    if tensor is None:
        return False
    divisors = tensor.numpy()
    if (divisors == 0).any():
        return False
    if not tensor.dtype.is_signed() or not (divisors == -1).any():
        return True
    return dividend is not None and not (dividend.numpy() == np.iinfo(divisors.dtype).min).any()


def dtype_of(value: ir.Value | None, known: dict[ir.Value, ir.DataType | None]) -> ir.DataType | None:
    """The element type of ``value``, followed back through the graph where it is not declared."""
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
        return ir.DataType(node.attributes["to"].value)
    return None


def _origin(value: ir.Value) -> ir.Value | None:
    """The input that ``value`` has its element type from, as far as can be told."""
    node = value.producer()
    if node is None or node.domain != "" or ir.bodies(node):
        return None
    index = {"Where": 1, "OneHot": 2, "CastLike": 1}.get(node.op_type, 0)
    return node.inputs[index] if index < len(node.inputs) else None
