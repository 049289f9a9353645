"""A BERT-like encoder as TorchScript writes it: dynamic batch and sequence, shape arithmetic everywhere."""

from __future__ import annotations

import math

import numpy as np
import onnx

from zoo.writer import FLOAT, INT64, GraphWriter


def transformer(layers: int = 2, hidden: int = 32, heads: int = 4, positions: int = 64) -> onnx.ModelProto:
    """Token and position embeddings, `layers` encoder blocks, and a pooler over the first token."""
    w = GraphWriter("transformer", seed=1)
    ids = w.input("input_ids", INT64, ["batch", "seq"])
    attention_mask = w.input("attention_mask", INT64, ["batch", "seq"])
    w.output("last_hidden_state", FLOAT, ["batch", "seq", hidden])
    w.output("pooled", FLOAT, ["batch", hidden])

    x = _embeddings(w, ids, hidden, positions)
    mask = _additive_mask(w, attention_mask)
    for i in range(layers):
        with w.scope(f"encoder/layer.{i}"):
            x = _attention(w, x, mask, hidden, heads, prefix=f"encoder.layer.{i}.attention")
            result = "last_hidden_state" if i == layers - 1 else None
            x = _feed_forward(w, x, hidden, f"encoder.layer.{i}", result)
    with w.scope("pooler"):
        first = w.op("Gather", x, w.constant(0), axis=1)
        weight = w.weight("pooler.dense.weight", w.normal(hidden, hidden))
        bias = w.weight("pooler.dense.bias", w.normal(hidden))
        w.op("Tanh", w.op("Gemm", first, weight, bias, alpha=1.0, beta=1.0, transB=1), result="pooled")
    return w.model(opset=14, ir_version=7, producer="pytorch")


def _embeddings(w: GraphWriter, ids: str, hidden: int, positions: int) -> str:
    words = w.weight("embeddings.word_embeddings.weight", w.normal(100, hidden))
    places = w.weight("embeddings.position_embeddings.weight", w.normal(positions, hidden))
    kinds = w.weight("embeddings.token_type_embeddings.weight", w.normal(2, hidden))
    with w.scope("embeddings"):
        batch, length = w.dim(ids, 0), w.dim(ids, 1)
        end = w.op("Unsqueeze", length, w.constant([0]))
        place_ids = w.op(
            "Slice",
            w.constant(np.arange(positions)[None]),
            w.constant([0]),
            end,
            w.constant([1]),
            w.constant([1]),
        )
        # zeros(1, positions)[:, :length].expand(batch, length)
        zeros = w.op(
            "Slice",
            w.constant(np.zeros((1, positions), np.int64)),
            w.constant([0]),
            end,
            w.constant([1]),
            w.constant([1]),
        )
        kind_ids = _expand(w, zeros, w.shape(batch, length))
        x = w.op("Add", w.op("Gather", words, ids), w.op("Gather", kinds, kind_ids))
        x = w.op("Add", x, w.op("Gather", places, place_ids))
        return _layer_norm(w, x, hidden, "embeddings.LayerNorm")


def _expand(w: GraphWriter, x: str, shape: str) -> str:
    """Tensor.expand, where −1 means 1: the exporter writes the test for it into the graph."""
    shape = w.op("Reshape", shape, w.constant([-1]), allowzero=0)
    ones = w.op(
        "ConstantOfShape", w.op("Shape", shape), value=onnx.numpy_helper.from_array(np.ones(1, np.int64))
    )
    keep = w.op("Equal", shape, w.op("Mul", ones, w.constant(-1)))
    return w.op("Expand", x, w.op("Where", keep, ones, shape))


def _additive_mask(w: GraphWriter, mask: str) -> str:
    """[batch, seq] of 0 and 1 becomes [batch, 1, 1, seq] of −10000 and 0."""
    x = w.op("Unsqueeze", w.op("Unsqueeze", mask, w.constant([1])), w.constant([2]))
    x = w.op("Cast", w.op("Cast", x, to=FLOAT), to=FLOAT)
    return w.op("Mul", w.op("Sub", w.constant(1.0), x), w.constant(-10000.0))


