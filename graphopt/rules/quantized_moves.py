"""Operators that move, select, split or join quantized elements are applied to the integers.

The rules refuse rewrites that change the set of operators that onnxruntime runs on integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.ops import traits
from graphopt.rewrite import Builder, Exact, Match, Outcome, ort_qdq_miscompilation, rule
from graphopt.rules.building_blocks import quantizers
from graphopt.rules.building_blocks.operands import operand, producer_of
from graphopt.rules.building_blocks.quantizers import BYTES, WORDS, is_quantizer

_COMPLETES = "onnxruntime would run an operator on integers, with different rounding"
_PAIRED = "onnxruntime needs int8 in pairs of QuantizeLinear and DequantizeLinear"
#: Operators that move elements without reading their values.
_MOVES = (
    *("Transpose", *traits.RESHAPES, "Slice", "Expand", "Tile"),
    *("Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth"),
)
#: Operators that return a maximum or minimum: integers have the same order as the dequantized elements.
_PICKS = ("MaxPool", "ReduceMax", "ReduceMin")
_BETWEEN = (*_MOVES, *_PICKS, "Resize", "Pad")
#: The opset version from which onnxruntime has kernels for 8-bit integers, by operator.
_BYTES_SINCE = {"DepthToSpace": 11, "Pad": 11, **dict.fromkeys(_PICKS, 12)}
#: Operators for which onnxruntime has kernels for 8-bit integers only.
_BYTES_ONLY = frozenset({"DepthToSpace", "SpaceToDepth", "Resize", "Pad", *_PICKS})


def _supports_integers(m: Match, node: ir.Node, dtype: ir.DataType | None) -> bool:
    """Whether ``node`` commutes with quantization, and runtimes have its kernels for integers."""
    if node.domain or node.op_type not in _BETWEEN or node.graph is not m.graph:
        return False
    if len(node.outputs) != 1 or m.version < _BYTES_SINCE.get(node.op_type, 0):
        return False
    if node.op_type == "Resize" and not (
        m.attribute(node, "mode") == "nearest"
        and m.attribute(node, "coordinate_transformation_mode") != "tf_crop_and_resize"
    ):
        return False  # the operator interpolates, or writes a number outside of the operand
    return dtype in BYTES or (dtype in WORDS and node.op_type not in _BYTES_ONLY)


@rule(
    lambda op, x, b: op.QuantizeLinear(op.one_of(*_BETWEEN)(x.rest()), b.rest()),
    lambda op, x, b: op.domain(ir.MICROSOFT).QuantizeLinear(op.one_of(*_BETWEEN)(x.rest()), b.rest()),
    numerics=Exact,
    tags=("onnxruntime:DropQDQ",),
)
def move_quantized(op: Builder, m: Match) -> Outcome:
    """QuantizeLinear(move(DequantizeLinear(x))) → move(x), for operators that move or select elements."""
    moves: list[ir.Node] = []
    value, dtype = m.root.inputs[0], m.dtype(m.root.outputs[0])
    while value is not None and (node := value.producer()) is not None and _supports_integers(m, node, dtype):
        if not m.only_use(value):
            return m.no("the moved value has other readers", value, shared=True)
        moves.append(node)
        value = node.inputs[0]
    dequantize = quantizers.dequantized(m, value)
    if dequantize is None:
        return m.no("the moved value is not the result of a DequantizeLinear", value)
    moves.reverse()
    fault = quantizers.inversion_obstacle(m, dequantize, m.root, moves)
    if fault is not None:
        return m.no(fault, value)
    data = dequantize.inputs[0]
    assert data is not None
    if quantizers.stays_paired(m, data, m.root.outputs[0]):
        return m.no(_PAIRED, data)
    paddings = {node: _quantized_padding(m, node) for node in moves if node.op_type == "Pad"}
    if None in paddings.values():
        return m.no("the padding value is unknown", data)
    for node in moves:
        rest = node.inputs[1:] if node not in paddings else (node.inputs[1], paddings[node], *node.inputs[3:])
        data = op.like(node, [data, *rest])
    return data


def _quantized_padding(m: Match, pad: ir.Node) -> np.ndarray | None:
    """The padding value of ``pad``, quantized with the root's parameters."""
    parameters, dtype = quantizers.parameters(m, m.root), m.dtype(m.root.outputs[0])
    value = operand(pad, 2)
    number = np.zeros((), np.float32) if value is None else m.constant(value)
    if (
        parameters is None
        or dtype is None
        or number is None
        or number.dtype != np.float32
        or number.size != 1
    ):
        return None
    scale, point = parameters
    if scale.ndim or not np.isfinite(number).all():
        return None
    limits = np.iinfo(dtype.numpy())
    integer = np.rint(number.reshape(()) / scale) + point.astype(np.float32)
    return np.clip(integer, limits.min, limits.max).astype(dtype.numpy())


