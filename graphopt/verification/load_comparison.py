"""Comparison of two models by loading alone, for originals that run on no generated inputs."""

from __future__ import annotations

from graphopt.errors import ResourceLimit, RuntimeFailure, SystemExhausted
from graphopt.ort.model_runs import Runner
from graphopt.ort.session import Optimizations
from graphopt.verification.verdict import Row

_LEVELS: tuple[Optimizations, ...] = ("off", "default")


def load_failures(original: Runner, candidate: Runner) -> list[Row]:
    """A row for each optimization level at which ``original`` loads and ``candidate`` does not."""
    rows = []
    for level in _LEVELS:
        try:
            original.load(level)
        except (RuntimeFailure, ResourceLimit):
            continue
        try:
            candidate.load(level)
        except SystemExhausted:  # the candidate is not at fault
            raise
        except (RuntimeFailure, ResourceLimit) as failure:
            rows.append(Row("no inputs", "normal", level, None, "", False, str(failure)))
    return rows
