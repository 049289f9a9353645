"""Decisions about padding matrix products, from sizes and the figures of a device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphopt.cost.padded_products import Padding, Product, decide, required_padding
from graphopt.ort.devices import CPU, TENSOR_CORES, Device, MatrixUnits
from graphopt.ort.gpu_properties import GpuProperties, matrix_units

#: 2048 rows of a transformer, with a weight.
LARGE = Product("float16", 2, 1, 2048, 1023, 4093, right_constant=True)


def units(**changes: object) -> MatrixUnits:
    return replace(TENSOR_CORES, **changes)  # type: ignore[arg-type]


def test_only_cuda_has_matrix_units() -> None:
    assert CPU.capabilities.matrix_units is None
    assert Device("cuda").capabilities.matrix_units is TENSOR_CORES


@pytest.mark.parametrize(
    ("capability", "types"),
    [
        ((6, 1), None),
        ((7, 0), {"float16"}),
        ((7, 5), {"float16", "int8", "uint8"}),
        ((8, 0), set(TENSOR_CORES.multiples)),
        ((9, 0), set(TENSOR_CORES.multiples)),
    ],
)
def test_types_of_matrix_units_depend_on_the_compute_capability(
    capability: tuple[int, int], types: set[str] | None
) -> None:
    found = matrix_units(Device("cuda"), GpuProperties("a GPU", capability))
    assert (None if found is None else set(found.multiples)) == types
    assert bool(decide(LARGE, found)) == (types is not None)


def test_unknown_gpus_count_as_new_ones() -> None:
    assert matrix_units(Device("cuda"), None) is TENSOR_CORES
    assert matrix_units(CPU, None) is None


@pytest.mark.parametrize(
    ("dtype", "padding"),
    [
        ("float16", Padding(0, 1, 3)),
        ("bfloat16", Padding(0, 1, 3)),
        ("float", Padding(0, 1, 3)),
        ("int8", Padding(0, 1, 3)),
    ],
)
def test_multiples_by_element_type(dtype: str, padding: Padding) -> None:
    multiple = TENSOR_CORES.multiples[dtype]
    assert multiple * {"float": 4, "int8": 1}.get(dtype, 2) == 16  # bytes
    assert required_padding(replace(LARGE, dtype=dtype), multiple) == padding


@pytest.mark.parametrize(
    ("left", "right", "padding"),
    [
        (False, False, Padding(0, 3, 6)),  # rows in memory have the lengths inner, columns and columns
        (False, True, Padding(0, 3, 6)),
        (True, False, Padding(1, 0, 6)),  # rows, columns and columns
        (True, True, Padding(1, 3, 6)),
    ],
)
def test_padding_depends_on_the_rows_in_memory(left: bool, right: bool, padding: Padding) -> None:
    product = Product("float16", 2, 1, 7, 5, 10, left_transposed=left, right_transposed=right)
    assert required_padding(product, 8) == padding


def test_unknown_rows_matter_only_where_they_are_contiguous() -> None:
    product = Product("float16", 2, 1, None, 5, 10)
    assert required_padding(product, 8) == Padding(0, 3, 6)
    assert required_padding(replace(product, left_transposed=True), 8) is None


def test_large_products_are_padded() -> None:
    found = decide(LARGE, TENSOR_CORES)
    assert found and found.padding == Padding(0, 1, 3)
    assert found.reason.startswith("2048×1023×4093 → 2048×1024×4096: about 0.")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "bfloat16"}, "the device has no Pad for bfloat16"),
        ({"inner": 1024, "columns": 4096}, "its rows are multiples of 8"),
        ({"dtype": "double"}, "the device has no matrix units for double"),
        ({"rows": None}, "the number of rows or matrices is unknown"),
        ({"batch": None}, "the number of rows or matrices is unknown"),
        ({"rows": 1}, "it is memory-bound: 1 operations per byte, with 156 at full speed"),
        ({"rows": 256}, "256×1023×4093 → 256×1024×4096: about"),  # two more nodes take longer
    ],
)
def test_reasons_against_padding(changes: dict[str, object], reason: str) -> None:
    found = decide(replace(LARGE, **changes), TENSOR_CORES)  # type: ignore[arg-type]
    assert not found and found.reason.startswith(reason)
    assert (found.hint is not None) == ("unknown" in reason)


def test_without_units_nothing_is_padded() -> None:
    found = decide(LARGE, None)
    assert not found and found.reason == "the device has no matrix units for float16"


def test_types_without_pad_are_padded_ahead_of_time_only() -> None:
    assert decide(replace(LARGE, dtype="bfloat16", inner=1024), TENSOR_CORES)


def test_constants_are_padded_at_no_cost() -> None:
    variable = replace(LARGE, rows=1024, right_constant=False)
    both = replace(variable, left_constant=True, right_constant=True)
    ratios = [
        float(decide(one, TENSOR_CORES).reason.split("about ")[1].split(" ")[0]) for one in (variable, both)
    ]
    assert ratios[1] < ratios[0]
    aligned = replace(both, columns=4096)  # nothing remains to pad or slice at run time
    assert "moved" not in decide(aligned, TENSOR_CORES).reason and decide(aligned, TENSOR_CORES)


def test_figures_of_the_device_decide() -> None:
    assert decide(LARGE, units(slowdown=1.05)).reason.startswith("2048×1023×4093 → ")
    assert not decide(LARGE, units(slowdown=1.05))
    assert not decide(LARGE, units(launch_bytes=1 << 30))
    assert not decide(LARGE, units(intensities={"float16": 10_000.0}))


def test_batches_count() -> None:
    one = Product("float16", 2, 1, 511, 63, 511)
    assert not decide(one, TENSOR_CORES)
    many = replace(one, batch=96, left_batch=96, right_batch=96)
    found = decide(many, TENSOR_CORES)
    assert "memory-bound" in found.reason  # 63 operations per element are too few for any batch
    large = replace(many, rows=4093, inner=4093, columns=4093)
    assert decide(large, TENSOR_CORES)


def test_empty_products_are_unchanged() -> None:
    assert not decide(replace(LARGE, rows=0), TENSOR_CORES)
    assert not decide(replace(LARGE, inner=0), TENSOR_CORES)
