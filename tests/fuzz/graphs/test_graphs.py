"""Pipelines preserve the results of generated graphs."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphopt.process.child import Child
from tests.fuzz.graphs.generate import generate
from tests.fuzz.graphs.invariants import examine, plans
from tests.fuzz.graphs.patterns import unknown_operators
from tests.fuzz.graphs.run import model_of

#: Seeds that the long sweep examines, in chunks.
SEEDS, CHUNKS = 2000, 20


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """One process for the risky runs of all tests."""
    with Child(preload=("onnxruntime", "graphopt.ort.model_runs")) as child:
        yield child


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(random=st.randoms(use_true_random=False))
def test_optimization_preserves_random_graphs(child: Child, random: Random) -> None:
    findings = examine(generate(random), plans(random), child) or []
    faults = [str(finding) for finding in findings if finding.is_fault]
    assert faults == []


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_optimization_preserves_more_random_graphs(child: Child, chunk: int) -> None:
    found, judged = [], 0
    for seed in range(chunk, SEEDS, CHUNKS):
        findings = examine(*model_of(seed), child)
        judged += findings is not None
        found += [f"seed {seed}: {finding}" for finding in findings or () if finding.is_fault]
    assert found == []
    assert judged > 0.8 * SEEDS / CHUNKS


def test_a_seed_gives_the_same_graph() -> None:
    first, second = (model_of(7)[0].SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_the_operators_of_rules_are_generated() -> None:
    # some trigonometric functions represent all
    rest = {"Tan", "Asin", "Acos", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"}
    rest |= {"SimplifiedLayerNormalization"}  # onnxruntime's own operators, unknown to onnx's checker
    assert unknown_operators() <= rest, "tests/fuzz/graphs/operators.py lacks a builder"
