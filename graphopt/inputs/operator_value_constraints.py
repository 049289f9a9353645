"""Constraints that operators place on the values of their inputs: a table by operator and input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import numpy as np

from graphopt import ir
from graphopt.util.lazy_dataclass import dataclass

#: Maximum number of choices of an input; an input compared with more constants does not select a branch.
MOST_CHOICES = 64


@dataclass(frozen=True)
class ValueRange:
    """The range of the elements of an input.

    Attributes:
        low, high: inclusive bounds; ``None`` for no bound.
        below: symbols of dims that are exclusive upper bounds.
        choices: discriminating values, such as constants in comparisons of the graph.
        only_choices: whether only ``choices`` are valid (the keys of an encoder).
        integral: whether a float input is cast to integers and used as integers.
        from_end: whether negative values count from the end, as for indices.
        known: whether a use determines the meaning of the values.
        pattern: ``axes`` are 0, 1, 2 …; a ``reshape`` target is -1, 1, 1 …, which is valid for all data.
    """

    low: float | None = None
    high: float | None = None
    below: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    only_choices: bool = False
    integral: bool = False
    from_end: bool = False
    known: bool = False
    pattern: Literal["", "axes", "reshape"] = ""

    def meet(self, other: ValueRange) -> ValueRange:
        """The intersection of both ranges."""
        lows = [bound for bound in (self.low, other.low) if bound is not None]
        highs = [bound for bound in (self.high, other.high) if bound is not None]
        choices = tuple(dict.fromkeys((*self.choices, *other.choices)))
        return ValueRange(
            max(lows, default=None),
            min(highs, default=None),
            tuple(dict.fromkeys((*self.below, *other.below))),
            choices if len(choices) <= MOST_CHOICES or self.only_choices else (),
            self.only_choices or other.only_choices,
            self.integral or other.integral,
            self.from_end and other.from_end,
            self.known or other.known,
            self.pattern or other.pattern,
        )


def value_constraint(node: ir.Node, index: int) -> ValueRange | None:
    """The constraint of ``node`` on the values of input ``index``, if any."""
    if node.domain not in ir.RUNTIME_DOMAINS:
        return None
    rule = _CONSTRAINTS.get((node.op_type, index)) or _CONSTRAINTS.get((node.op_type, None))
    return None if rule is None else rule(node, index)


def _constant_range(value_range: ValueRange) -> Callable[[ir.Node, int], ValueRange]:
    known = replace(value_range, known=True)
    return lambda node, index: known


def _attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.value


def _index_into(table: int, axis: int | None = None) -> Callable[[ir.Node, int], ValueRange]:
    """Indices into input ``table`` along ``axis``, by default the node's attribute."""

    def rule(node: ir.Node, index: int) -> ValueRange:
        shape = _shape(node.inputs[table] if table < len(node.inputs) else None)
        along = _attribute(node, "axis", 0) if axis is None else axis
        from_end = node.domain == ""
        if shape is None or not -len(shape) <= along < len(shape):
            return ValueRange(0, 1, known=True)
        size = shape[along]
        if isinstance(size, int):
            return ValueRange(0, max(size - 1, 0), from_end=from_end and size > 0, known=True)
        if size.value is None:
            return ValueRange(0, 1, known=True)
        return ValueRange(0, None, below=(size.value,), known=True)

    return rule


def _shape(value: ir.Value | None) -> tuple[Any, ...] | None:
    """The shape of the constant that ``value`` is an element-wise function of, or the declared shape."""
    while value is not None and ir.constant_of(value) is None:
        node = value.producer()
        if node is None or node.op_type not in ("DequantizeLinear", "QuantizeLinear", "Cast", "Identity"):
            return None if value.shape is None else tuple(value.shape)
        value = node.inputs[0]
    tensor = ir.constant_of(value)
    return None if tensor is None else tuple(tensor.shape)


