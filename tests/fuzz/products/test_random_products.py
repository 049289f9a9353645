"""Random graphs with products agree with and without kernels, and with onnxruntime alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphopt.fusion.backends.c.template_printer import template_names
from graphopt.process.child import Child
from tests.fuzz.kernels.batches import cpu_levels
from tests.fuzz.products.comparison import mismatch
from tests.fuzz.products.examination import SMALL_CHUNKS, Findings, examine
from tests.fuzz.products.families import generate
from tests.fuzz.products.product_graph import ProductGraph

FAST, SEEDS, BATCH = 100, 2000, 50


def test_random_products_agree(child: Child, tmp_path: Path) -> None:
    more = (*SMALL_CHUNKS, "-O0")
    found: Findings = child.call(examine, range(FAST), tmp_path, cpu_levels()[-1], (1, 2), more)
    assert not found.faults, "\n".join(found.faults)
    assert found.graphs > 0.8 * FAST
    assert found.compared > 4 * FAST
    assert template_names() - set(found.templates) == set()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range((SEEDS - FAST) // BATCH))
def test_many_random_products_agree(child: Child, tmp_path: Path, chunk: int) -> None:
    level = cpu_levels()[-1 - chunk % len(cpu_levels())]
    seeds = range(FAST + chunk * BATCH, FAST + (chunk + 1) * BATCH)
    more = SMALL_CHUNKS if chunk % 2 else ()
    found: Findings = child.call(examine, seeds, tmp_path, level, (1, 2, 8), more)
    assert not found.faults, "\n".join(found.faults)


def test_generation_is_deterministic() -> None:
    for seed in range(12):
        first, second = (generate(seed) for _ in range(2))
        assert first.model().SerializeToString(deterministic=True) == second.model().SerializeToString(
            deterministic=True
        )
        for case in range(3):
            for name, array in first.feeds(case).items():
                np.testing.assert_array_equal(array, second.feeds(case)[name])


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [(1.001, "difference"), (np.nan, "NaN or infinity"), (np.inf, "NaN or infinity"), (1.0000001, None)],
)
def test_wrong_elements_are_found(wrong: float, fault: str | None) -> None:
    expected = np.array([[1.0, np.nan], [0.5, -np.inf]], np.float32)
    found = expected.copy()
    found[0, 0] = wrong
    text = mismatch(found, [expected, expected], [expected], ProductGraph(0))
    assert text is None if fault is None else text is not None and text.startswith(f"{fault} at (0, 0)")
