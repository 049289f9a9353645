"""Guard nodes agree with ``Guard.holds``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphopt import ir
from graphopt.inputs.run_once import run_once
from graphopt.profile import Guard, ValueProfile
from graphopt.profile.guard_nodes import GuardNodes
from tests.model_testing import parse

_MODEL = """<ir_version: 8, opset_import: ["" : OPSET]>
g (float[B, N] x, float[N, 4, M] y, float z, int64 rate, bool[K] flags, int32[2] pair, int64[2] two) => (float[B, N] out) {
    out = Identity(x)
}"""


def _checking(*guards: Guard, opset: int = 17) -> ir.Model:
    """A model that returns for each of ``guards`` whether it holds; the rank of ``z`` is unknown."""
    model = parse(_MODEL.replace("OPSET", str(opset)))
    inputs = {value.name or "": value for value in model.graph.inputs}
    inputs["z"].shape = None
    edit = ir.Editor(model)
    nodes = GuardNodes(edit, model.graph, inputs)
    nodes.prepare(list(guards))
    for number, guard in enumerate(guards):
        condition = nodes.condition(guard, model.graph)
        if condition is None:
            condition = edit.constant(model.graph, np.array(True), "always")
        held = edit.make_node("Identity", [condition], name=f"held{number}")
        held.outputs[0].type, held.outputs[0].shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
        edit.append(model.graph, held)
        edit.rename(held.outputs[0], f"held{number}")
        edit.set_outputs(model.graph, [*model.graph.outputs, held.outputs[0]])
    return model


def _held(model: ir.Model, feeds: dict[str, Any]) -> list[bool]:
    found = run_once(model, feeds, optimizations="off")
    return [bool(found[name]) for name in found if name.startswith("held")]


_SIZES = st.integers(0, 4)
_DIMS = st.one_of(st.integers(1, 4), st.sampled_from(["s", "t", "?"]))


@st.composite
def _guards(draw: st.DrawFn) -> Guard:
    inputs: dict[str, ValueProfile] = {}
    if draw(st.booleans()):
        inputs["x"] = ValueProfile("tensor(float)", (draw(_DIMS), draw(_DIMS)))
    if draw(st.booleans()):
        inputs["y"] = ValueProfile(
            "tensor(float)", (draw(_DIMS), draw(st.sampled_from([4, 4, 5, "s"])), draw(_DIMS))
        )
    if draw(st.booleans()):
        inputs["z"] = ValueProfile("tensor(float)", tuple(draw(st.lists(_DIMS, max_size=2))))
    if draw(st.booleans()):
        inputs["rate"] = ValueProfile("tensor(int64)", (), (draw(st.sampled_from([0, 16000, -(2**63)])),))
    if draw(st.booleans()):
        flags = tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=3)))
        inputs["flags"] = ValueProfile("tensor(bool)", (len(flags),), flags)
    if draw(st.booleans()):
        inputs["pair"] = ValueProfile("tensor(int32)", (2,), (draw(st.integers(-1, 1)), 7))
    if draw(st.booleans()):  # it may contradict the declarations
        numbers = tuple(draw(st.lists(st.integers(0, 1), max_size=3)))
        inputs["two"] = ValueProfile("tensor(int64)", (len(numbers),), numbers or None)
    return Guard(inputs)


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@st.composite
def _feeds(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(_SIZES)
    return {
        "x": _zeros(draw(_SIZES), n),
        "y": _zeros(n, 4, draw(_SIZES)),
        "z": _zeros(*draw(st.lists(_SIZES, max_size=3))),
        "rate": np.full(
            draw(st.sampled_from([(), (), (1,), (2,), (0,)])),
            draw(st.sampled_from([0, 16000, -(2**63)])),
            np.int64,
        ),
        "flags": np.array(draw(st.lists(st.booleans(), max_size=3)), bool),
        "pair": np.array([draw(st.integers(-1, 1)), draw(st.integers(6, 7))], np.int32),
        "two": np.array([draw(st.integers(0, 1)), 1], np.int64),
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(_guards(), min_size=1, max_size=3),
    st.lists(_feeds(), min_size=1, max_size=3),
    st.sampled_from([11, 13, 17, 18, 21]),
)
def test_guard_nodes_agree_with_guards(guards: list[Guard], runs: list[dict[str, Any]], opset: int) -> None:
    model = _checking(*guards, opset=opset)
    for feeds in [*runs, *(_bent(guard)(run) for guard in guards for run in runs)]:
        assert _held(model, feeds) == [guard.holds(feeds) for guard in guards]


def _bent(guard: Guard) -> Any:
    """Feeds that satisfy ``guard``, except possibly for sizes declared to be equal."""

    def bend(feeds: dict[str, Any]) -> dict[str, Any]:
        bent, sizes = dict(feeds), {"s": 4, "t": 3, "?": 2}
        for name, seen in guard.inputs.items():
            shape = [dim if isinstance(dim, int) else sizes[dim] for dim in seen.shape or ()]
            data = np.zeros(shape) if seen.ints is None else np.reshape(np.array(seen.ints), shape)
            if name != "two" or shape == [2]:  # onnxruntime rejects others
                bent[name] = data.astype(feeds[name].dtype)
        if bent["y"].shape[1] != 4:  # rejected by onnxruntime
            bent["y"] = feeds["y"]
        if bent["x"].shape[1] != bent["y"].shape[0]:  # required by the model itself
            bent["x"], bent["y"] = feeds["x"], feeds["y"]
        return bent

    return bend


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_unknown_rank_is_checked(rank: int) -> None:
    feeds = {
        "x": _zeros(1, 1), "y": _zeros(1, 4, 1), "rate": np.array(0), "flags": np.zeros(1, bool),
        "pair": np.zeros(2, np.int32), "two": np.zeros(2, np.int64), "z": _zeros(*[2] * rank),
    }  # fmt: skip
    for dims in [(2,), ("s",), (2, "s"), ("s", "s"), ("s", "t")]:
        guard = Guard({"z": ValueProfile("tensor(float)", dims)})
        assert _held(_checking(guard), feeds) == [rank == len(dims)]


@pytest.mark.parametrize("shape", [(), (1,), (2,), (0,), (1, 1)])
def test_declared_scalar_is_checked(shape: tuple[int, ...]) -> None:
    guard = Guard(
        {"rate": ValueProfile("tensor(int64)", (), (7,)), "x": ValueProfile("tensor(float)", (1, "n"))}
    )
    feeds = {
        "x": _zeros(1, 1), "y": _zeros(1, 4, 1), "rate": np.full(shape, 7), "flags": np.zeros(1, bool),
        "pair": np.zeros(2, np.int32), "two": np.zeros(2, np.int64), "z": _zeros(2),
    }  # fmt: skip
    assert _held(_checking(guard), feeds) == [shape == ()]


_ZEROS = {
    "x": _zeros(1, 1), "y": _zeros(1, 4, 1), "rate": np.array(0), "flags": np.zeros(1, bool),
    "pair": np.zeros(2, np.int32), "two": np.array([5, 6]), "z": _zeros(2),
}  # fmt: skip


@pytest.mark.parametrize(
    "never",
    [
        {"two": ValueProfile("tensor(int64)", (3,), (5, 6, 7))},
        {"two": ValueProfile("tensor(int64)", (1,), (5,))},
        {"two": ValueProfile("tensor(int64)", (1, 2), (5, 6))},
        {"rate": ValueProfile("tensor(int64)", (3,), (0, 0, 0))},
        {"two": ValueProfile("tensor(int64)", ("s",)), "y": ValueProfile("tensor(float)", (1, "s", 1))},
        {"y": ValueProfile("tensor(float)", ("s", "s", 1)), "x": ValueProfile("tensor(float)", (3, "s"))},
    ],
)
def test_guard_that_never_holds_does_not_affect_others(never: dict[str, ValueProfile]) -> None:
    """All guards share one vector, whose positions it must not shift."""
    flags, x = ValueProfile("tensor(bool)", (1,), (0,)), ValueProfile("tensor(float)", (1, 1))
    good = Guard({"two": ValueProfile("tensor(int64)", (2,), (5, 6)), "rate": ValueProfile("tensor(int64)", (), (0,)),
                  "flags": flags, "x": x})  # fmt: skip
    bad = Guard({**good.inputs, "flags": ValueProfile("tensor(bool)", (1,), (1,))})
    assert _held(_checking(Guard({**good.inputs, **never}), good, bad), _ZEROS) == [False, True, False]
    assert _held(_checking(good, bad, Guard({**good.inputs, **never})), _ZEROS) == [True, False, False]


def test_anonymous_dims_are_unconstrained() -> None:
    guard = Guard({"z": ValueProfile("tensor(float)", ("?", "?"))})
    assert _held(_checking(guard), {**_ZEROS, "z": _zeros(2, 3)}) == [True]
    assert _held(_checking(guard), {**_ZEROS, "z": _zeros(2)}) == [False]


@pytest.mark.parametrize("size", [3, 4])
def test_symbol_with_a_declared_size_is_fixed_elsewhere(size: int) -> None:
    guard = Guard(
        {"x": ValueProfile("tensor(float)", ("s", 1)), "y": ValueProfile("tensor(float)", (1, "s", 1))}
    )
    feeds = {**_ZEROS, "x": _zeros(size, 1)}
    assert _held(_checking(guard), feeds) == [guard.holds(feeds)] == [size == 4]


def test_declared_sizes_are_not_checked() -> None:
    model = parse("g (float[2, 3] x, int64[2] y) => (float[2, 3] out) { out = Identity(x) }")
    inputs = {value.name or "": value for value in model.graph.inputs}
    nodes = GuardNodes(ir.Editor(model), model.graph, inputs)
    guard = Guard({"x": ValueProfile("tensor(float)", (2, 3)), "y": ValueProfile("tensor(int64)", (2,))})
    nodes.prepare([guard])
    assert nodes.condition(guard, model.graph) is None
    assert len(model.graph) == 1