#: Maximum number of parts of a Split: each part becomes a separate Split until they are merged.
_MAX_PARTS = 16


def _moved_behind(op: Any, x: Any, d: Any, r: Any) -> Iterator[Any]:
    for domain in quantizers.DOMAINS:
        dequantized = op.domain(domain).DequantizeLinear(x, d.rest(), tag="dequantize")
        yield op.one_of(*ort_qdq_miscompilation.MOVERS)(dequantized, r.rest())


@rule(_moved_behind, numerics=Exact, workaround=True)
def move_before_dequantize(op: Builder, m: Match, x: ir.Value, d: Any, r: Any) -> Outcome:
    """move(DequantizeLinear(x)) → DequantizeLinear(move(x)), if onnxruntime can't load the original."""
    dequantize = m.node("dequantize")
    if not ort_qdq_miscompilation.fails_to_load(m.cx, m.root):
        return m.no("onnxruntime loads it", x)
    if not _supports_integers(m, m.root, m.dtype(x)):
        return m.no("runtimes may not support it for these integers", x)
    if m.root.op_type == "MaxPool" and quantizers.parameters(m, dequantize) is None:
        return m.no("the scale is not one positive number, so the largest integer may differ", x)
    return op.like(dequantize, [op.like(m.root, [x, *r]), *d])


@rule(
    lambda op, x, b: op.QuantizeLinear(op.one_of(*ort_qdq_miscompilation.MOVERS)(x.rest()), b.rest()),
    lambda op, x, b: op.domain(ir.MICROSOFT).QuantizeLinear(
        op.one_of(*ort_qdq_miscompilation.MOVERS)(x.rest()), b.rest()
    ),
    numerics=Exact,
    workaround=True,
)
def quantize_before_moves(op: Builder, m: Match, b: Any) -> Outcome:
    """QuantizeLinear(move(x)) → move(QuantizeLinear(x)).

    Only if onnxruntime would quantize the moved value for all its readers.
    """
    moves: list[ir.Node] = []
    value, dtype = m.root.inputs[0], m.dtype(m.root.outputs[0])
    while not (moves and ort_qdq_miscompilation.quantizes_other_readers(moves[-1])):
        move = producer_of(value, *ort_qdq_miscompilation.MOVERS, graph=m.graph)
        if move is None:
            return m.no("onnxruntime quantizes it for no other reader", value)
        if not _supports_integers(m, move, dtype):
            return m.no("runtimes may not support it for these integers", value)
        moves.append(move)
        value = move.inputs[0]
    if not quantizers.is_per_tensor(m, m.root) or quantizers.parameters(m, m.root) is None:
        return m.no("the scale is not one positive number", b[0] if b else None)
    data = op.like(m.root, [value, *b])
    for move in reversed(moves):
        data = op.like(move, [data, *move.inputs[1:]])
    return data


