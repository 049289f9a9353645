"""Statistics of constants of all types."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphopt import ir
from graphopt.page import constant_statistics
from graphopt.page.constant_statistics import statistics_of


def _tensor(kind: str, elements: list[object]) -> ir.TensorProtocol:
    return ir.tensor(helper.make_tensor("x", getattr(TensorProto, kind), [len(elements)], elements))


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("FLOAT", "16 B"),
        ("DOUBLE", "32 B"),
        ("FLOAT16", "8 B"),
        ("BFLOAT16", "8 B"),
        ("FLOAT8E4M3FN", "4 B"),
        ("FLOAT8E5M2", "4 B"),
        ("FLOAT4E2M1", "2 B"),
        ("INT4", "2 B"),
        ("UINT4", "2 B"),
        ("INT8", "4 B"),
        ("UINT8", "4 B"),
        ("INT64", "32 B"),
        ("BOOL", "4 B"),
    ],
)
def test_numbers_of_every_type(kind: str, size: str) -> None:
    text = statistics_of(_tensor(kind, [0, 1, 1, 0]))
    assert text == f"{size}, least 0, mean 0.5, greatest 1, 50 % zeros"


@pytest.mark.parametrize("kind", ["COMPLEX64", "STRING"])
def test_other_types_have_a_size(kind: str) -> None:
    elements: list[object] = [b"<script>"] if kind == "STRING" else [1 + 2j]
    assert statistics_of(_tensor(kind, elements)) == "8 B"


def test_elements_that_are_not_finite() -> None:
    array = np.array([np.nan, np.inf, -np.inf, 2.0], np.float32)
    assert statistics_of(ir.tensor(array)) == "16 B, least 2, mean 2, greatest 2, 25 % NaN, 50 % infinite"
    assert statistics_of(ir.tensor(array[:1])) == "4 B, 100 % NaN"


def test_sums_that_overflow() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = statistics_of(ir.tensor(np.full(3, 1.5e308)))
    assert text == "24 B, least 1.5e+308, mean 1.5e+308, greatest 1.5e+308"


def test_a_tensor_without_elements_has_a_size() -> None:
    assert statistics_of(ir.tensor(np.zeros((0, 3), np.float32))) == "0 B"


def test_a_scalar() -> None:
    assert statistics_of(ir.tensor(np.array(2.5))) == "8 B, least 2.5, mean 2.5, greatest 2.5"


def test_large_tensors_are_not_read() -> None:
    class Unreadable:
        nbytes, dtype = (64 << 20) + 1, ir.DataType.FLOAT

    assert statistics_of(Unreadable()) == "67.1 MB"  # type: ignore[arg-type]


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).normal(size=1_000).astype(np.float16)
    array[::7] = 0
    array[5] = np.nan
    whole = statistics_of(ir.tensor(array))
    monkeypatch.setattr(constant_statistics, "_CHUNK", 16)
    assert statistics_of(ir.tensor(array)) == whole
