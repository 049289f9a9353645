"""A reference evaluator that deviates from onnxruntime excuses no difference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.verification.onnx_reference import Reference
from graphopt.verification.verifier import verify
from tests.ort.build import data, parse_proto

NUMBERS = "float[3] s = {1, 1, 1}, float[3] b = {0, 0.5, 1}, float[3] v = {0.1, 0.2, 0.3}"
NORMALIZED = (
    "n = BatchNormalization <momentum = 0.9> (x, s, b, b, v) a = OP(n) z = ReduceMean <axes = [2, 3]> (a)"
)
#: onnxruntime computes an output for a window that does not fit; the evaluator does not.
POOLED = "p = MaxPool <kernel_shape = [9, 9], strides = [9, 9]> (x) a = OP(p) z = GlobalAveragePool(a)"


@pytest.mark.parametrize("opset", [9, 11, 13])
@pytest.mark.parametrize("body", [NORMALIZED, POOLED])
def test_faults_of_reference_operators_are_found(body: str, opset: int) -> None:
    text = f"g (float[N, 3, 4, 6] x) => (float[N, 3, 1, 1] z) <{NUMBERS}> {{ {body} }}"
    right, wrong = (data(text.replace("OP", op), opset=opset) for op in ("Relu", "Identity"))
    assert verify(right, right, numerics=Numerics.REASSOCIATES, empty=False).ok
    assert not verify(right, wrong, numerics=Numerics.REASSOCIATES, empty=False).ok


def test_the_sign_of_a_zero_is_excused_after_a_pool_of_no_batch() -> None:
    """The mean over an empty batch is 0 in onnxruntime; times -1, its reciprocal is -inf, or inf if 0 is added."""
    body = "p = GlobalAveragePool(x) m = ReduceMean <keepdims = 0> (p) n = Mul(m, k)"
    text = "g (float[N, 3, 4, 6] x) => (float[] z) <float k = {-1}, float o = {0}> { BODY }"
    rests = "s = Add(n, o) r = Reciprocal(s) z = Sqrt(r)", "r = Reciprocal(n) z = Sqrt(r)"
    added, dropped = (data(text.replace("BODY", f"{body} {rest}"), opset=13) for rest in rests)
    assert verify(added, dropped, numerics=Numerics.REASSOCIATES).ok
    assert not verify(added, dropped, numerics=Numerics.EXACT).ok


def test_negative_zeros_of_constants_become_zeros() -> None:
    """The evaluator's arrays of Constant nodes with raw data are read-only."""
    proto = parse_proto(
        "g (float[2] x) => (float[2] y) { k = Constant <value = float[2] {0, 0}> () m = Mul(x, k) y = Reciprocal(m) }"
    )
    proto.graph.node[0].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.full(2, -0.0, np.float32)))
    reference, feeds = Reference(lambda: ir.from_proto(proto)), {"x": np.array([1, -1], np.float32)}
    assert list(reference.output("y", feeds)) == [-np.inf, np.inf]
    assert list(reference.without_negative_zeros("y", feeds)) == [np.inf, np.inf]


def test_the_largest_difference_counts_differences_that_are_not_allowed() -> None:
    text = "g (float[N] x) => (float[N] y) <float b = {OFFSET}> { y = Add(x, b) }"
    original, moved = (data(text.replace("OFFSET", offset), opset=17) for offset in ("0", "0.5"))
    verdict = verify(original, moved)
    assert not verdict.ok and verdict.delta == pytest.approx(0.5)