@rule(
    lambda op, part, b: op.QuantizeLinear(part, b.rest()),
    lambda op, part, b: op.domain(ir.MICROSOFT).QuantizeLinear(part, b.rest()),
    numerics=Exact,
    producers=("Split",),
    tags=("onnxruntime:DropSplitQDQ",),
)
def split_quantized(op: Builder, m: Match, part: ir.Value) -> Outcome:
    """QuantizeLinear(Split(DequantizeLinear(x))[i]) → Split(x)[i], if all parts are quantized again."""
    split = producer_of(part, "Split", graph=m.graph)
    if split is None:
        return m.no("it quantizes no part of a Split", part)
    if len(split.outputs) > _MAX_PARTS:
        return m.no("there are too many parts", part)
    dequantize = quantizers.dequantized(m, split.inputs[0])
    if dequantize is None:
        return m.no("the split value is not the result of a DequantizeLinear", split.inputs[0])
    if not quantizers.is_per_tensor(m, dequantize) or m.dtype(m.root.outputs[0]) not in (*BYTES, *WORDS):
        return m.no("it has one scale per channel, or not 8 or 16 bits", part)
    data = dequantize.inputs[0]
    assert data is not None
    for other in split.outputs:
        for user in ir.readers(other):
            if not is_quantizer(user, "QuantizeLinear") or quantizers.inversion_obstacle(m, dequantize, user):
                return m.no("not all parts are quantized again in the same way", other)
            if quantizers.stays_paired(m, data, user.outputs[0]):
                return m.no(_PAIRED, data)
        if other.is_graph_output():
            return m.no("a part is a graph output", other)
    return op.like(split, [data, *split.inputs[1:]])[split.outputs.index(part)]


# Dequantizing later -------------------------------------------------------------------------

#: Operators that look up elements of a table; the result may be larger than the table.
_LOOK_UPS = ("Gather", "GatherElements", "GatherND")


@rule(
    lambda op, x, a, b: op.one_of("Slice", "Transpose", *traits.RESHAPES, *_LOOK_UPS)(
        op.DequantizeLinear(x, a.rest(), tag="dequantize"), b.rest()
    ),
    lambda op, x, a, b: op.one_of("Slice", "Transpose", *traits.RESHAPES, *_LOOK_UPS)(
        op.domain(ir.MICROSOFT).DequantizeLinear(x, a.rest(), tag="dequantize"), b.rest()
    ),
    numerics=Exact,
    exclusive=True,
    tags=("onnxruntime:QDQPropagationTransformer",),
)
def dequantize_later(op: Builder, m: Match, x: ir.Value, a: Any, b: Any) -> Outcome:
    """move(DequantizeLinear(x)) → DequantizeLinear(move(x)), for slices, constants, and views of views."""
    dequantize, move, dtype = m.node("dequantize"), m.root, m.dtype(x)
    if ir.constant_of(x) is not None:
        fits = dtype in (*BYTES, *WORDS, ir.DataType.INT32)
    else:
        fits = dtype in (*BYTES, *WORDS)
        joins_views = move.op_type in traits.RESHAPES and producer_of(x, *traits.RESHAPES) is not None
        if move.op_type != "Slice" and not joins_views:
            return m.no("it gains nothing, or may select more elements than there are", x)
        if quantizers.stays_paired(m, x):
            return m.no(_PAIRED, x)
    if not fits:
        return m.no("runtimes may not support it for this type", x)
    changed: dict[str, Any] = {}
    per_tensor = quantizers.is_per_tensor(m, dequantize)
    done_anyway = (
        ("Transpose",) if ir.constant_of(x) is not None else ("Slice", "Reshape", "Squeeze", "Unsqueeze")
    )
    if not (per_tensor and move.op_type in done_anyway) and quantizers.completes_unit(m, move.outputs[0]):
        return m.no(_COMPLETES, x)
    if not per_tensor:
        axis = None if m.attribute(dequantize, "block_size") else quantizers.quantized_axis(m, dequantize)
        new_axis = None if axis is None else quantizers.axis_after(m, move, axis)
        if new_axis is None:
            return m.no("it changes the axis of the scales", dequantize.inputs[1])
        changed = {"axis": new_axis}
    return op.like(dequantize, [op.like(move, [x, *b]), *a], **changed)


