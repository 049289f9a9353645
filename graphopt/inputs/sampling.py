"""Generate values of any ONNX type, in several distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from graphopt.errors import UnsupportedModel
from graphopt.inputs.binding import Shape
from graphopt.inputs.value_constraints import ValueRange
from graphopt.util.element_types import LOW_TYPES

#: ``special`` mixes NaN, infinities and negative zero into normal numbers; ``overridden`` is normal, and
#: overrides initializers, too; ``tiny`` mixes denormal numbers into normal ones, and ``huge`` numbers next to
#: the largest of their type.
Distribution = Literal["normal", "zero", "negative", "large", "special", "overridden", "tiny", "huge"]
Array = np.ndarray[Any, Any]

_FLOATS = {"float": np.float32, "double": np.float64, "float16": np.float16}
_WORDS = ("", "a", "b", "42", "hello", "WORLD", "it's 3 o'clock")
#: Numbers halfway between two integers, where rounding modes differ.
_TIES = np.array([-1.5, -0.5, 0.5, 2.5])
#: Magnitude by type beyond which a doubled number, or a product with a few others, may overflow.
_MOST = {"float16": 1e4, "float": 1e30, "double": 1e30, "bfloat16": 1e30}
#: Number of special numbers by the size of the tensor; four for other sizes, because some must stay normal.
_SPECIALS = {1: 1, 2: 1, 3: 2, 4: 2, 5: 2, 6: 3, 7: 3}
#: Denormal numbers, whose reciprocals are infinite, and numbers that overflow when doubled.
_TINY = {"float16": 1e-5, "float": 1e-39, "double": 1e-309, "bfloat16": 1e-39}
_HUGE = {"float16": 6e4, "float": 3e38, "double": 1.7e308, "bfloat16": 3e38}
#: Large magnitude by type whose squares and small sums are still finite.
_LARGE = {"float16": 50.0, "float": 1e3, "double": 1e3, "bfloat16": 1e3}


def sample(
    type_: str,
    shape: Shape,
    value_range: ValueRange,
    distribution: Distribution,
    restriction: int,
    generator: np.random.Generator,
) -> Any:
    """A value of onnxruntime type ``type_``, such as ``tensor(float)`` or ``seq(tensor(int64))``.

    Sequences have two elements and maps two entries; ``restriction`` as for :meth:`Inputs.feeds`.

    Raises:
        UnsupportedModel: values of this type can't be generated.
    """
    if distribution in ("zero", "negative", "large"):
        restriction = 0  # these distributions test boundary values
    kind, _, inner = type_.partition("(")
    inner = inner[:-1]
    match kind:
        case "tensor":
            return np.asarray(_tensor(inner, shape, value_range, distribution, restriction, generator))
        case "seq":
            return [sample(inner, shape, value_range, distribution, restriction, generator) for _ in range(2)]
        case "optional":
            return sample(inner, shape, value_range, distribution, restriction, generator)
        case "map":
            key, _, value = inner.partition(",")
            keys: list[Any] = list(value_range.choices) or (["a", "b"] if key == "string" else [0, 1])
            values = sample(value, (len(keys),), ValueRange(), distribution, restriction, generator)
            return dict(zip(keys, values.tolist(), strict=True))
    raise UnsupportedModel(f"values of type {type_} can't be generated")


def _tensor(
    element: str,
    shape: Shape,
    value_range: ValueRange,
    distribution: Distribution,
    restriction: int,
    generator: np.random.Generator,
) -> Array:
    if element == "string":
        words = np.array(value_range.choices if value_range.only_choices else _WORDS, dtype=object)
        return np.asarray(words[generator.integers(0, len(words), shape)], dtype=object).reshape(shape)
    if element == "bool":
        return _bools(shape, distribution, restriction, generator)
    if element.startswith("complex"):
        part = "float" if element == "complex64" else "double"
        parts = [_floats(part, shape, distribution, generator) for _ in range(2)]
        made = np.empty(shape, np.complex128)
        made.real, made.imag = parts
        return made.astype(element)
    if "float" in element or element == "double":
        if value_range.known or value_range.only_choices:
            numbers = _bounded(shape, value_range, distribution, restriction, generator)
        else:
            numbers = _floats(element, shape, distribution, generator, value_range.choices)
        return numbers.astype(
            _FLOATS[element] if element in _FLOATS else LOW_TYPES[f"tensor({element})"].dtype
        )
    return _integers(element, shape, value_range, distribution, restriction, generator)


def _bools(
    shape: Shape, distribution: Distribution, restriction: int, generator: np.random.Generator
) -> Array:
    if restriction >= 2 or distribution in ("zero", "large"):
        return np.full(shape, distribution == "large" or restriction == 2)
    return np.asarray(generator.integers(0, 2, shape) > 0)


def _floats(
    element: str,
    shape: Shape,
    distribution: Distribution,
    generator: np.random.Generator,
    choices: Sequence[float] = (),
) -> Array:
    """Floats without known range, which the graph compares with ``choices``."""
    if distribution == "zero":
        return np.zeros(shape)
    most = _MOST.get(element, 100.0)
    telling = [choice for choice in choices if abs(choice) < most]
    numbers: Array = np.asarray(
        generator.standard_normal(shape, np.float64 if element == "double" else np.float32)
    )
    match distribution:
        case "negative":
            return _below(-np.abs(numbers), min(telling, default=0.0))
        case "large":
            flat = (numbers * _LARGE.get(element, 8.0)).reshape(-1)
            if flat.sum() < 0:  # the negative distribution covers negative sums
                flat = -flat
            chosen = generator.random(flat.size) < 0.1
            chosen[2:3] = True  # of three, one
            places = np.flatnonzero(chosen)
            flat[places] = generator.choice(_TIES, places.size)
            if telling:
                chosen = generator.random(flat.size) < 0.3
                chosen[:1] = True
                places = np.flatnonzero(chosen)
                flat[places] = generator.choice(telling, places.size)
            return flat.reshape(shape)
        case "tiny" | "huge":
            flat = np.asarray(numbers, np.float64).reshape(-1)
            number = (_TINY if distribution == "tiny" else _HUGE).get(element)
            if number is not None:
                chosen = generator.random(flat.size) < 0.3
                chosen[-1:] = True
                places = np.flatnonzero(chosen)
                flat[places] = generator.choice([number, -number], places.size)
            return flat.reshape(shape)
        case "special":
            flat = numbers.reshape(-1)
            count = _SPECIALS.get(flat.size, 4)
            specials = np.roll([np.nan, np.inf, -np.inf, -0.0], 1 - flat.size)[:count]
            places = generator.permutation(flat.size)
            inner = np.flatnonzero(places % shape[-1]) if shape and flat.size else np.array([], int)
            for nan in np.flatnonzero(np.isnan(specials)):
                if inner.size and places[nan] % shape[-1] == 0:  # kernels that drop NaN keep a leading one
                    places[[nan, inner[0]]] = places[[inner[0], nan]]
            flat[places[:count]] = specials[: flat.size]
            return flat.reshape(shape)
    return numbers


def _below(numbers: Array, bound: float) -> Array:
    """``numbers``, about half of them moved below ``bound``, in whole rows."""
    if bound < -1 and numbers.ndim:
        rows = numbers.reshape(-1, numbers.shape[-1])
        rows[: (len(rows) + 1) // 2] += 2 * bound
    return np.asarray(numbers)


def _integers(
    element: str,
    shape: Shape,
    value_range: ValueRange,
    distribution: Distribution,
    restriction: int,
    generator: np.random.Generator,
) -> Array:
    low_type = LOW_TYPES.get(f"tensor({element})")
    bits = low_type.bits if low_type else 8 * np.dtype(element).itemsize
    signed = not element.startswith("u")
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if value_range.low is None and value_range.high is None and not value_range.choices:
        numbers = _free_integers(shape, bits, least, distribution, restriction, generator)
    else:
        numbers = _bounded(shape, value_range, distribution, restriction, generator)
    numbers = np.clip(np.asarray(numbers), least, min(most, 2**53))
    if low_type is None:
        return numbers.astype(element)
    return numbers.astype(np.int8 if signed else np.uint8).astype(low_type.dtype)


def _free_integers(
    shape: Shape,
    bits: int,
    least: int,
    distribution: Distribution,
    restriction: int,
    generator: np.random.Generator,
) -> Array:
    """Integers without known range: types of few bits are probably quantized data, other types counts."""
    if restriction:
        return _restricted(shape, restriction, generator)
    if bits <= 16:
        low, high = least, least + 2**bits
    else:
        low, high = 0, 10
    match distribution:
        case "zero":
            return np.zeros(shape, np.int64)
        case "negative":
            return generator.integers(max(-9, least), 0, shape) if least else generator.integers(0, 3, shape)
        case "large":
            numbers = generator.integers(0, min(10**6, 2 ** (bits - 1)), shape)
            return numbers if bits <= 16 else _with_extremes(numbers, least, generator)
    return generator.integers(low, high, shape)


def _with_extremes(numbers: Array, least: int, generator: np.random.Generator) -> Array:
    """Replace some of several integers by ones that floats can't represent.

    Only unsigned replacements are positive, because a positive integer may become the size of a tensor.
    """
    flat = numbers.reshape(-1)
    places = np.flatnonzero(generator.random(flat.size) < 0.2)
    places = np.union1d(places, np.arange(flat.size)[1:2])
    extremes = [-(2**24) - 1, least + 7] if least else [2**24 + 1, 2**32 - 9]
    flat[places] = generator.choice(extremes, places.size)
    return flat.reshape(numbers.shape)


def _restricted(shape: Shape, restriction: int, generator: np.random.Generator) -> Array:
    if restriction == 1:
        return generator.integers(0, 2, shape)
    return np.full(shape, int(restriction == 2))


def _bounded(
    shape: Shape,
    value_range: ValueRange,
    distribution: Distribution,
    restriction: int,
    generator: np.random.Generator,
) -> Array:
    """Numbers within the range: all low, all high, counted from the end, or spread over the range."""
    if value_range.pattern:
        numbers = (
            np.arange(int(np.prod(shape))) if value_range.pattern == "axes" else np.ones(shape, np.int64)
        )
        if value_range.pattern == "reshape" and numbers.size:
            numbers[(0,) * numbers.ndim] = -1
        return numbers.reshape(shape)
    if value_range.only_choices:
        return np.asarray(
            np.array(value_range.choices)[generator.integers(0, len(value_range.choices), shape)]
        )
    low = value_range.low if value_range.low is not None else min(0, value_range.high or 0)
    high = value_range.high if value_range.high is not None else max(low, 0) + 9
    high = max(low, high)
    if restriction:
        return np.clip(_restricted(shape, restriction, generator), low, high)
    match distribution:
        case "zero":
            return np.full(shape, min(max(low, 0), high))
        case "large":
            return np.full(shape, high)
        case "negative":
            if value_range.from_end and low == 0:
                return generator.integers(-int(high) - 1, 0, shape)
            return np.full(shape, low)
    if not float(low).is_integer() or not float(high).is_integer():
        return np.asarray(generator.uniform(low, high, shape))
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    first, last = (min(max(int(bound), least), most) for bound in (low, high))
    numbers = generator.integers(first, last, shape, endpoint=True)
    return _with_choices(np.asarray(numbers), value_range, generator)


def _with_choices(numbers: Array, value_range: ValueRange, generator: np.random.Generator) -> Array:
    """Replace about half of the elements, or the only one, by choices of the range."""
    fitting = [
        choice
        for choice in value_range.choices
        if (value_range.low is None or choice >= value_range.low)
        and (value_range.high is None or choice <= value_range.high)
    ]
    if not fitting:
        return numbers
    chosen = np.array(fitting)[generator.integers(0, len(fitting), numbers.shape)]
    keep = generator.random(numbers.shape) < (0.5 if numbers.size > 1 else 0)
    return np.where(keep, numbers, chosen)
