"""Native groups are tuned one by one."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from graphopt import api, config, ir
from graphopt.cli.main import main
from graphopt.fusion.kernel_library import Libraries, libraries_for
from graphopt.make_pass_options import make_options
from graphopt.model_arguments import copy
from graphopt.ops import graphopt_operators
from graphopt.optimization_attempt import Attempt
from graphopt.ort.session_options import SessionChoice
from graphopt.passes.pipelines import make_pipeline
from graphopt.rewrite.rewrite_filter import RewriteSite
from graphopt.timing.alternating_runs import Setup
from graphopt.timing.ratios import Band
from graphopt.tuning import tuner
from graphopt.tuning.call_subjects import CallSubject
from graphopt.tuning.kernel_candidates import KernelCandidates, RacedCalls
from graphopt.tuning.kernel_groups import KernelGroups, kernel_groups
from graphopt.tuning.measurements import LATE, Finding, Measurement
from graphopt.tuning.race_kernels import RaceResult
from graphopt.tuning.search_space import Group, KernelRecorder, Variant, rewrite_groups
from graphopt.tuning.tuning_result import Tuning
from graphopt.tuning.variant_builder import VariantBuilder
from graphopt.tuning.variant_search import TuningDecision, search
from tests.fusion.backends.c.runtime.samples import compiled
from tests.fusion.models import TWO
from tests.model_testing import parse
from tests.tuning.test_variant_search import Made

#: Three groups, two of which are one function. No kernel computes the operators between them.
THREE = (
    TWO.replace("y = Mul(t, b)", "u = Mul(t, b) q = MatMul(u, w) v = Sin(q) y = Mul(v, b)")
    .replace("p = MatMul(m, w)", "k = Constant <value = int64 {1}> () p = CumSum(m, k)")
    .replace("q = MatMul(u, w)", "q = CumSum(u, k)")
    .replace(", float[64,64] w", "")
)
FEEDS = {"x": np.ones((2, 64), np.float32), "b": np.ones(64, np.float32)}


def job_of(kernels: KernelRecorder) -> Attempt:
    return Attempt(make_pipeline("native"), make_options(config.current()), instruments=[kernels])


def seen() -> tuple[KernelRecorder, list[Group]]:
    kernels = KernelRecorder()
    job = job_of(kernels)
    report = job.run(parse(THREE))
    return kernels, rewrite_groups(report.passes, job.pipeline.passes(), kernels.groups())


def test_each_function_is_a_separate_group() -> None:
    kernels, groups = seen()
    assert [(group.name[:8], group.rewrites, group.speed) for group in groups] == [
        ("sin_mul_", 2, True), ("sigmoid_", 1, True),
    ]  # fmt: skip
    assert groups[0].owners == ("fuse-groups at Sin(t)", "fuse-groups at Sin(v)")
    assert RewriteSite.parse(groups[0].owners[0]) == RewriteSite("fuse-groups", "Sin(t)")
    job_of(kernels).run(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"))
    assert not kernels.groups(), "they are those of the last run"


def test_a_group_that_does_not_pay_is_reverted_as_a_whole() -> None:
    _, groups = seen()
    slow, fast = groups
    factors = {slow.owners[0]: 1.1, slow.owners[1]: 1.1, fast.owners[0]: 0.8}
    measurer = Made(frozenset(factors), lambda on, choice: prod(factors[owner] for owner in sorted(on)))
    found = search(groups, [], measurer)
    assert found.variant.off == frozenset(slow.owners)
    kept = {finding.name: finding.kept for finding in found.groups}
    assert kept == {slow.name: False, fast.name: True}


@pytest.mark.parametrize(("cost", "factor", "stays"), [(0.0, 0.7, True), (0.0, 1.2, False), (0.3, 0.9, True)])
def test_groups_that_result_from_reverted_rules_are_evaluated(
    cost: float, factor: float, stays: bool
) -> None:
    """Without the rule, which makes no difference, the nodes of the first kernel are another one."""
    rule = Group("gelu", ("gelu",), 1, speed=True)
    old, same, new = (Group(name, (f"fuse-groups at {name}",), 1, speed=True, whole=True) for name in "abc")
    factors = {"gelu": factor / 0.8, old.owners[0]: 0.8, same.owners[0]: 1.3, new.owners[0]: factor}

    def time(on: frozenset[str], choice: SessionChoice) -> float:
        gone = new if "gelu" in on else old
        return prod(factors[owner] for owner in sorted(on) if owner != gone.owners[0])

    measurer = Made(frozenset(factors), time, cost=cost, singles=lambda variant: [same, new])
    found = search([rule, old, same], [], measurer)
    assert found.variant.off == {"gelu", same.owners[0], *(() if stays else new.owners)}
    kept = {finding.name: finding.kept for finding in found.groups}
    assert kept == {"gelu": False, "b": False, "c": stays}
    assert (found.groups[-1].measurement is None) is bool(cost)


def raced(name: str, *sites: str) -> Group:
    """A group of kernels that won their races."""
    return Group(name, sites, len(sites), speed=True, whole=True, raced=True, functions=(name,))


def test_kernels_that_lost_their_races_are_in_no_variant() -> None:
    winner = raced("won", "fuse-groups at a")
    lost = Finding("lost", 2, Measurement(1.2, slower=True), False, "slower alone", ("fuse-groups at b",))
    measurer = Made(frozenset(["fuse-groups at a", "fuse-groups at b"]), lambda on, choice: 0.9 ** len(on))
    found = search([winner], [], measurer, lost=[lost])
    assert found.variant.off == {"fuse-groups at b"} and found.groups[-1] == lost
    assert all("fuse-groups at b" in variant.off for _, others, _ in measurer.asked for variant in others)


def test_raced_kernels_need_no_measurable_effect_in_the_model() -> None:
    measurer = Made(frozenset(["fuse-groups at a"]), lambda on, choice: 1.0)
    assert search([raced("won", "fuse-groups at a")], [], measurer).variant.off == frozenset()


def test_runs_that_slow_down_their_surroundings_are_reverted() -> None:
    """Each run won alone; one of them slows down the model."""
    good, bad = raced("good", "fuse-groups at a"), raced("bad", "fuse-groups at b", "fuse-groups at c")
    factors = {"fuse-groups at a": 0.9, "fuse-groups at b": 1.1, "fuse-groups at c": 1.1}
    measurer = Made(frozenset(factors), lambda on, choice: prod(factors[site] for site in sorted(on)))
    found = search([good, bad], [], measurer)
    assert found.variant.off == {"fuse-groups at b", "fuse-groups at c"}
    assert {finding.name: finding.kept for finding in found.groups} == {"good": True, "bad": False}


def test_all_runs_are_reverted_if_the_model_is_faster_without_any() -> None:
    """Removing one run has no effect, because the other one still breaks the layout."""
    runs = [raced("a", "fuse-groups at a"), raced("b", "fuse-groups at b")]
    measurer = Made(
        frozenset(["fuse-groups at a", "fuse-groups at b"]), lambda on, choice: 1.2 if on else 1.0
    )
    found = search(runs, [], measurer)
    assert found.variant.off == {"fuse-groups at a", "fuse-groups at b"}
    (confirmed,) = (finding for finding in found.choices if finding.name == "all native kernels")
    assert not confirmed.kept and confirmed.reason == "slower"


def conv_calls() -> ir.Model:
    """Calls k0, k1 (one run), k2 (after a convolution of onnxruntime) and k3 (no convolution)."""
    text = """<ir_version: 10, opset_import: ["": 21, "graphopt.native": 1]>
        convs (float[1,4,8,8] x, float[4,4,1,1] w) => (float[1,4,8,8] y) {
            a = graphopt.native.conv_1 (x, w)
            b = Relu (a)
            c = graphopt.native.conv_1 (b, w)
            d = Conv (c, w)
            e = graphopt.native.conv_2 (d, w)
            y = graphopt.native.sin_1 (e)
        }
        <domain: "graphopt.native", opset_import: ["": 21]> conv_1 (p, q) => (r) { r = Conv (p, q) }
        <domain: "graphopt.native", opset_import: ["": 21]> conv_2 (p, q) => (r) { t = Conv (p, q) r = Relu (t) }
        <domain: "graphopt.native", opset_import: ["": 21]> sin_1 (p) => (r) { r = Sin (p) }"""
    return ir.from_proto(onnx.parser.parse_model(text))


def raced_calls(ratios: dict[str, float]) -> KernelCandidates:
    """Results of races, by first output of the call."""
    found = []
    for output, ratio in ratios.items():
        measurement = Measurement(ratio, Band(0.99, 1.01), faster=ratio < 0.99, slower=ratio > 1.01)
        subject = CallSubject("f", (output,), (output,), (), b"", {})
        found.append(RacedCalls(subject, RaceResult(measurement)))
    return KernelCandidates(tuple(found))


SITES = {output: RewriteSite("fuse-groups", f"node of {output}") for output in "acey"}


def test_calls_of_one_run_of_convolutions_are_one_group() -> None:
    found = kernel_groups(conv_calls(), SITES, raced_calls({"a": 0.9, "c": 0.9, "e": 0.9, "y": 0.9}))
    assert [(group.name, group.owners) for group in found.groups] == [
        ("1 kernel that won alone", ("fuse-groups at node of y",)),
        ("conv_1 and 1 more that won alone", ("fuse-groups at node of a", "fuse-groups at node of c")),
        ("conv_2 that won alone", ("fuse-groups at node of e",)),
    ]
    assert all(group.raced and group.whole for group in found.groups) and not found.lost


def test_clear_winners_of_a_run_are_a_separate_group() -> None:
    found = kernel_groups(conv_calls(), SITES, raced_calls({"a": 0.5, "c": 0.9}))
    assert {group.name: group.raced for group in found.groups} == {
        "conv_1 that won alone, clearly": True,
        "conv_1 that won alone": True,
        "conv_2": False,
        "sin_1": False,
    }


def test_lost_calls_are_findings() -> None:
    found = kernel_groups(conv_calls(), SITES, raced_calls({"a": 1.2, "c": 1.0, "e": 0.8, "y": 1.3}))
    assert [(lost.name, lost.reason, lost.reverted) for lost in found.lost] == [
        ("conv_1", "slower alone", ("fuse-groups at node of a", "fuse-groups at node of c")),
        ("sin_1", "slower alone", ("fuse-groups at node of y",)),
    ]
    assert [group.name for group in found.groups] == ["conv_2 that won alone"]


def workshop(folder: Path, libraries: Libraries | None = None) -> VariantBuilder:
    setup = Setup(FEEDS, None)
    settings = config.current()
    return VariantBuilder(
        parse(THREE), job_of(KernelRecorder()), (), folder, setup,
        lambda model: libraries_for(model, settings) if libraries is None else libraries,
    )  # fmt: skip


def calls(model: ir.Model) -> int:
    return sum(node.domain == graphopt_operators.NATIVE_DOMAIN for node in model.graph)


@compiled
def test_variants_are_measured_with_their_kernels(tmp_path: Path) -> None:
    everything, without = Variant(), Variant(frozenset(["fuse-groups at Sin(t)"]))
    with workshop(tmp_path) as shop:
        assert [calls(ir.load(shop.path(variant))) for variant in (everything, without)] == [3, 2]
        first, second = shop.choice(everything), shop.choice(without)
        assert first == second and len(first.libraries) == 1, "one library has all of them"
        assert not shop.same(everything, without)
        assert shop.choice(Variant(original=True)) == SessionChoice()
        fewer = Variant(frozenset(["batch-mm"]), choice=SessionChoice(threads=1))
        assert shop.choice(fewer).threads == 1 and shop.choice(fewer).libraries == first.libraries


def test_without_a_compiler_a_group_makes_no_difference(tmp_path: Path) -> None:
    with workshop(tmp_path, Libraries()) as shop:
        assert shop.same(Variant(), Variant(frozenset(["fuse-groups at Sigmoid(s)"])))


@compiled
def test_reverted_kernels_are_not_in_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def decided(groups: list[Group], choices: object, measurer: object, *more: object) -> TuningDecision:
        loser = next(group for group in groups if group.name.startswith("sin"))
        measurement = Measurement(1.2, Band(0.99, 1.01), slower=True)
        variant = Variant(frozenset(loser.owners), choice=SessionChoice(threads=1))
        return TuningDecision(variant, final=measurement.inverse())

    monkeypatch.setattr(tuner, "search", decided)
    monkeypatch.setattr(
        tuner.Tuner, "_race", lambda self, model, kernels, *more: KernelGroups(tuple(kernels.groups()))
    )
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    ir.save(parse(THREE), path)
    words = ["optimize", path, "-o", out, "--fuser", "native", "--tune", "--device", "cpu", "--json"]
    assert main([*map(str, words), "--set", f"cache-dir={tmp_path / 'store'}"], {}) == 0
    told = json.loads(capsys.readouterr().out)
    assert [name[:8] for name in told["kernels"]] == ["sigmoid_"] and calls(ir.load(out)) == 1
    assert told["tuning"]["reverted"] == ["fuse-groups at Sin(t)", "fuse-groups at Sin(v)"]
    assert "options.intra_op_num_threads = 1" in told["session"]
    library = out.with_suffix(".kernels.so")
    expected = api.run(copy(parse(THREE)), FEEDS)["y"]
    np.testing.assert_allclose(api.run(out, FEEDS, libraries=[str(library)])["y"], expected, rtol=1e-5)


def test_unmeasured_kernels_are_reported() -> None:
    late = [Finding(name, 1, None, False, LATE, (f"fuse-groups at {name}",)) for name in "abc"]
    rule = Finding("norms", 1, Measurement(0.9, Band(0.99, 1.01)), True, "faster")
    told = list(Tuning(TuningDecision(Variant(), [rule, *late]), "here", [], 59.0, 2).lines())
    assert "3 native kernels were not measured, so left out: --budget 1m --fresh leaves time for that" in told
    told = list(Tuning(TuningDecision(Variant(), [rule]), "here", [], 59.0, 2).lines())
    assert not any("not measured" in line for line in told)


@compiled
def test_a_result_without_kernels_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def decided(groups: list[Group], choices: object, measurer: object, *more: object) -> TuningDecision:
        kernels = [group for group in groups if group.whole]
        findings = [Finding(one.name, one.rewrites, None, False, LATE, one.owners) for one in kernels]
        return TuningDecision(Variant(frozenset(owner for one in kernels for owner in one.owners)), findings)

    monkeypatch.setattr(tuner, "search", decided)
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    ir.save(parse(THREE), path)
    words = ["optimize", path, "-o", out, "--fuser", "native", "--tune", "--device", "cpu"]
    assert main([*map(str, words), "--set", f"cache-dir={tmp_path / 'store'}"], {}) == 0
    assert "no kernel is left, so there is no library" in capsys.readouterr().out
    assert not out.with_suffix(".kernels.so").exists()
    words += ["--fresh", "--strict-fusion", "Sin(t)"]
    assert main([*map(str, words), "--set", f"cache-dir={tmp_path / 'store'}"], {}) == 1
    assert "fuse-groups: reverted by tuning" in capsys.readouterr().err