@rule(
    lambda op, x, a, q, b: op.one_of(*traits.RESHAPES)(
        op.QuantizeLinear(op.one_of(*traits.RESHAPES)(x, a.rest(), tag="inner"), q.rest(), tag="quantize"),
        b.rest(),
    ),
    numerics=Exact,
    exclusive=True,
)
def quantize_later(op: Builder, m: Match, q: Any, b: Any) -> Outcome:
    """Reshape(QuantizeLinear(Reshape(x))) → QuantizeLinear(Reshape(Reshape(x)))."""
    quantize = m.node("quantize")
    if not quantizers.is_per_tensor(m, quantize):
        return m.no("it has one scale per channel", quantize.inputs[1])
    return op.like(quantize, [op.like(m.root, [m.node("inner").outputs[0], *b]), *q])


@rule(lambda op, xs: op.Concat(xs.rest()), numerics=Exact, producers=("DequantizeLinear",))
def concat_then_dequantize(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """Concat(DequantizeLinear(x), DequantizeLinear(y)) → DequantizeLinear(Concat(x, y))."""
    nodes = [quantizers.dequantized(m, x) for x in xs]
    first = nodes[0]
    if first is None or len(xs) < 2 or not quantizers.is_per_tensor(m, first):
        return m.no("its operands are not dequantized, or with one scale per channel", xs[0])
    dtype = m.dtype(first.inputs[0])
    if dtype not in (*BYTES, *WORDS):
        return m.no("not 8 or 16 bits", xs[0])
    data: list[ir.Value] = []
    for x, node in zip(xs, nodes, strict=True):
        if node is None or m.dtype(x) != m.dtype(xs[0]) or not quantizers.same_parameters(m, node, first):
            return m.no("the operands are dequantized with different parameters", x)
        if not m.only_use(x):
            return m.no("it has other readers", x, shared=True)
        integers = node.inputs[0]
        assert integers is not None
        if quantizers.stays_paired(m, integers):
            return m.no(_PAIRED, integers)
        data.append(integers)
    for user in ir.readers(m.root.outputs[0]):
        if is_quantizer(user, "QuantizeLinear") and quantizers.inversion_obstacle(m, first, user):
            return m.no(
                "it is quantized with other parameters, for which runtimes have a kernel", m.root.outputs[0]
            )
    if quantizers.completes_unit(m, m.root.outputs[0]):
        return m.no(_COMPLETES, m.root.outputs[0])
    return op.like(first, [op.like(m.root, data), *first.inputs[1:]])


@rule(
    lambda op, x, rest: op.one_of("Shape", "Size")(op.DequantizeLinear(x, rest.rest())),
    lambda op, x, rest: op.one_of("Shape", "Size")(op.domain(ir.MICROSOFT).DequantizeLinear(x, rest.rest())),
    numerics=Exact,
)
def shape_of_dequantized(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Shape(DequantizeLinear(x)) → Shape(x); likewise Size."""
    dtype = m.dtype(x)
    if dtype not in (*BYTES, *WORDS, ir.DataType.INT32):
        return m.no("runtimes may not support it for this type", x)
    if quantizers.stays_paired(m, x):
        return m.no(_PAIRED, x)
    return op.like(m.root, [x])


@rule(
    lambda op, x, a: op.one_of("ArgMax", "ArgMin")(op.DequantizeLinear(x, a.rest(), tag="dequantize")),
    numerics=Exact,
    exclusive=True,
    tags=("onnxruntime:DropDQ",),
)
def arg_of_quantized(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """ArgMax(DequantizeLinear(x)) → ArgMax(x); likewise ArgMin."""
    dequantize = m.node("dequantize")
    if m.dtype(x) not in BYTES:
        return m.no("not 8 bits", x)
    if not quantizers.is_per_tensor(m, dequantize) or quantizers.parameters(m, dequantize) is None:
        return m.no("the scale is not one positive number in float32", dequantize.inputs[1])
    if m.dtype(dequantize.outputs[0]) != ir.DataType.FLOAT:
        return m.no("not dequantized in float32", x)
    if quantizers.stays_paired(m, x):
        return m.no(_PAIRED, x)
    return op.like(m.root, [x])
