"""Models with native groups, and wrong kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion.backends.c import CBackend
from graphopt.fusion.group_functions import kernels_of
from graphopt.fusion.loops.ir import Kernel
from graphopt.passes.pipelines import make_pipeline
from tests.model_testing import parse

#: A model with two groups, separated by a product.
TWO = """two (float[N,64] x, float[64,64] w, float[64] b) => (float[N,64] y) {
    s = Sigmoid(x)
    m = Mul(b, s)
    p = MatMul(m, w)
    t = Sin(p)
    y = Mul(t, b)
}"""


def grouped(text: str = TWO) -> ir.Model:
    """The model of ``text`` with its groups."""
    model = parse(text)
    with context_for(model) as cx:
        make_pipeline("fuse-groups").run(model, cx)
    return model


def spoil(monkeypatch: pytest.MonkeyPatch, name: str, other: str) -> None:
    """Replace kernels whose names begin with ``name`` by kernels that compute ``other`` instead."""
    right = CBackend.build

    def wrong(backend: CBackend, kernels: Sequence[Kernel], *arguments: Any, **more: Any) -> Path:
        spoiled = [_wrong(kernel, other) if kernel.name.startswith(name) else kernel for kernel in kernels]
        return right(backend, spoiled, *arguments, **more)

    monkeypatch.setattr(CBackend, "build", wrong)


def _wrong(kernel: Kernel, other: str) -> Kernel:
    (found,) = kernels_of(
        grouped(f"g (float[N,64] x, float[64] b) => (float[N,64] m) {{ s = {other}(x) m = Mul(b, s) }}")
    )
    return replace(found, name=kernel.name)
