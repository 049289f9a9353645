"""Memory over time of injected profiles."""

from __future__ import annotations

from typing import Any

from graphopt import ir
from graphopt.timing.memory_over_time import memory_over_time
from tests.model_testing import parse

#: Two chains that meet: b and c read a, and d reads both.
MODEL = """
g (float[N] x) => (float[N] d) {
  [na] a = Relu(x)
  [nb] b = Exp(a)
  [nc] c = Neg(a)
  [nd] d = Add(b, c)
}
"""


def event(name: str, begin: int, *shapes: list[int]) -> dict[str, Any]:
    """A kernel of 10 µs."""
    args = {"op_name": "Op", "output_type_shape": [{"float": shape} for shape in shapes]}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": begin, "dur": 10, "args": args}


def run(begin: int, *names: str, size: int = 1) -> list[dict[str, Any]]:
    kernels = [event(name, begin + 20 * number, [size]) for number, name in enumerate(names)]
    return [{"name": "model_run", "ts": begin, "dur": 20 * len(names)}, *kernels]


def nodes() -> dict[str, ir.Node]:
    return {node.name or "": node for node in parse(MODEL).graph}


def test_values_are_live_until_their_last_reader_ends() -> None:
    steps = memory_over_time(run(0, "na", "nb", "nc", "nd"), nodes(), ["d"])
    # a; a and b; a, b and c; b, c and d
    assert [(step.kernel, step.bytes) for step in steps] == [("na", 4), ("nb", 8), ("nc", 12), ("nd", 12)]
    assert [step.milliseconds for step in steps] == [0.0, 0.02, 0.04, 0.06]


def test_outputs_are_live_to_the_end_and_unread_values_in_their_own_step() -> None:
    events = run(0, "na", "nb", "nc", "nd", "other")
    sizes = [step.bytes for step in memory_over_time(events, nodes(), ["d"])]
    assert sizes == [4, 8, 12, 12, 8]
    assert [step.bytes for step in memory_over_time(events, nodes(), [])] == [4, 8, 12, 12, 4]


def test_only_the_last_run_counts() -> None:
    events = [*run(0, "na", "nb", size=100), *run(1000, "na", "nb", size=1)]
    assert [step.bytes for step in memory_over_time(events, nodes(), [])] == [4, 8]


def test_a_value_computed_again_has_another_live_range() -> None:
    steps = memory_over_time(run(0, "na", "nb", "other", "na", "nb"), nodes(), [])
    assert [step.bytes for step in steps] == [4, 8, 4, 4, 8]


def test_an_empty_profile_has_no_steps() -> None:
    assert memory_over_time([], {}, []) == []
