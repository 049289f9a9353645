"""Activations and other functions of one operand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.ops import traits
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks import numeric_safety
from graphopt.rules.building_blocks.broadcasting import keeps_shape
from graphopt.rules.building_blocks.operands import computed_by, producer_of

_FLOAT, _DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def _twice(op_type: str) -> Callable[..., Any]:
    return lambda op, x: getattr(op, op_type)(getattr(op, op_type)(x, tag="inner"))


@rule(
    *map(_twice, sorted(traits.IDEMPOTENT)),
    numerics=Exact,
    tags=("onnxoptimizer:eliminate_consecutive_idempotent_ops", "onnxscript:successive-relu"),
)
def drop_repeated(op: Builder, m: Match) -> Outcome:
    """f(f(x)) → f(x), for Abs, Ceil, Floor, Relu, Round and Sign."""
    return m.node("inner").outputs[0]


@rule(
    lambda op, x, p, q: op.LogSoftmax(op.LogSoftmax(x, axis=p, tag="inner"), axis=q),
    numerics=Reassociates,
    tags=("onnxoptimizer:eliminate_consecutive_idempotent_ops",),
)
def drop_repeated_log_softmax(op: Builder, m: Match, x: ir.Value, p: int, q: int) -> Outcome:
    """LogSoftmax(LogSoftmax(x)) → LogSoftmax(x)."""
    rank = m.rank(x)
    if p != q and (rank is None or p % rank != q % rank):
        return m.no("not the same axis", x)
    return m.node("inner").outputs[0]


@rule(
    lambda op, x, p: op.Log(op.Softmax(x, axis=p)),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxoptimizer:fuse_consecutive_log_softmax",),
)
def log_of_softmax(op: Builder, m: Match, x: ir.Value, p: int) -> Outcome:
    """Log(Softmax(x)) → LogSoftmax(x), which stays finite where the softmax underflows."""
    if m.dtype(x) in (None, _DOUBLE):
        return m.no("onnxruntime's LogSoftmax of doubles drops a NaN", x)
    return op.LogSoftmax(x, axis=p)


@rule(
    lambda op, x, p, q: op.ArgMax(op.one_of("Softmax", "LogSoftmax")(x, axis=p), axis=q),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxoptimizer:eliminate_nop_monotone_argmax",),
)
def argmax_of_softmax(op: Builder, m: Match, x: ir.Value, p: int, q: int) -> Outcome:
    """ArgMax(Softmax(x)) → ArgMax(x), if x is finite: computed from integers, or with --fast-math."""
    rank = m.rank(x)
    if p != q and (rank is None or p % rank != q % rank):
        return m.no("the softmax is taken along another axis", x)
    if m.version < 13 and (rank is None or p % rank != rank - 1):
        return m.no("the softmax is taken of all further axes at once", x)
    if _squashes(m, x, q):
        return m.no("the elements may be close together, and more of them equal after the softmax", x)
    if not (numeric_safety.is_finite(m, x) or numeric_safety.may_approximate(m)):
        return m.no("NaN or an infinity makes all of the softmax NaN", x, hint="--fast-math")
    return op.like(m.root, [x])


def _squashes(m: Match, x: ir.Value, axis: int) -> bool:
    """Whether an operator before ``x`` may bring its largest elements along ``axis`` much closer together.

    A Softmax along the same axis does not: its largest elements are either far apart, or as close as in its
    operand.
    """
    softmax, node = producer_of(x, "Softmax"), computed_by(x)
    if softmax is not None and m.attribute(softmax, "axis") == axis:
        return False
    return node is not None and node.domain == "" and node.op_type in traits.BOUNDED | {"Softplus"}


@rule(
    lambda op, x: op.ArgMax(op.Exp(x)),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxoptimizer:eliminate_nop_monotone_argmax",),
)
def argmax_of_exp(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """ArgMax(Exp(x)) → ArgMax(x), even where Exp overflows."""
    return op.like(m.root, [x])


# Piecewise linear activations ----------------------------------------------------------------


@rule(
    lambda op, x, c, h, k: op.one_of("Div", "Mul")(
        op.Clip(op.Add(x, c.constant()), 0, h.constant()), k.constant()
    ),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxscript:fuse-hardsigmoid",),
)
def hard_sigmoid(op: Builder, m: Match, x: ir.Value, c: ir.Value, h: ir.Value, k: ir.Value) -> Outcome:
    """Clip(x + c, 0, h) / h → HardSigmoid(x, alpha=1/h, beta=c/h)."""
    slope = _slope(m, x, c, h, k)
    if slope is None:
        return m.no("not numbers, or of another ratio", x)
    return op.HardSigmoid(x, alpha=slope, beta=float(np.float32(ir.scalar_of(c))) * slope)


@rule(
    lambda op, x, c, h, k: op.one_of("Div", "Mul")(
        op.Mul(op.Clip(op.Add(x, c.constant()), 0, h.constant()), x), k.constant()
    ),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxscript:fuse-hardswish",),
)
def hard_swish(op: Builder, m: Match, x: ir.Value, c: ir.Value, h: ir.Value, k: ir.Value) -> Outcome:
    """x * Clip(x + c, 0, h) / h → x * HardSigmoid(x, alpha=1/h, beta=c/h)."""
    slope = _slope(m, x, c, h, k)
    if slope is None:
        return m.no("not numbers, or of another ratio", x)
    return op.Mul(x, op.HardSigmoid(x, alpha=slope, beta=float(np.float32(ir.scalar_of(c))) * slope))


def _slope(m: Match, x: ir.Value, c: ir.Value, h: ir.Value, k: ir.Value) -> float | None:
    """1 / h, if the last factor (or divisor) ``k`` scales the maximum of the result to 1."""
    shift, high, last = ir.scalar_of(c), ir.scalar_of(h), ir.scalar_of(k)
    if m.dtype(x) != _FLOAT or shift is None or high is None or last is None or not keeps_shape(m, x, c, k):
        return None
    factor = 1 / last if m.root.op_type == "Div" and last else last
    if not (math.isfinite(shift) and high > 0 and math.isclose(factor * high, 1, rel_tol=1e-6)):
        return None
    return factor
