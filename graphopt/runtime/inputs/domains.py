"""Which values a model's inputs may take, read off how the graph uses them.

An integer that ends up as an index into a table of 30,522 rows must stay below that; one that
is a shape must be positive; a divisor must not be zero. Such uses are found by following each
input forward through operators that hand its elements on, also into bodies and functions, with
integer offsets and factors taken along.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from graphopt import ir
from graphopt.runtime.signature import type_text

#: An input that is compared with more constants than this is no switch.
_MAX_CHOICES = 64


@dataclass(frozen=True)
class Domain:
    """Bounds on the elements of an input; ``None`` where there are none.

    Attributes:
        low, high: inclusive.
        below: symbols of dims (and sizes) that elements must stay below.
        choices: telling values, such as those that the graph compares with.
        only_choices: nothing but ``choices`` makes sense (the keys of an encoder).
        integral: a float input that is cast to integers and used as such.
        from_end: negative values count from the end, as indices do.
        known: some use says what the values mean.
        pattern: ``axes`` are 0, 1, 2 …; a ``reshape`` target is -1, 1, 1 …, which suits any data.
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

    def meet(self, other: Domain) -> Domain:
        """What satisfies both."""
        lows = [bound for bound in (self.low, other.low) if bound is not None]
        highs = [bound for bound in (self.high, other.high) if bound is not None]
        choices = tuple(dict.fromkeys((*self.choices, *other.choices)))
        return Domain(
            max(lows, default=None),
            min(highs, default=None),
            tuple(dict.fromkeys((*self.below, *other.below))),
            choices if len(choices) <= _MAX_CHOICES or self.only_choices else (),
            self.only_choices or other.only_choices,
            self.integral or other.integral,
            self.from_end and other.from_end,
            self.known or other.known,
            self.pattern or other.pattern,
        )


def domains(model: ir.Model) -> dict[str, Domain]:
    """The domain of each input of ``model`` that is not a constant initializer."""
    return {value.name or "": _domain(value, model) for value in model.graph.inputs}


def _domain(value: ir.Value, model: ir.Model) -> Domain:
    type_ = type_text(value)
    domain = Domain(from_end=True)
    for path, node, index in _uses(value, model):
        found = _demand(node, index)
        if found is not None:
            if path.value is not value:
                found = replace(found, pattern="")  # it is but a part of what has the pattern
            domain = domain.meet(_pull_back(found, path))
    is_float = "float" in type_ or "double" in type_
    if not domain.known and not is_float:
        domain = domain.meet(_by_name(value.name or ""))
    return replace(domain, integral=domain.integral and is_float, from_end=domain.from_end and domain.known)


_NAMES = (
    (r"mask|token_?type|segment|flag|bool", Domain(0, 1, known=True)),
    (r"(^|[^a-z])(len|lens|lengths?|counts?|sizes?|num)([^a-z]|$)", Domain(1, 2, known=True)),
    (r"(^|[^a-z])(ids?|tokens?|index|indices|labels?|positions?)([^a-z]|$)", Domain(0, 9, known=True)),
)


def _by_name(name: str) -> Domain:
    text = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    return next((domain for pattern, domain in _NAMES if re.search(pattern, text)), Domain())


# Following an input -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Path:
    """How a value came from the input: ``factor * input + offset``, cast to integers or not."""

    value: ir.Value
    factor: float = 1
    offset: float = 0
    to_int: bool = False


def _uses(start: ir.Value, model: ir.Model) -> Iterator[tuple[_Path, ir.Node, int]]:
    """Every use of ``start``'s elements: the path to it, the node and the input's place."""
    pending = [_Path(start)]
    seen = {start}
    while pending:
        path = pending.pop()
        for node, index in path.value.uses():
            yield path, node, index
            for step in _steps(path, node, index, model):
                if step.value not in seen:
                    seen.add(step.value)
                    pending.append(step)


#: Operators whose output 0 holds elements of these inputs, unchanged.
_HANDS_ON = {
    name: {0}
    for name in [
        "Identity",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Transpose",
        "Expand",
        "Tile",
        "Slice",
        "Gather",
        "GatherElements",
        "GatherND",
        "Split",
        "Dropout",
        "Pad",
        "DepthToSpace",
        "SpaceToDepth",
        "Compress",
        "ReduceMax",
        "ReduceMin",
        "Abs",
        "Relu",
        "SequenceAt",
        "SequenceInsert",
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "Floor",
        "Ceil",
        "Round",
        "Sort",
    ]
}
_HANDS_ON |= {"Where": {1, 2}, "CastLike": {0}, "ScatterElements": {0, 2}, "ScatterND": {0, 2}}
_ANY_INPUT = {"Concat", "Max", "Min", "SequenceConstruct"}


