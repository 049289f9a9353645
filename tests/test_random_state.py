"""Operations leave the random generators of Python, numpy and onnxruntime as they are."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest

import graphopt
from graphopt import ir
from graphopt.ort import session
from tests.model_testing import parse

_PLAIN = "m (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> {"
_PLAIN += "a = MatMul(x, w) b = Identity(a) y = Relu(b) }"
_RANDOM = "m (float[N,4] x) => (float[N,4] y) { r = RandomUniformLike(x) b = Identity(r) y = Add(x, b) }"
_OPERATIONS: dict[str, Callable[[ir.Model], object]] = {
    "optimize": graphopt.optimize,
    "verify": lambda model: graphopt.verify(model, model),
    "run": lambda model: graphopt.run(model, {"x": np.ones((2, 4), np.float32)}),
    "try_out": graphopt.try_out,
    "record_profile": lambda model: graphopt.record_profile(model, [{"x": np.ones((2, 4), np.float32)}]),
    "compile": lambda model: graphopt.compile(model)({"x": np.ones((2, 4), np.float32)}),
}


def _drawn() -> bytes:
    """Numbers of onnxruntime's generator."""
    model = parse("m (float[4] x) => (float[4] y) { y = RandomUniformLike(x) }")
    made = session.create(ir.to_bytes(model), optimizations="off")
    return b"".join(made.run(None, {"x": np.ones(4, np.float32)})[0].tobytes() for _ in range(3))


@pytest.mark.parametrize("text", [_PLAIN, _RANDOM], ids=["plain", "random"])
@pytest.mark.parametrize("name", _OPERATIONS)
def test_generators_are_untouched(name: str, text: str) -> None:
    model = ir.from_proto(onnx.load_from_string(ir.to_bytes(parse(text))))
    onnxruntime.set_seed(7)
    expected = _drawn()
    onnxruntime.set_seed(7)
    before = random.getstate(), np.random.get_state()
    _OPERATIONS[name](model)
    after = random.getstate(), np.random.get_state()
    assert before[0] == after[0]
    for one, two in zip(before[1], after[1], strict=True):
        np.testing.assert_array_equal(one, two)
    assert _drawn() == expected
