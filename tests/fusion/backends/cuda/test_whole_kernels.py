"""Device code and host parts together: random kernels in a fake onnxruntime, whose GPU is the grid interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import pytest

from graphopt.fusion.backends.cuda import hosted_kernels
from graphopt.fusion.backends.cuda.host_printer import HostedKernel
from graphopt.fusion.backends.cuda.launch import Scratch, SizeValue
from graphopt.fusion.loops.interpreter import run
from tests.fusion.backends.c.runtime import samples
from tests.fusion.backends.cuda.grid_interpreter import GridInterpreter
from tests.fusion.backends.cuda.launch_values import blocks, count, function_name, holds
from tests.fusion.backends.cuda.runtime.fakes import Fakes, library
from tests.fusion.backends.rounding import assert_near
from tests.fuzz.kernels.random_kernels import Generator

pytestmark = samples.compiled


class Gpu:
    """Runs launches, and records them."""

    def __init__(self, kernels: Sequence[HostedKernel], folder: Path) -> None:
        self._grid = GridInterpreter([each.kernel for each in kernels], folder)
        self._launches = {
            name: launch
            for each in kernels
            for launch in each.device.launches
            for name in (launch.function, f"{launch.function}_32", f"{launch.function}_64")
        }
        self.made: list[tuple[str, int, int]] = []

    def __call__(self, name: str, grid: int, threads: int, arguments: ctypes.Array[ctypes.c_void_p]) -> None:
        self.made.append((name, grid, threads))
        table = (ctypes.c_void_p * max(len(self._launches[name].arguments), 1))()
        for index, item in enumerate(self._launches[name].arguments):
            address = arguments[index] or 0
            is_size = isinstance(item, SizeValue)
            table[index] = address if is_size else ctypes.c_void_p.from_address(address).value
        function = getattr(self._grid.library, f"run_{name}")
        failed = self._grid.library.go_run(function, table, ctypes.c_int64(grid), threads, 0)
        assert not failed, f"threads of {name} differ in their barriers"


def check(seeds: range, folder: Path, fakes: Fakes, flags: Sequence[str] = ()) -> None:
    """Compare kernels of ``seeds`` with the interpreter, and their launches with the reference for hosts."""
    generators = [Generator(seed) for seed in seeds]
    kernels = hosted_kernels([generator.kernel() for generator in generators])
    folder.mkdir(exist_ok=True)
    gpu = Gpu(kernels, folder)
    fakes.reset(current=0)
    fakes.run_by(gpu)
    with fakes.opened(library(kernels, folder / "library", fakes.path, flags)) as opened:
        for generator, hosted in zip(generators, kernels, strict=True):
            kernel = hosted.kernel
            with opened.session(kernel) as session:
                for _ in range(3):
                    feeds = generator.feeds(kernel)
                    symbols = [feeds[symbol.input].shape[symbol.axis] for symbol in kernel.symbols]
                    expected, wide = run(kernel, feeds), run(kernel, feeds, wide=True)
                    for in_place in (False, True) if kernel.in_place else (False,):
                        gpu.made.clear()
                        found = session.run(feeds, in_place)
                        message = f"seed {generator.seed}, shapes {[feed.shape for feed in feeds]}"
                        for got, want, precise in zip(found, expected, wide, strict=True):
                            assert_near(got, want, precise, message)
                        assert gpu.made == _launches(hosted, symbols), message
                        assert fakes.ort.ort_scratch() == _scratch(hosted, symbols), message


def _launches(hosted: HostedKernel, symbols: Sequence[int]) -> list[tuple[str, int, int]]:
    """The launches that are made."""
    return [
        (function_name(launch, symbols), grid, launch.block)
        for launch in hosted.device.launches
        if (grid := blocks(launch.grid, symbols)) and holds(launch.condition, symbols)
    ]


def _scratch(hosted: HostedKernel, symbols: Sequence[int]) -> int:
    """Bytes of the buffers of these launches."""
    made = [
        launch
        for launch in hosted.device.launches
        if blocks(launch.grid, symbols) and holds(launch.condition, symbols)
    ]
    return sum(
        count(buffer.count, symbols) * buffer.bytes
        for index, buffer in enumerate(hosted.device.scratch)
        if any(Scratch(index) in launch.arguments for launch in made)
    )


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    return Fakes(tmp_path_factory.mktemp("fakes"))


def test_random_kernels_and_their_launches(tmp_path: Path, fakes: Fakes) -> None:
    check(range(9000, 9016), tmp_path, fakes)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(10))
def test_many_random_kernels_and_their_launches(tmp_path: Path, fakes: Fakes, batch: int) -> None:
    check(range(9100 + 40 * batch, 9140 + 40 * batch), tmp_path, fakes)
