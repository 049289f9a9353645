"""Guarded groups in the general model and in the variants of one model and of a bundle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.ops import graphopt_operators
from graphopt.specialization.build_variants import Specialization, Specialized
from graphopt.specialization.bundle.loaded_bundle import Bundle
from graphopt.specialization.bundle.save import save_bundle
from graphopt.specialization.guard_counts import GuardCount, GuardCounter, count_guards
from tests.cli.conftest import Invoke
from tests.cli.conftest import invoke as invoke  # noqa: PLC0414
from tests.transforms.guarded_models import positions_and_selected_rows, rows_with, selected_rows

#: Runs that satisfy both, one or none of the guards: the number of rows, and of selected rows.
RUNS = [(6, 3), (6, 2), (5, 3), (5, 5), (4, 0)]


def _feeds(rows: int, positive: int) -> dict[str, np.ndarray]:
    return {"x": rows_with(positive, rows)}


def _specialized(model: ir.Model, *, bundle: bool = False, **options: Any) -> Specialized:
    profile = graphopt.record_profile(model, [_feeds(6, 3)])
    return graphopt.api.specialize(model, Specialization(profile), bundle=bundle, **options)


def _guarded(model: ir.Model) -> int:
    branches = [graphopt_operators.guarded_branch(node) for graph in ir.graphs_of(model) for node in graph]
    return sum(branch is not None for branch in branches)


def _check(expected: Mapping[str, np.ndarray], actual: Mapping[str, np.ndarray]) -> None:
    assert expected.keys() == actual.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, strict=True)


OPTIONS = {
    "profiling": {"pipeline": "profiling-builtin"},
    "O3": {"pipeline": "O3", "post_passes": ["guard-groups", "lower-fallbacks"]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_one_model_has_guarded_groups_in_all_branches(name: str) -> None:
    found = _specialized(positions_and_selected_rows(), **OPTIONS[name])
    assert found.model is not None and found.report.verdict is not None and found.report.verdict.ok
    assert [branch.name for branch in found.branches] == ["static-1"]
    assert _guarded(found.model) == 2
    for run in RUNS:
        expected = graphopt.run(positions_and_selected_rows(), _feeds(*run), optimizations="off")
        _check(expected, graphopt.run(found.model, _feeds(*run), optimizations="off"))


def test_only_the_executed_branch_checks_its_groups() -> None:
    found = _specialized(positions_and_selected_rows(), **OPTIONS["profiling"])
    assert found.model is not None
    counted = count_guards(found.model)
    assert counted is not None
    counts = []
    for run in RUNS:
        outputs = graphopt.run(counted.model, _feeds(*run))
        counts.append(sorted(outputs[counted.counter.output].reshape(-1, 2).tolist()))
    hit, miss, none = [1, 1], [0, 1], [0, 0]
    assert counts == [[none, hit], [none, miss], [none, hit], [none, miss], [none, miss]]


def test_fork_does_not_wait_for_the_counts_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = GuardCounter("counts", ["y"])
    with counter._lock, monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)  # as in a fork
        counter.add(np.array([1, 3]))
    assert counter.counts == (GuardCount("y", 1, 2),)


@pytest.mark.parametrize("name", OPTIONS)
def test_models_of_a_bundle_have_guarded_groups(name: str, tmp_path: Path) -> None:
    found = _specialized(positions_and_selected_rows(), bundle=True, **OPTIONS[name])
    assert _guarded(found.general) == 1 and [_guarded(branch.model) for branch in found.branches] == [1]
    save_bundle(found, tmp_path / "bundle")
    bundle = Bundle(tmp_path / "bundle")
    for run in RUNS:
        _check(graphopt.run(positions_and_selected_rows(), _feeds(*run)), bundle.run(_feeds(*run)))


def test_other_pipelines_have_no_guarded_groups() -> None:
    found = _specialized(positions_and_selected_rows(), pipeline="O3")
    assert found.model is not None and _guarded(found.model) == 0


def test_a_profile_of_inner_values_is_used_without_facts_about_inputs(invoke: Invoke, tmp_path: Path) -> None:
    """The guards of the general model check their own assumptions."""
    model, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    graphopt.save(selected_rows(), model)
    graphopt.record_profile(model, [_feeds(6, 3), _feeds(5, 3)]).write(tmp_path / "p.json")
    done = invoke(
        "optimize", model, "-o", out, "--pipeline", "profiling-builtin", "--profile", tmp_path / "p.json",
        "--variants", "1",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "If" in [node.op_type for node in ir.load(out).graph]
    for run in RUNS:
        _check(graphopt.run(model, _feeds(*run)), graphopt.run(out, _feeds(*run)))


def test_checks_that_are_not_lowered_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    graphopt.save(selected_rows(), model)
    graphopt.record_profile(model, [_feeds(6, 3)]).write(tmp_path / "p.json")
    done = invoke(
        "optimize", model, "-o", tmp_path / "o.onnx", "--post-pass", "guard-groups",
        "--profile", tmp_path / "p.json", "--no-verify",
    )  # fmt: skip
    assert done.status != 0 and "type check left, which no runtime supports" in done.err
    assert "let lower-fallbacks follow guard-groups" in done.err
    assert not (tmp_path / "o.onnx").exists()
