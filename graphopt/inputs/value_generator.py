"""Generate values of any ONNX type, in several distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from graphopt.errors import UnsupportedModel
from graphopt.inputs.dim_bindings import Shape
from graphopt.inputs.operator_value_constraints import ValueRange
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.ort_array_conversion import LOW_TYPES

#: ``special`` mixes NaN, infinities and negative zero into normal numbers; ``overridden`` is normal, and also
#: overrides initializers; ``tiny`` mixes denormal numbers into normal ones; ``huge`` mixes in numbers near
#: the largest of their type.
Distribution = Literal["normal", "zero", "negative", "large", "special", "overridden", "tiny", "huge"]
#: Distributions that test boundary values.
BOUNDARY_DISTRIBUTIONS = ("zero", "negative", "large")
Array = np.ndarray[Any, Any]

_FLOATS = {"float": np.float32, "double": np.float64, "float16": np.float16}
_WORDS = ("", "a", "b", "42", "hello", "WORLD", "it's 3 o'clock")
#: Numbers halfway between two integers, where rounding modes differ.
_TIES = np.array([-1.5, -0.5, 0.5, 2.5])
#: Magnitude by type beyond which a doubled number, or a product with a few others, may overflow.
_MOST = {"float16": 1e4, "float": 1e30, "double": 1e30, "bfloat16": 1e30}
#: Number of special numbers by the size of the tensor; four for other sizes, because some numbers must remain
#: normal.
_SPECIALS = {1: 1, 2: 1, 3: 2, 4: 2, 5: 2, 6: 3, 7: 3}
#: Denormal numbers, whose reciprocals are infinite, and numbers that overflow when doubled.
_TINY = {"float16": 1e-5, "float": 1e-39, "double": 1e-309, "bfloat16": 1e-39}
_HUGE = {"float16": 6e4, "float": 3e38, "double": 1.7e308, "bfloat16": 3e38}
#: Large magnitude by type whose squares and small sums are still finite.
_LARGE = {"float16": 50.0, "float": 1e3, "double": 1e3, "bfloat16": 1e3}


@dataclass(frozen=True)
class Sampler:
    """Generates the values of one input.

    Attributes:
        shape: the shape of its tensors.
        value_range: the range of their elements.
        distribution: the distribution of the elements.
        restriction: as for :meth:`Inputs.feeds`.
        generator: the source of random numbers.
    """

    shape: Shape
    value_range: ValueRange
    distribution: Distribution
    restriction: int
    generator: np.random.Generator

    def sample(self, type_: str) -> Any:
        """A value of onnxruntime type ``type_``, such as ``tensor(float)`` or ``seq(tensor(int64))``.

        Sequences have two elements and maps two entries.

        Raises:
            UnsupportedModel: values of this type can't be generated.
        """
        kind, _, inner = type_.partition("(")
        inner = inner[:-1]
        match kind:
            case "tensor":
                return np.asarray(self._tensor(inner))
            case "seq":
                return [self.sample(inner) for _ in range(2)]
            case "optional":
                return self.sample(inner)
            case "map":
                key, _, value = inner.partition(",")
                keys = list(self.value_range.choices) or (["a", "b"] if key == "string" else [0, 1])
                values = replace(self, shape=(len(keys),), value_range=ValueRange()).sample(value)
                return dict(zip(keys, values.tolist(), strict=True))
        raise UnsupportedModel(f"values of type {type_} can't be generated")

    def _choice(self, options: Array) -> Array:
        return np.asarray(options[self.generator.integers(0, len(options), self.shape)], options.dtype)

    def _tensor(self, element: str) -> Array:
        values = self.value_range
        if element == "string":
            words = values.choices if values.only_choices else _WORDS
            return self._choice(np.array(words, dtype=object)).reshape(self.shape)
        if element == "bool":
            return self._bools()
        if element.startswith("complex"):
            part = "float" if element == "complex64" else "double"
            parts = [self._floats(part) for _ in range(2)]
            made = np.empty(self.shape, np.complex128)
            made.real, made.imag = parts
            return made.astype(element)
        if "float" in element or element == "double":
            is_bounded = values.known or values.only_choices
            numbers = self._values_in_range() if is_bounded else self._floats(element, values.choices)
            dtype = _FLOATS[element] if element in _FLOATS else LOW_TYPES[f"tensor({element})"].dtype
            return numbers.astype(dtype)
        return self._integers(element)

    def _bools(self) -> Array:
        if self.restriction >= 2 or self.distribution in ("zero", "large"):
            return np.full(self.shape, self.distribution == "large" or self.restriction == 2)
        return np.asarray(self.generator.integers(0, 2, self.shape) > 0)

    def _floats(self, element: str, choices: Sequence[float] = ()) -> Array:
        """Floats without known range, which the graph compares with ``choices``."""
        if self.distribution == "zero":
            return np.zeros(self.shape)
        most = _MOST.get(element, 100.0)
        discriminating = [choice for choice in choices if abs(choice) < most]
        numbers: Array = np.asarray(
            self.generator.standard_normal(self.shape, np.float64 if element == "double" else np.float32)
        )
        match self.distribution:
            case "negative":
                return _below(-np.abs(numbers), min(discriminating, default=0.0))
            case "large":
                flat = (numbers * _LARGE.get(element, 8.0)).reshape(-1)
                if flat.sum() < 0:  # the negative distribution covers negative sums
                    flat = -flat
                self._mix_in(flat, _TIES, 0.1, slice(2, 3))
                if discriminating:
                    self._mix_in(flat, discriminating, 0.3, slice(1))
                return flat.reshape(self.shape)
            case "tiny" | "huge":
                flat = np.asarray(numbers, np.float64).reshape(-1)
                number = (_TINY if self.distribution == "tiny" else _HUGE).get(element)
                if number is not None:
                    self._mix_in(flat, [number, -number], 0.3, slice(-1, None))
                return flat.reshape(self.shape)
            case "special":
                flat = numbers.reshape(-1)
                count = _SPECIALS.get(flat.size, 4)
                specials = np.roll([np.nan, np.inf, -np.inf, -0.0], 1 - flat.size)[:count]
                places = self.generator.permutation(flat.size)
                row = self.shape[-1] if self.shape and flat.size else 1
                inner = np.flatnonzero(places % row)
                for nan in np.flatnonzero(np.isnan(specials)):
                    if inner.size and places[nan] % row == 0:  # kernels that drop NaN keep a leading NaN
                        places[[nan, inner[0]]] = places[[inner[0], nan]]
                flat[places[:count]] = specials[: flat.size]
                return flat.reshape(self.shape)
        return numbers

    def _mix_in(self, flat: Array, options: Sequence[float] | Array, share: float, always: slice) -> None:
        """Replace a ``share`` of the elements of ``flat``, and the elements at ``always``, by ``options``."""
        chosen = self.generator.random(flat.size) < share
        chosen[always] = True
        places = np.flatnonzero(chosen)
        flat[places] = self.generator.choice(options, places.size)

    def _integers(self, element: str) -> Array:
        low_type = LOW_TYPES.get(f"tensor({element})")
        bits = low_type.bits if low_type else 8 * np.dtype(element).itemsize
        signed = not element.startswith("u")
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        if self.value_range.low is None and self.value_range.high is None and not self.value_range.choices:
            numbers = self._free_integers(bits, least)
        else:
            numbers = self._values_in_range()
        numbers = np.clip(np.asarray(numbers), least, min(most, 2**53))
        if low_type is None:
            return numbers.astype(element)
        return numbers.astype(np.int8 if signed else np.uint8).astype(low_type.dtype)

    def _free_integers(self, bits: int, least: int) -> Array:
        """Integers without known range: quantized data for types of few bits, counts for other types."""
        if self.restriction:
            return self._by_restriction_level()
        if bits <= 16:
            low, high = least, least + 2**bits
        else:
            low, high = 0, 10
        match self.distribution:
            case "zero":
                return np.zeros(self.shape, np.int64)
            case "negative":
                low, high = (max(-9, least), 0) if least else (0, 3)
            case "large":
                numbers = self.generator.integers(0, min(10**6, 2 ** (bits - 1)), self.shape)
                return numbers if bits <= 16 else _with_extremes(numbers, least, self.generator)
        return self.generator.integers(low, high, self.shape)

    def _by_restriction_level(self) -> Array:
        if self.restriction == 1:
            return self.generator.integers(0, 2, self.shape)
        return np.full(self.shape, int(self.restriction == 2))

    def _values_in_range(self) -> Array:
        """Numbers in the range, by distribution: low, high, counted from the end, or spread over it."""
        values = self.value_range
        if values.pattern == "axes":
            return np.arange(int(np.prod(self.shape))).reshape(self.shape)
        if values.pattern == "reshape":
            numbers = np.ones(self.shape, np.int64)
            numbers.reshape(-1)[:1] = -1
            return numbers
        if values.only_choices:
            return self._choice(np.array(values.choices))
        low = values.low if values.low is not None else min(0, values.high or 0)
        high = values.high if values.high is not None else max(low, 0) + 9
        high = max(low, high)
        if self.restriction:
            return np.clip(self._by_restriction_level(), low, high)
        match self.distribution:
            case "zero":
                return np.full(self.shape, min(max(low, 0), high))
            case "large":
                return np.full(self.shape, high)
            case "negative":
                if values.from_end and low == 0:
                    return self.generator.integers(-int(high) - 1, 0, self.shape)
                return np.full(self.shape, low)
        if not float(low).is_integer() or not float(high).is_integer():
            return np.asarray(self.generator.uniform(low, high, self.shape))
        least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        first, last = (min(max(int(bound), least), most) for bound in (low, high))
        numbers = self.generator.integers(first, last, self.shape, endpoint=True)
        return _with_choices(np.asarray(numbers), values, self.generator)


def _below(numbers: Array, bound: float) -> Array:
    """``numbers``, about half of them moved below ``bound``, in whole rows."""
    if bound < -1 and numbers.ndim and numbers.size:
        rows = numbers.reshape(-1, numbers.shape[-1])
        rows[: (len(rows) + 1) // 2] += 2 * bound
    return np.asarray(numbers)


def _with_extremes(numbers: Array, least: int, generator: np.random.Generator) -> Array:
    """Replace some of several integers by integers that floats can't represent.

    Only unsigned replacements are positive, because a positive integer may become the size of a tensor.
    """
    flat = numbers.reshape(-1)
    places = np.flatnonzero(generator.random(flat.size) < 0.2)
    places = np.union1d(places, np.arange(flat.size)[1:2])
    extremes = [-(2**24) - 1, least + 7] if least else [2**24 + 1, 2**32 - 9]
    flat[places] = generator.choice(extremes, places.size)
    return flat.reshape(numbers.shape)


def _with_choices(numbers: Array, value_range: ValueRange, generator: np.random.Generator) -> Array:
    """Replace about half of the elements, or the only element, by choices of the range."""
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
