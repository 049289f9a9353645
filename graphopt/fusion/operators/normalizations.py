"""Normalizations by given statistics, which are elementwise."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loop_nest import ONLY
from graphopt.fusion.loops.builder import Expr, IRBuilder
from graphopt.fusion.operator_table import EmitContext, Operands, operator


def _of_channels(ctx: EmitContext) -> Operands:
    """The input at the position of the result, and for its channel (axis 1) one element of each vector."""
    indices = ctx.nest.resolved(ctx.indices)
    found: Operands = [(ctx.required_input(0), indices)]
    for number in range(1, len(ctx.node.inputs)):
        vector = ctx.required_input(number)
        found.append((vector, (ONLY if ctx.nest.dims(vector) == (1,) else indices[1],)))
    return found


def _refuses(node: ir.Node, cx: Context) -> str | None:
    """The reason for a node that has further results, other types or shapes than its schema requires."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    if attributes.get("training_mode", 0) or any(output.name for output in node.outputs[1:]):
        return "it computes statistics"
    if attributes.get("spatial", 1) != 1:
        return "it has statistics for each position"
    value, *vectors = node.inputs
    shape = None if value is None else cx.shape(value)
    if shape is None or len(shape) < 2 or len(vectors) != 4:
        return "its input has no channels"
    for vector in vectors:
        dims = None if vector is None else cx.shape(vector)
        if vector is None or dims is None or len(dims) != 1 or not cx.facts.dim_equal(dims[0], shape[1]):
            return "its statistics have other shapes than its channels"
        if cx.dtype(vector) is not ir.DataType.FLOAT:
            return "no kernels for the type of its statistics"
    return None


@operator("BatchNormalization", indexing_maps=_of_channels, types=frozenset({"FLOAT"}), refuses=_refuses)
def batch_normalization(
    b: IRBuilder, ctx: EmitContext, x: Expr, scale: Expr, bias: Expr, mean: Expr, variance: Expr
) -> Expr:
    """(x − mean) / √(variance + ε) · scale + bias, with given means and variances of channels."""
    factor = scale / b.op("sqrt", variance + ctx.attribute("epsilon", 1e-5))
    return x * factor + (bias - mean * factor)
