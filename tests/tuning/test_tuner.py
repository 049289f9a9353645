"""optimize --tune on real models and a real clock: only differences far from the band are asserted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt import api, config, ir
from graphopt.cli.main import main
from graphopt.errors import RuntimeFailure, UsageError
from graphopt.instrument.report import Dropped
from graphopt.make_pass_options import make_options
from graphopt.optimization_attempt import Attempt
from graphopt.ort.devices import CPU, Device
from graphopt.ort.session_options import KEY, SessionChoice, recommend, recommended
from graphopt.passes.pipelines import make_pipeline
from graphopt.timing.alternating_runs import Setup
from graphopt.tuning import tuner
from graphopt.tuning.measurements import Measurement
from graphopt.tuning.search_space import Variant, choices_for, newer_opset, rewrite_groups
from graphopt.tuning.tuner import Tune
from graphopt.tuning.variant_builder import VariantBuilder, attempt_for
from graphopt.tuning.variant_search import TuningDecision
from tests.model_testing import parse
from tests.tuning.slow_passes import Idle, Slow

SIZE = 96


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = Relu(Identity(x) · w), twice; large enough to be timed."""
    make = onnx.helper
    weights = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32) / 10
    nodes = [
        make.make_node("Identity", ["x"], ["a"]),
        make.make_node("MatMul", ["a", "w"], ["b"]),
        make.make_node("Relu", ["b"], ["c"]),
        make.make_node("MatMul", ["c", "w"], ["d"]),
        make.make_node("Relu", ["d"], ["y"]),
    ]
    ends = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", SIZE]) for name in "xy"]
    graph = make.make_graph(nodes, "g", ends[:1], ends[1:], [onnx.numpy_helper.from_array(weights, "w")])
    path = tmp_path / "model.onnx"
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), path)
    return path


Call = Callable[..., Any]


