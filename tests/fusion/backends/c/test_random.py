"""Random kernels, compiled in batches and compared with the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.fusion.loops.interpreter import run
from tests.fusion.backends.c.harness import Unit, compiler, levels
from tests.fusion.backends.rounding import assert_near
from tests.fuzz.kernels.random_kernels import Generator

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")


def check(seeds: range, level: int, folder: Path, flags: tuple[str, ...] = ()) -> None:
    """Compares kernels of ``seeds`` with the interpreter, with several shapes."""
    generators = [Generator(seed) for seed in seeds]
    unit = Unit([generator.kernel() for generator in generators], folder, level, flags)
    for index, generator in enumerate(generators):
        kernel = unit.kernels[index]
        for _ in range(4):
            feeds = generator.feeds(kernel)
            expected, wide = run(kernel, feeds), run(kernel, feeds, wide=True)
            for in_place in (False, True) if kernel.in_place else (False,):
                found = unit.run(index, feeds, in_place)
                for got, want, precise in zip(found, expected, wide, strict=True):
                    message = f"seed {generator.seed}, shapes {[feed.shape for feed in feeds]}"
                    assert got.shape == want.shape, message
                    assert_near(got, want, precise, message)


@pytest.mark.parametrize("level", levels())
def test_random_kernels(level: int, tmp_path: Path) -> None:
    check(range(level * 16, level * 16 + 16), level, tmp_path)


@pytest.mark.parametrize("level", levels()[-1:])
def test_random_kernels_in_many_chunks(level: int, tmp_path: Path) -> None:
    check(range(200, 220), level, tmp_path, ("-DGO_CHUNK=512", "-DGO_ENOUGH=1"))


@pytest.mark.parametrize("level", levels())
def test_random_kernels_with_streaming_stores(level: int, tmp_path: Path) -> None:
    check(range(220, 240), level, tmp_path, ("-DGO_FAR=0",))


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(40))
def test_many_random_kernels(batch: int, tmp_path: Path) -> None:
    seeds = range(1000 + 50 * batch, 1050 + 50 * batch)
    for level in levels():
        check(seeds, level, tmp_path)
    for chunk in (64, 4096):
        check(seeds, levels()[-1], tmp_path, (f"-DGO_CHUNK={chunk}", "-DGO_ENOUGH=2"))
