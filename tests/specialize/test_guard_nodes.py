"""A guard in a model is true exactly where its predicate is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphopt import ir
from graphopt.profile import Guard, Seen
from graphopt.runtime.once import run_once
from graphopt.specialize.guard_nodes import GuardNodes
from tests.support import parse

_MODEL = """<ir_version: 8, opset_import: ["" : OPSET]>
g (float[B, N] x, float[N, 4, M] y, float z, int64 rate, bool[K] flags, int32[2] pair) => (float[B, N] out) {
    out = Identity(x)
}"""


def _checking(guard: Guard, opset: int = 17) -> ir.Model:
    """A model that tells whether ``guard`` holds; the rank of ``z`` is open."""
    model = parse(_MODEL.replace("OPSET", str(opset)))
    inputs = {value.name or "": value for value in model.graph.inputs}
    inputs["z"].shape = None
    edit = ir.Editor(model)
    nodes = GuardNodes(edit, model.graph, inputs)
    nodes.prepare([guard])
    condition = nodes.condition(guard, model.graph)
    if condition is None:
        condition = edit.constant(model.graph, np.array(True), "always")
    held = edit.make_node("Identity", [condition], name="held")
    held.outputs[0].type, held.outputs[0].shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    edit.append(model.graph, held)
    edit.rename(held.outputs[0], "held")
    edit.set_outputs(model.graph, [*model.graph.outputs, held.outputs[0]])
    return model


_SIZES = st.integers(0, 4)
_DIMS = st.one_of(st.integers(1, 4), st.sampled_from(["s", "t"]))


@st.composite
def _guards(draw: st.DrawFn) -> Guard:
    inputs: dict[str, Seen] = {}
    if draw(st.booleans()):
        inputs["x"] = Seen("tensor(float)", (draw(_DIMS), draw(_DIMS)))
    if draw(st.booleans()):
        inputs["y"] = Seen("tensor(float)", (draw(_DIMS), draw(st.sampled_from([4, 4, 5, "s"])), draw(_DIMS)))
    if draw(st.booleans()):
        inputs["z"] = Seen("tensor(float)", tuple(draw(st.lists(_DIMS, max_size=2))))
    if draw(st.booleans()):
        inputs["rate"] = Seen("tensor(int64)", (), (draw(st.sampled_from([0, 16000, -(2**63)])),))
    if draw(st.booleans()):
        flags = tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=3)))
        inputs["flags"] = Seen("tensor(bool)", (len(flags),), flags)
    if draw(st.booleans()):
        inputs["pair"] = Seen("tensor(int32)", (2,), (draw(st.integers(-1, 1)), 7))
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
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_guards(), st.lists(_feeds(), min_size=1, max_size=4), st.sampled_from([11, 13, 17, 18, 21]))
def test_the_nodes_say_what_the_guard_says(guard: Guard, runs: list[dict[str, Any]], opset: int) -> None:
    model = _checking(guard, opset)
    for feeds in [*runs, *map(_bent(guard), runs)]:
        found = run_once(model, feeds, optimizations="off")
        assert bool(found["held"]) == guard.holds(feeds), guard.explain(feeds)


def _bent(guard: Guard) -> Any:
    """Feeds that pass ``guard``, but perhaps for sizes that are declared to be equal."""

    def bend(feeds: dict[str, Any]) -> dict[str, Any]:
        bent, sizes = dict(feeds), {"s": 4, "t": 3}
        for name, seen in guard.inputs.items():
            shape = [dim if isinstance(dim, int) else sizes[dim] for dim in seen.shape or ()]
            data = np.zeros(shape) if seen.ints is None else np.reshape(np.array(seen.ints), shape)
            bent[name] = data.astype(feeds[name].dtype)
        if bent["y"].shape[1] != 4:  # which onnxruntime refuses
            bent["y"] = feeds["y"]
        if bent["x"].shape[1] != bent["y"].shape[0]:  # the model itself demands that
            bent["x"], bent["y"] = feeds["x"], feeds["y"]
        return bent

    return bend


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_an_open_rank_is_checked(rank: int) -> None:
    feeds = {
        "x": _zeros(1, 1), "y": _zeros(1, 4, 1), "rate": np.array(0), "flags": np.zeros(1, bool),
        "pair": np.zeros(2, np.int32), "z": _zeros(*[2] * rank),
    }  # fmt: skip
    for dims in [(2,), ("s",), (2, "s"), ("s", "s"), ("s", "t")]:
        guard = Guard({"z": Seen("tensor(float)", dims)})
        assert bool(run_once(_checking(guard), feeds, optimizations="off")["held"]) == (rank == len(dims))


@pytest.mark.parametrize("shape", [(), (1,), (2,), (0,), (1, 1)])
def test_a_scalar_is_checked_since_onnxruntime_does_not(shape: tuple[int, ...]) -> None:
    guard = Guard({"rate": Seen("tensor(int64)", (), (7,)), "x": Seen("tensor(float)", (1, "n"))})
    feeds = {
        "x": _zeros(1, 1), "y": _zeros(1, 4, 1), "rate": np.full(shape, 7), "flags": np.zeros(1, bool),
        "pair": np.zeros(2, np.int32), "z": _zeros(2),
    }  # fmt: skip
    assert bool(run_once(_checking(guard), feeds, optimizations="off")["held"]) == (shape == ())


def test_what_the_model_declares_is_not_checked() -> None:
    model = parse("g (float[2, 3] x, int64[2] y) => (float[2, 3] out) { out = Identity(x) }")
    inputs = {value.name or "": value for value in model.graph.inputs}
    nodes = GuardNodes(ir.Editor(model), model.graph, inputs)
    guard = Guard({"x": Seen("tensor(float)", (2, 3)), "y": Seen("tensor(int64)", (2,))})
    nodes.prepare([guard])
    assert nodes.condition(guard, model.graph) is None
    assert len(model.graph) == 1