@pytest.fixture
def optimize(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Tune the model by the command line, with a separate store; returns the JSON and the operators."""

    def call(*arguments: object) -> tuple[dict[str, Any], list[str]]:
        target = tmp_path / "out.onnx"
        words = ["optimize", model, "-o", target, "--tune", "--device", "cpu", "--threads", 1]
        shapes = ["--input-shape", f"x:64,{SIZE}"] if "--input-shape" not in arguments else []
        words += [*shapes, "--set", f"cache-dir={tmp_path / 'store'}", "--json", *arguments]
        capsys.readouterr()
        assert main([str(word) for word in words], {}) == 0
        found = json.loads(capsys.readouterr().out)
        return found["tuning"], [node.op_type for node in onnx.load(target).graph.node]

    return call


def spoilt(optimize: Call) -> None:
    """Tune with a pass that makes the model slower: it is reverted, and the result is the simplified model."""
    tuning, operators = optimize("--post-pass", "tests.tuning.slow_passes:Slow", "--budget", "10s", "--fresh")
    by_name = {group["name"]: group for group in tuning["groups"]}
    assert by_name["slow"]["kept"] is False and by_name["slow"]["rewrites"] == 2
    assert operators == ["MatMul", "Relu"] * 2
    assert tuning["final"]["slower"] is False


def test_a_slow_rewrite_is_reverted(optimize: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "choices_for", lambda *arguments: ())
    spoilt(optimize)


@pytest.mark.slow
def test_a_slow_rewrite_is_reverted_every_time(optimize: Call) -> None:
    for _ in range(10):
        spoilt(optimize)


@pytest.mark.slow
def test_the_result_is_never_slower_than_the_input(optimize: Call) -> None:
    for _ in range(3):
        tuning, _ = optimize("-O3", "--budget", "20s", "--fresh", "--input-shape", f"x:16x{SIZE},64x{SIZE}")
        assert tuning["final"]["slower"] is False and len(tuning["inputs"]) == 2


@pytest.mark.slow
def test_the_same_model_is_no_faster(optimize: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        VariantBuilder, "same", lambda self, one, other: False
    )  # otherwise no measurement would be made
    for _ in range(3):
        tuning, _ = optimize("--post-pass", "tests.tuning.slow_passes:Idle", "--budget", "20s", "--fresh")
        (idle,) = (group for group in tuning["groups"] if group["name"] == "idle")
        assert idle["kept"] is False and idle["reason"] == "no difference, and nothing smaller"


def test_rewrites_without_effect_are_not_measured_again(
    optimize: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "choices_for", lambda *arguments: ())  # they would have to be measured
    first, operators = optimize("--post-pass", "tests.tuning.slow_passes:Idle", "--budget", "30s")
    assert all("faster" not in group["reason"] for group in first["groups"])
    assert all(group["reading"]["same"] for group in first["groups"])  # onnxruntime removes it, too
    by_name = {group["name"]: group for group in first["groups"]}
    assert by_name["idle"]["kept"] is False and by_name["identities"]["kept"] is True
    assert first["stored"] is False and operators == ["MatMul", "Relu"] * 2

    def fail(*arguments: object, **more: object) -> None:
        pytest.fail("it is measured again")

    monkeypatch.setattr(tuner, "search", fail)
    second, again = optimize("--post-pass", "tests.tuning.slow_passes:Idle", "--budget", "1m")
    assert again == operators and second == {**first, "stored": True}


def test_session_options_are_recommended_applied_and_reported(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = SessionChoice(threads=1, spinning=False, disabled=("SkipLayerNormFusion",))
    final = Measurement(0.8, faster=True)
    monkeypatch.setattr(
        tuner,
        "search",
        lambda groups, choices, measurer, *more: TuningDecision(Variant(choice=choice), final=final),
    )
    target = tmp_path / "out.onnx"
    store = ["--device", "cpu", "--set", f"cache-dir={tmp_path / 'store'}"]
    assert main(["optimize", str(model), "-o", str(target), "--tune", *store], {}) == 0
    out = capsys.readouterr().out
    assert "recommended session options: 1 thread, no spinning, no SkipLayerNormFusion" in out
    assert "options.intra_op_num_threads = 1" in out
    written = api.load(target)
    assert recommended(written, CPU) == choice and recommended(written, Device("cuda")).plain
    stored = {entry.key: entry.value for entry in onnx.load(target).metadata_props}
    assert json.loads(stored[KEY])["threads"] == 1
    for arguments, expected in (([], choice.to_dict()), (["--no-session-options"], {})):
        assert main(["run", str(target), "--device", "cpu", "--json", *arguments], {}) == 0
        assert json.loads(capsys.readouterr().out)["session_options"] == json.loads(json.dumps(expected))
    briefly = ["--processes", "1", "--rounds", "3", "--warmup", "1", "--device", "cpu"]
    assert main(["bench", str(target), str(model), *briefly, "--input-shape", f"x:2x{SIZE}"], {}) == 0
    assert "session options of out: 1 thread, no spinning" in capsys.readouterr().out


def test_a_model_that_does_not_run_is_still_optimized(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeFailure("no kernel")

    monkeypatch.setattr("graphopt.inputs.run_once.try_out", fail)
    result = api.optimize(model, tune=Tune(), verify=False, device="cpu")
    assert "not tuned: no kernel" in result.report.remarks and len(result.model.graph) == 4
    with pytest.raises(UsageError, match="stop_after and tune exclude each other"):
        api.optimize(model, tune=Tune(), stop_after=1)


def test_options_of_tuning_require_tune(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--budget", "60s"], ["--threads", "1"], ["--fresh"]):
        assert main(["optimize", str(model), "-o", "out.onnx", *arguments], {}) == 2
        assert f"{arguments[0]} requires --tune" in capsys.readouterr().err
    assert main(["optimize", str(model), "-o", "out.onnx", "--tune", "--budget", "soon"], {}) == 2
    assert "--budget" in capsys.readouterr().err
    assert main(["optimize", str(model), "-o", "out.onnx", "--tune", "--budget", "0s"], {}) == 2
    assert "--budget" in capsys.readouterr().err
    assert main(["optimize", str(model), "-o", "out.onnx", "--tune", "--budget", "5s"], {}) == 2
    assert "a budget of 5.0 s is too small for any measurement: give at least 10s" in capsys.readouterr().err


def test_tuning_tries_rewrites_that_are_not_expected_to_pay() -> None:
    model = parse(
        """g (float[N,2] x) => (float[N,2] a, float[N,2] b)
            <float[2,2] v = {1.0, 2.0, 3.0, 4.0}, float[2,2] w = {4.0, 3.0, 2.0, 1.0}> {
            a = MatMul(x, v)
            b = MatMul(x, w)
        }"""
    )
    job = Attempt(make_pipeline("O3").eager(), make_options(config.current()))
    report = job.run(model)
    assert [node.op_type for node in model.graph] == ["MatMul", "Split"]
    (group,) = rewrite_groups(report.passes, job.pipeline.passes())
    assert (group.name, group.speed) == ("batch-mm", True)


def test_variants_omit_disabled_rules_and_equal_ones_are_recognized(model: Path, tmp_path: Path) -> None:
    job = Attempt(make_pipeline("O1", (), [Idle(), Slow(times=2)]), make_options(config.current()))
    candidate = api.load(model)
    report = job.run(candidate)
    groups = rewrite_groups(report.passes, job.pipeline.passes())
    assert {group.name: (group.owners, group.rewrites, group.speed) for group in groups} == {
        "idle": (("idle",), 2, False),
        "slow": (("slow",), 2, False),
        "identities": (("drop-identity",), 1, False),
    }
    with VariantBuilder(api.load(model), job, [], tmp_path, Setup({}, threads=1)) as workshop:
        everything = Variant()
        operators = {
            off: [node.op_type for node in ir.load(workshop.path(everything.without(off.split()))).graph]
            for off in ("", "slow", "slow idle", "slow idle drop-identity")
        }
        assert [found.count("Max") for found in operators.values()] == [4, 0, 0, 0]
        assert [found.count("Identity") for found in operators.values()] == [2, 2, 0, 1]
        assert workshop.same(everything.without(["idle"]), everything)
        assert not workshop.same(everything.without(["slow"]), everything)
        assert workshop.same(Variant(original=True), everything.without(["slow"]))
        assert not workshop.same(Variant(choice=SessionChoice(threads=1)), everything)
        # nothing to fuse here for the optimizer that is left out
        assert workshop.same(Variant(choice=SessionChoice(disabled=("SkipLayerNormFusion",))), everything)


def test_a_newer_opset_is_tried_if_more_can_be_fused(model: Path, tmp_path: Path) -> None:
    old = api.load(model)
    for pipeline, ceiling, worth in (("O3", 24, 23), ("O3", 22, None), ("O2", 24, None)):
        assert newer_opset(old, make_pipeline(pipeline), ceiling) == worth
    asked = make_pipeline("O3", ["convert-opset{target=18}"])
    assert newer_opset(old, asked, 24) is None
    job = Attempt(make_pipeline("O3"), make_options(config.current()))
    with VariantBuilder(old, job, [], tmp_path, Setup({})) as workshop:
        raised = ir.load(workshop.path(Variant(opset=23)))
        assert raised.graph.opset_imports[""] == 23
        assert newer_opset(raised, job.pipeline, 24) is None
        assert ir.load(workshop.path(Variant())).graph.opset_imports[""] == 17


def test_rewrites_reverted_by_tuning_are_reported_as_such() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y) <float[3, 2, 1, 1] w = {1, 2, 3, 4, 5, 6}>
        { a = Conv(x, w) y = HardSigmoid(a) }
    """)
    job = Attempt(make_pipeline("O3"), make_options(config.Settings()))
    assert [one.rule for one in job.run(api.copy(model)).fused] == ["activation-into-conv"]
    report = attempt_for(job, Variant(frozenset({"activation-into-conv"}))).run(model)
    assert not report.fused
    assert [(place.rule, place.reason) for place in report.missed] == [
        ("activation-into-conv", "reverted by tuning")
    ]


