"""Races of single kernels: subjects, conclusions from artificial ratios, stored results, and the command."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt import config, ir
from graphopt.cli.main import main
from graphopt.cli.views.kernel_candidates import candidate_blocks
from graphopt.fusion.kernel_library import Libraries, Toolchain
from graphopt.ort import session
from graphopt.ort.devices import CPU
from graphopt.ort.session_options import SessionChoice
from graphopt.timing.alternating_runs import Setup
from graphopt.timing.ratios import Band
from graphopt.tuning import kernel_candidates
from graphopt.tuning import race_kernels as races
from graphopt.tuning.call_subjects import IN_BODY, CallSubject, CallSubjects, call_subjects
from graphopt.tuning.kernel_candidates import KernelCandidates, KernelRacer, RacedCalls
from graphopt.tuning.measurements import LATE, Measurement
from graphopt.tuning.race_kernels import KERNEL, NODES, RaceResult, race_kernels
from graphopt.tuning.stored_races import StoredRaces
from graphopt.util.disk_store import Store
from tests.fusion.backends.c.runtime.samples import compiled
from tests.fusion.models import grouped
from tests.model_testing import parse

#: Two calls of one function with the same sizes, one with other sizes, and one in a body.
CALLS = """calls (float[N,64] x, float[M,64] z, bool c)
        => (float[N,64] a, float[N,64] b, float[M,64] d, float[?,64] e)
    <float[64] w> {
    s = Sigmoid(x)  a = Mul(s, w)
    i = Constant <value = int64 {0}> ()  n = CumSum(a, i)  t = Sigmoid(n)  b = Mul(t, w)
    u = Sigmoid(z)  d = Mul(u, w)
    e = If(c) <
      then_branch = then () => (float[?,64] p) { q = Sigmoid(x) p = Mul(q, w) },
      else_branch = other () => (float[?,64] r) { r = Identity(x) }
    >
}"""


def grouped_calls() -> ir.Model:
    weights = ", ".join(f"{number / 64}" for number in range(64))
    return grouped(CALLS.replace("    <float[64] w>", f"    <float[64] w = {{{weights}}}>"))


FEEDS = {
    "x": np.linspace(-2, 2, 192, dtype=np.float32).reshape(3, 64),
    "z": np.ones((5, 64), np.float32),
    "c": np.array(True),
}


def test_equal_calls_are_one_subject() -> None:
    found = call_subjects(grouped_calls(), FEEDS, CPU)
    assert [(len(one.calls), one.types) for one in found.subjects] == [
        (2, ("float32[3,64]", "constant float[64]")),
        (1, ("float32[5,64]", "constant float[64]")),
    ]
    assert len({one.group for one in found.subjects}) == 1
    assert list(found.excluded.values()) == [IN_BODY]


def test_a_subject_computes_the_same_as_its_call_on_the_values_of_the_run() -> None:
    first = call_subjects(grouped_calls(), FEEDS, CPU).subjects[0]
    assert list(first.feeds) == ["x"], "the weights remain constants"
    (result,) = session.run(session.create(first.model), first.feeds)
    expected = 1 / (1 + np.exp(-FEEDS["x"])) * np.arange(64) / 64
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def subject(name: str) -> CallSubject:
    return CallSubject(name, (name,), (name,), ("float32[2]",), b"", {})


class Nothing:
    """A store without entries."""

    def recall(self, subject: CallSubject) -> RaceResult | None:
        return None

    def keep(self, subject: CallSubject, result: RaceResult) -> None:
        pass


def conclusions(
    monkeypatch: pytest.MonkeyPatch, ratios: dict[str, Sequence[float]], seconds: float = 100.0
) -> tuple[list[RaceResult], dict[str, int]]:
    """The results for artificial ratios, by pass, and the number of passes of each kernel."""
    passes = dict.fromkeys(ratios, 0)
    now = 0.0

    def measured(child: object, entry: races._Entry, *arguments: object) -> None:
        nonlocal now
        now += 1.0
        name = entry.subject.group
        entry.kernel.append(ratios[name][passes[name]])
        entry.twin.append(1.002 if passes[name] % 2 else 0.998)
        passes[name] += 1

    monkeypatch.setattr(races, "_race", measured)
    found = race_kernels(
        [subject(name) for name in ratios], Setup({}), SessionChoice(), Nothing(),
        seconds=seconds, clock=lambda: now,
    )  # fmt: skip
    return found, passes


def test_a_kernel_wins_only_outside_of_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    found, passes = conclusions(
        monkeypatch,
        {"fast": [0.8] * 5, "equal": [0.995] * 5, "unsteady": [0.9, 1.02, 0.9, 1.02, 0.9], "slow": [1.3] * 5},
    )
    assert [result.winner for result in found] == [KERNEL, NODES, NODES, NODES]
    assert [result.reason for result in found] == ["faster", "no difference", "no difference", "slower"]
    assert passes == {"fast": 5, "equal": 5, "unsteady": 5, "slow": 2}, "slow kernels are eliminated"


def test_kernels_without_all_passes_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found, passes = conclusions(monkeypatch, {"a": [0.8] * 5, "b": [1.4] * 5}, seconds=4.5)
    assert passes == {"a": 3, "b": 2}
    assert [(result.winner, result.reason) for result in found] == [(None, LATE), (NODES, "slower")]


def result(ratio: float, **claims: bool) -> RaceResult:
    return RaceResult(Measurement(ratio, Band(0.99, 1.01), **claims), {NODES: 1e-3, KERNEL: ratio * 1e-3})


def test_stored_results_depend_on_sizes_sources_and_circumstances(tmp_path: Path) -> None:
    one, won = subject("a"), result(0.5, faster=True)
    kept = StoredRaces(Store(tmp_path), "here", {"a": "source"})
    kept.keep(one, won)
    recalled = kept.recall(one)
    assert recalled is not None and recalled.is_stored and recalled.winner == KERNEL
    assert (recalled.measurement, recalled.seconds) == (won.measurement, won.seconds)
    other_sizes = CallSubject("a", (), (), ("float32[3]",), b"", {})
    assert kept.recall(other_sizes) is None
    for other in (
        StoredRaces(Store(tmp_path), "there", {"a": "source"}),
        StoredRaces(Store(tmp_path), "here", {"a": "another source"}),
        StoredRaces(Store(tmp_path), "here", {"a": "source"}, fresh=True),
    ):
        assert other.recall(one) is None


def test_unmeasured_and_failed_races_are_not_stored(tmp_path: Path) -> None:
    kept = StoredRaces(Store(tmp_path), "here", {})
    for found in (RaceResult(None), RaceResult(Measurement.failed("it crashes"))):
        kept.keep(subject("a"), found)
        assert kept.recall(subject("a")) is None


def test_a_call_loses_if_its_kernel_is_slower_for_some_shapes() -> None:
    raced = [
        RacedCalls(subject(name), found)
        for name, found in [
            ("faster", result(0.5, faster=True)),
            ("faster", result(1.0)),
            ("mixed", result(0.5, faster=True)),
            ("mixed", result(1.5, slower=True)),
            ("equal", result(1.0)),
            ("late", RaceResult(None)),
        ]
    ]
    assert list(KernelCandidates(tuple(raced)).losers()) == ["mixed", "equal"]


SINE = "g (float[256,1024] x) => (float[256,1024] y) { s = Sin(x) t = Mul(s, x) y = Sin(t) }"
#: The same nodes next to others.
SINE_AND_MORE = """g (float[256,1024] x) => (float[256,1024] y, int64[2,K] z) {
    s = Sin(x) t = Mul(s, x) y = Sin(t) z = NonZero(x)
}"""


@compiled
def test_the_command_races_each_group_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, is_stored in ((SINE, False), (SINE, True), (SINE_AND_MORE, True)):
        path = tmp_path / "m.onnx"
        ir.save(parse(text), path)
        words = ["kernels", str(path), "--candidates", "--threads", "1", "--json"]
        assert main([*words, "--set", f"cache-dir={tmp_path / 'store'}"], {}) == 0
        found = json.loads(capsys.readouterr().out)
        (race,) = found["raced"]
        assert (race["stored"], race["winner"], race["reason"]) == (is_stored, KERNEL, "faster")
        assert [one["name"] for one in race["candidates"]] == [NODES, KERNEL]
        assert race["inputs"] == ["float32[256,1024]"]
    assert "no kernels for NonZero" in found["ungrouped"].values()


def test_only_groups_without_results_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(config.current(), cache_dir=tmp_path)
    built: list[object] = []

    class Recorder(Toolchain):
        def libraries(self, model: ir.Model, only: Container[str] | None = None) -> Libraries:
            built.append(only)
            return Libraries((), ("sin_one", "sin_two"))

    names = iter([{"sin_one"}, {"sin_one", "sin_two"}, {"sin_one", "sin_two"}])

    def subjects(*arguments: object) -> CallSubjects:
        return CallSubjects(tuple(map(subject, sorted(next(names)))))

    def race(subjects: Sequence[CallSubject], *arguments: Any, **more: Any) -> list[RaceResult]:
        store = arguments[2]
        for one in subjects:
            store.keep(one, result(0.5, faster=True))
        return [result(0.5, faster=True) for _ in subjects]

    monkeypatch.setattr(kernel_candidates, "call_subjects", subjects)
    monkeypatch.setattr(kernel_candidates, "race_kernels", race)
    racer = KernelRacer(Recorder(settings))
    for _ in range(3):
        racer.race(parse(SINE), [{}], 1.0)
    assert built == [None, {"sin_two"}]


def test_groups_without_a_race_are_not_counted_as_races() -> None:
    raced = [RacedCalls(subject("first"), result(0.5, faster=True))]
    late = [RacedCalls(subject(f"late_{index}"), RaceResult(None)) for index in range(30)]
    text = [str(block) for block in candidate_blocks(KernelCandidates((*raced, *late)), 0)]
    assert "  1 of 1 race won by kernels" in text
    assert "  (30 groups were not measured: --budget 3m leaves time for that)" in text
    text = [str(block) for block in candidate_blocks(KernelCandidates(tuple(raced)), 0)]
    assert not any("--budget" in block for block in text)


@compiled
def test_a_library_of_some_groups_lacks_the_others(tmp_path: Path) -> None:
    model = grouped()
    toolchain = Toolchain(replace(config.current(), cache_dir=tmp_path))
    (sine,) = (key[1] for key in model.functions if "_sin_" in key[1])
    assert toolchain.libraries(model, {sine}).kernels == (sine,)
    assert len(toolchain.libraries(model).kernels) == 2 and toolchain.seconds > 0
