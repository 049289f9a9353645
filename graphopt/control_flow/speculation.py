"""Nodes that can't fail and therefore may be executed speculatively."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context, Dim
from graphopt.ops import traits

#: Operators that can't fail if their operands broadcast; Div is excluded for integers.
_BROADCASTING = frozenset(
    [
        *("Add", "And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mul"),
        *("Or", "Sub", "Where", "Xor"),
    ]
)
#: Operators that can't fail on small integer tensors with known results.
_SHAPE_ARITHMETIC = frozenset({"Concat", "Gather", "Slice", "Squeeze", "Unsqueeze"})


def cannot_fail(node: ir.Node, cx: Context) -> bool:
    """Whether ``node`` provably succeeds for all contents of its inputs, and is not random."""
    attributes = node.attributes.values()
    if node.domain != "" or any(attribute.is_ref() for attribute in attributes) or None in node.inputs:
        return False
    operands = [value for value in node.inputs if value is not None]
    shapes = [cx.shape(value) for value in operands]
    known = [shape for shape in shapes if shape is not None]
    op_type = node.op_type
    if traits.reads_only_shape(node):
        return True
    if op_type in _SHAPE_ARITHMETIC:
        return cx.known_ints(node.outputs[0]) is not None
    if len(known) != len(shapes):
        return False
    if op_type == "Transpose":
        return True
    if op_type == "Cast":
        return ir.DataType.STRING not in (cx.dtype(operands[0]), cx.dtype(node.outputs[0]), None)
    if op_type in traits.UNARY_ELEMENTWISE:
        return len(operands) == 1
    if op_type in _BROADCASTING or (op_type == "Div" and _is_float(operands[0], cx)):
        return _broadcast(known, cx)
    if op_type == "MatMul":
        one, other = known
        inner = len(one) > 1 and len(other) > 1 and cx.facts.dim_equal(one[-1], other[-2])
        return inner and _broadcast([one[:-2], other[:-2]], cx)
    return op_type == "Gemm" and _gemm_fits(node, known, cx)


def _is_float(value: ir.Value, cx: Context) -> bool:
    dtype = cx.dtype(value)
    return dtype is not None and dtype.is_floating_point()


def _broadcast(shapes: list[tuple[Dim, ...]], cx: Context) -> bool:
    """Whether tensors of these shapes provably broadcast."""
    for place in range(1, max(map(len, shapes), default=0) + 1):
        dims = [shape[-place] for shape in shapes if len(shape) >= place and shape[-place] != 1]
        if any(not cx.facts.dim_equal(dims[0], dim) for dim in dims[1:]):
            return False
    return True


def _gemm_fits(node: ir.Node, shapes: list[tuple[Dim, ...]], cx: Context) -> bool:
    a, b, *c = shapes
    if len(a) != 2 or len(b) != 2 or any(len(bias) > 2 for bias in c):
        return False
    flipped = [
        name in node.attributes and node.attributes[name].as_int() != 0 for name in ("transA", "transB")
    ]
    a, b = (shape[::-1] if flip else shape for shape, flip in zip((a, b), flipped, strict=True))
    sizes = (a[0], b[1])
    fits = all(
        bias[-place] == 1 or cx.facts.dim_equal(bias[-place], sizes[-place])
        for bias in c
        for place in range(1, len(bias) + 1)
    )
    return fits and cx.facts.dim_equal(a[1], b[0])
