"""Operators that compute transposed results from equally transposed operands: a table by operator.

An operation along axis ``a`` of ``x`` is one along ``perm.index(a)`` of ``Transpose(x, perm)``. The table
adds operators to :mod:`graphopt.rules.building_blocks.transpose_propagation`, whose movers it also uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.ops import traits
from graphopt.rewrite import Builder, Match
from graphopt.rules.building_blocks import numeric_safety, ort_fusions, quantizers
from graphopt.rules.building_blocks.axes import axis_of, normalized, unsqueeze
from graphopt.rules.building_blocks.operands import operand
from graphopt.rules.building_blocks.shape_equality import has_one_element
from graphopt.rules.building_blocks.transpose_propagation import Mover, is_cheap, mover_of
from graphopt.transforms.layout._operator import Inputs, Operator, SameRank
from graphopt.transforms.layout._permutations import Perm, Placement, identity
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Moved(SameRank):
    """An operator of the table of movers."""

    mover: Mover

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return not self.mover.reduces

    def reads(self, m: Match, node: ir.Node) -> Sequence[int]:
        data = self.mover.data(m, node)
        return [index for index, value in enumerate(node.inputs) if any(value is one for one in data)]

    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        rank = m.rank(node.outputs[0])
        if rank != len(perm) or any(m.rank(value) != rank for value in self.mover.data(m, node)):
            return False
        if numeric_safety.rounds_long(m, node) or ort_fusions.moves_axis_of_norm(m, node, perm):
            return False
        return self.mover.lets_pass(m, node, perm)

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        return self.mover.rebuild(op, m, node, inputs, at.read)

    def penalty(self, m: Match, node: ir.Node, at: Placement) -> int:
        if node.op_type == "Concat":
            return _copies_short_runs(m, [value for value in node.inputs if value is not None], node, at)
        if node.op_type not in ("Softmax", "LogSoftmax"):
            return 0
        axis = axis_of(m, node, len(at.read), default=-1)
        return (
            0 if axis is None or at.read[-1] == axis else 2
        )  # onnxruntime transposes to the last axis and back


#: The number of passes over the data that copies of short runs of elements cost.
_SHORT_RUNS = 4
_SHORT = 64


def _copies_short_runs(m: Match, parts: Sequence[ir.Value], joined: ir.Node, at: Placement) -> int:
    """The penalty if only in layout ``at`` does ``joined``, a Concat or Split, copy runs of a few bytes."""
    axis = axis_of(m, joined, len(at.read))
    if axis is None:
        return 0
    own, runs = _shortest_run(m, parts, axis, identity(len(at.read))), _shortest_run(m, parts, axis, at.read)
    return _SHORT_RUNS if 0 < runs < _SHORT <= own else 0


def _shortest_run(m: Match, parts: Sequence[ir.Value], axis: int, perm: Perm) -> int:
    """The fewest adjacent bytes of one of ``parts``, joined along ``axis``; 0 if unknown."""
    runs = []
    for part in parts:
        shape, dtype = m.shape(part), m.dtype(part)
        if shape is None or dtype is None:
            return 0
        run = symbolic.product([shape[place] for place in perm[perm.index(axis) :]])
        runs.append(int((symbolic.typical_size(run) or 0) * dtype.itemsize))
    return min(runs, default=0)


class Elementwise(SameRank):
    """Element-wise operators; operands of lower rank get axes of size 1."""

    def reads(self, m: Match, node: ir.Node) -> Sequence[int]:
        rank = m.rank(node.outputs[0])
        return [
            index
            for index, value in enumerate(node.inputs)
            if value is not None and m.rank(value) == rank and not _is_free(m, value)
        ]

    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        if m.version < 7 and len(node.inputs) > 1:
            return False  # operands broadcast along an attribute
        if m.rank(node.outputs[0]) != len(perm) or not self.reads(m, node):
            return False
        return all(value is None or _can_follow(m, value, perm) for value in node.inputs)

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        moved, reads = list(inputs), self.reads(m, node)
        for index, (old, new) in enumerate(zip(node.inputs, inputs, strict=True)):
            if index not in reads and old is not None and new is not None:
                moved[index] = _follow(op, m, old, new, at.read)
        return op.like(node, moved)


class Extremum(Elementwise):
    """Max and Min: which of 0.0 and -0.0 onnxruntime returns depends on the place in memory."""

    exact = False


def _is_free(m: Match, value: ir.Value) -> bool:
    """Whether ``value`` needs no Transpose at run time: it has one element, or is a constant."""
    return has_one_element(m, value) or is_cheap(m, value)


def _can_follow(m: Match, value: ir.Value, perm: Perm) -> bool:
    rank = m.rank(value)
    if rank is None or rank > len(perm):
        return False
    if rank == len(perm) or _is_free(m, value):
        return True
    return _new_axes(m, value, perm) is not None


def _new_axes(m: Match, value: ir.Value, perm: Perm) -> list[int] | None:
    """The axes to add to ``value``, of lower rank, for broadcasting with results transposed by ``perm``."""
    missing = len(perm) - (m.rank(value) or 0)
    kept = [axis for axis in perm if axis >= missing]
    return [place for place, axis in enumerate(perm) if axis < missing] if kept == sorted(kept) else None


def _follow(op: Builder, m: Match, old: ir.Value, new: ir.Value, perm: Perm) -> ir.Value:
    """The operand ``new``, equal to ``old``, for results transposed by ``perm``."""
    if has_one_element(m, old):
        return new
    dequantize = quantizers.dequantized_constant(m, old)
    if dequantize is not None and is_cheap(m, old):
        return quantizers.transposed_constant(op, m, dequantize, perm)
    if is_cheap(m, old):
        array = m.traced(old)
        assert array is not None
        full = array.reshape(*(1,) * (len(perm) - array.ndim), *array.shape)
        return op.constant(full.transpose(perm), old.name)
    axes = _new_axes(m, old, perm)
    assert axes is not None
    return unsqueeze(op, m, new, axes)


@dataclass(frozen=True)
class AlongAxis(SameRank):
    """Operators along the attribute ``axis``.

    Attributes:
        default: the default of the attribute.
        data: the number of inputs that have the shape of the result.
        since: the opset version from which the operator works along one axis.
        penalized: whether onnxruntime transposes the data unless the axis is the last.
    """

    default: int = 0
    data: int = 1
    since: int = 1
    penalized: bool = False

    def reads(self, m: Match, node: ir.Node) -> Sequence[int]:
        return range(min(self.data, len(node.inputs)))

    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        ranks = [m.rank(node.inputs[index]) for index in self.reads(m, node)]
        ranks += [m.rank(output) for output in node.outputs if output.name]
        same = all(rank == len(perm) for rank in ranks)
        return same and m.version >= self.since and axis_of(m, node, len(perm), self.default) is not None

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        axis = axis_of(m, node, len(at.read), self.default)
        assert axis is not None
        return op.like(node, inputs, axis=at.read.index(axis))

    def penalty(self, m: Match, node: ir.Node, at: Placement) -> int:
        if node.op_type == "Split":
            return _copies_short_runs(m, [output for output in node.outputs if output.name], node, at)
        axis = axis_of(m, node, len(at.read), self.default)
        return 2 * (self.penalized and axis is not None and at.read[-1] != axis)


class ArgReduction(AlongAxis):
    """ArgMax and ArgMin with ``keepdims``."""

    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        return m.attribute(node, "keepdims") == 1 and super().fits(m, node, perm)


class GatherVector(AlongAxis):
    """Gather along an axis by a vector of indices."""

    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        return m.rank(operand(node, 1)) == 1 and super().fits(m, node, perm)


class CumSum(SameRank):
    """CumSum, whose axis is an input."""

    def reads(self, m: Match, node: ir.Node) -> Sequence[int]:
        return (0,)

    def _axis(self, m: Match, node: ir.Node, rank: int) -> int | None:
        axes = m.ints(operand(node, 1))
        return normalized(axes[0], rank) if axes is not None and len(axes) == 1 else None

    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        return m.rank(node.inputs[0]) == len(perm) and self._axis(m, node, len(perm)) is not None

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        axis = self._axis(m, node, len(at.read))
        assert axis is not None
        return op.like(node, [inputs[0], np.array(at.read.index(axis), np.int64)])


class PerAxisNumbers(SameRank):
    """Expand and Tile: the second input has one constant number per axis."""

    def reads(self, m: Match, node: ir.Node) -> Sequence[int]:
        return (0,)

    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        numbers = m.ints(operand(node, 1))
        same = m.rank(node.inputs[0]) == m.rank(node.outputs[0]) == len(perm)
        return same and m.version >= 6 and numbers is not None and len(numbers) == len(perm)

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        numbers = m.ints(operand(node, 1))
        assert numbers is not None
        return op.like(node, [inputs[0], np.array([numbers[axis] for axis in at.read], np.int64)])


class LastAxesNorm(SameRank):
    """Normalizations over the last axes, which stay in place."""

    def reads(self, m: Match, node: ir.Node) -> Sequence[int]:
        return (0,)

    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        axis = axis_of(m, node, m.rank(node.inputs[0]), default=-1)
        outputs = [output for output in node.outputs if output.name]
        if axis is None or len(outputs) != 1 or m.rank(node.inputs[0]) != len(perm):
            return False
        scales = [m.rank(value) for value in node.inputs[1:] if value is not None]
        fits = all(rank is not None and rank <= len(perm) - axis for rank in scales)
        return fits and perm[axis:] == identity(len(perm))[axis:]

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        return op.like(node, inputs)


class NearestResize(SameRank):
    """Resize and Upsample that copy the nearest elements, by constant scales or sizes.

    Interpolation depends on the layout: kernels interpolate along two axes only.
    """

    def reads(self, m: Match, node: ir.Node) -> Sequence[int]:
        return (0,)

    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        if m.rank(node.inputs[0]) != len(perm) or m.attribute(node, "mode") != "nearest":
            return False
        if m.attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
            return False
        if (m.attribute(node, "keep_aspect_ratio_policy") or "stretch") != "stretch":
            return False
        if m.attribute(node, "antialias"):
            return False
        if node.attributes.get("axes") is not None:
            return True  # sizes and scales refer to these axes
        return all(
            (array := m.constant(value)) is not None and array.size in (0, len(perm))
            for _, value in self._numbers(m, node)
        ) and (bool(self._numbers(m, node)) or "scales" in node.attributes)

    def _numbers(self, m: Match, node: ir.Node) -> list[tuple[int, ir.Value]]:
        """The inputs with one number per axis, by index."""
        places = (2, 3) if m.version >= 11 else (1,)
        return [(place, value) for place in places if (value := operand(node, place)) is not None]

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        moved: list[ir.Value | np.ndarray | None] = list(inputs)
        axes = node.attributes.get("axes")
        if axes is not None:
            found = [normalized(axis, len(at.read)) for axis in axes.as_ints()]
            return op.like(node, moved, axes=[at.read.index(axis) for axis in found if axis is not None])
        for place, value in self._numbers(m, node):
            array = m.constant(value)
            if array is not None and array.size:
                moved[place] = np.ascontiguousarray(array[list(at.read)])
        scales = node.attributes.get("scales")
        if scales is None:
            return op.like(node, moved)
        return op.like(node, moved, scales=[scales.as_floats()[axis] for axis in at.read])


_ELEMENTWISE = Elementwise()
_OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("ArgMax", "ArgMin"), ArgReduction()),
    "CumSum": CumSum(),
    **dict.fromkeys(("Expand", "Tile"), PerAxisNumbers()),
    "Gather": GatherVector(),
    "GatherElements": AlongAxis(data=2),
    "Hardmax": AlongAxis(default=-1, since=13, penalized=True),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), LastAxesNorm()),
    "LpNormalization": AlongAxis(default=-1),
    **dict.fromkeys(("Max", "Min"), Extremum()),
    **dict.fromkeys(("Resize", "Upsample"), NearestResize()),
    "ScatterElements": AlongAxis(data=3),
    "Split": AlongAxis(),
    "TopK": AlongAxis(default=-1),
}


def same_rank_operator(m: Match, node: ir.Node) -> Operator | None:
    """The layouts of ``node`` if its results have the rank of its operands; ``None`` if it has one layout."""
    if node.domain == "":
        known = _OPERATORS.get(node.op_type)
        if known is not None:
            return known
        if traits.is_elementwise(node) and node.op_type != "Clip":
            return _ELEMENTWISE
    mover = mover_of(m, node)
    moves = mover is not None and (node.domain != "" or node.op_type in _MOVED)
    return Moved(mover) if moves and mover is not None else None


#: Operators of the standard domain whose movers are used; other entries of the table are element-wise.
_MOVED = frozenset(
    {"Clip", "Concat", "Pad", "Slice", "Softmax", "LogSoftmax", "QuantizeLinear", "DequantizeLinear"}
    | set(traits.REDUCTIONS)
)
