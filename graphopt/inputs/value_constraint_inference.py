"""Infer the value ranges of a model's inputs from their uses in the graph.

An integer used as an index into a table of 30,522 rows must be smaller than 30,522; an integer used as a
shape must be positive; a divisor must not be zero. Each input is followed forward through operators that
return its elements, also into bodies and functions, with integer offsets and factors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from graphopt import ir
from graphopt.inputs.operator_value_constraints import ValueRange, value_constraint
from graphopt.ir.signature import type_text
from graphopt.ops import traits
from graphopt.util.lazy_dataclass import dataclass


def value_ranges(model: ir.Model) -> dict[str, ValueRange]:
    """The value range of each input of ``model`` that is not a constant initializer."""
    return {value.name or "": _value_range(value, model) for value in model.graph.inputs}


def _value_range(value: ir.Value, model: ir.Model) -> ValueRange:
    type_ = type_text(value)
    value_range = ValueRange(from_end=True)
    for path, node, index in _uses(value, model):
        found = value_constraint(node, index)
        if found is not None:
            if path.value is not value:
                found = replace(found, pattern="")  # the pattern applies to the whole value, not to this part
            value_range = value_range.meet(_pull_back(found, path))
    is_float = "float" in type_ or "double" in type_
    if not value_range.known and not is_float:
        value_range = value_range.meet(_by_name(value.name or ""))
    return replace(
        value_range,
        integral=value_range.integral and is_float,
        from_end=value_range.from_end and value_range.known,
    )


_NAMES = (
    (r"mask|token_?type|segment|flag|bool", ValueRange(0, 1, known=True)),
    (r"(^|[^a-z])(len|lens|lengths?|counts?|sizes?|num)([^a-z]|$)", ValueRange(1, 2, known=True)),
    (r"(^|[^a-z])(ids?|tokens?|index|indices|labels?|positions?)([^a-z]|$)", ValueRange(0, 9, known=True)),
)


def _by_name(name: str) -> ValueRange:
    text = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    return next((value_range for pattern, value_range in _NAMES if re.search(pattern, text)), ValueRange())


# Following an input -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Path:
    """The relation of a value to the input: ``factor * input + offset``, cast to integers or not."""

    value: ir.Value
    factor: float = 1
    offset: float = 0
    to_int: bool = False


def _uses(start: ir.Value, model: ir.Model) -> Iterator[tuple[_Path, ir.Node, int]]:
    """All uses of ``start``'s elements: the path to the value, the node and its input index."""
    pending = [_Path(start)]
    visited = {start}
    while pending:
        path = pending.pop()
        for node, index in path.value.uses():
            yield path, node, index
            for step in _reached_outputs(path, node, index, model):
                if step.value not in visited:
                    visited.add(step.value)
                    pending.append(step)


#: Operators whose output 0 contains unchanged elements of these inputs.
_PASSES_ON = {
    **dict.fromkeys(
        (
            *(*traits.SELECTS, "Dropout", "Pad", "ReduceMax", "ReduceMin", "Abs", "Relu"),
            *("SequenceAt", "SequenceInsert", "ConcatFromSequence", "Optional", "OptionalGetElement"),
            *("Floor", "Ceil", "Round", "Sort"),
        ),
        (0,),
    ),
    "Where": (1, 2),
    "CastLike": (0,),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
}
_ANY_INPUT = {"Concat", "Max", "Min", "SequenceConstruct"}


def _reached_outputs(path: _Path, node: ir.Node, index: int, model: ir.Model) -> Iterator[_Path]:
    """The outputs of ``node`` that contain the elements."""
    function = model.functions.get(node.op_identifier())
    if function is not None:
        if index < len(function.inputs):
            yield replace(path, value=function.inputs[index])
        return
    if node.domain != "":
        return
    op = node.op_type
    if op in traits.CONTROL_FLOW:
        for body in ir.bodies(node):
            if index < len(body.inputs) and not (op == "Loop" and index < 2):
                yield replace(path, value=body.inputs[index])
    elif op == "Cast":
        to = node.attributes["to"].value if "to" in node.attributes else None
        from_text = path.value.dtype == ir.DataType.STRING
        if from_text is not (to == ir.DataType.STRING):
            return  # ranges of numbers and choices of strings exclude each other
        to_int = path.to_int or to in _INTEGERS
        yield replace(path, value=node.outputs[0], to_int=to_int)
    elif op in ("Add", "Sub", "Mul", "Div") and len(node.inputs) == 2:
        other = ir.scalar_of(node.inputs[1 - index])
        if other is not None and math.isfinite(other):
            moved = _moved(path, op, index, float(other))
            if moved is not None:
                yield replace(moved, value=node.outputs[0])
    elif op in _ANY_INPUT or index in _PASSES_ON.get(op, ()):
        for output in node.outputs if op == "Split" else node.outputs[:1]:
            yield replace(path, value=output)


_INTEGERS = frozenset(int(dtype) for dtype in ir.DataType if dtype.is_integer())


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


def _pull_back(value_range: ValueRange, path: _Path) -> ValueRange:
    """The constraint on ``factor * input + offset`` as a constraint on the input."""
    if path.factor == 1 and path.offset == 0:
        return replace(value_range, integral=path.to_int)

    def back(bound: float | None) -> float | None:
        return None if bound is None else (bound - path.offset) / path.factor

    low, high = back(value_range.low), back(value_range.high)
    if path.factor < 0:
        low, high = high, low
    return replace(
        value_range,
        low=None if low is None else math.ceil(low),
        high=None if high is None else math.floor(high),
        choices=tuple(
            back(choice) for choice in value_range.choices if isinstance(choice, int | float) and path.factor
        ),
        integral=path.to_int,
        from_end=False,
    )
