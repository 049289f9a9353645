"""Bit-exact pipelines keep every bit of random graphs of quantized tensors, and add no nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from graphopt import ir
from graphopt.api import context_for
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry
from tests.rules.test_random_layouts import Grower, count_nodes, run

_LAYOUTS = ("transpose", "reshape", "squeeze", "unsqueeze", "slice", "concat", "split", "pad", "gather")
_COMPUTES = ("unary", "binary", "pick_largest")


class QuantizedGrower(Grower):
    """Also grows round trips through integers, with few distinct parameters, so that many of them can be merged."""

    def grow_quantized(self, dtype: Any) -> None:
        x = self.pick(*list(self.shapes)[-3:])
        kind = self.pick("quantize", "quantize", "quantize", "weight", *_LAYOUTS, *_COMPUTES)
        match kind:
            case "quantize":
                grown = [(self.round_trip(x, self.pick(0.05, 0.05, 0.11), dtype), self.shapes[x])]
            case "weight":
                grown = self.add_weight(x, self.shapes[x], dtype)
            case "pick_largest":
                grown = self.add_largest(x, self.shapes[x])
            case _:
                grown = getattr(self, f"add_{kind}")(x, self.shapes[x])
        for name, shape in grown or ():
            if 0 < int(np.prod(shape)) <= 4096 and len(shape) <= 6:
                self.shapes[name] = shape

    def round_trip(self, x: str, scale: float, dtype: Any) -> str:
        q = self.op("QuantizeLinear", x, *self.parameters(scale, dtype))
        return self.op("DequantizeLinear", q, *self.parameters(scale, dtype))

    def parameters(self, scale: float, dtype: Any) -> tuple[str, str]:
        return (
            self.constant(scale, dtype=np.float32, scalar=True),
            self.constant(np.iinfo(dtype).min + 9, dtype=dtype, scalar=True),
        )

    def add_weight(self, x: str, shape: tuple[int, ...], dtype: Any) -> Any:
        if not shape or not shape[-1]:
            return None
        numbers = self.constant(*range(shape[-1]), dtype=dtype)
        weight = self.op("DequantizeLinear", numbers, *self.parameters(0.05, dtype))
        return [(self.op(self.pick("Add", "Mul"), x, weight), shape)]

    def add_largest(self, x: str, shape: tuple[int, ...]) -> Any:
        axes = [axis for axis, dim in enumerate(shape) if dim]
        if not axes:
            return None
        axis = self.pick(*axes)
        result = (*shape[:axis], 1, *shape[axis + 1 :])
        return [(self.with_ints("ReduceMax", 18, x, "axes", [axis], keepdims=1), result)]


@st.composite
def quantized(draw: Any) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """A model of one input, and the input's shape."""
    grower = QuantizedGrower(draw, draw(st.sampled_from((11, 13, 18, 21))))
    dtype = draw(st.sampled_from((np.uint8, np.int8)))
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)))
    grower.shapes["x"] = shape
    for _ in range(draw(st.integers(3, 12))):
        grower.grow_quantized(dtype)
    symbols = [f"x{axis}" if draw(st.booleans()) else size for axis, size in enumerate(shape)]
    return grower.model([helper.make_tensor_value_info("x", TensorProto.FLOAT, symbols)]), shape


@settings(max_examples=25)
@given(quantized())
def test_quantized_graphs_keep_every_bit(case: tuple[onnx.ModelProto, tuple[int, ...]]) -> None:
    before, shape = case
    model = ir.from_proto(onnx.ModelProto.FromString(before.SerializeToString()))
    Pipeline.parse("O1", registry()).run(model, context_for(model))
    after = ir.to_proto(model)
    assert count_nodes(after) <= count_nodes(before)
    feeds = {"x": (np.random.default_rng(0).standard_normal(shape) * 3).astype(np.float32)}
    if before.graph.input[-1].name == "condition":
        feeds["condition"] = np.array(True)
    for a, b in zip(run(before, feeds), run(after, feeds), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
