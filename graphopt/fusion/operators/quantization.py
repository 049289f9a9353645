"""QuantizeLinear and DequantizeLinear with one scale, or one per index of an axis.

The results have the bits of onnxruntime's kernels without optimizations, at each step of a chain.
"""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loop_nest import ONLY, AffineMap
from graphopt.fusion.loops.builder import Expr, IRBuilder
from graphopt.fusion.loops.ir import CantFuse, Element
from graphopt.fusion.operator_table import EmitContext, Operands, operator

#: Lowest and highest integer of each quantized type.
_RANGES = {Element.U8: (0, 255), Element.I8: (-128, 127)}
_BYTES = frozenset({"UINT8", "INT8"})


def _unsupported_parameters(node: ir.Node, cx: Context) -> str | None:
    """The reason if kernels do not support the types or the granularity of the node."""
    quantizes = node.op_type == "QuantizeLinear"
    floats, integers = (node.inputs[0], node.outputs[0])[:: 1 if quantizes else -1]
    scale = node.inputs[1] if len(node.inputs) > 1 else None
    if any(value is None or cx.dtype(value) is not ir.DataType.FLOAT for value in (floats, scale)):
        return "no kernels for scales of other types than float"
    dtype = None if integers is None else cx.dtype(integers)
    if dtype is None or dtype.name not in (_BYTES if quantizes else _BYTES | {"INT32"}):
        return "no kernels for its quantized type"
    if any(name in node.attributes and node.attributes[name].value for name in ("block_size", "precision")):
        return "no kernels for quantization in blocks, or of another precision"
    return None


def _with_parameters(ctx: EmitContext) -> Operands:
    """The data at the index of the result, the scale and the zero point at its index along ``axis``."""
    return [
        (value, _parameter_index(ctx, value) if number else ctx.indices) if value is not None else None
        for number, value in enumerate(ctx.node.inputs)
    ]


def _parameter_index(ctx: EmitContext, parameter: ir.Value) -> AffineMap:
    dims, shape = ctx.nest.dims(parameter), ctx.shape
    if all(dim == 1 for dim in dims):
        return tuple(ONLY for _ in dims)
    axis = ctx.axis(ctx.attribute("axis", 1), len(shape))
    if len(dims) != 1 or not 0 <= axis < len(shape) or not ctx.nest.facts.dim_equal(dims[0], shape[axis]):
        raise CantFuse("the number of its scales is unknown before the model runs")
    return (ctx.indices[axis],)


@operator(
    "QuantizeLinear",
    "com.microsoft::QuantizeLinear",
    indexing_maps=_with_parameters,
    refuses=_unsupported_parameters,
)
def quantize_linear(b: IRBuilder, ctx: EmitContext, x: Expr, scale: Expr, zero: Expr | None = None) -> Expr:
    """saturate(round(x / scale) + zero), with ties to even; the lowest integer for NaN."""
    element = ctx.element()
    offset = _integer(b, zero)
    low, high = (_as_float(b, bound - offset) for bound in _RANGES[element])
    quotient = x / scale
    bounded = b.op("min", b.select(quotient >= low, quotient, low), high)  # NaN is not ≥ low
    return b.cast(b.cast(b.op("round_even", bounded), Element.I32) + offset, element)


@operator(
    "DequantizeLinear",
    "com.microsoft::DequantizeLinear",
    types=_BYTES | {"INT32"},
    indexing_maps=_with_parameters,
    refuses=_unsupported_parameters,
)
def dequantize_linear(b: IRBuilder, ctx: EmitContext, x: Expr, scale: Expr, zero: Expr | None = None) -> Expr:
    """(x − zero) · scale."""
    offset = _integer(b, zero)
    rounded = _rounded(b, x, offset)
    return (b.cast(b.cast(x, Element.I32) - offset, Element.F32) if rounded is None else rounded) * scale


def _rounded(b: IRBuilder, x: Expr, offset: Expr | int) -> Expr | None:
    """x − ``offset`` as a float, without conversions to integers, if ``x`` was quantized with this offset."""
    found = b.steps[x.index]
    pattern = ("cast", "add", "cast", "round_even", "min")  # of quantize_linear
    path = []
    for op in pattern:
        if found.op != op:
            return None
        path.append(found)
        found = b.steps[found.args[0]]
    _, total, whole, _, bounded = path
    numbers = [
        b.steps[index] for index in (total.args[1], found.args[-1], bounded.args[1]) if found.op == "select"
    ]
    if not isinstance(offset, int) or any(step.op != "constant" for step in numbers):
        return None
    lowest, highest = _RANGES.get(x.element, (0, -1))
    if [step.value for step in numbers] != [offset, lowest - offset, highest - offset]:
        return None
    return Expr(b, whole.args[0], Element.F32) + 0.0  # -0.0 becomes 0


def _integer(b: IRBuilder, zero: Expr | None) -> Expr | int:
    """A zero point as a number if it is known before the model runs, otherwise as an i32."""
    if zero is None:
        return 0
    step = b.steps[zero.index]
    return int(step.value or 0) if step.op == "constant" else b.cast(zero, Element.I32)


def _as_float(b: IRBuilder, value: Expr | int) -> Expr | float:
    return float(value) if isinstance(value, int) else b.cast(value, Element.F32)
