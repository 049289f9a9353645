"""LayerNorm and RMSNorm from the means, roots and products that exporters write.

The core comes first, with a scale of 1; a scale and a bias that follow join it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.rewrite import Match, Outcome, Reassociates, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms


def _over_root(op: Any, x: Any, square: Any, axes: Any, eps: Any) -> tuple[Any, Any]:
    """x over the root of a mean square and a little more, in both ways to divide."""
    root = op.Sqrt(op.Add(op.ReduceMean(square, axes.rest()), eps.constant()))
    return op.Div(x, root), op.Mul(x, op.Reciprocal(root))


def _squares(op: Any, x: Any) -> tuple[Any, Any]:
    return op.Pow(x, 2), op.Mul(x, x)


def _deviation(op: Any, x: Any, axes: Any) -> Any:
    """x less its mean."""
    return op.Sub(x, op.ReduceMean(x, axes.rest()))


def _layer_norm(square: int, way: int) -> Any:
    def pattern(op: Any, x: Any, a: Any, b: Any, eps: Any) -> Any:
        d = _deviation(op, x, a)
        return _over_root(op, d, _squares(op, d)[square], b, eps)[way]

    return pattern


def _rms_norm(square: int, way: int) -> Any:
    return lambda op, x, b, eps: _over_root(op, x, _squares(op, x)[square], b, eps)[way]


_FORMS = [(square, way) for square in (0, 1) for way in (0, 1)]


@rule(
    *(_layer_norm(*form) for form in _FORMS),
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="LayerNorm",
    anchors=("Sqrt",),
    tags=("onnxruntime:LayerNormFusion",),
)
def layer_norm(op: Builder, m: Match, x: ir.Value, a: object, b: object, eps: ir.Value) -> Outcome:
    """(x - mean) / sqrt(mean of squares + eps) is a LayerNormalization of scale 1."""
    return _normalization(op, m, x, eps, "LayerNormalization", since=17)


@rule(
    *(_rms_norm(*form) for form in _FORMS),
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="RMSNorm",
    anchors=("Sqrt",),
    tags=("onnxscript:rms-normalization", "onnxruntime:SimplifiedLayerNormFusion"),
)
def rms_norm(op: Builder, m: Match, x: ir.Value, b: object, eps: ir.Value) -> Outcome:
    """x / sqrt(mean of squares + eps) is an RMSNormalization of scale 1."""
    return _normalization(op, m, x, eps, "RMSNormalization", since=23)


def _normalization(op: Builder, m: Match, x: ir.Value, eps: ir.Value, op_type: str, *, since: int) -> Outcome:
    shape, dtype, little = m.shape(x), m.dtype(x), ir.scalar_of(eps)
    if m.version < since:
        return m.no(f"the opset is below {since}", x, hint=f"raise it: --target-opset {since}")
    if shape is None or dtype is None or little is None or not 0 <= little < math.inf:
        return m.no("the rank, the type or epsilon is unknown", x)
    if not forms.keeps_shape_of(m, x):
        return m.no(forms.WIDENED, x)
    axes = {_reduced(m, node, len(shape)) for node in m.nodes if node.op_type == "ReduceMean"}
    first = axes.pop() if len(axes) == 1 else None
    scale = ir.all_ints(shape[first:]) if first is not None else None
    if first is None:
        return m.no("it is not taken over the last axes", x)
    if scale is None:
        return m.no("the size of the last axes is unknown", x, hint="fix it, if it is an input's: --dim")
    if not m.cx.target.has_kernel(op_type, "", m.version, dtype):
        return m.no("the target has no kernel for it", x)
    ones = np.ones(scale, dtype.numpy())
    return op.node(op_type, [x, ones], {"axis": first - len(shape), "epsilon": float(little)})


def _reduced(m: Match, node: ir.Node, rank: int) -> int | None:
    """The first of the axes that a ReduceMean takes away, if they are the last ones and stay as 1."""
    axes = forms.axes_of(m, node)
    if not axes or m.attribute(node, "keepdims") != 1 or sorted(axes) != list(range(min(axes), rank)):
        return None
    return min(axes)


_NORMS = ("LayerNormalization", "RMSNormalization")


@rule(
    lambda op, x, one, g: op.Mul(op.one_of(*_NORMS)(x, one.constant(), tag="norm"), g),
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="norm with scale and bias",
    anchors=(),
)
def scale_into_norm(op: Builder, m: Match, x: ir.Value, one: ir.Value, g: ir.Value) -> Outcome:
    """A normalization times one number for each of its elements takes that as its scale."""
    norm, scale = m.node("norm"), m.constant(one)
    if scale is None or not np.all(scale == 1) or len(norm.inputs) > 2:
        return m.no("it is scaled already", one)
    if not forms.same_shape(m, m.shape(g), m.shape(one)):
        return m.no("the factor is not one number for each element", g)
    return op.like(norm, [x, g])


@rule(
    lambda op, x, g, b: op.Add(op.LayerNormalization(x, g, tag="norm"), b),
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="norm with scale and bias",
    anchors=(),
)
def bias_into_norm(op: Builder, m: Match, x: ir.Value, g: ir.Value, b: ir.Value) -> Outcome:
    """A LayerNormalization plus one number for each of its elements takes that as its bias."""
    if not forms.same_shape(m, m.shape(b), m.shape(g)):
        return m.no("the summand is not one number for each element", b)
    return op.like(m.node("norm"), [x, g, b])