def _linear(w: GraphWriter, x: str, name: str, inputs: int, outputs: int, bias: str | None = None) -> str:
    weight = w.weight(f"onnx::MatMul_{name}", w.normal(inputs, outputs))
    if bias is None:
        bias = w.weight(f"{name}.bias", w.normal(outputs))
    return w.op("Add", bias, w.op("MatMul", x, weight))


def _split_heads(w: GraphWriter, x: str, heads: int, size: int) -> str:
    shape = w.shape(w.dim(x, 0), w.dim(x, 1), heads, size)
    return w.op("Transpose", w.op("Reshape", x, shape, allowzero=0), perm=[0, 2, 1, 3])


def _attention(w: GraphWriter, x: str, mask: str, hidden: int, heads: int, prefix: str) -> str:
    size = hidden // heads
    with w.scope("attention"):
        with w.scope("self"):
            # As exporters do with equal weights: a bias that equals another is an Identity of it.
            query_bias = w.weight(f"{prefix}.self.query.bias", np.zeros(hidden, np.float32))
            key_bias = w.op("Identity", query_bias)
            q = _split_heads(
                w, _linear(w, x, f"{prefix}.self.query", hidden, hidden, query_bias), heads, size
            )
            k = _split_heads(w, _linear(w, x, f"{prefix}.self.key", hidden, hidden, key_bias), heads, size)
            v = _split_heads(w, _linear(w, x, f"{prefix}.self.value", hidden, hidden), heads, size)
            scores = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
            scores = w.op("Div", scores, w.op("Sqrt", w.constant(float(size))))
            weights = w.op("Identity", w.op("Softmax", w.op("Add", scores, mask), axis=-1))
            heads_out = w.op("Transpose", w.op("MatMul", weights, v), perm=[0, 2, 1, 3])
            merged = w.shape(w.dim(heads_out, 0), w.dim(heads_out, 1), hidden)
            out = w.op("Reshape", heads_out, merged, allowzero=0)
        with w.scope("output"):
            out = w.op("Add", _linear(w, out, f"{prefix}.output.dense", hidden, hidden), x)
            return _layer_norm(w, out, hidden, f"{prefix}.output.LayerNorm")


def _feed_forward(w: GraphWriter, x: str, hidden: int, prefix: str, result: str | None) -> str:
    with w.scope("intermediate"):
        inner = _linear(w, x, f"{prefix}.intermediate.dense", hidden, 2 * hidden)
        # GELU by the error function: x · (1 + erf(x / √2)) / 2
        erf = w.op("Erf", w.op("Div", inner, w.constant(math.sqrt(2.0))))
        inner = w.op("Mul", w.op("Mul", inner, w.op("Add", erf, w.constant(1.0))), w.constant(0.5))
    with w.scope("output"):
        out = w.op("Add", _linear(w, inner, f"{prefix}.output.dense", 2 * hidden, hidden), x)
        return _layer_norm(w, out, hidden, f"{prefix}.output.LayerNorm", result=result)


def _layer_norm(w: GraphWriter, x: str, hidden: int, name: str, result: str | None = None) -> str:
    """LayerNorm in single ops, as written below opset 17."""
    scale = w.weight(f"{name}.weight", 1 + w.normal(hidden))
    bias = w.weight(f"{name}.bias", w.normal(hidden))
    with w.scope("LayerNorm"):
        centred = w.op("Sub", x, w.op("ReduceMean", x, axes=[-1]))
        variance = w.op("ReduceMean", w.op("Pow", centred, w.constant(2.0)), axes=[-1])
        deviation = w.op("Sqrt", w.op("Add", variance, w.constant(1e-12)))
        normal = w.op("Div", centred, deviation)
        return w.op("Add", w.op("Mul", normal, scale), bias, result=result)
