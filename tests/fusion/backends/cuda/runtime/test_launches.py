"""The host parts of kernels for CUDA, with a fake driver and a fake onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphopt.fusion.backends.cuda.nvrtc import TARGETS
from tests.fusion.backends.c.runtime import samples
from tests.fusion.backends.cuda.runtime.fakes import Fakes, library
from tests.fusion.backends.cuda.runtime.hand_written import HOSTED, SUMS, TWICE, Device

pytestmark = samples.compiled
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
BOTH = [(name, provider) for provider in (CPU, CUDA) for name in ("twice", "sums")]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fakes, Path]:
    folder = tmp_path_factory.mktemp("cuda")
    fakes = Fakes(folder / "fakes")
    return fakes, library(HOSTED, folder / "library", fakes.path)


@pytest.fixture
def fakes(shared: tuple[Fakes, Path]) -> Fakes:
    shared[0].reset()
    return shared[0]


@pytest.fixture
def path(shared: tuple[Fakes, Path]) -> Path:
    return shared[1]


def array(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def test_library_has_operators_for_both_devices(fakes: Fakes, path: Path) -> None:
    with fakes.opened(path) as opened:
        assert opened.operators == BOTH
        assert opened.pairs(TWICE) == [(0, 0)]
        assert opened.pairs(SUMS) == []


def test_equal_kernels_build_equal_bytes(tmp_path: Path) -> None:
    first, second = (library(HOSTED, tmp_path / name, "libcuda.so.1").read_bytes() for name in ("a", "b/c"))
    assert first == second and str(tmp_path).encode() not in first


def test_launch_has_grid_block_and_arguments(fakes: Fakes, path: Path) -> None:
    device = Device()
    fakes.run_by(device)
    with fakes.opened(path) as opened, opened.session(TWICE) as session:
        x = array(3, 257)
        np.testing.assert_array_equal(session.run([x])[0], 2 * x)
        addresses = [session.input_address(0), session.output_address(0)]
        assert device.launches == [("twice_0_32", 4, 256, [*addresses, 771])]
        np.testing.assert_array_equal(session.run([x], in_place=True)[0], 2 * x)
        assert session.input_address(0) == session.output_address(0)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_empty_tensors_have_no_launch(fakes: Fakes, path: Path, shape: tuple[int, int]) -> None:
    device = Device()
    fakes.run_by(device)
    with fakes.opened(path) as opened, opened.session(TWICE) as session:
        assert session.run([array(*shape)])[0].shape == shape
    assert device.launches == []


@pytest.mark.parametrize("shape", [(5, 8), (5, 9), (1, 4000), (9, 0), (17, 10)])
def test_conditions_choose_launches(fakes: Fakes, path: Path, shape: tuple[int, int]) -> None:
    device = Device()
    fakes.run_by(device)
    with fakes.opened(path) as opened, opened.session(SUMS) as session:
        x = array(*shape)
        np.testing.assert_allclose(session.run([x])[0], x.sum(1), rtol=1e-6)
        parts = -(-shape[1] // 4)
        long = shape[1] >= 9
        assert fakes.ort.ort_scratch() == (shape[0] * parts * 4 if long else 0)
    names = [(name, blocks, threads) for name, blocks, threads, _ in device.launches]
    if long:
        assert names == [("sums_parts", shape[0] * parts, 64), ("sums_long", -(-shape[0] // 8), 128)]
        assert device.launches[0][3][2] == device.launches[1][3][0]  # the same scratch memory
    else:
        assert names == [("sums_short", shape[0], 32)]


@pytest.mark.parametrize(
    "shape, launch",
    [((2, 1 << 29), ("twice_0_64", 1 << 22)), ((1, (1 << 30) - 1), ("twice_0_32", 1 << 22)),
     ((1 << 20, 1 << 20), ("twice_0_64", (1 << 31) - 1))],
)  # fmt: skip
def test_many_elements_have_wide_indices_and_a_limited_grid(
    fakes: Fakes, path: Path, shape: tuple[int, int], launch: tuple[str, int]
) -> None:
    launches: list[tuple[str, int]] = []
    fakes.run_by(lambda name, blocks, threads, arguments: launches.append((name, blocks)))
    with fakes.opened(path) as opened, opened.session(TWICE) as session:
        session.run_without_memory(shape)
    assert launches == [launch]


def test_wrong_shapes_fail_before_a_launch(fakes: Fakes, path: Path) -> None:
    with (
        fakes.opened(path) as opened,
        opened.session(TWICE) as session,
        pytest.raises(RuntimeError, match="input 0 has another rank"),
    ):
        session.run([array(3)])
    assert fakes.driver.fake_fault() == b""


def test_failed_launch_and_failed_allocation_are_reported(fakes: Fakes, path: Path) -> None:
    fakes.run_by(Device())
    with fakes.opened(path) as opened, opened.session(SUMS) as session:
        fakes.driver.fake_errors(0, 2)
        with pytest.raises(RuntimeError, match="kernel sums can't be launched on CUDA: out of memory"):
            session.run([array(2, 20)])
        fakes.driver.fake_errors(0, 0)
        fakes.ort.ort_scratch_fails(1)
        with pytest.raises(RuntimeError, match="the arena is full"):
            session.run([array(2, 20)])
        fakes.ort.ort_scratch_fails(0)
        np.testing.assert_allclose(session.run([array(2, 20)])[0], array(2, 20).sum(1))


@pytest.mark.parametrize(
    "capability, target",
    [(75, "sm_75"), (80, "sm_80"), (87, "sm_86"), (89, "sm_89"), (90, "sm_90"), (103, "sm_100"), (120, "sm_120"),
     (121, "sm_120"), (130, "compute_120")],
)  # fmt: skip
def test_code_is_loaded_for_the_architecture(fakes: Fakes, path: Path, capability: int, target: str) -> None:
    fakes.reset(capability=capability)
    assert target in map(str, TARGETS)
    first = fakes.driver.fake_loaded()
    with fakes.opened(path) as opened, opened.session(SUMS):
        assert fakes.driver.fake_loaded() == first + 1
        assert fakes.driver.fake_image(first) == f"{target} sums".encode()


def test_sessions_share_code_and_load_it_before_runs(fakes: Fakes, path: Path) -> None:
    fakes.reset(gpus=2, current=1)
    first, preloaded = fakes.driver.fake_loaded(), fakes.driver.fake_preloaded()
    with fakes.opened(path) as opened:
        with opened.session(SUMS, device=0), opened.session(SUMS, device=0):
            assert fakes.driver.fake_preloaded() == preloaded  # the context is of another GPU
        with opened.session(SUMS, device=1):
            assert fakes.driver.fake_preloaded() == preloaded + 3  # functions
        assert fakes.driver.fake_loaded() == first + 1
        with pytest.raises(RuntimeError, match="there is no GPU 2"), opened.session(SUMS, device=2):
            pass


@pytest.mark.parametrize("error, reason", [(209, "no kernel image is available"), (500, "a fault")])
def test_code_that_does_not_load_is_an_error(fakes: Fakes, path: Path, error: int, reason: str) -> None:
    fakes.driver.fake_errors(error, 0)
    with fakes.opened(path) as opened:
        message = f"can't be loaded to GPU 0: {reason}"
        with pytest.raises(RuntimeError, match=message), opened.session(SUMS):
            pass
        fakes.driver.fake_errors(0, 0)
        with opened.session(SUMS):
            pass


@pytest.mark.parametrize(
    "driver, reason",
    [
        ({"version": 12080}, "the NVIDIA driver supports CUDA 12.8, and the kernels need 13.0 or newer"),
        ({"init_error": 3}, "the NVIDIA driver can't be initialized: a fault"),
        ({"gpus": 0}, "the NVIDIA driver reports no GPU"),
        ({"capability": 61}, "they are not compiled for GPU 0, of architecture sm_61"),
        ({"capability": 110}, "they are not compiled for GPU 0, of architecture sm_110"),
    ],
)
def test_unusable_gpu_leaves_the_cpu_and_one_line(
    fakes: Fakes, path: Path, driver: dict[str, int], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fakes.reset(**driver)
    with fakes.opened(path) as opened:
        assert opened.operators == BOTH[:2]
    assert (
        capfd.readouterr().err == f"graphopt's CUDA kernels are off, onnxruntime runs their nodes: {reason}\n"
    )


def test_old_onnxruntime_has_no_kernels_for_cuda(fakes: Fakes, path: Path) -> None:
    with fakes.opened(path, "1.17.3") as opened:
        assert opened.operators == BOTH[:2]
