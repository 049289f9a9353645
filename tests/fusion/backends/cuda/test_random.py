"""Random kernels as device code, compared with the interpreter of the loop IR."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.fusion.loops.interpreter import run
from tests.fusion.backends.cuda.devices import DEVICES, build
from tests.fusion.backends.cuda.launches import run_on
from tests.fusion.backends.rounding import assert_near
from tests.fuzz.kernels.random_kernels import Generator


def check(name: str, seeds: range, folder: Path) -> None:
    """Compare kernels of ``seeds`` with the interpreter, with several shapes."""
    generators = [Generator(seed) for seed in seeds]
    kernels = [generator.kernel() for generator in generators]
    device = build(name, kernels, folder)
    for generator, kernel in zip(generators, kernels, strict=True):
        for _ in range(3):
            feeds = generator.feeds(kernel)
            expected, wide = run(kernel, feeds), run(kernel, feeds, wide=True)
            for in_place in (False, True) if kernel.in_place else (False,):
                found, made = run_on(device, kernel, feeds, in_place)
                message = f"seed {generator.seed}, shapes {[feed.shape for feed in feeds]}, {made}"
                for got, want, precise in zip(found, expected, wide, strict=True):
                    assert_near(got, want, precise, message)


@pytest.mark.parametrize("name", DEVICES)
def test_random_kernels(name: str, tmp_path: Path) -> None:
    start = 16 * DEVICES.index(name)
    check(name, range(start, start + 16), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(20))
@pytest.mark.parametrize("name", DEVICES)
def test_many_random_kernels(name: str, batch: int, tmp_path: Path) -> None:
    check(name, range(1000 + 50 * batch, 1050 + 50 * batch), tmp_path)
