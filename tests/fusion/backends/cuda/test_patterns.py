"""Typical chains of models: device code agrees with onnxruntime, and spills no registers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.kernel_models import PATTERNS
from graphopt import ir
from graphopt.fusion.backends.cuda.nvrtc import ARCHITECTURES, Target, find_nvrtc
from graphopt.ort import session
from tests.fusion.backends.cuda.compiled import images, needs_nvrtc
from tests.fusion.backends.cuda.devices import DEVICES, build
from tests.fuzz.kernels.all_groups import Grouped, grouped
from tests.fuzz.kernels.device_batches import run_model
from tests.golden_files import GoldenFiles

_BYTES = 64 << 10


@cache
def pattern(name: str) -> Grouped:
    """A pattern with its groups."""
    return grouped(PATTERNS[name](_BYTES).model)


@pytest.mark.parametrize("device", DEVICES)
def test_patterns_agree_with_onnxruntime(device: str, tmp_path: Path) -> None:
    kernels = {kernel.name: kernel for name in PATTERNS for kernel in pattern(name).kernels}
    runner = build(device, list(kernels.values()), tmp_path)
    for name, example in PATTERNS.items():
        made = example(_BYTES)
        model = onnx.load_from_string(ir.to_bytes(pattern(name).model))
        found = run_model(model, kernels, runner, made.feeds)
        expected = session.run(session.create(made.model.SerializeToString(), threads=1), made.feeds)
        for got, want in zip(found, expected, strict=True):
            a, b = got.astype(np.float64), want.astype(np.float64)
            assert np.abs(a - b).max() <= 1e-6 * np.abs(b).max(), name


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_registers(architecture: int, golden: GoldenFiles) -> None:
    file = Path(__file__).with_name("registers") / f"sm_{architecture}.txt"
    text = "".join(f"{line}\n" for line in _registers(Target(architecture)))
    if not golden.update and file.read_text(encoding="utf-8").partition("\n")[0] != str(find_nvrtc()):
        pytest.skip(f"{file.name} is not of {find_nvrtc()}")
    golden.check(file, text)


def _registers(target: Target) -> Iterator[str]:
    """The version of the compiler, and the registers and shared memory of each function; none spills any."""
    yield str(find_nvrtc())
    for name in PATTERNS:
        for kernel in pattern(name).kernels:
            resources = images([kernel], target).resources
            for function in sorted(resources):
                found = resources[function]
                assert found.spill_stores == found.spill_loads == found.stack == 0, function
                label = function.removeprefix(kernel.name)
                yield f"{name}{label}: {found.registers} registers, {found.shared} bytes of shared memory"
