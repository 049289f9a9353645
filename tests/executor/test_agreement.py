"""Executors compute the same as the original for mixed shapes and values, from eight threads and from one.

The order of calls from several threads is random, and with it the profile: whether a specialization has guarded
groups is certain for one thread only.
"""

from __future__ import annotations

import pytest

from benchmarks.executor_agreement import SETTINGS, WAYS, Agreement, check, references
from tests.executor.agreement_models import NAMES, inputs_of, model_of


def _agrees(name: str, setting: str, way: str, calls: int, threads: int = 8) -> Agreement:
    model, inputs = model_of(name), list(inputs_of(name))
    cases = references(model, inputs)
    assert len(cases) == len(inputs)
    found = check(name, model, cases, setting, way, calls=calls, threads=threads)
    assert not found.faults, found.faults
    assert found.hits + found.misses == found.calls == calls and found.hits > 0
    assert found.largest == 0 or SETTINGS[setting].level == "default"
    return found


@pytest.mark.parametrize(
    ("name", "way"), [*zip(("positions", "loop", "nonzero", "cache"), WAYS, strict=True)]
)
def test_executor_agrees_with_the_original(name: str, way: str) -> None:
    _agrees(name, "O1", way, 80)


@pytest.mark.parametrize(
    ("name", "way"), [("selected rows", "static:2,dynamic:10"), ("growing rows", "dynamic:4, background")]
)
def test_executor_with_guarded_groups_agrees_with_the_original(name: str, way: str) -> None:
    _agrees(name, "O1, guarded groups", way, 80)
    found = _agrees(name, "O1, guarded groups", way, 80, threads=1)
    assert found.guards > 0 and found.nested_hits > 0 and found.nested_misses > 0


@pytest.mark.parametrize(
    ("name", "setting", "way"),
    [("loop", "jit, exact", "static:2,dynamic:10"), ("selected rows", "jit", "dynamic:4, background")],
)
def test_executor_with_pipelines_of_the_jit_agrees_with_the_original(
    name: str, setting: str, way: str
) -> None:
    _agrees(name, setting, way, 80)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_200_calls_agree_with_the_original(name: str, setting: str, way: str) -> None:
    _agrees(name, setting, way, 200)


def test_a_different_output_is_a_fault() -> None:
    cases = references(model_of("positions"), list(inputs_of("positions"))[:3])
    other = model_of("positions")
    for node in other.graph:
        if node.op_type == "Exp":
            node.op_type = "Neg"
    found = check("positions", other, cases, "O3", "static:2,dynamic:10", calls=8)
    assert len(found.faults) == 8 and "on" in found.faults[0]
