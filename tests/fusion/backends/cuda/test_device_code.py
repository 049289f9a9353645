"""Device code of typical kernels, compared with the interpreter of the loop IR."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from graphopt.fusion.backends.cuda.device_printer import device_kernel
from graphopt.fusion.loops.interpreter import TYPES, number, run
from graphopt.fusion.loops.ir import Element, Kernel, Size
from tests.fusion.backends.cuda.device_kernels import (
    column_sums,
    concatenation,
    layer_norm,
    powers,
    row_sum,
    shifted,
    softmax,
    sum_of_transposed,
    transposed,
)
from tests.fusion.backends.cuda.devices import DEVICES, build
from tests.fusion.backends.cuda.launches import Device, run_on
from tests.fusion.backends.pattern_kernels import KERNELS, SOFTMAX, SWISH, M, N

SHAPES = [(3, 5), (0, 4), (4, 0), (1, 1), (7, 64), (33, 1009)]
#: Kernels, shapes, and the functions that must run.
ROWS: list[tuple[Kernel, tuple[int, ...], tuple[str, ...]]] = [
    (row_sum("sum", M), (300, 100), ("sum_0_1",)),
    (row_sum("sum", M), (3, 1025), ("sum_0_2",)),
    (row_sum("sum", M), (70, 40000), ("sum_0_2",)),
    (row_sum("sum", M), (2, 40000), ("sum_0_part0", "sum_0_total0")),
    (row_sum("sum_5", Size(5)), (300,), ("sum_5_0",)),
    (row_sum("sum_40001", Size(40001)), (2,), ("sum_40001_0_part0", "sum_40001_0_total0")),
    (row_sum("sum_40001", Size(40001)), (65,), ("sum_40001_0_1",)),
    (softmax("softmax_m", M), (2, 40000), ("softmax_m_0_1",)),
    (softmax("softmax_197", Size(197)), (50,), ("softmax_197_0",)),
    (softmax("softmax_5000", Size(5000)), (3,), ("softmax_5000_0",)),
    (
        softmax("softmax_50000", Size(50000)),
        (2,),
        tuple(f"softmax_50000_0_{name}" for name in ("part0", "total0", "part1", "total1", "part2")),
    ),
    (layer_norm("norm_768", Size(768)), (50,), ("norm_768_0",)),
    (layer_norm("norm_33000", Size(33000)), (65,), ("norm_33000_0_1",)),
    (column_sums("columns_mn", N, M), (255, 70), ("columns_mn_0_1",)),
    (column_sums("columns_mn", N, M), (5000, 70), ("columns_mn_0_part0", "columns_mn_0_total0")),
    (column_sums("columns_9", Size(9), N), (300,), ("columns_9_0",)),
    (column_sums("columns_3", N, Size(3)), (70000,), ("columns_3_0_part0", "columns_3_0_total0")),
]
TRANSPOSED = [transposed(f"transposed_{element.name.lower()}", element) for element in Element]
SHIFTED = [shifted(f"shifted_{element.name.lower()}", element) for element in Element]
SIDE_BY_SIDE = [concatenation("halves", 16, 16), concatenation("thirds", 5, 10)]

#: Kernels with more transposed operands or reductions than fit into shared memory.
LARGE = [sum_of_transposed("nine_transposed", 9), powers("fifty_powers", 50)]


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Device:
    rows = {kernel.name: kernel for kernel, _, _ in ROWS}
    kernels = [*KERNELS, *rows.values(), *TRANSPOSED, *SHIFTED, *SIDE_BY_SIDE, *LARGE]
    return build(request.param, kernels, tmp_path_factory.mktemp("device"))


def feeds(kernel: Kernel, symbols: Sequence[int]) -> list[np.ndarray]:
    """Inputs of ``kernel`` for values of its symbols."""
    random = np.random.default_rng(1)
    found = []
    for port in kernel.inputs:
        values = random.standard_normal([number(dim, symbols) for dim in port.dims])
        scale = 1 if port.element.is_float or port.element is Element.BOOL else 50
        values = np.abs(values) if port.element is Element.U8 else values
        found.append((values * scale).astype(TYPES[port.element]))
    return found


def agree(device: Device, kernel: Kernel, symbols: Sequence[int]) -> list[str]:
    """Compare with the interpreter; the names of the functions that ran."""
    inputs = feeds(kernel, symbols)
    expected = run(kernel, inputs)
    for in_place in (False, True) if kernel.in_place else (False,):
        found, made = run_on(device, kernel, inputs, in_place)
        for got, want in zip(found, expected, strict=True):
            if want.dtype.kind in "iub" or want.dtype.itemsize == 2:
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got, want, rtol=3e-6, atol=2e-6)
    return [launch.function for launch in made]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_typical_kernels(device: Device, kernel: Kernel) -> None:
    for shape in SHAPES:
        agree(device, kernel, shape)


@pytest.mark.parametrize(("kernel", "shape", "functions"), ROWS)
def test_sizes_choose_the_schedule_of_a_reduction(
    device: Device, kernel: Kernel, shape: tuple[int, ...], functions: tuple[str, ...]
) -> None:
    assert agree(device, kernel, shape) == list(functions)


@pytest.mark.parametrize("kernel", TRANSPOSED, ids=lambda kernel: kernel.name)
def test_transposed_operands_are_staged_in_tiles(device: Device, kernel: Kernel) -> None:
    assert "tile1[" in device_kernel(kernel).text
    for shape in ((3, 5), (33, 70), (64, 32)):
        agree(device, kernel, shape)


@pytest.mark.parametrize("kernel", LARGE, ids=lambda kernel: kernel.name)
def test_shared_memory_is_limited(device: Device, kernel: Kernel) -> None:
    assert 0 < max(launch.shared for launch in device_kernel(kernel).launches) <= 32 * 1024
    for shape in ((33, 40), (1000, 5)):
        agree(device, kernel, shape)


@pytest.mark.parametrize("kernel", SHIFTED, ids=lambda kernel: kernel.name)
def test_operands_that_are_not_aligned(device: Device, kernel: Kernel) -> None:
    text = device_kernel(kernel).text
    assert "(out0 + " in text and "(in0 + " not in text
    agree(device, kernel, ())


@pytest.mark.parametrize("kernel", SIDE_BY_SIDE, ids=lambda kernel: kernel.name)
def test_concatenations(device: Device, kernel: Kernel) -> None:
    assert len(device_kernel(kernel).launches) == (1 if kernel.name == "halves" else 2)
    for rows in (0, 1, 7, 300):
        agree(device, kernel, (rows,))


def test_results_do_not_depend_on_the_grid(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fusion.backends.cuda.launches.blocks", lambda grid, symbols: 2)
    agree(device, SWISH, (33, 1009))
    agree(device, TRANSPOSED[0], (100, 70))
    agree(device, ROWS[3][0], (5, 40000))
    agree(device, ROWS[0][0], (30, 100))


@pytest.mark.parametrize("name", ["grid", "cuda on cpu"])
def test_large_tensors_have_indices_of_64_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("graphopt.fusion.backends.cuda.schedule", "tests.fusion.backends.cuda.launch_values"):
        monkeypatch.setattr(f"{module}.WIDE_FROM", 4)
    kernels = [SWISH, TRANSPOSED[0], SOFTMAX, column_sums("sums", N, M), softmax("softmax_5", Size(5))]
    device = build(name, kernels, tmp_path)
    functions = [function for kernel in kernels for function in agree(device, kernel, (33, 70))]
    assert functions == ["swish_0_64", "transposed_f32_0_64", "softmax_0_2", "sums_0_2", "softmax_5_0"]
    text = "".join(device_kernel(kernel).text for kernel in kernels)
    assert all(f"GO_BLOCK(i64) * {count}" in text for count in (256, 32))


def test_text_is_deterministic() -> None:
    assert device_kernel(ROWS[0][0]) == device_kernel(ROWS[0][0])


def test_a_name_must_be_an_identifier() -> None:
    with pytest.raises(ValueError, match="not an identifier"):
        device_kernel(row_sum("two words", M))
