"""Range analysis of integer tensors: bounds on their elements, as expressions over the sizes of inputs.

Indices that a graph computes, such as positions of tokens, are results of a few operators, such as Range and
Shape. Their upper bound is a lower bound for the size of the axis that they index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphopt import ir
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.symbolic import Dim, dim_max, dim_min, floordiv
from graphopt.analysis.symbolic import at_least as proven_at_least
from graphopt.ops import traits

#: Maximum number of operators traced back from an index.
_DEPTH = 48
#: Maximum number of elements of constants that are read.
_ELEMENTS = 1 << 16

#: Operators whose results have the bounds of their first input.
_SAME_BOUNDS = frozenset({*traits.SELECTS, "ReduceMax", "ReduceMin"})

#: The smallest and the largest element, each ``None`` if unknown.
Interval = tuple[Dim | None, Dim | None]
_OPEN: Interval = (None, None)


class ValueBounds:
    """Bounds on the elements of one model's tensors, by its shape facts."""

    def __init__(self, facts: ShapeFacts) -> None:
        self._facts = facts
        self._known: dict[ir.Value, Interval] = {}

    def most(self, value: ir.Value) -> Dim | None:
        """The upper bound of the elements of ``value``."""
        return self._interval(value, _DEPTH)[1]

    def parts(self, value: ir.Value, count: int) -> Sequence[Dim | None]:
        """The upper bounds for each of the ``count`` positions of the last axis."""
        node = value.producer()
        rank = self._facts.rank(value)
        if node is not None and node.op_type == "Concat" and rank is not None:
            attribute = node.attributes.get("axis")
            shapes = [None if part is None else self._facts.shape(part) for part in node.inputs]
            sizes = [shape[-1] if shape else None for shape in shapes]
            if (
                attribute is not None
                and attribute.value % rank == rank - 1
                and ir.all_ints(sizes) is not None
            ):
                found: list[Dim | None] = []
                for part, size in zip(node.inputs, sizes, strict=True):
                    assert part is not None and isinstance(size, int)
                    found += self.parts(part, size)
                return found
        return [self.most(value)] * count if count == 1 else [None] * count

    def _interval(self, value: ir.Value | None, depth: int) -> Interval:
        if value is None or depth == 0:
            return _OPEN
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = self._compute(value, depth - 1)
        return found

    def _compute(self, value: ir.Value, depth: int) -> Interval:
        dtype = self._facts.dtype(value)
        if dtype == ir.DataType.BOOL:
            return (0, 1)
        if dtype is None or not dtype.is_integer():
            return _OPEN
        ints = self._facts.known_ints(value)
        if ints:
            return (dim_min(*ints), dim_max(*ints))
        tensor = ir.constant_of(value)
        if tensor is not None:
            if not 0 < tensor.size <= _ELEMENTS:
                return _OPEN
            array = tensor.numpy()
            return (int(array.min()), int(array.max()))
        node = value.producer()
        if node is None or node.domain != "":
            return _OPEN
        if node.op_type in _SAME_BOUNDS:
            return self._interval(node.inputs[0], depth)
        rule = _RULES.get(node.op_type)
        if rule is None:
            return _OPEN
        if node.op_type == "Range":  # its inputs are scalars, whose values may be known expressions
            return rule(*(self._scalar(operand) for operand in node.inputs))
        if node.op_type == "Where":
            return rule(*(self._interval(operand, depth) for operand in node.inputs[1:]))
        return rule(*(self._interval(operand, depth) for operand in node.inputs))

    def _scalar(self, value: ir.Value | None) -> Interval:
        ints = None if value is None else self._facts.known_ints(value)
        return (ints[0], ints[0]) if ints and len(ints) == 1 else _OPEN


def _range(start: Interval, limit: Interval, delta: Interval) -> Interval:
    step = delta[0]
    if not isinstance(step, int) or step <= 0:
        return _OPEN
    return (start[0], None if limit[1] is None else limit[1] - 1)


def _union(*parts: Interval) -> Interval:
    lows, highs = zip(*parts, strict=True)
    return (_all(dim_min, lows), _all(dim_max, highs))


def _all(pick: Callable[..., Dim], dims: Sequence[Dim | None]) -> Dim | None:
    known = [dim for dim in dims if dim is not None]
    return pick(*known) if known and len(known) == len(dims) else None


def _any(pick: Callable[..., Dim], dims: Sequence[Dim | None]) -> Dim | None:
    known = [dim for dim in dims if dim is not None]
    return pick(*known) if known else None


def _max(*parts: Interval) -> Interval:
    lows, highs = zip(*parts, strict=True)
    return (_any(dim_max, lows), _all(dim_max, highs))


def _min(*parts: Interval) -> Interval:
    lows, highs = zip(*parts, strict=True)
    return (_all(dim_min, lows), _any(dim_min, highs))


def _clip(x: Interval, low: Interval = _OPEN, high: Interval = _OPEN) -> Interval:
    return (_any(dim_max, (x[0], low[0])), _any(dim_min, (x[1], high[1])))


def _add(a: Interval, b: Interval) -> Interval:
    low = None if a[0] is None or b[0] is None else a[0] + b[0]
    high = None if a[1] is None or b[1] is None else a[1] + b[1]
    return (low, high)


def _subtract(a: Interval, b: Interval) -> Interval:
    low = None if a[0] is None or b[1] is None else a[0] - b[1]
    high = None if a[1] is None or b[0] is None else a[1] - b[0]
    return (low, high)


def _multiply(a: Interval, b: Interval) -> Interval:
    if a[0] is None or b[0] is None or not (proven_at_least(a[0], 0) and proven_at_least(b[0], 0)):
        return _OPEN
    return (a[0] * b[0], None if a[1] is None or b[1] is None else a[1] * b[1])


def _divide(a: Interval, b: Interval) -> Interval:
    divisor = b[0]
    if not isinstance(divisor, int) or divisor <= 0 or b[1] != divisor:
        return _OPEN
    if a[0] is None or not proven_at_least(a[0], 0):
        return _OPEN
    return (floordiv(a[0], divisor), None if a[1] is None else floordiv(a[1], divisor))


def _modulo(a: Interval, b: Interval) -> Interval:
    positive = b[0] is not None and proven_at_least(b[0], 1)
    return (0, None if b[1] is None else b[1] - 1) if positive else _OPEN


_RULES: dict[str, Callable[..., Interval]] = {
    "Range": _range,
    "Cast": lambda x: x,
    "Concat": _union,
    "Where": _union,
    "Max": _max,
    "Min": _min,
    "Clip": _clip,
    "Add": _add,
    "Sub": _subtract,
    "Mul": _multiply,
    "Div": _divide,
    "Mod": _modulo,
}
