"""Pipelines preserve the results of generated graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphopt.process.child import Child
from tests.fuzz.graphs.invariants import examine
from tests.fuzz.graphs.patterns import unknown_operators
from tests.fuzz.graphs.run import model_of

#: Seeds that the long sweep examines, in chunks; the short one examines the seeds that follow.
SEEDS, CHUNKS = 2000, 20


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """One process for the risky runs of all tests."""
    with Child(preload=("onnxruntime", "graphopt.ort.model_runs")) as child:
        yield child


@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + 40))
def test_optimization_preserves_random_graphs(child: Child, seed: int) -> None:
    # seeds instead of hypothesis's choices, which depend on the modules that other tests have imported
    findings = examine(*model_of(seed), child) or []
    assert [str(finding) for finding in findings if finding.is_fault] == []


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
