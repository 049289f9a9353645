"""Operators of ONNX for normalizations, and the decomposed form that onnxruntime fuses at older opsets.

onnxruntime also runs some of these operators at older opsets, but the standard does not define them there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.context import Dim
from graphopt.rewrite import Builder, Match
from graphopt.rules.building_blocks.axes import axes_of, reduce
from graphopt.rules.building_blocks.kernel_availability import require_kernel
from graphopt.rules.building_blocks.normalization_patterns import MEANS
from graphopt.rules.building_blocks.shape_equality import require_shape_of
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Kind:
    """A normalization over the last axes: the operator, and the opset version that introduced it."""

    name: str
    since: int


LAYER, RMS = Kind("LayerNormalization", 17), Kind("RMSNormalization", 23)
#: RMSNormalization under onnxruntime's own name, which the standard does not define.
RUNTIME_RMS = Kind("SimplifiedLayerNormalization", 1)
#: All normalization operators with a scale.
OPERATORS = (LAYER.name, RMS.name, RUNTIME_RMS.name)
#: The rule named in reports on a sum and a normalization that are not fused.
SKIP_RULE = "skip-norm"


def write_unscaled(
    op: Builder,
    m: Match,
    kind: Kind,
    x: ir.Value,
    dims: Sequence[Dim],
    first: int,
    dtype: ir.DataType,
    epsilon: float,
) -> ir.Value:
    """Build a normalization of ``x``, of shape ``dims``, with scale 1 over the axes from ``first`` on.

    Before opset 23, the operator for RMS is onnxruntime's own, unless ``--portable`` is set.
    """
    size = ir.all_ints(dims[first:])
    if size is None:
        m.refuse(
            "the size of the last axes is unknown", x, hint="fix it with --dim, if it is that of an input"
        )
    if kind is RMS and m.version < RMS.since and not m.cx.options.portable:
        graph = m.root.graph
        if graph is not None and m.cx.edit.scopes.function(graph) is not None:
            # onnxruntime 1.31 looks for the schema of this operator in the standard, and crashes
            m.refuse(f"onnxruntime loads no {RUNTIME_RMS.name} inside functions", x)
        kind = RUNTIME_RMS
    require_kernel(m, kind.name, x, domain="", since=kind.since)
    attributes = {"axis": first - len(dims), "epsilon": epsilon}
    if dtype == ir.DataType.DOUBLE and kind is not RUNTIME_RMS:
        attributes["stash_type"] = int(dtype)
    return op.fused(op.node(kind.name, [x, np.ones(size, dtype.numpy())], attributes))


def facts_of(m: Match, x: ir.Value, eps: ir.Value | None) -> tuple[Sequence[Dim], ir.DataType, float]:
    """Shape and type of ``x``, which is normalized, and the number ``eps`` (0 if it is missing)."""
    shape, dtype, epsilon = m.shape(x), m.dtype(x), 0.0 if eps is None else ir.scalar_of(eps)
    if shape is None or dtype is None or epsilon is None or not 0 <= epsilon < math.inf:
        m.refuse("the rank, the type or epsilon is unknown", x)
    require_shape_of(m, x)
    return shape, dtype, float(epsilon)


def first_axis(m: Match, rank: int) -> int | None:
    """The first reduced axis of all means of a match, if they reduce the last axes with keepdims."""
    found = {_reduced(m, node, rank) for node in m.nodes if node.op_type in MEANS}
    return found.pop() if len(found) == 1 else None


def _reduced(m: Match, node: ir.Node, rank: int) -> int | None:
    if node.op_type == "GlobalAveragePool":
        return 2 if rank > 2 else None
    axes = axes_of(m, node)
    if not axes or m.attribute(node, "keepdims") != 1 or sorted(axes) != list(range(min(axes), rank)):
        return None
    return min(axes)


def canonical_form(op: Builder, m: Match, x: ir.Value, first: int, rank: int, epsilon: float) -> ir.Value:
    """(x - mean) / Sqrt(variance + epsilon) over the axes from ``first`` on, in float32.

    onnxruntime fuses this form with subsequent scale and bias at any opset.
    """
    axes, numbers = range(first, rank), np.float32
    deviation = op.Sub(x, reduce(op, m, "ReduceMean", x, axes, keepdims=True))
    square = op.Pow(deviation, np.array(2, numbers))
    variance = reduce(op, m, "ReduceMean", square, axes, keepdims=True)
    return op.Div(deviation, op.Sqrt(op.Add(variance, np.array(epsilon, numbers))))


def is_canonical(m: Match) -> bool:
    """Whether a LayerNorm with scale and bias already has the form of :func:`canonical_form`."""
    found = Counter(node.op_type for node in m.nodes)
    return found == Counter(("Sub", "ReduceMean", "Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "Add"))


#: Maximum number of elements of a scale of ones.
_MANY = 4096


def is_spatial(m: Match, x: ir.Value, first: int, scale: ir.Value | None = None) -> bool:
    """Whether the axes of ``x`` from ``first`` on are spatial axes of channels (axis 1), not features.

    Each feature has its own scale; spatial elements have one scale per channel.

    Args:
        scale: a factor included in the match.
    """
    shape = m.shape(x)
    if shape is None or first != 2 or not isinstance(shape[1], int):
        return False
    size = ir.all_ints(shape[2:])
    if len(shape) == 3 and size is not None and math.prod(size) <= _MANY:
        return False
    result = m.root.outputs[0]
    scales = [] if scale is None else [scale]
    for node in ir.readers(result):
        factors = [value for value in node.inputs if value is not None and value is not result]
        scales += factors if node.op_type == "Mul" and not node.domain and len(factors) == 1 else []
    return not any(
        dims and shape[-1] != 1 and m.cx.facts.dim_equal(dims[-1], shape[-1]) for dims in map(m.shape, scales)
    )
