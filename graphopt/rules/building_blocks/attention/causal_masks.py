"""Causal masks and other step matrices: one number up to a diagonal and another beyond it.

Exporters compute them from constants by Trilu or by a comparison of positions. Then they slice them, and
convert them from booleans to numbers. The two numbers and the diagonal are propagated through all of these
operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.context import Dim
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.operands import int_of, ints_of, operand, producer_of
from graphopt.rules.building_blocks.shape_equality import same_shape
from graphopt.util.lazy_dataclass import dataclass

#: Maximum length of the chain of nodes followed from a mask to its sources.
_MAX_DEPTH = 24
#: Maximum size, in elements, of an inspected constant.
_MAX_ELEMENTS = 1 << 24

#: Integer types in which positions do not overflow.
_POSITION_TYPES = (ir.DataType.INT32, ir.DataType.INT64)

Number = float | int | bool


@dataclass(frozen=True)
class Step:
    """A matrix [1, …, S, T]: ``near`` where j <= i + offset, ``far`` elsewhere.

    Attributes:
        offset: ``None`` if both numbers are equal.
    """

    near: Number
    far: Number
    offset: Dim | None = None


@dataclass(frozen=True)
class Positions:
    """Consecutive integers along one axis: ``first + index``.

    Attributes:
        axis: -1 for columns (j), -2 for rows (i).
    """

    first: Dim
    axis: int


Known = Step | Positions

_ELEMENTWISE: dict[str, Callable[..., Number]] = {
    "Add": lambda a, b: a + b,
    "And": lambda a, b: a and b,
    "Equal": lambda a, b: a == b,
    "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
    "Identity": lambda a: a,
    "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b,
    "Mul": lambda a, b: a * b,
    "Neg": lambda a: -a,
    "Not": lambda a: not a,
    "Or": lambda a, b: a or b,
    "Sub": lambda a, b: a - b,
    "Where": lambda c, a, b: a if c else b,
}
#: For each comparison of j with i + d: the shift of the diagonal, and whether the comparison is true up to
#: the diagonal (otherwise beyond it).
_COMPARISONS = {
    "LessOrEqual": (0, True),
    "Less": (-1, True),
    "Greater": (0, False),
    "GreaterOrEqual": (-1, False),
}
_MIRRORED = {
    "LessOrEqual": "GreaterOrEqual",
    "Less": "Greater",
    "Greater": "Less",
    "GreaterOrEqual": "LessOrEqual",
}


def step_of(m: Match, value: ir.Value) -> Step | None:
    """``value`` as a step matrix; ``None`` if it is not known to be one."""
    found = Reader(m).read(value, _MAX_DEPTH)
    return found if isinstance(found, Step) else None


class Reader:
    """Analyzes values recursively. Results are cached; failures with the depth at which they occurred."""

    def __init__(self, m: Match) -> None:
        self._m = m
        self._known: dict[ir.Value, Known] = {}
        self._unknown: dict[ir.Value, int] = {}

    def read(self, value: ir.Value | None, far: int) -> Known | None:
        if value is None:
            return None
        if value in self._known or far <= self._unknown.get(value, 0):
            return self._known.get(value)
        found = self._read_producer(value, far)
        if found is None:
            self._unknown[value] = far
        else:
            self._known[value] = found
        return found

    def _read_producer(self, value: ir.Value, far: int) -> Known | None:
        if (array := self._array(value)) is not None:
            return _step_of_array(array)
        node = producer_of(value)
        if node is None:
            return None
        if node.op_type == "Range":
            first, step = self._number(node.inputs[0]), self._number(node.inputs[2])
            return Positions(first, -1) if first is not None and step == 1 else None
        if node.op_type == "ConstantOfShape":
            attribute = node.attributes.get("value")
            number = 0.0 if attribute is None else attribute.value.numpy().reshape(())[()].item()
            return Step(number, number)
        found = [self.read(x, far - 1) for x in _data_inputs(node)]
        if any(x is None for x in found):
            return self._shifted(node, found)
        known = [x for x in found if x is not None]
        if node.op_type in ("Unsqueeze", "Squeeze", "Reshape", "Expand"):
            return self._view(node, known[0])
        if node.op_type == "Slice":
            return self._sliced(node, known[0])
        if node.op_type == "Trilu":
            return self._triangle(node, known[0])
        if node.op_type == "Cast":
            return self._cast(node, known[0])
        if not self._keeps_axes(node, known):
            return None
        if node.op_type in _COMPARISONS and all(isinstance(x, Positions) for x in known):
            return _compared(node.op_type, *known)
        if any(isinstance(x, Positions) for x in known):
            return self._shifted(node, found)
        if node.op_type in _ELEMENTWISE:
            dtype = self._m.dtype(node.outputs[0])
            steps = [x for x in known if isinstance(x, Step)]
            return _elementwise(self._m, _ELEMENTWISE[node.op_type], steps, dtype)
        return None

    def _array(self, value: ir.Value) -> np.ndarray | None:
        tensor = ir.constant_of(value)
        if tensor is None or tensor.dtype == ir.DataType.STRING or not 0 < tensor.size <= _MAX_ELEMENTS:
            return None
        ir.read(value)
        return np.asarray(tensor.numpy())

    def _number(self, value: ir.Value | None) -> Dim | None:
        """The single integer in ``value``, perhaps symbolic."""
        numbers = self._m.cx.known_ints(value)
        return numbers[0] if numbers is not None and len(numbers) == 1 else None

    def _shifted(self, node: ir.Node, found: list[Known | None]) -> Known | None:
        """Positions plus or minus an integer."""
        if node.op_type not in ("Add", "Sub"):
            return None
        for one, other in ((0, 1), (1, 0)):
            positions, number = found[one], self._number(node.inputs[other])
            if (
                isinstance(positions, Positions)
                and number is not None
                and (one == 0 or node.op_type == "Add")
            ):
                sign = 1 if node.op_type == "Add" else -1
                return replace(positions, first=positions.first + sign * number)
        return None

    def _view(self, node: ir.Node, known: Known) -> Known | None:
        before, after = self._m.shape(node.inputs[0]), self._m.shape(node.outputs[0])
        if isinstance(known, Step) and known.offset is None:
            return known
        if before is None or after is None:
            return None
        if node.op_type == "Expand":
            return known if self._keeps_axes(node, [known]) else None
        if isinstance(known, Step):
            return known if same_shape(self._m, before[-2:], after[-2:]) else None
        length = before[known.axis]
        for axis in (-1, -2):
            others = [dim for axis_from_end, dim in enumerate(after, -len(after)) if axis_from_end != axis]
            if len(after) >= -axis and all(dim == 1 for dim in others):
                return replace(known, axis=axis) if self._m.cx.facts.dim_equal(after[axis], length) else None
        return None

    def _keeps_axes(self, node: ir.Node, known: list[Known]) -> bool:
        """Whether ``node`` does not broadcast the axes along which ``known`` varies."""
        m, result = self._m, self._m.shape(node.outputs[0])
        for value, one in zip(_data_inputs(node), known, strict=True):
            shape = m.shape(value)
            axes = (one.axis,) if isinstance(one, Positions) else () if one.offset is None else (-1, -2)
            if axes and (shape is None or result is None):
                return False
            for axis in axes:
                assert shape is not None and result is not None
                if len(shape) < -axis or not m.cx.facts.dim_equal(shape[axis], result[axis]):
                    return False
        return True

    def _sliced(self, node: ir.Node, known: Known) -> Known | None:
        m = self._m
        if isinstance(known, Step) and known.offset is None:
            return known
        rank = m.rank(node.inputs[0])
        firsts = m.cx.known_ints(node.inputs[1] if len(node.inputs) > 2 else None)
        axes = ints_of(m, node, 3, "axes", tuple(range(len(firsts or ()))))
        steps = ints_of(m, node, 4, "steps", (1,) * len(firsts or ()))
        if not firsts or rank is None or axes is None or steps is None or any(step != 1 for step in steps):
            return None
        for axis, first in zip(axes, firsts, strict=True):
            axis_from_end = (axis % rank) - rank
            if symbolic.bounds(first)[0] < 0:
                return None
            if isinstance(known, Positions):
                known = replace(known, first=known.first + first) if axis_from_end == known.axis else known
            elif axis_from_end in (-1, -2):
                assert known.offset is not None
                known = replace(known, offset=known.offset + (first if axis_from_end == -2 else -first))
        return known

    def _triangle(self, node: ir.Node, known: Known) -> Known | None:
        upper = int_of(self._m, node, "upper", 1)
        shift = 0 if operand(node, 1) is None else self._number(operand(node, 1))
        if not isinstance(known, Step) or known.offset is not None or shift is None:
            return None
        zero = type(known.near)(0)
        return Step(zero, known.near, shift - 1) if upper else Step(known.near, zero, shift)

    def _cast(self, node: ir.Node, known: Known) -> Known | None:
        to = node.attributes.get("to")
        if isinstance(known, Positions) or to is None or to.is_ref():
            moves = to is not None and not to.is_ref() and ir.DataType(to.value) in _POSITION_TYPES
            return known if moves else None
        return _rounded_step(known.near, known.far, known.offset, ir.DataType(to.value))


def _data_inputs(node: ir.Node) -> list[ir.Value | None]:
    """The data inputs: not axes, shapes or bounds."""
    first_only = ("Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice", "Trilu", "Cast")
    return [node.inputs[0]] if node.op_type in first_only else list(node.inputs)


def _step_of_array(array: np.ndarray) -> Known | None:
    first = array.reshape(-1)[0].item()
    if np.all(array == first):
        return Step(first, first)
    if any(size != 1 for size in array.shape[:-2]):
        return None
    matrix = array.reshape(-1, array.shape[-1])
    if array.dtype.kind in "iu" and 1 in matrix.shape:
        axis = -1 if matrix.shape[0] == 1 else -2
        line = matrix.reshape(-1)
        return Positions(first, axis) if np.array_equal(line, first + np.arange(line.size)) else None
    near, far = matrix[-1, 0].item(), matrix[0, -1].item()
    rows, columns = matrix.shape
    lengths = np.count_nonzero(matrix == near, axis=1)
    mixed_rows = np.flatnonzero(
        (lengths > 0) & (lengths < columns)
    )  # a row of one number does not determine the diagonal
    if not mixed_rows.size:
        return None
    offset = int(lengths[mixed_rows[0]] - 1 - mixed_rows[0])
    expected = np.where(np.tri(rows, columns, offset, dtype=bool), near, far)
    return Step(near, far, offset) if np.array_equal(matrix, expected.astype(array.dtype)) else None


def _compared(op_type: str, left: Known, right: Known) -> Step | None:
    assert isinstance(left, Positions) and isinstance(right, Positions)
    if left.axis == right.axis:
        return None
    if left.axis == -2:
        left, right, op_type = right, left, _MIRRORED[op_type]
    shift, near = _COMPARISONS[op_type]
    return Step(near, not near, right.first - left.first + shift)


def _elementwise(
    m: Match, function: Callable[..., Number], operands: list[Step], dtype: ir.DataType | None
) -> Step | None:
    offsets = [step.offset for step in operands if step.offset is not None]
    if any(not m.cx.facts.dim_equal(offset, offsets[0]) for offset in offsets[1:]):
        return None
    near, far = function(*(step.near for step in operands)), function(*(step.far for step in operands))
    return _rounded_step(near, far, offsets[0] if offsets else None, dtype)


def _rounded_step(near: Number, far: Number, offset: Dim | None, dtype: ir.DataType | None) -> Step | None:
    """The step with its numbers converted to ``dtype``; ``None`` if they overflow an integer type."""
    if dtype is None:
        return None
    if dtype == ir.DataType.BOOL:
        return Step(bool(near), bool(far), offset)
    if dtype.is_floating_point():
        with np.errstate(over="ignore"):
            near, far = np.array([near, far], np.float64).astype(dtype.numpy()).tolist()
        return Step(float(near), float(far), offset)
    if not dtype.is_integer() or not all(np.isfinite([near, far])):
        return None
    limits = np.iinfo(dtype.numpy())
    fits = all(limits.min <= int(number) <= limits.max for number in (near, far))
    return Step(int(near), int(far), offset) if fits else None
