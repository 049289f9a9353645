"""Compiled guards agree with ``Guard.holds``."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt import ir
from graphopt.profile import Guard, ValueProfile
from graphopt.specialization.compiled_guards import compile_guards

NAMES = ("x", 'it\'s "y"', "z")
TYPES = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
    "tensor(string)": object,
}
SIZES = {"n": 2, "m": 1}

dims = st.one_of(st.integers(0, 2), st.sampled_from(["n", "m", "?"]))


@st.composite
def seen(draw: st.DrawFn) -> ValueProfile:
    type_ = draw(st.sampled_from([*TYPES, "seq(tensor(float))"]))
    shape = draw(st.one_of(st.none(), st.lists(dims, max_size=2).map(tuple)))
    sizes = ir.all_ints(shape)
    ints = None
    if sizes is not None and draw(st.booleans()):
        ints = tuple(draw(st.integers(0, 1)) for _ in range(prod(sizes)))
    return ValueProfile(type_, shape, ints, draw(st.integers(0, 5)) > 0)


guards = st.builds(
    Guard,
    st.dictionaries(st.sampled_from(NAMES), seen(), max_size=3),
    st.lists(st.sampled_from(NAMES), max_size=1).map(tuple),
)


@st.composite
def fitting(draw: st.DrawFn, guard: Guard) -> dict[str, Any]:
    """Feeds that satisfy ``guard``, except possibly for absent inputs."""
    feeds: dict[str, Any] = {}
    for name, item in guard.inputs.items():
        shape = [draw(st.integers(0, 2)) if dim == "?" else SIZES.get(dim, dim) for dim in item.shape or ()]  # type: ignore[call-overload]
        data = np.zeros(shape) if item.ints is None else np.reshape(item.ints, shape)
        feeds[name] = data.astype(TYPES.get(item.type, np.float32))
    return feeds


def _others(value: np.ndarray[Any, Any]) -> list[Any]:
    """Values that differ from ``value`` in one property: dtype, rank, a dim, an element, or being an array."""
    found: list[Any] = [
        value.astype(dtype) for dtype in (*TYPES.values(), np.int32, "U1") if dtype != value.dtype
    ]
    found += [None, [1.0], "text", 3, value[None], value.reshape(-1)]
    for axis in range(value.ndim):
        found += [np.concatenate([value, value[:1]], 0) if axis == 0 else np.repeat(value, 2, axis)]
        found += [
            value[(slice(None),) * axis + (slice(1),)],
            value.take(0, axis) if value.shape[axis] else value,
        ]
    for index in range(value.size if value.dtype != object else 0):
        other = value.copy()
        other.flat[index] = 1 - other.flat[index]
        found.append(other)
    return found


@given(st.lists(guards, min_size=1, max_size=3), st.data())
def test_compiled_guards_agree_with_guards(found: list[Guard], data: st.DataObject) -> None:
    """For feeds that satisfy one of the guards, and for those that differ from them in one property."""
    choose = compile_guards(found)
    feeds = data.draw(fitting(data.draw(st.sampled_from(found))))
    runs = [feeds, *({**feeds, name: np.zeros(1, np.float32)} for name in NAMES if name not in feeds)]
    for name in feeds:
        runs.append({other: value for other, value in feeds.items() if other != name})
        runs += [{**feeds, name: other} for other in _others(feeds[name])]
    for run in runs:
        expected = next((number for number, guard in enumerate(found) if guard.holds(run)), len(found))
        assert choose(run) == expected, run


@pytest.mark.parametrize("shape", [(1, 2), ("n", 2), ("n", "n"), ("?", "?"), ()])
def test_rank_and_sizes_are_checked(shape: tuple[int | str, ...]) -> None:
    """Shapes with a common prefix, and shapes that violate the guard, are distinguished."""
    guard = Guard({"x": ValueProfile("tensor(float)", shape)})
    choose = compile_guards([guard])
    for sizes in [(), (2,), (1, 2), (2, 2), (2, 1), (1, 2, 1), (2, 2, 2)]:
        array = np.zeros(sizes, np.float32)
        assert choose({"x": array}) == (not guard.holds({"x": array})), sizes


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_single_element_is_checked_with_its_shape(shape: tuple[int, ...]) -> None:
    choose = compile_guards([Guard({"k": ValueProfile("tensor(int64)", shape, (7,))})])
    for sizes in [(), (1,), (1, 1), (0,), (2,)]:
        assert choose({"k": np.full(sizes, 7)}) == (sizes != shape)


def test_strings_are_distinguished_from_numbers() -> None:
    guard = Guard({"x": ValueProfile("tensor(string)", (1,))})
    choose = compile_guards([guard])
    for array in (np.array(["a"]), np.array([b"a"]), np.array(["a"], object)):
        assert guard.holds({"x": array}) and choose({"x": array}) == 0
    for other in (np.zeros(1, np.float32), np.zeros(1, bool)):
        assert not guard.holds({"x": other}) and choose({"x": other}) == 1


def test_types_without_numpy_equivalent_are_distinguished() -> None:
    import ml_dtypes

    for type_, dtype in [("bfloat16", ml_dtypes.bfloat16), ("float8e4m3fn", ml_dtypes.float8_e4m3fn)]:
        guard = Guard({"x": ValueProfile(f"tensor({type_})", (1,))})
        assert guard.holds({"x": np.zeros(1, dtype)})
        assert not guard.holds({"x": np.zeros(1, np.float32)})


class _NoArray:
    """``shape`` is a method, as of an OrtValue."""

    def shape(self) -> list[int]:
        return [1]


@pytest.mark.parametrize("shape", [None, (1,), ("n",)])
def test_values_that_are_not_arrays(shape: tuple[int | str, ...] | None) -> None:
    guard = Guard({"x": ValueProfile("tensor(float)", shape)})
    assert compile_guards([guard])({"x": _NoArray()}) == (not guard.holds({"x": _NoArray()}))


def test_names_in_guards_are_not_executed() -> None:
    name = "x'); raise SystemExit #\n"
    guard = Guard({name: ValueProfile("tensor(datetime64[ns])", ("n');", "n');"))}, ("\\'",))
    feeds = {name: np.zeros((2, 2), "datetime64[ns]")}
    assert guard.holds(feeds) and compile_guards([guard])(feeds) == 0
