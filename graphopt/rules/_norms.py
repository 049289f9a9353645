"""Which operator a normalization becomes: the standard's, or onnxruntime's own where the opset lacks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt import ir
from graphopt.context import Refusal
from graphopt.rewrite import Match
from graphopt.rewrite.builder import Builder, Operand


@dataclass(frozen=True)
class Kind:
    """A normalization over the last axes.

    Attributes:
        standard: ONNX's operator, and ``since`` which opset there is one.
        own: onnxruntime's, which is in ai.onnx, too, at any opset.
    """

    standard: str
    since: int
    own: str


LAYER = Kind("LayerNormalization", 17, "LayerNormalization")
RMS = Kind("RMSNormalization", 23, "SimplifiedLayerNormalization")
#: All operators that are a normalization with a scale.
OPERATORS = tuple(dict.fromkeys(name for kind in (LAYER, RMS) for name in (kind.standard, kind.own)))


def write(
    op: Builder,
    m: Match,
    kind: Kind,
    operands: Sequence[Operand],
    dtype: ir.DataType,
    axis: int,
    epsilon: float,
) -> ir.Value | Refusal:
    """A normalization of operands of ``dtype`` that computes in float at least, as ONNX says by default."""
    name = kind.standard if m.version >= kind.since else kind.own
    if m.version < kind.since and m.cx.options.portable:
        hint = f"raise it: --target-opset {kind.since}, or leave out --portable"
        return m.no(f"the opset is below {kind.since}", hint=hint)
    if not m.cx.target.has_kernel(name, "", m.version, dtype):
        return m.no(f"the target has no kernel for {name} of {dtype.name.lower()}")
    attributes = {"axis": axis, "epsilon": epsilon}
    if dtype == ir.DataType.DOUBLE:
        attributes["stash_type"] = int(dtype)
    result = op.node(name, operands, attributes)
    assert isinstance(result, ir.Value)
    return result
