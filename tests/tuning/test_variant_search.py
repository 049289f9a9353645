"""Decisions from artificial measurements, without clock or model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

import pytest

from graphopt.ort.session_options import SessionChoice
from graphopt.timing.ratios import Band, Comparison
from graphopt.tuning.measurements import Finding, Measurement, Size
from graphopt.tuning.search_space import Group, Variant
from graphopt.tuning.tuning_result import StoredTuning, Tuning
from graphopt.tuning.variant_search import TuningDecision, _compare_candidates, search
from graphopt.util.disk_store import Store

BAND = Band(0.99, 1.01)

Time = Callable[[frozenset[str], SessionChoice], float]


@dataclass
class Made:
    """A measurer for a model whose time is a function of the enabled rules.

    Attributes:
        owners: all rules of all groups.
        time: of the model with these rules on; the original takes ``original``.
        cost: the share of the budget that one race uses.
        broken: variants in which the session fails.
        idle: rules that do not make the model smaller.
        alike: variants that are recognized as equal.
        singles: the groups of single rewrites in a variant.
        noise: a factor for the ratio, as a function of the number of the race.
    """

    owners: frozenset[str]
    time: Time
    original: float = 1.0
    cost: float = 0.0
    broken: Callable[[Variant], bool] = lambda variant: False
    noise: Callable[[int], float] = lambda number: 1.0
    idle: frozenset[str] = frozenset()
    alike: tuple[tuple[Variant, Variant], ...] = ()
    singles: Callable[[Variant], list[Group] | None] = lambda variant: None
    asked: list[tuple[Variant, tuple[Variant, ...], bool]] = field(default_factory=list)
    gone: float = 0.0

    def known(self, reference: Variant, other: Variant) -> Measurement | None:
        is_alike = (reference, other) in self.alike or reference == replace(other, weighed=reference.weighed)
        return Measurement(same=True) if is_alike else None

    def size(self, variant: Variant) -> Size:
        """One node less for each rule that is on, unless it makes nothing smaller."""
        return (100 - len(self.owners - variant.off - self.idle), 0, 0)

    def single_rewrite_groups(self, variant: Variant) -> list[Group] | None:
        return self.singles(variant)

    def spent(self) -> float:
        return self.gone

    def __call__(self, reference: Variant, others: list[Variant], *, thorough: bool) -> list[Measurement]:
        self.asked.append((reference, tuple(others), thorough))
        self.gone += self.cost
        return [self.known(reference, other) or self._read(reference, other, thorough) for other in others]

    def _read(self, reference: Variant, other: Variant, thorough: bool) -> Measurement:
        if self.broken(other):
            return Measurement.failed("no such kernel")
        ratio = self._time(other) / self._time(reference) * self.noise(len(self.asked))
        conclusion = "no difference" if ratio in BAND else "faster" if ratio < 1 else "slower"
        if conclusion != "no difference" and not thorough:
            conclusion = "too few processes"
        return Measurement.of([(Comparison(ratio, Band(ratio, ratio), conclusion), BAND)])  # type: ignore[arg-type]

    def _time(self, variant: Variant) -> float:
        if variant.original:
            return self.original * self.time(frozenset(), variant.choice)
        return self.time(self.owners - variant.off, variant.choice)


def factors(**by_owner: float) -> Time:
    """Each rule that is on multiplies the time."""
    return lambda on, choice: prod(by_owner.get(owner.replace("-", "_"), 1.0) for owner in sorted(on))


def group(name: str, *owners: str, speed: bool = False) -> Group:
    return Group(name, owners or (name,), 3, speed)


def made(groups: list[Group], time: Time, **more: object) -> Made:
    return Made(frozenset(owner for item in groups for owner in item.owners), time, **more)  # type: ignore[arg-type]


def decide(groups: list[Group], time: Time, **more: object) -> tuple[TuningDecision, Made]:
    measurer = made(groups, time, **more)
    return search(groups, [], measurer), measurer


def kept(found: TuningDecision) -> dict[str, bool]:
    return {finding.name: finding.kept for finding in found.groups}


def test_faster_groups_stay_slower_ones_are_reverted_and_simplifications_stay() -> None:
    groups = [group("win", speed=True), group("neutral", speed=True), group("clean"), group("lose")]
    found, measurer = decide(groups, factors(win=0.9, lose=1.1))
    assert kept(found) == {"win": True, "neutral": False, "clean": True, "lose": False}
    assert found.variant.off == {"neutral", "lose"} and not found.variant.original
    assert [finding.reason for finding in found.groups] == ["faster", *["no difference"] * 2, "slower"]
    assert [round(finding.measurement.ratio, 2) for finding in found.groups] == [0.9, 1.0, 1.0, 1.1]  # type: ignore[union-attr]
    assert found.final is not None and found.final.faster
    thorough = [others for _, others, was_thorough in measurer.asked if was_thorough]
    assert [len(others) for others in thorough] == [2, 1]  # groups that seemed to differ; the result


def test_groups_without_a_difference_are_never_claimed_to_be_faster() -> None:
    groups = [group(name, speed=True) for name in "abcdef"]
    found, _ = decide(groups, factors())
    assert not any(kept(found).values()) and found.final is not None and not found.final.faster
    assert all("faster" not in finding.reason for finding in found.groups)


def test_groups_that_make_the_model_neither_faster_nor_smaller_are_reverted() -> None:
    groups = [group("idle"), group("clean"), group("fast")]
    found, _ = decide(groups, factors(fast=0.9), idle=frozenset({"idle", "fast"}))
    assert kept(found) == {"idle": False, "clean": True, "fast": True}
    assert found.groups[0].reason == "no difference, and nothing smaller"
    # also if onnxruntime simplifies both to the same graph
    found, measurer = decide(
        [group("idle")],
        factors(),
        idle=frozenset({"idle"}),
        alike=((Variant(), Variant(frozenset({"idle"}))),),
    )
    assert kept(found) == {"idle": False} and len(measurer.asked) == 1  # only the result was measured


def test_simplifications_by_two_groups_stay() -> None:
    class Twice(Made):
        def size(self, variant: Variant) -> Size:
            return (0 if self.owners - variant.off else 1, 0, 0)

    measurer = Twice(frozenset("ab"), factors())
    assert kept(search([group("a"), group("b")], [], measurer)) == {"a": True, "b": True}


def test_groups_for_speed_are_measured_again_after_a_rough_screening() -> None:
    class Busy(Made):
        def _read(self, reference: Variant, other: Variant, thorough: bool) -> Measurement:
            measurement = super()._read(reference, other, thorough)
            return measurement if thorough else Measurement(measurement.ratio, Band(0.8, 1.25))

    groups = [group("fast", speed=True), group("clean")]
    measurer = Busy(frozenset({"fast", "clean"}), factors(fast=0.9))
    found = search(groups, [], measurer)
    assert kept(found) == {"fast": True, "clean": True}
    assert [len(others) for _, others, _ in measurer.asked] == [2, 1, 1]
    told = "\n".join(Tuning(found, "CPU", ["x [1]"], 1.5, 3).lines())
    assert "the machine is busy: differences up to 25%" in told


def test_one_fast_measurement_is_no_gain() -> None:
    # the screening measures a false gain of 5 %, the second measurement does not
    found, measurer = decide(
        [group("a", speed=True)], factors(), noise=lambda number: 1.05 if number == 1 else 1
    )
    assert kept(found) == {"a": False} and measurer.asked[1][2]
    # and two contradictory measurements are no gain
    flaky = {1: 1.05, 2: 0.95}
    found, _ = decide([group("b")], factors(), noise=lambda number: flaky.get(number, 1.0))
    assert kept(found) == {"b": True} and found.groups[0].reason == "no difference"


def test_groups_that_do_the_same_work_are_measured_together() -> None:
    def time(on: frozenset[str], choice: SessionChoice) -> float:
        return 0.8 if on & {"a", "b"} else 1.0

    found, _ = decide([group("a", speed=True), group("b", speed=True)], time)
    assert kept(found) == {"a": True, "b": True} and found.final is not None and found.final.faster
    assert found.groups[0].reason == "no difference; faster together with others"


def test_only_the_harmful_rule_of_a_group_is_reverted() -> None:
    mixed = group("mixed", "good", "bad", "other")
    found, _ = decide([mixed], factors(good=0.95, bad=1.2))
    assert found.variant.off == {"bad"} and kept(found) == {"mixed": True}
    assert found.groups[0].reason == "faster without bad" and found.groups[0].reverted == ("bad",)
    found, _ = decide([mixed], factors(good=1.2, bad=1.2))
    assert found.variant.off == {"good", "bad", "other"} and kept(found) == {"mixed": False}


def test_unmeasured_groups_stay_as_predicted_unless_the_model_is_faster_without_them() -> None:
    fine = [group("a", speed=True), group("b")]
    found, _ = decide(fine, factors(a=0.5), cost=0.7)
    assert kept(found) == {"a": True, "b": True} and found.fallback is None
    assert found.variant == Variant(weighed=True)
    assert [finding.name for finding in found.choices] == ["groups not measured: without them"]
    found, _ = decide(fine, factors(a=1.5), cost=0.7)
    assert kept(found) == {"a": False, "b": True} and found.fallback is None
    assert found.variant.off == {"a"} and found.choices[0].kept
    found, _ = decide(fine, factors(), gone=1.0)  # no difference: as without tuning
    assert kept(found) == {"a": True, "b": True} and not found.choices[0].kept


@pytest.mark.parametrize(
    ("times", "kernel", "rule"),
    [((0.9, 1.2), False, True), ((1.2, 0.9), True, True), ((1.2, 1.2), False, False)],
)
def test_unmeasured_kernels_and_fusions_compete_with_each_other(
    times: tuple[float, float], kernel: bool, rule: bool
) -> None:
    """The result has the kernels, the fused operators, or neither, whichever is the fastest."""
    operators = group("gelu", speed=True)
    kernels = Group("k", ("fuse-groups at Mul(a)",), 1, speed=True, whole=True)

    def time(on: frozenset[str], choice: SessionChoice) -> float:
        return (times[0] if "gelu" in on else 1.0) if len(on) < 2 else times[1] * min(times[0], 1.0)

    found, _ = decide(
        [group("clean"), operators, kernels], lambda on, choice: time(on - {"clean"}, choice), cost=0.9
    )
    assert kept(found) == {"clean": True, "gelu": rule, "k": kernel}


def test_unmeasured_simplifications_are_given_up_with_a_slower_result() -> None:
    groups = [group("b"), group("a", speed=True), group("c"), group("d"), group("more")]
    found, measurer = decide(groups, factors(a=0.9, more=1.5), cost=0.7)
    # all were screened, nothing was looked at again; the result was compared all the same
    assert kept(found) == {"a": False, "b": True, "c": True, "d": True, "more": False}
    assert all(
        finding.reason.startswith("not measured: no time was left")
        for finding in found.groups
        if finding.measurement is None
    )
    assert measurer.asked[-1][0].original
    assert found.fallback is not None and "or not measured" in found.fallback


def test_a_sufficient_budget_is_suggested_if_no_group_was_measured() -> None:
    def told(seconds: float, *names: str) -> str:
        findings = [Finding(name, 1, None, True, "not measured: no time was left") for name in names]
        return "\n".join(Tuning(TuningDecision(Variant(), findings), "CPU", ["x [1]"], seconds, 1).lines())

    hint = "no group was measured: --budget {} --fresh leaves time for that"
    assert hint.format("1m") in told(37, "a", "b")
    assert hint.format("2m") in told(95, "a", "b")
    assert hint.format("3m") in told(37, *map(str, range(20)))
    found, _ = decide([group("a"), group("b")], factors())
    assert "no group" not in "\n".join(Tuning(found, "CPU", ["x [1]"], 37, 3).lines())


def test_slower_result_reverts_speed_rewrites_then_all() -> None:
    def together(on: frozenset[str], choice: SessionChoice) -> float:
        return 1.3 if "clean" in on and "fast" in on else 0.9 if "fast" in on else 1.0

    fast, clean = group("fast", speed=True), group("clean")
    found, _ = decide([fast, clean], lambda on, choice: 0.9 if "fast" in on else 1.0, original=0.85)
    assert found.variant.original and found.fallback is not None and "all rewrites" in found.fallback
    assert kept(found) == {"fast": False, "clean": False}
    found, _ = decide([fast, clean], lambda on, choice: 0.9 if "fast" in on else 1.0, original=1.2)
    assert found.fallback is None and kept(found) == {"fast": True, "clean": True}
    found, _ = decide([fast, clean], together)
    assert not found.variant.original and found.final is not None and not found.final.slower


def test_two_suspicious_measurements_count_as_slower() -> None:
    class Doubtful(Made):
        def _read(self, reference: Variant, other: Variant, thorough: bool) -> Measurement:
            return (
                Measurement(1.02, BAND) if reference.original else super()._read(reference, other, thorough)
            )

    measurer = Doubtful(frozenset("a"), factors())
    found = search([group("a")], [], measurer)
    assert found.variant.original and [reference.original for reference, _, _ in measurer.asked] == [
        False,
        True,
        True,
    ]


def test_variants_that_fail_are_not_chosen() -> None:
    # without a the model does not run: a stays, if the result runs
    found, _ = decide([group("a")], factors(), broken=lambda variant: "a" in variant.off)
    assert kept(found) == {"a": True} and "does not run without" in found.groups[0].reason
    # the result does not run: back to the original
    found, _ = decide(
        [group("a")], factors(), broken=lambda variant: not variant.original and not variant.off
    )
    assert found.variant.original and found.fallback is not None and "does not run" in found.fallback


def test_session_options_stay_only_if_they_are_faster() -> None:
    one, idle, arena = SessionChoice(threads=1), SessionChoice(spinning=False), SessionChoice(arena=False)

    def time(on: frozenset[str], choice: SessionChoice) -> float:
        return (
            (0.9 if choice.threads == 1 else 1.0)
            * (1.0 if choice.spinning else 0.95)
            * (1.0 if choice.arena else 1.2)
        )

    measurer = made([], time)
    found = search([], [one, idle, arena], measurer)
    assert found.variant.choice == SessionChoice(threads=1, spinning=False)
    assert [(finding.kept, finding.reason) for finding in found.choices] == [
        (True, "faster"), (True, "faster"), (False, "slower"),
    ]  # fmt: skip

    def either(on: frozenset[str], choice: SessionChoice) -> float:
        return 0.9 if choice.threads == 1 else 0.95 if not choice.spinning else 1.0

    found = search([], [one, idle], made([], either))
    assert found.variant.choice == one and [finding.kept for finding in found.choices] == [True, False]


@pytest.mark.parametrize(("factor", "reason"), [(0.9, "faster"), (1.1, "slower"), (1.0, "no difference")])
def test_a_newer_opset_stays_only_if_it_is_faster(factor: float, reason: str) -> None:
    class Newer(Made):
        def _time(self, variant: Variant) -> float:
            return super()._time(variant) * (factor if variant.opset == 23 else 1.0)

    found = search([group("a")], [SessionChoice(threads=1)], Newer(frozenset("a"), factors()), opset=23)
    assert found.variant.opset == (23 if factor < 1 else None)
    assert [(finding.name, finding.kept, finding.reason) for finding in found.choices] == [
        ("opset 23", factor < 1, reason), ("1 thread", False, "no difference"),
    ]  # fmt: skip


def test_a_newer_opset_stays_in_a_result_as_predicted() -> None:
    groups = [group("a", speed=True), group("b", speed=True)]
    findings = [
        Finding("a", 3, None, True, "not measured"),
        Finding("b", 3, None, False, "slower", ("b",)),
    ]
    found = TuningDecision(Variant(frozenset({"b"}), opset=23, weighed=True), findings)
    _compare_candidates(found, groups, made(groups, factors(a=0.9, b=0.5)), Variant())
    assert found.variant == Variant(opset=23, weighed=True) and kept(found) == {"a": True, "b": True}


def test_a_newer_opset_is_reverted_with_a_slower_result() -> None:
    class Newer(Made):
        def _time(self, variant: Variant) -> float:
            return super()._time(variant) * (0.9 if variant.opset == 23 else 1.0)

    found = search([group("a")], [], Newer(frozenset("a"), factors(), original=0.5), opset=23)
    assert found.variant.original and found.variant.opset is None
    assert not found.choices[0].kept and found.choices[0].reason == "faster; given up"


def test_slower_for_one_shape_is_slower() -> None:
    def told(ratio: float) -> tuple[Comparison, Band]:
        conclusion = "faster" if ratio < 1 else "slower"
        return Comparison(ratio, Band(ratio, ratio), conclusion), BAND  # type: ignore[arg-type]

    measurement = Measurement.of([told(0.5), told(1.1)])
    assert measurement.faster and measurement.slower and measurement.ratio == pytest.approx(0.55**0.5)

    class Mixed(Made):
        def _read(self, reference: Variant, other: Variant, thorough: bool) -> Measurement:
            return Measurement(0.9, BAND, faster=True, slower=True)

    found = search([group("a", speed=True)], [SessionChoice(threads=1)], Mixed(frozenset("a"), factors()))
    assert found.variant.original and found.variant.choice.plain


def test_the_search_is_economical() -> None:
    groups = [group(f"g{index}") for index in range(8)]
    _, measurer = decide(groups, factors())
    assert [len(others) for _, others, _ in measurer.asked] == [8, 1]


def test_results_are_stored_and_read_back(tmp_path: object) -> None:
    groups = [group("win", speed=True), group("lose", "x", "y")]
    found, _ = decide(groups, factors(win=0.9, x=1.1), broken=lambda variant: variant.off == {"win"})
    found.variant = Variant(
        found.variant.off, choice=SessionChoice(threads=1, disabled=("SomeFusion",)), opset=23
    )
    tuning = Tuning(found, "CPU", ["x [1]"], 1.5, 3)
    memory = StoredTuning(Store(tmp_path), ("model", "pipeline"))  # type: ignore[arg-type]
    assert memory.recall() is None and memory.keep(tuning) is None
    again = memory.recall()
    assert again is not None and again.stored and again.decision == found
    assert StoredTuning(memory.store, ("model", "other")).recall() is None
    json.dumps(tuning.to_dict(), allow_nan=False)
    lines = "\n".join(again.lines())
    assert "from the store (--fresh measures anew)" in lines
    assert "options.intra_op_num_threads = 1" in lines and "disabled_optimizers=['SomeFusion']" in lines


def test_unmeasured_groups_are_measured_with_a_larger_budget() -> None:
    found, _ = decide([group("win", speed=True), group("late", speed=True)], factors(win=0.9))
    tuning = Tuning(found, "CPU", ["x [1]"], 40.0, 3)
    assert not tuning.is_hasty(300.0)
    found.groups[-1] = replace(found.groups[-1], measurement=None)
    assert tuning.is_hasty(300.0) and not tuning.is_hasty(30.0)
