"""Lack of memory or threads in any run of a comparison ends or shortens it, and is never a difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from graphopt.errors import SystemExhausted
from graphopt.ort.model_runs import RemoteRuns
from graphopt.verification.verdict import Verdict
from graphopt.verification.verifier import Verifier
from tests.ort.build import parse

#: Originals and candidates: bit-identical, different within the rounding error of an ill-conditioned sum,
#: different on infinities, and random.
_PAIRS = {
    "same": ("g (float[N] x) => (float[N] y) { y = Neg(x) }",) * 2,
    "rounding": (
        """g (float[N] x) => (float[N] y) <float big = {1e8}>
           { a = Add(x, big) b = Sub(a, big) y = Mul(b, b) }""",
        "g (float[N] x) => (float[N] y) { y = Mul(x, x) }",
    ),
    "random": ("g (float[N] x) => (float[N] y) { r = RandomNormalLike(x) y = Add(x, r) }",) * 2,
}


class Exhausted:
    """Replaces a method of runs; raises SystemExhausted from a given call on, at some levels."""

    def __init__(self, original: Callable[..., Any], first: int, levels: tuple[str, ...]) -> None:
        self.original, self.first, self.levels, self.calls = original, first, levels, 0

    def __call__(self, runs: RemoteRuns, level: str, feeds: Mapping[str, Any]) -> Any:
        self.calls += 1
        if self.calls > self.first and level in self.levels:
            raise SystemExhausted("there is not enough memory")
        return self.original(runs, level, feeds)


def _compared(
    name: str, first: int, levels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> tuple[Verdict | None, int]:
    """The verdict, or ``None`` after an error, and the number of runs."""
    original, candidate = map(parse, _PAIRS[name])
    with monkeypatch.context() as patch, Verifier(original) as verifier:
        exhausted = Exhausted(RemoteRuns.run, first, levels)

        def run(runs: RemoteRuns, level: str, feeds: Mapping[str, Any]) -> Any:
            return exhausted(runs, level, feeds)

        patch.setattr(RemoteRuns, "run", run)
        try:
            return verifier.verify(candidate), exhausted.calls
        except SystemExhausted:
            return None, exhausted.calls


@pytest.mark.parametrize("levels", [("off", "default"), ("default",)])
@pytest.mark.parametrize("name", _PAIRS)
def test_lack_of_memory_from_any_run_on_is_no_difference(
    name: str, levels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, total = _compared(name, 1 << 30, (), monkeypatch)
    assert complete is not None and complete.ok
    for first in sorted({*range(6), *range(6, total, max(1, total // 8))}):
        verdict, _ = _compared(name, first, levels, monkeypatch)
        if verdict is None:
            continue
        assert verdict.ok and verdict.unverifiable is None, f"from run {first} on: {verdict}"
        if len(verdict.rows) < len(complete.rows):
            assert "skipped for memory" in " ".join(verdict.remarks())
            assert "skipped for time" not in " ".join(verdict.remarks())


def test_a_single_run_is_necessary(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _compared("same", 0, ("off",), monkeypatch)[0] is None
