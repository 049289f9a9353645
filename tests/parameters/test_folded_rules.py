"""After any rewrite, contents accepted by an optimized model are equivalent to those of the original."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.errors import GraphoptError, UsageError
from tests.rules.rule_cases import CASES, case_files, read_case

#: One of this many cases runs in the quick suite, because all cases take long.
_STEP = 45


def _changed(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    if array.dtype.kind != "f":
        return ~array if array.dtype == bool else array + array.dtype.type(1)
    factors, terms = generator.uniform(0.5, 1.5, array.shape), generator.uniform(0.1, 0.3, array.shape)
    with np.errstate(all="ignore"):
        return np.asarray(array * factors + terms).astype(array.dtype)


def _check(path: Path) -> int:
    """The number of initializers that accept other contents."""
    original, generator, taken = ir.from_proto(read_case(path).before), np.random.default_rng(0), 0
    done = graphopt.optimize(original, pipeline="O3", verify=False, fast_math=True).model
    for name, value in original.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth < 8:
            continue
        new = {name: _changed(tensor.numpy(), generator)}
        try:
            found, _ = graphopt.unlift_parameters(done, new)
        except UsageError:
            continue
        expected, _ = graphopt.unlift_parameters(original, new)
        try:
            verdict = graphopt.verify(expected, found)
        except GraphoptError:  # the original does not run with such contents
            continue
        if "crashed" in verdict.summary():  # as onnxruntime does on sizes of 0, whatever the contents
            continue
        assert verdict.ok, f"{path.name}: {name}: {verdict.summary()}"
        taken += 1
    return taken


def test_some_cases() -> None:
    assert sum(map(_check, case_files()[::_STEP])) > 4


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(folder.name for folder in CASES.iterdir() if folder.is_dir()))
def test_all_cases(family: str) -> None:
    for path in case_files():
        if path.parent.name == family:
            _check(path)
