"""Comparisons of kernels of bytes with exact integers, and with onnxruntime without optimizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion.group_functions import kernels_of
from graphopt.passes.pipelines import make_pipeline
from tests.fusion.test_low_bit_products import Compiled, Model
from tests.fuzz.kernels.batches import cpu_levels

Array = np.ndarray


def result_name(results: Mapping[str, Array], number: int) -> str:
    """The output of a case: ``zN`` after an epilogue, ``yN`` without one."""
    return f"z{number}" if f"z{number}" in results else f"y{number}"


def assert_exact(
    made: Compiled, feeds: Mapping[str, Array], level: int, expected: Sequence[Array], cases: Sequence[Any]
) -> None:
    """Each case has the expected bits, with one and with two threads."""
    single, both = made.run(feeds, level, 1), made.run(feeds, level, 2)
    for number, (case, exact) in enumerate(zip(cases, expected, strict=True)):
        name = result_name(single, number)
        got = single[name]
        assert (got.shape, got.dtype) == (exact.shape, exact.dtype), case
        assert (got == exact).all(), case
        assert both[name].tobytes() == got.tobytes(), case


def assert_bits_of_onnxruntime(made: Compiled, feeds: Mapping[str, Array], cases: Sequence[Any]) -> None:
    """Each case, of an operator and the types of two operands, has the bits of runs without optimizations."""
    plain, got = made.run_plain(feeds), made.run(feeds, cpu_levels()[-1], 1)
    for number, (_, a, b, *_) in enumerate(cases):
        if a == "i" or b == "u":  # for other types, onnxruntime saturates on machines without VNNI
            name = result_name(got, number)
            assert got[name].tobytes() == plain[name].tobytes(), cases[number]


def kernel_count(m: Model) -> int:
    """The number of kernels that the default choice of groups has."""
    model = ir.from_proto(m.proto())
    with context_for(model) as cx:
        make_pipeline("fuse-groups").run(model, cx)
    return len(kernels_of(model))
