"""Softmax and LogSoftmax, decomposed or between casts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphopt import ir
from graphopt.rewrite import Builder, Match, Outcome, fusion
from graphopt.rules.building_blocks.axes import axes_of
from graphopt.rules.building_blocks.kernel_availability import require_kernel

_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
_SINCE = 13


@fusion(
    lambda op, x: op.Cast(
        op.one_of("Softmax", "LogSoftmax")(op.Cast(x, to=int(_FLOAT)), tag="softmax"), to=int(_HALF)
    ),
    phase=2,
    pattern="Softmax between casts",
    anchors=(),
    tags=("onnxscript:softmax-upcast-removal",),
)
def casts_into_softmax(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Cast(Softmax(Cast(x, to=float)), to=float16) → Softmax(x), which onnxruntime computes in float."""
    if m.dtype(x) != _HALF:
        return m.no("the input is not float16", x)
    if m.cx.options.portable:
        return m.no("other runtimes may compute in float16", x, hint="leave out --portable")
    return op.fused(op.like(m.node("softmax"), [x]))


def _shifted(op: Any, x: Any, a: Any) -> Any:
    return op.Sub(x, op.ReduceMax(x, a.rest()))


def _quotients(op: Any, x: Any, a: Any, b: Any) -> Iterator[Any]:
    powers = op.Exp(_shifted(op, x, a))
    yield op.Div(powers, op.ReduceSum(powers, b.rest()))
    yield op.Mul(powers, op.Reciprocal(op.ReduceSum(powers, b.rest())))


def _differences(op: Any, x: Any, a: Any, b: Any) -> Iterator[Any]:
    shifted = _shifted(op, x, a)
    yield op.Sub(shifted, op.Log(op.ReduceSum(op.Exp(shifted), b.rest())))
    yield op.Sub(shifted, op.ReduceLogSumExp(shifted, b.rest()))


def _written(op: Builder, m: Match, x: ir.Value, op_type: str) -> Outcome:
    require_kernel(m, op_type, x, domain="", since=_SINCE)
    axes = {
        axes_of(m, node) if m.attribute(node, "keepdims") == 1 else None
        for node in m.nodes
        if node.op_type.startswith("Reduce")
    }
    (found,) = axes if len(axes) == 1 else (None,)
    if found is None or len(found) != 1:
        return m.no("maximum and sum are not taken over one axis with keepdims", x)
    return op.fused(op.node(op_type, [x], {"axis": found[0]}))


@fusion(_quotients, pattern="Softmax", anchors=("ReduceMax",))
def softmax(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Exp(x - max) / ReduceSum(Exp(x - max)) → Softmax(x)."""
    return _written(op, m, x, "Softmax")


@fusion(_differences, pattern="LogSoftmax", anchors=("ReduceMax", "ReduceLogSumExp"))
def log_softmax(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """(x - max) - Log(ReduceSum(Exp(x - max))) → LogSoftmax(x)."""
    if m.dtype(x) in (None, ir.DataType.DOUBLE):
        return m.no("onnxruntime's LogSoftmax of doubles drops a NaN", x)
    return _written(op, m, x, "LogSoftmax")
