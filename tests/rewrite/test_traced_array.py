"""Traced arrays: their expressions, evaluated by onnxruntime, have the same bits as numpy's results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.context import Options
from graphopt.parameters.run_constants_model import compute_constants
from graphopt.rewrite.traced_array import TracedArray, concatenate, trace
from tests.model_testing import parse

_TEXT = """m (float[N,4] x) => (float[N,4] y) <float[3,4] w = {1, -2, 3, 4, 5, 6, -7, 8, 9, 10, 11, 12.5},
    float[4] b = {0.25, 3, -1, 7}> {p = Gemm(x, w, b) y = Relu(p)}"""
_OPERATIONS: dict[str, Callable[[TracedArray, TracedArray], TracedArray]] = {
    "add": lambda w, b: w + b,
    "sub": lambda w, b: w - b,
    "mul": lambda w, b: w * b,
    "div": lambda w, b: w / b,
    "constant": lambda w, b: (w * 0.1) + 1,
    "less": lambda w, b: w < b,
    "greater": lambda w, b: w > b,
    "both": lambda w, b: (w < b) & ~(w < 0),
    "neg": lambda w, b: -w,
    "abs": lambda w, b: abs(w),
    "sqrt": lambda w, b: abs(w).sqrt(),
    "maximum": lambda w, b: w.maximum(b),
    "double": lambda w, b: w.astype(np.dtype(np.float64)) / 3,
    "reshape": lambda w, b: w.reshape(2, -1),
    "scalar": lambda w, b: abs(b).largest().reshape(),
    "transpose": lambda w, b: w.transpose((1, 0)),
    "broadcast": lambda w, b: b.broadcast_to(3, 4),
    "largest": lambda w, b: abs(w).largest((1,)),
    "sum": lambda w, b: w.sum(1),
    "matmul": lambda w, b: w @ b.reshape(4, 1),
    "all": lambda w, b: (w < 13).all,
    "not all": lambda w, b: (w < 12).all,
    "finite": lambda w, b: (w / (b - b)).is_finite(),
    "concatenate": lambda w, b: concatenate([w, b.reshape(1, 4), w], 0),
}


@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize("name", _OPERATIONS)
def test_expression_computes_the_array(name: str, opset: int) -> None:
    model = parse(_TEXT, opset=opset)
    cx = context_for(model, Options(weights=("w", "b")))
    graph = ir.constant_graph_of(model.graph)
    assert graph is not None
    w, b = (trace(model.graph.initializers[value], model.graph, cx) for value in ("w", "b"))
    assert w is not None and b is not None
    with np.errstate(all="ignore"):
        found = _OPERATIONS[name](w, b)
    assert found.depends and found.contents is None
    constant = cx.edit.constant(model.graph, found.array, "c")
    graph.define(constant, found.expression)
    weights = {
        name: value.const_value for name, value in model.graph.initializers.items() if value.const_value
    }
    computed = compute_constants(graph.model(model)[0], weights, {})["c"].numpy()
    assert computed.dtype == found.array.dtype and computed.shape == found.array.shape
    assert computed.tobytes() == np.ascontiguousarray(found.array).tobytes()


def test_conditions_are_outputs_of_the_constants_model() -> None:
    model = parse(_TEXT)
    cx = context_for(model, Options(weights=("w", "b")))
    graph, b = ir.constant_graph_of(model.graph), trace(model.graph.initializers["b"], model.graph, cx)
    assert graph is not None and b is not None
    assert b.require(b > 0) is None
    valid = b.require(b < 10)
    assert valid is not None
    constant = cx.edit.constant(model.graph, valid.array, "c")
    graph.define(constant, valid.expression, valid.conditions)
    constants, conditions = graph.model(model)
    assert [value.name for value in constants.graph.outputs] == ["c", "valid.c"]
    assert conditions == {"valid.c": "c"}


def test_arrays_without_weights_have_contents() -> None:
    model = parse(_TEXT)
    cx = context_for(model)
    b = trace(model.graph.initializers["b"], model.graph, cx)
    assert b is not None and b.contents is not None and not (b * 2).depends
    assert b.require(b < 10) is b
