"""Variants are kept only if they are measured to be faster than the general model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import graphopt
from graphopt import ir
from graphopt.errors import UsageError
from graphopt.specialization import measured_gain
from graphopt.specialization.bundle.read_manifest import parse, read_manifest
from graphopt.timing.alternating_runs import Setup
from graphopt.timing.compare_speed import Speed, Timing
from graphopt.timing.ratios import Band, Comparison
from graphopt.tuning.tuner import Tune, Tuner
from tests.specialization.models import feeds_of, positions, profile_of

BAND = Band(0.99, 1.01)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces timings: the ratio and conclusion are those of the returned dict, which records the setups."""
    state: dict[str, Any] = {"ratio": 0.5, "conclusion": "faster", "setups": [], "tunes": []}

    def compare(sources: Mapping[str, Path], setup: Setup, *rest: Any, **more: Any) -> Timing:
        state["setups"].append(setup)
        state.setdefault("models", []).append(ir.load(sources["variant"]))
        comparison = Comparison(state["ratio"], BAND, state["conclusion"])
        speeds = {name: Speed(1.0, 1.0, 1.0, 9, (), None) for name in sources}
        speeds["variant"] = replace(speeds["variant"], comparison=comparison)
        return Timing(speeds, (1.0,), BAND, 1, 0.1)

    def tune(self: Tuner, original: ir.Model, attempt: Any, produce: Any) -> Any:
        state["tunes"].append(self.tune)
        model, report = produce(attempt, original)
        model.metadata_props["graphopt:session-options"] = '{"device": "cpu", "threads": 1}'
        return model, report

    monkeypatch.setattr(measured_gain, "compare_speed", compare)
    monkeypatch.setattr(Tuner, "run", tune)
    return state


def specialized(**options: Any) -> Any:
    model = positions()
    how = graphopt.Specialization(profile_of(model, feeds_of(1, 8), feeds_of(1, 8), feeds_of(2, 5)))
    return graphopt.specialize(model, how, **{"tune": Tune(100.0), "verify": False, **options})


@pytest.mark.parametrize("bundle", [False, True])
def test_faster_variants_are_kept_with_their_ratio(fake: dict[str, Any], bundle: bool) -> None:
    found = specialized(bundle=bundle)
    assert [branch.name for branch in found.branches] == ["static-1", "static-2"]
    assert [variant.ratio for variant in found.report.variants] == [0.5, 0.5]
    shapes = [setup.feeds["x"].shape for setup in fake["setups"]]
    assert shapes == [(1, 8, 4), (2, 5, 4)]


@pytest.mark.parametrize("conclusion", ["slower", "no difference", "too few processes"])
def test_other_variants_are_left_out(fake: dict[str, Any], conclusion: str) -> None:
    fake |= {"ratio": 0.98, "conclusion": conclusion}
    found = specialized()
    assert not found.branches
    reason = f"0.98 × the time of the general model: {conclusion}"
    assert [variant.left_out for variant in found.report.variants] == [reason] * 2


def test_models_share_the_budget_and_are_tuned_for_their_own_shapes(fake: dict[str, Any]) -> None:
    specialized()
    assert {tune.budget for tune in fake["tunes"]} == {20.0}
    assert [tune.shapes[0]["x"] for tune in fake["tunes"]] == [(1, 8, 4), (1, 8, 4), (2, 5, 4)]


def test_each_variant_of_a_bundle_has_its_own_session_options(fake: dict[str, Any], tmp_path: Path) -> None:
    graphopt.save_bundle(specialized(bundle=True), tmp_path / "bundle")
    plan = read_manifest(tmp_path / "bundle")
    assert all("threads" in (plan.session_options_of(name) or "") for name in plan.models)
    other = replace(plan, variants=(replace(plan.variants[0], session_options="{}"), plan.variants[1]))
    assert parse(other.to_dict()).session_options_of("static-1") == "{}"


def test_budgets_that_are_too_small_for_all_models_are_refused() -> None:
    with pytest.raises(UsageError, match="too small to tune a model with 2 variants") as error:
        specialized(tune=Tune(49.0))
    assert "--budget 50s" in str(error.value.hint)


def test_branches_are_measured_in_the_form_that_is_written(fake: dict[str, Any]) -> None:
    models: list[ir.Model] = []
    fake["models"] = models
    model = positions()
    profile = profile_of(model, feeds_of(1, 8), feeds_of(1, 8))
    how = graphopt.Specialization(profile, pins=True)
    graphopt.specialize(model, how, tune=Tune(100.0), verify=False)
    assert any(node.op_type == "Reshape" for node in ir.walk_nodes(models[-1].graph))
