"""Random graphs with products agree with and without kernels, and with onnxruntime alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphopt.fusion.backends.c.template_printer import template_names
from graphopt.fusion.template_table import anchor_operators
from graphopt.ort import session
from graphopt.process.child import Child
from tests.fuzz.kernels.batches import cpu_levels
from tests.fuzz.products.comparison import mismatch
from tests.fuzz.products.exact_outputs import ExactOutputs
from tests.fuzz.products.examination import SMALL_CHUNKS, Findings, examine
from tests.fuzz.products.families import generate
from tests.fuzz.products.product_graph import TIES, Array, ProductGraph, Tolerance

FAST, SEEDS, BATCH = 100, 2000, 50


def test_random_products_agree(child: Child, tmp_path: Path) -> None:
    more = (*SMALL_CHUNKS, "-O0")
    found: Findings = child.call(examine, range(FAST), tmp_path, cpu_levels()[-1], (1, 2), more)
    assert not found.faults, "\n".join(found.faults)
    assert found.graphs > 0.8 * FAST
    assert found.compared > 4 * FAST
    assert template_names() - set(found.templates) == set()
    assert anchor_operators() - set(found.operators) == set()


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
    text = mismatch(found, [expected, expected], [expected], Tolerance())
    assert text is None if fault is None else text is not None and text.startswith(f"{fault} at (0, 0)")


def _mismatch(wrong: dict[int, float], tolerance: Tolerance, exact: float | None = None) -> str | None:
    """The mismatch of 300 elements, of which onnxruntime computes 1.0, except for those in ``wrong``."""
    expected = np.ones(300, np.float32)
    found = expected.copy()
    for place, value in wrong.items():
        found[place] = value
    reference: Array | None = None if exact is None else np.full(300, exact)
    return mismatch(found, [expected], [expected], tolerance, lambda: reference)


def test_few_elements_may_be_at_ties_and_none_far_away() -> None:
    ties = Tolerance(ties=0.01)
    three = dict.fromkeys(range(3), 0.9)
    assert _mismatch(three, ties) is None
    assert "difference" in (_mismatch(three, Tolerance()) or ""), "without ties"
    assert "many ties" in (_mismatch(three | {7: 0.9}, ties) or "")
    assert "difference" in (_mismatch({7: 3.5}, ties) or ""), "beyond the range of the result"


def test_results_about_as_close_to_double_precision_are_right() -> None:
    wrong = dict.fromkeys(range(9), 1.001)
    assert _mismatch(wrong, Tolerance(), exact=1.001) is None
    assert _mismatch(wrong, Tolerance(), exact=1.0004) is None, "less than twice the error of onnxruntime"
    assert "difference" in (_mismatch(wrong, Tolerance(), exact=1.0003) or ""), "onnxruntime is closer"
    assert "many ties" in (_mismatch(wrong, Tolerance(ties=0.01), exact=0.999) or "")
    assert _mismatch(wrong, Tolerance(ties=0.01), exact=1.001) is None


def test_ties_belong_to_the_values_behind_them() -> None:
    g = ProductGraph(0)
    first = g.node("Neg", [g.input([4])])
    second = g.node("Abs", [g.tie(g.node("Floor", [first]))])
    for value in (first, second):
        g.output(value)
    assert (g.tolerance(first).ties, g.tolerance(second).ties, g.tolerance().ties) == (0, TIES, TIES)


def test_exact_outputs_of_recurrences_are_those_of_their_formulas() -> None:
    """The reference is closer to onnxruntime's results than single precision allows to differ."""
    compared = 0
    for seed in range(0, 13 * 8):
        graph = generate(seed)
        if not any(node.op_type in ("LSTM", "GRU", "RNN") for node in graph.nodes):
            continue
        text, feeds = graph.model().SerializeToString(), graph.feeds(0)
        exact = ExactOutputs(text, feeds)
        running = session.create(text, optimizations="off", threads=1)
        for place, result in enumerate(session.run(running, feeds)):
            reference = exact.output(place, np.shape(result))
            assert reference is not None and reference.dtype == np.float64
            compared += 1
            far = np.abs(np.asarray(result) - reference) > 1e-4 * max(1, np.abs(reference).max(initial=0))
            assert far.mean() <= TIES if far.size else True, f"seed {seed}"
    assert compared > 20