def _steps(path: _Path, node: ir.Node, index: int, model: ir.Model) -> Iterator[_Path]:
    """The values that the element passes on to."""
    function = model.functions.get(node.op_identifier())
    if function is not None:
        if index < len(function.inputs):
            yield replace(path, value=function.inputs[index])
        return
    if node.domain != "":
        return
    op = node.op_type
    if op in ("Loop", "Scan", "If"):
        for body in ir.bodies(node):
            if index < len(body.inputs) and not (op == "Loop" and index < 2):
                yield replace(path, value=body.inputs[index])
    elif op == "Cast":
        to = node.attributes["to"].value if "to" in node.attributes else None
        to_int = path.to_int or to in _INTEGERS
        yield replace(path, value=node.outputs[0], to_int=to_int)
    elif op in ("Add", "Sub", "Mul", "Div") and len(node.inputs) == 2:
        other = ir.scalar_of(node.inputs[1 - index])
        if other is not None and math.isfinite(other):
            moved = _moved(path, op, index, float(other))
            if moved is not None:
                yield replace(moved, value=node.outputs[0])
    elif op in _ANY_INPUT or index in _HANDS_ON.get(op, ()):
        for output in node.outputs if op == "Split" else node.outputs[:1]:
            yield replace(path, value=output)


_INTEGERS = frozenset(
    int(dtype)
    for dtype in ir.DataType
    if dtype.name.startswith(("INT", "UINT")) and dtype.name != "UNDEFINED"
)


def _moved(path: _Path, op: str, index: int, other: float) -> _Path | None:
    factor, offset = path.factor, path.offset
    match op, index:
        case "Add", _:
            return replace(path, offset=offset + other)
        case "Sub", 0:
            return replace(path, offset=offset - other)
        case "Sub", _:
            return replace(path, factor=-factor, offset=other - offset)
        case "Mul", _ if other != 0:
            return replace(path, factor=factor * other, offset=offset * other)
        case "Div", 0 if other != 0:
            return replace(path, factor=factor / other, offset=offset / other)
    return None


def _pull_back(domain: Domain, path: _Path) -> Domain:
    """The demand on ``factor * input + offset`` as a demand on the input."""
    if path.factor == 1 and path.offset == 0:
        return replace(domain, integral=path.to_int)

    def back(bound: float | None) -> float | None:
        return None if bound is None else (bound - path.offset) / path.factor

    low, high = back(domain.low), back(domain.high)
    if path.factor < 0:
        low, high = high, low
    return replace(
        domain,
        low=None if low is None else math.ceil(low),
        high=None if high is None else math.floor(high),
        choices=tuple(
            back(choice) for choice in domain.choices if isinstance(choice, int | float) and path.factor
        ),
        integral=path.to_int,
        from_end=False,
    )


# What a use demands -----------------------------------------------------------------------


def _demand(node: ir.Node, index: int) -> Domain | None:
    if node.domain not in ("", "ai.onnx.ml", "com.microsoft"):
        return None
    rule = _DEMANDS.get((node.op_type, index)) or _DEMANDS.get((node.op_type, None))
    return None if rule is None else rule(node, index)


def _fixed(domain: Domain) -> Callable[[ir.Node, int], Domain]:
    known = replace(domain, known=True)
    return lambda node, index: known


def _attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.value


def _index_into(table: int, axis: int | None = None) -> Callable[[ir.Node, int], Domain]:
    """Indices into input ``table`` along ``axis``, by default the node's attribute."""

    def rule(node: ir.Node, index: int) -> Domain:
        shape = _shape(node.inputs[table] if table < len(node.inputs) else None)
        along = _attribute(node, "axis", 0) if axis is None else axis
        from_end = node.domain == ""
        if shape is None or not -len(shape) <= along < len(shape):
            return Domain(0, 1, known=True)
        size = shape[along]
        if isinstance(size, int):
            return Domain(0, max(size - 1, 0), from_end=from_end and size > 0, known=True)
        if size.value is None:
            return Domain(0, 1, known=True)
        return Domain(0, None, below=(size.value,), known=True)

    return rule


def _shape(value: ir.Value | None) -> tuple[Any, ...] | None:
    """The shape of ``value``: of the constant that it is made from element by element, or as declared."""
    while value is not None and ir.constant_of(value) is None:
        node = value.producer()
        if node is None or node.op_type not in ("DequantizeLinear", "QuantizeLinear", "Cast", "Identity"):
            return None if value.shape is None else tuple(value.shape)
        value = node.inputs[0]
    tensor = ir.constant_of(value)
    return None if tensor is None else tuple(tensor.shape)


def _nd_index(node: ir.Node, index: int) -> Domain:
    """Index tuples: below the smallest of the dims, which suits every place of the tuple."""
    shape = _shape(node.inputs[0])
    sizes = [size for size in shape if isinstance(size, int)] if shape is not None else []
    return Domain(0, max(min(sizes, default=1) - 1, 0), known=True)


