"""HardSwish and Mish.

The benefit is a shorter model, not speed: when onnxruntime creates a session, also on the CPU, it
decomposes both operators and fuses the parts as before.
"""

from __future__ import annotations

import math

from graphopt import ir
from graphopt.rewrite import Builder, Match, Outcome, fusion
from graphopt.rules.building_blocks.kernel_availability import require_opset
from graphopt.rules.building_blocks.shape_equality import require_shape_of

_HARD_SWISH_SINCE, _MISH_SINCE = 14, 18


@fusion(
    lambda op, x, a, b: op.Mul(x, op.HardSigmoid(x, alpha=a, beta=b)),
    phase=2,
    pattern="HardSwish",
    tags=("onnxscript:fuse-hardswish",),
)
def hard_sigmoid_to_hard_swish(op: Builder, m: Match, x: ir.Value, a: float, b: float) -> Outcome:
    """x * HardSigmoid(x, alpha=1/6, beta=1/2) → HardSwish(x)."""
    require_opset(m, "HardSwish", x, _HARD_SWISH_SINCE)
    if not math.isclose(a, 1 / 6, rel_tol=1e-6) or b != 0.5:
        return m.no(f"its argument is {a:g} x + {b:g}, in a HardSwish it is x / 6 + 1 / 2", x)
    return op.fused(op.HardSwish(x))


@fusion(lambda op, x: op.Mul(x, op.Tanh(op.Softplus(x))), phase=2, pattern="Mish", anchors=("Softplus",))
def mish(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """x * Tanh(Softplus(x)) → Mish(x).

    Does not apply to a decomposed Softplus: onnxruntime computes Exp and Log faster than the Softplus of a
    Mish.
    """
    require_opset(m, "Mish", x, _MISH_SINCE)
    require_shape_of(m, x)
    return op.fused(op.Mish(x))
