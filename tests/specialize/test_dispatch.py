"""Compiled guards say what the guards themselves say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.profile import Guard, Seen
from graphopt.specialize.dispatch import compile_guards

NAMES = ("x", 'it\'s "y"', "z")
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}

dims = st.one_of(st.integers(0, 2), st.sampled_from(["n", "m"]))
shapes = st.one_of(st.none(), st.lists(dims, max_size=2).map(tuple))


@st.composite
def seen(draw: st.DrawFn) -> Seen:
    type_ = draw(st.sampled_from([*TYPES, "seq(tensor(float))", "tensor(string)"]))
    ints = draw(st.one_of(st.none(), st.lists(st.integers(0, 1), max_size=2).map(tuple)))
    return Seen(type_, draw(shapes), ints, draw(st.integers(0, 5)) > 0)


@st.composite
def values(draw: st.DrawFn) -> Any:
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from([None, [1.0], "text", 3, np.float32(1), np.array(["a"], object)]))
    shape = draw(st.lists(st.integers(0, 2), max_size=2))
    return np.full(shape, draw(st.integers(0, 1)), draw(st.sampled_from([*TYPES.values()])))


guards = st.builds(
    Guard,
    st.dictionaries(st.sampled_from(NAMES), seen(), max_size=3),
    st.lists(st.sampled_from(NAMES), max_size=1).map(tuple),
)


@given(st.lists(guards, max_size=3), st.dictionaries(st.sampled_from(NAMES), values(), max_size=3))
def test_it_says_what_the_guards_say(found: list[Guard], feeds: dict[str, Any]) -> None:
    expected = next((number for number, guard in enumerate(found) if guard.holds(feeds)), len(found))
    assert compile_guards(found)(feeds) == expected


@given(st.data())
def test_it_lets_through_what_was_seen(data: st.DataObject) -> None:
    """Feeds made after a guard, and then changed in one place: those hold, and these mostly do not."""
    sizes = {"n": data.draw(st.integers(0, 3)), "m": data.draw(st.integers(0, 3))}
    inputs, feeds = {}, {}
    for name in NAMES:
        shape = data.draw(st.lists(dims, max_size=3).map(tuple))
        array = np.full([sizes.get(dim, dim) for dim in shape], 1, np.int64)  # type: ignore[call-overload]
        ints = (1,) * array.size if data.draw(st.booleans()) else None
        inputs[name], feeds[name] = Seen("tensor(int64)", shape, ints), array
    guard = Guard(inputs)
    choose = compile_guards([guard])
    assert guard.holds(feeds) and choose(feeds) == 0
    name = data.draw(st.sampled_from(NAMES))
    other = data.draw(st.sampled_from([feeds[name].astype(np.int32), feeds[name][None], feeds[name] * 2]))
    assert choose(feeds | {name: other}) == (not guard.holds(feeds | {name: other}))


class _NoArray:
    """Has a method where arrays have sizes, as onnxruntime's own values do."""

    def shape(self) -> list[int]:
        return [1]


@pytest.mark.parametrize("shape", [None, (1,), ("n",)])
def test_what_is_no_array(shape: tuple[int | str, ...] | None) -> None:
    guard = Guard({"x": Seen("tensor(float)", shape)})
    assert compile_guards([guard])({"x": _NoArray()}) == (not guard.holds({"x": _NoArray()}))


def test_text_in_a_guard_is_never_run() -> None:
    name = "x'); raise SystemExit #\n"
    guard = Guard({name: Seen("tensor(datetime64[ns])", ("n');", "n');"))}, ("\\'",))
    feeds = {name: np.zeros((2, 2), "datetime64[ns]")}
    assert guard.holds(feeds) and compile_guards([guard])(feeds) == 0
