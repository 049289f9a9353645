"""Random graphs agree with and without kernels, and with double precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.process.child import Child
from tests.fuzz.kernels.batches import Findings, cpu_levels, examine
from tests.fuzz.kernels.random_graphs import generate

FAST, SEEDS, BATCH = 40, 2000, 50


def test_random_graphs_agree(child: Child, tmp_path: Path) -> None:
    found: Findings = child.call(examine, range(FAST), tmp_path, cpu_levels()[-1])
    assert found.faults == []
    assert found.judged > 2 * FAST
    assert found.left < 0.35 * found.nodes


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(SEEDS // BATCH))
def test_many_random_graphs_agree(child: Child, tmp_path: Path, chunk: int) -> None:
    level = cpu_levels()[-1 - chunk % len(cpu_levels())]
    seeds = range(FAST + chunk * BATCH, FAST + (chunk + 1) * BATCH)
    assert child.call(examine, seeds, tmp_path, level).faults == []


def test_generation_is_deterministic() -> None:
    first, second = (generate(7).model.SerializeToString(deterministic=True) for _ in range(2))
    assert first == second