def test_harmful_rewrites_are_in_no_variant(model: Path, tmp_path: Path) -> None:
    job = Attempt(make_pipeline("O1", (), [Slow(times=2)]), make_options(config.current()))
    for drop, left in ((Dropped("slow", "Relu(c)", "slow", ""), 2), (Dropped("slow", "", "slow", ""), 0)):
        folder = tmp_path / str(left)
        folder.mkdir()
        with VariantBuilder(api.load(model), job, [drop], folder, Setup({})) as workshop:
            made = ir.load(workshop.path(Variant()))
            assert [node.op_type for node in made.graph].count("Max") == left


def test_input_is_written_with_requested_passes_if_no_rewrite_pays(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given_up = TuningDecision(
        Variant(original=True), fallback="the result was slower: all rewrites were reverted"
    )
    monkeypatch.setattr(tuner, "search", lambda groups, choices, measurer, *more: given_up)
    target = tmp_path / "out.onnx"
    store = ["--device", "cpu", "--set", f"cache-dir={tmp_path / 'store'}", "--target-opset", "18"]
    assert main(["optimize", str(model), "-o", str(target), "--tune", *store], {}) == 0
    out = capsys.readouterr().out
    assert "all rewrites were reverted" in out and "result: the original's own graph" in out
    written = onnx.load(target)
    assert [node.op_type for node in written.graph.node] == [
        node.op_type for node in onnx.load(model).graph.node
    ]
    assert written.opset_import[0].version == 18


def test_recommendations_are_read_and_invalid_ones_ignored(model: Path) -> None:
    loaded = api.load(model)
    choice = SessionChoice(2, False, False, ("A", "B"))
    recommend(loaded, choice, CPU)
    assert recommended(ir.from_proto(ir.to_proto(loaded)), CPU) == choice
    for text in ("", "[]", "{", '{"device": "cpu", "threads": "many", "disabled": 3, "arena": 0}'):
        loaded.metadata_props[KEY] = text
        assert recommended(loaded, CPU).plain
    recommend(loaded, SessionChoice(), CPU)
    assert KEY not in loaded.metadata_props
    assert str(choice) == "2 threads, no spinning, no arena, no A, no B"
    tried = list(choices_for(loaded, CPU, 1))
    assert tried == [SessionChoice(arena=False)]  # one thread, and nothing that is a norm
