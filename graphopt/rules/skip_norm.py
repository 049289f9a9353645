"""A sum and the normalization of it, as one operator of onnxruntime.

It pays on CUDA; on the CPU it is slower than what it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphopt import ir
from graphopt.rewrite import Match, Outcome, Reassociates, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms
from graphopt.rules import _norms as norms


def _sums(op: Any, x: Any, y: Any, z: Any, p: Any) -> Iterator[Any]:
    """A normalization of two or three summands."""
    for sum_ in (op.Add(op.Add(x, y, tag="inner"), z), op.Add(x, y)):
        yield op.one_of(*norms.OPERATORS)(sum_, p.rest())


@rule(
    _sums,
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    last=True,
    pattern="skip + norm",
    anchors=norms.OPERATORS,
    tags=(
        "onnxscript:skip-layer-normalization",
        "onnxscript:skip-rms-normalization",
        "onnxruntime:SkipLayerNormFusion",
    ),
)
def skip_norm(
    op: Builder,
    m: Match,
    x: ir.Value,
    y: ir.Value,
    z: ir.Value | None,
    p: tuple[ir.Value | None, ...],
) -> Outcome:
    """norm(x + skip), perhaps with a bias in the sum, is a SkipLayerNormalization."""
    layer = m.root.op_type == norms.LAYER.standard
    name = "SkipLayerNormalization" if layer else "SkipSimplifiedLayerNormalization"
    if m.cx.options.portable:
        return m.no("it is no operator of the ONNX standard", hint="leave out --portable")
    sum_, scale = m.root.inputs[0], p[0]
    assert sum_ is not None and scale is not None
    shape, dtype = m.shape(sum_), m.dtype(sum_)
    if shape is None or len(shape) != 3 or dtype is None:
        return m.no("the sum is not known to have three axes", sum_)
    if forms.axis_of(m, m.root, 3, -1) != 2 or not forms.same_shape(m, m.shape(scale), shape[2:]):
        return m.no("it is not normalized over the last axis alone", scale)
    whole = [one for one in (x, y, z) if one is not None and forms.same_shape(m, m.shape(one), shape)]
    rest = [one for one in (x, y, z) if one is not None and one not in whole]
    if len(whole) == 3 and z is not None:
        whole = [m.node("inner").outputs[0], z]
    if len(whole) != 2 or len(rest) > 1:
        return m.no("the summands are not two tensors of one shape, and a bias at most", sum_)
    if rest and not forms.same_shape(m, m.shape(rest[0]), shape[2:]):
        return m.no("a summand is not one number for each element of the last axis", rest[0])
    if not m.cx.target.has_kernel(name, ir.MICROSOFT, 1, dtype):
        return m.no("the target has no kernel for it", sum_)
    decision = m.cx.weigh(name, dtype=dtype)
    if not decision:
        return m.no(decision.reason, sum_, hint="--device cuda, if it is to run there")
    parameters = list(p)
    if layer and len(parameters) == 1 and rest:
        parameters.append(None)
    epsilon = m.attribute(m.root, "epsilon")
    attributes = {} if epsilon is None else {"epsilon": epsilon}
    return op.node(name, [*whole, *parameters, *rest], attributes, domain=ir.MICROSOFT)