def _nd_index(node: ir.Node, index: int) -> ValueRange:
    """Index tuples: less than the smallest dim, so that each index is valid for every indexed axis."""
    shape = _shape(node.inputs[0])
    sizes = [size for size in shape if isinstance(size, int)] if shape is not None else []
    return ValueRange(0, max(min(sizes, default=1) - 1, 0), known=True)


def _near_compared_constant(node: ir.Node, index: int) -> ValueRange | None:
    """Values near a constant with which elements are compared."""
    numbers = _numbers(node.inputs[1 - index])
    if not numbers:
        return None
    return ValueRange(choices=numbers if node.op_type == "Equal" else _around(numbers), from_end=True)


def _near_bounds(node: ir.Node, index: int) -> ValueRange | None:
    """Values near the bounds of a float input. Integers are omitted: random ones often exceed the bounds."""
    others = [_numbers(value) for place, value in enumerate(node.inputs) if place != index]
    named = (_attribute(node, name) for name in ("min", "max"))
    numbers = [*chain.from_iterable(others), *(number for number in named if number is not None)]
    return (
        ValueRange(choices=_around(numbers), from_end=True)
        if numbers and _is_float(node.inputs[index])
        else None
    )


def _numbers(value: ir.Value | None) -> tuple[float, ...]:
    """The distinct finite numbers of a small constant."""
    tensor = ir.constant_of(value)
    if tensor is None or tensor.size > 8 or tensor.dtype == ir.DataType.STRING:
        return ()
    numbers = tensor.numpy().astype(np.float64).ravel().tolist()
    return tuple(sorted({number for number in numbers if math.isfinite(number)}))


def _around(numbers: Iterable[float]) -> tuple[float, ...]:
    steps = ((number, sorted({1.0, max(1.0, abs(number) / 8)})) for number in numbers)
    return tuple(
        x for number, sizes in steps for size in sizes for x in (number - size, number, number + size)
    )


def _halfway(node: ir.Node, index: int) -> ValueRange | None:
    """Values halfway between two quantization steps, where rounding modes differ."""
    scales = _numbers(node.inputs[1])
    ties = tuple(scale * tie for scale in scales for tie in (-1.5, -0.5, 0.5, 2.5))
    return ValueRange(choices=ties, from_end=True) if ties else None


def _keys(node: ir.Node, index: int) -> ValueRange | None:
    """The keys of an encoder of ai.onnx.ml."""
    for name in ("keys_strings", "keys_int64s", "cats_strings", "cats_int64s", "pool_strings", "pool_int64s"):
        keys = _attribute(node, name)
        if keys:
            return ValueRange(choices=tuple(keys)[:MOST_CHOICES], only_choices=True, known=True)
    tensor = _attribute(node, "keys_tensor")
    if tensor is not None:
        return ValueRange(choices=tuple(tensor.numpy().ravel()[:MOST_CHOICES]), only_choices=True, known=True)
    return None


def _parsable_strings(node: ir.Node, index: int) -> ValueRange | None:
    """Strings that are cast to numbers."""
    value = node.inputs[0]
    if value is None or value.dtype != ir.DataType.STRING:
        return None
    return ValueRange(choices=("0", "1", "2", "-3"), only_choices=True, known=True)


_SIZE = _constant_range(ValueRange(1, 3))
_COUNT = _constant_range(ValueRange(1, 2))
_ONE = _constant_range(ValueRange(1, 1))
_AXIS = _constant_range(ValueRange(0, 0))
_AXES = _constant_range(ValueRange(0, 0, pattern="axes"))
_FRACTION = _constant_range(ValueRange(0, 0.5))
_NOT_ZERO = _constant_range(ValueRange(1, 9))

