"""Transposes neither break nor complete the units that onnxruntime runs on integers."""

from __future__ import annotations

import pytest

from graphopt import ir
from tests.model_testing import agree, ops, parse, run_pipeline


def _model(steps: str) -> ir.Model:
    return parse(
        f"""g (float[2,5,6,4] x, uint8[4,4,3,3] w) => (float out)
        <float s = {{0.05}}, uint8 z = {{128}}, int8 y = {{0}}> {{ {steps} }}"""
    )


def test_transposes_cancel_around_a_unit() -> None:
    """The unit moves as a whole, and the Transposes around it cancel."""
    text = """
        t = Transpose <perm = [0, 3, 1, 2]> (x)
        q = QuantizeLinear(t, s, z)
        d = DequantizeLinear(q, s, z)
        r = Sigmoid(d)
        p = QuantizeLinear(r, s, z)
        e = DequantizeLinear(p, s, z)
        out = Transpose <perm = [0, 2, 3, 1]> (e)"""
    original, model = _model(text), _model(text)
    run_pipeline(model, "layout")
    assert ops(model) == [
        "QuantizeLinear",
        "DequantizeLinear",
        "Sigmoid",
        "QuantizeLinear",
        "DequantizeLinear",
    ]
    assert agree(original, model)


def test_no_transpose_appears_inside_of_a_unit() -> None:
    """A Conv keeps the layout of its unit, so that the Transposes stay outside."""
    text = """
        t = Transpose <perm = [0, 3, 1, 2]> (x)
        q = QuantizeLinear(t, s, z)
        d = DequantizeLinear(q, s, z)
        v = DequantizeLinear(w, s, z)
        c = Conv <pads = [1, 1, 1, 1]> (d, v)
        p = QuantizeLinear(c, s, z)
        e = DequantizeLinear(p, s, z)
        a = Abs(e)
        out = Transpose <perm = [0, 2, 3, 1]> (a)"""
    original, model = _model(text), _model(text)
    run_pipeline(model, "layout")
    conv = next(node for node in model.graph if node.op_type == "Conv")
    assert [value.producer().op_type for value in conv.inputs] == ["DequantizeLinear"] * 2  # type: ignore[union-attr]
    assert [node.op_type for node in ir.readers(conv.outputs[0])] == ["QuantizeLinear"]
    assert agree(original, model)


@pytest.mark.parametrize("zero", ["z", "y"])
def test_no_unit_is_completed(zero: str) -> None:
    """A Transpose between DequantizeLinear and a quantized operator stays: the operator runs on floats."""
    text = f"""
        a = Abs(x)
        q = QuantizeLinear(a, s, {zero})
        d = DequantizeLinear(q, s, {zero})
        t = Transpose <perm = [0, 3, 1, 2]> (d)
        v = DequantizeLinear(w, s, z)
        c = Conv <pads = [1, 1, 1, 1]> (t, v)
        u = Transpose <perm = [0, 2, 3, 1]> (c)
        p = QuantizeLinear(u, s, z)
        out = DequantizeLinear(p, s, z)"""
    original, model = _model(text), _model(text)
    run_pipeline(model, "layout")
    conv = next(node for node in model.graph if node.op_type == "Conv")
    image = conv.inputs[0]
    readers = [node.op_type for node in ir.readers(conv.outputs[0])]
    assert image is not None
    assert (image.producer().op_type, readers) != ("DequantizeLinear", ["QuantizeLinear"])  # type: ignore[union-attr]
    assert agree(original, model)


def test_int8_pairs_stay_adjacent() -> None:
    text = """
        a = Abs(x)
        q = QuantizeLinear(a, s, y)
        d = DequantizeLinear(q, s, y)
        t = Transpose <perm = [0, 3, 1, 2]> (d)
        e = Exp(t)
        out = Transpose <perm = [0, 2, 3, 1]> (e)"""
    original, model = _model(text), _model(text)
    run_pipeline(model, "layout")
    dequantize = next(node for node in model.graph if node.op_type == "DequantizeLinear")
    assert dequantize.inputs[0].producer().op_type == "QuantizeLinear"  # type: ignore[union-attr]
    assert agree(original, model)