def _compared(node: ir.Node, index: int) -> Domain | None:
    """Around a constant that elements are compared with, the graph behaves differently."""
    tensor = ir.constant_of(node.inputs[1 - index])
    if tensor is None or tensor.size > 8 or tensor.dtype == ir.DataType.STRING:
        return None
    numbers = [
        float(number) for number in np.unique(tensor.numpy().astype(np.float64)) if np.isfinite(number)
    ]
    if node.op_type == "Equal":
        return Domain(choices=tuple(numbers), from_end=True)
    around = tuple(number + step for number in numbers for step in (-1, 0, 1))
    return Domain(choices=around, from_end=True)


def _keys(node: ir.Node, index: int) -> Domain | None:
    """The keys that an encoder of ai.onnx.ml knows."""
    for name in ("keys_strings", "keys_int64s", "cats_strings", "cats_int64s", "pool_strings", "pool_int64s"):
        keys = _attribute(node, name)
        if keys:
            return Domain(choices=tuple(keys)[:_MAX_CHOICES], only_choices=True, known=True)
    tensor = _attribute(node, "keys_tensor")
    if tensor is not None:
        return Domain(choices=tuple(tensor.numpy().ravel()[:_MAX_CHOICES]), only_choices=True, known=True)
    return None


def _parsed(node: ir.Node, index: int) -> Domain | None:
    """Strings that are cast to numbers."""
    value = node.inputs[0]
    if value is None or value.dtype != ir.DataType.STRING:
        return None
    return Domain(choices=("0", "1", "2", "-3"), only_choices=True, known=True)


_SIZE = _fixed(Domain(1, 3))
_COUNT = _fixed(Domain(1, 2))
_ONE = _fixed(Domain(1, 1))
_AXIS = _fixed(Domain(0, 0))
_AXES = _fixed(Domain(0, 0, pattern="axes"))
_FRACTION = _fixed(Domain(0, 0.5))
_NOT_ZERO = _fixed(Domain(1, 9))

_DEMANDS: dict[tuple[str, int | None], Callable[[ir.Node, int], Domain | None]] = {
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
    ("OneHot", 1): _fixed(Domain(2, 5)),
    ("Loop", 0): _COUNT,
    ("ConstantOfShape", 0): _SIZE,
    ("Expand", 1): _SIZE,
    ("Reshape", 1): _fixed(Domain(1, 3, pattern="reshape")),
    ("Tile", 1): _SIZE,
    ("Resize", 1): _fixed(Domain(0, 1)),
    ("Resize", 2): _COUNT,
    ("Resize", 3): _SIZE,
    ("Upsample", 1): _COUNT,
    ("Range", 0): _fixed(Domain(0, 2)),
    ("Range", 1): _fixed(Domain(3, 9)),
    ("Range", 2): _COUNT,
    ("Slice", 1): _fixed(Domain(0, 0)),
    ("Slice", 2): _fixed(Domain(1, 9)),
    ("Slice", 3): _AXES,
    ("Slice", 4): _ONE,
    ("TopK", 1): _ONE,
    ("Split", 1): _SIZE,
    ("Squeeze", 1): _AXES,
    ("Unsqueeze", 1): _AXES,
    ("Pad", 1): _fixed(Domain(0, 2)),
    ("Pad", 3): _AXES,
    ("CumSum", 1): _AXIS,
    ("Trilu", 1): _fixed(Domain(-1, 1)),
    ("RNN", 4): _ONE,
    ("LSTM", 4): _ONE,
    ("GRU", 4): _ONE,
    ("ReverseSequence", 1): _ONE,
    ("NonMaxSuppression", 2): _SIZE,
    ("NonMaxSuppression", 3): _FRACTION,
    ("NonMaxSuppression", 4): _FRACTION,
    ("Div", 1): lambda node, index: _NOT_ZERO(node, index) if _is_integer(node.inputs[1]) else None,
    ("Mod", 1): lambda node, index: _NOT_ZERO(node, index) if _is_integer(node.inputs[1]) else None,
    ("BitShift", 1): _fixed(Domain(0, 3)),
    ("Pow", 1): lambda node, index: Domain(0, 3, known=True) if _is_integer(node.inputs[1]) else None,
    ("Bernoulli", 0): _fixed(Domain(0, 1)),
    ("Dropout", 1): _FRACTION,
    ("SequenceAt", 1): _AXIS,
    ("SequenceErase", 1): _AXIS,
    ("SequenceInsert", 2): _AXIS,
    ("GroupQueryAttention", 5): _AXIS,
    ("GroupQueryAttention", 6): _ONE,
    ("Equal", None): _compared,
    ("Less", None): _compared,
    ("LessOrEqual", None): _compared,
    ("Greater", None): _compared,
    ("GreaterOrEqual", None): _compared,
    ("LabelEncoder", 0): _keys,
    ("CategoryMapper", 0): _keys,
    ("OneHotEncoder", 0): _keys,
    ("TfIdfVectorizer", 0): _keys,
    ("Cast", 0): _parsed,
}
_DEMANDS |= {
    (f"Reduce{kind}", 1): _AXES
    for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
}


def _is_integer(value: ir.Value | None) -> bool:
    """Whether ``value`` holds integers; where its type is not declared, it may."""
    return value is not None and (value.dtype is None or value.dtype.is_integer())
