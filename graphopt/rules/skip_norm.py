"""A sum and its normalization, as one operator of onnxruntime.

The operator is faster than the two nodes on CUDA, and slower on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from graphopt import ir
from graphopt.context import Dim
from graphopt.rewrite import Builder, Match, Outcome, fusion
from graphopt.rules.building_blocks import normalization_operators
from graphopt.rules.building_blocks.axes import axis_of
from graphopt.rules.building_blocks.kernel_availability import require_kernel
from graphopt.rules.building_blocks.operands import operand, producer_of
from graphopt.rules.building_blocks.shape_equality import same_shape
from graphopt.util.lazy_dataclass import dataclass

_LAYER, _RMS = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
#: Outputs of both operators: the result, two statistics that no kernel returns, and the sum.
_OUTPUTS, _SUM = 4, 3


@dataclass(frozen=True)
class Skip:
    """The operator that replaces a sum and its normalization."""

    name: str
    inputs: tuple[ir.Value | None, ...]
    attributes: dict[str, Any]

    def written(self, op: Builder, outputs: int = 1) -> Any:
        """Build the node; returns its output, or a tuple of several."""
        return op.fused(
            op.node(self.name, self.inputs, self.attributes, domain=ir.MICROSOFT, outputs=outputs)
        )


def _skip(m: Match, norm: ir.Node, sum_of: ir.Node) -> Skip:
    """The replacement of ``norm`` and its operand, the result of the Add ``sum_of``."""
    layer = norm.op_type == normalization_operators.LAYER.name
    name = _LAYER if layer else _RMS
    sum_, scale = norm.inputs[:2]
    assert sum_ is not None and scale is not None
    require_kernel(m, name, sum_)
    shape, dtype, epsilon = m.shape(sum_), m.dtype(sum_), m.attribute(norm, "epsilon")
    rows = math.prod(shape[:-1]) if shape else None
    decision = m.cx.weigh(name, by=normalization_operators.SKIP_RULE, at=[sum_], dtype=dtype, rows=rows)
    if not decision:
        m.refuse(decision.reason, sum_, hint="--device cuda, if the model runs there")
    if shape is None or len(shape) != 3:
        m.refuse("the sum is not known to have three axes", sum_)
    if axis_of(m, norm, 3, -1) != 2 or not same_shape(m, m.shape(scale), shape[2:]):
        m.refuse("it is not normalized over the last axis alone", scale)
    summands = _summands(m, sum_of, shape)
    if summands is None:
        m.refuse("the summands are not two tensors of one shape and at most one bias", sum_)
    whole, rest = summands
    parameters = list(norm.inputs[1:])
    if layer and len(parameters) == 1 and rest:
        parameters.append(None)
    return Skip(name, (*whole, *parameters, *rest), {"epsilon": epsilon})


def _summands(
    m: Match, sum_of: ir.Node, shape: tuple[Dim, ...]
) -> tuple[list[ir.Value], list[ir.Value]] | None:
    """Two summands of ``shape``, and perhaps a third with one number per element of the last axis."""
    summands = [value for value in sum_of.inputs if value is not None]
    for index, value in enumerate(summands):
        node = producer_of(value, "Add", graph=m.graph)
        if node is None or not m.only_use(value):
            continue
        found = _parted(m, [*node.inputs, *summands[:index], *summands[index + 1 :]], shape)
        if found is not None:
            return found
    return _parted(m, summands, shape)


def _parted(
    m: Match, summands: Sequence[ir.Value | None], shape: tuple[Dim, ...]
) -> tuple[list[ir.Value], list[ir.Value]] | None:
    given = [value for value in summands if value is not None]
    whole = [value for value in given if same_shape(m, m.shape(value), shape)]
    rest = [value for value in given if same_shape(m, m.shape(value), shape[2:])]
    return (whole, rest) if len(whole) == 2 and len(whole) + len(rest) == len(given) else None


@fusion(
    lambda op, x, y, p: op.one_of(*normalization_operators.OPERATORS)(
        op.one_of("Add", "Sum")(x, y, tag="sum"), p.rest()
    ),
    phase=2,
    pattern="skip + norm",
    anchors=normalization_operators.OPERATORS,
    tags=(
        "onnxscript:skip-layer-normalization",
        "onnxscript:skip-rms-normalization",
        "onnxruntime:SkipLayerNormFusion",
    ),
)
def skip_norm(op: Builder, m: Match) -> Outcome:
    """norm(x + y) → SkipLayerNormalization(x, y), also with a bias in the sum."""
    return _skip(m, m.root, m.node("sum")).written(op)


# Sums that others read ------------------------------------------------------------------------


@fusion(lambda op, x, y: op.Add(x, y), phase=2, pattern="skip + norm", exclusive=False, anchors=())
def sum_of_skip_norm(op: Builder, m: Match) -> Outcome:
    """x + y → SkipLayerNormalization(x, y)[3], if one normalization and other nodes read the sum.

    The normalization remains until ``norm-of-skip-norm`` replaces it.
    """
    sum_ = m.root.outputs[0]
    found = [node for node in dict.fromkeys(ir.readers(sum_)) if _normalizes(m, node, sum_)]
    if len(found) != 1 or m.only_use(sum_):
        return m.no("the sum is not read by one normalization and other nodes", sum_)
    if any(ir.constant_of(value) is None for value in found[0].inputs[1:] if value is not None):
        return m.no("the scale or bias is not constant", sum_)
    return _skip(m, found[0], m.root).written(op, _OUTPUTS)[_SUM]


def _normalizes(m: Match, node: ir.Node, value: ir.Value) -> bool:
    """Whether ``node`` is a normalization of ``value`` with one output."""
    known = (
        node.domain == "" and node.op_type in normalization_operators.OPERATORS and node.inputs[0] is value
    )
    return known and node.graph is m.graph and not any(map(ir.is_read, node.outputs[1:]))


def _normalized_skips(op: Any, x: Any, p: Any, g: Any, b: Any) -> Iterator[Any]:
    for name in (_LAYER, _RMS):
        skip = getattr(op.domain(ir.MICROSOFT), name)(x, p.rest(), outputs=_OUTPUTS, tag="skip")
        yield op.one_of(*normalization_operators.OPERATORS)(skip[_SUM], g, b.optional())


@fusion(_normalized_skips, phase=2, pattern="skip + norm", exclusive=False, anchors=())
def norm_of_skip_norm(op: Builder, m: Match, g: ir.Value, b: ir.Value | None) -> Outcome:
    """norm(SkipLayerNormalization(x, y)[3]) → SkipLayerNormalization(x, y)[0]."""
    skip, norm, place = m.node("skip"), m.root, 2
    layer = norm.op_type == normalization_operators.LAYER.name
    if (skip.op_type == _LAYER) != layer or operand(skip, place) is not g:
        return m.no("the normalizations differ", g)
    if layer and operand(skip, place + 1) is not b:
        return m.no("the biases differ", b)
    epsilon = m.attribute(norm, "epsilon")
    if epsilon != m.attribute(skip, "epsilon") or axis_of(m, norm, 3, -1) != 2:
        return m.no("epsilon or the axis differs", norm.inputs[0])
    return skip.outputs[0]
