"""Graphs agree with onnxruntime and with double precision if their kernels run as device code."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.process.child import Child
from tests.fusion.backends.cuda.grid_interpreter import compiler
from tests.fusion.backends.cuda.opencl import missing
from tests.fuzz.kernels.batches import Findings
from tests.fuzz.kernels.device_batches import examine, examine_operators

FAST, SEEDS, BATCH = 100, 2000, 50

# Where OpenCL is missing, the grid interpreter runs the same kernels.
needs_device = pytest.mark.skipif(
    missing() is not None and compiler() is None, reason=f"no C compiler, and {missing()}"
)


@needs_device
def test_random_graphs_agree(child: Child, tmp_path: Path) -> None:
    found: Findings = child.call(examine, range(FAST), tmp_path, missing() is None)
    assert found.faults == []
    assert found.judged > 2 * FAST
    assert found.left < 0.35 * found.nodes


@needs_device
def test_every_operator_is_correct(child: Child, tmp_path: Path) -> None:
    assert child.call(examine_operators, tmp_path, missing() is None, 1).faults == []


@needs_device
@pytest.mark.slow
def test_every_operator_is_correct_for_all_types(child: Child, tmp_path: Path) -> None:
    assert child.call(examine_operators, tmp_path, missing() is None).faults == []


@needs_device
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(SEEDS // BATCH))
def test_many_random_graphs_agree(child: Child, tmp_path: Path, chunk: int) -> None:
    seeds = range(FAST + chunk * BATCH, FAST + (chunk + 1) * BATCH)
    assert child.call(examine, seeds, tmp_path, missing() is None).faults == []
