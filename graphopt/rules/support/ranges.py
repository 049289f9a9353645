"""Whether a rule may lose numbers: NaN, infinities and products that overflow."""

from __future__ import annotations

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.ops import traits
from graphopt.rewrite import Match


def may_approximate(m: Match) -> bool:
    """Whether the user allows results that are only close, and lost numbers near the ends of the range."""
    return m.cx.options.numerics is Numerics.APPROXIMATES


def is_finite(m: Match, value: ir.Value) -> bool:
    """Whether ``value`` holds neither NaN nor an infinity: it is made of integers alone."""
    node: ir.Node | None = value.producer()
    while (
        node is not None and node.domain == "" and node.op_type in traits.VIEW and node.inputs[0] is not None
    ):
        value, node = node.inputs[0], node.inputs[0].producer()
    if node is None or node.domain or node.op_type != "Cast" or node.inputs[0] is None:
        return False
    source, target = m.dtype(node.inputs[0]), m.dtype(value)
    roomy = target in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
    return roomy and source is not None and (source.is_integer() or source == ir.DataType.BOOL)