_CONSTRAINTS: dict[tuple[str, int | None], Callable[[ir.Node, int], ValueRange | None]] = {
    ("Gather", 1): _index_into(0),
    ("GatherElements", 1): _index_into(0),
    ("ScatterElements", 1): _index_into(0),
    ("Scatter", 1): _index_into(0),
    ("GatherND", 1): _nd_index,
    ("ScatterND", 1): _nd_index,
    ("ArrayFeatureExtractor", 1): _index_into(0, -1),
    ("GatherBlockQuantized", 1): _index_into(0),
    ("EmbedLayerNormalization", 0): _index_into(2, 0),
    ("EmbedLayerNormalization", 1): _index_into(4, 0),
    ("OneHot", 1): _constant_range(ValueRange(2, 5)),
    ("Loop", 0): _COUNT,
    ("ConstantOfShape", 0): _SIZE,
    ("Expand", 1): _SIZE,
    ("CenterCropPad", 1): _SIZE,
    ("Reshape", 1): _constant_range(ValueRange(1, 3, pattern="reshape")),
    ("Tile", 1): _SIZE,
    ("Resize", 1): _constant_range(ValueRange(0, 1)),
    ("Resize", 2): _COUNT,
    ("Resize", 3): _SIZE,
    ("Upsample", 1): _COUNT,
    ("Range", 0): _constant_range(ValueRange(0, 2)),
    ("Range", 1): _constant_range(ValueRange(3, 9)),
    ("Range", 2): _COUNT,
    ("Slice", 1): _constant_range(ValueRange(0, 0)),
    ("Slice", 2): _constant_range(ValueRange(1, 9)),
    ("Slice", 3): _AXES,
    ("Slice", 4): _ONE,
    ("TopK", 1): _ONE,
    ("Split", 1): _SIZE,
    ("Squeeze", 1): _AXES,
    ("Unsqueeze", 1): _AXES,
    ("Pad", 1): _constant_range(ValueRange(0, 2)),
    ("Pad", 3): _AXES,
    ("CumSum", 1): _AXIS,
    ("Trilu", 1): _constant_range(ValueRange(-1, 1)),
    ("RNN", 4): _ONE,
    ("LSTM", 4): _ONE,
    ("GRU", 4): _ONE,
    ("ReverseSequence", 1): _ONE,
    ("NonMaxSuppression", 2): _SIZE,
    ("NonMaxSuppression", 3): _FRACTION,
    ("NonMaxSuppression", 4): _FRACTION,
    ("Div", 1): lambda node, index: _NOT_ZERO(node, index) if _is_integer(node.inputs[1]) else None,
    ("Mod", 1): lambda node, index: _NOT_ZERO(node, index) if _is_integer(node.inputs[1]) else None,
    ("BitShift", 1): _constant_range(ValueRange(0, 3)),
    ("Pow", 1): lambda node, index: ValueRange(0, 3, known=True) if _is_integer(node.inputs[1]) else None,
    ("Bernoulli", 0): _constant_range(ValueRange(0, 1)),
    ("Dropout", 1): _FRACTION,
    ("SequenceAt", 1): _AXIS,
    ("SequenceErase", 1): _AXIS,
    ("SequenceInsert", 2): _AXIS,
    ("GroupQueryAttention", 5): _AXIS,
    ("GroupQueryAttention", 6): _ONE,
    ("Equal", None): _near_compared_constant,
    ("Less", None): _near_compared_constant,
    ("LessOrEqual", None): _near_compared_constant,
    ("Greater", None): _near_compared_constant,
    ("GreaterOrEqual", None): _near_compared_constant,
    ("Max", None): _near_bounds,
    ("Min", None): _near_bounds,
    ("Clip", 0): _near_bounds,
    ("QuantizeLinear", 0): _halfway,
    ("LabelEncoder", 0): _keys,
    ("CategoryMapper", 0): _keys,
    ("OneHotEncoder", 0): _keys,
    ("TfIdfVectorizer", 0): _keys,
    ("Cast", 0): _parsable_strings,
}
_CONSTRAINTS |= {
    (f"Reduce{kind}", 1): _AXES
    for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
}


def _is_integer(value: ir.Value | None) -> bool:
    """Whether ``value`` has integers, or no declared type."""
    return value is not None and (value.dtype is None or value.dtype.is_integer())


def _is_float(value: ir.Value | None) -> bool:
    """Whether ``value`` has floats, or no declared type."""
    return value is not None and (value.dtype is None or value.dtype.is_floating_point())
