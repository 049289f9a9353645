"""An encoder of the samples with a head: attention, shape arithmetic, and work for every named pipeline."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from graphopt.profile import Profile
from graphopt.specialization.profile_recorder import Recorder
from graphopt.transforms.profile.instrument import Watch

_SAMPLES = Path(__file__).parents[2] / "samples"
_HIDDEN, _LABELS = 32, 6

#: A score of each label for each token that the mask keeps, so that the number of rows depends on data; a function;
#: a sequence; and one of two vectors, chosen by an input.
_HEAD = """<ir_version: 8, opset_import: ["" : 17, "head" : 1]>
head (int64[batch, seq] attention_mask, float[batch, seq, 32] last_hidden_state, float[batch, 32] pooled,
      bool use_pooled, float[32, 6] "head.weight", float[64, 6] "head.places")
  => (float[tokens, 6] scores, float[batch, 32] summary)
<int64 zero = {0}, int64 one = {1}, int64[1] row = {-1}, int64[2] rows = {-1, 32}> {
    flags = Reshape (attention_mask, row)
    kept = NonZero (flags)
    places = Reshape (kept, row)
    tokens = Reshape (last_hidden_state, rows)
    selected = Gather (tokens, places)
    parts = SequenceConstruct (selected, tokens)
    chosen = SequenceAt (parts, zero)
    products = MatMul (chosen, "head.weight")
    sizes = Shape (products)
    count = Gather (sizes, zero)
    order = Range (zero, count, one)
    offsets = Gather ("head.places", order)
    sums = Add (products, offsets)
    scores = head.activate (sums)
    mean = ReduceMean <axes = [1], keepdims = 0> (last_hidden_state)
    summary = If (use_pooled) <
        then_branch = first () => (float[batch, 32] a) { a = Identity (pooled) },
        else_branch = second () => (float[batch, 32] b) { b = Identity (mean) }>
}
<opset_import: ["" : 17], domain: "head">
activate (x) => (y) {
    sigmoid = Sigmoid (x)
    y = Mul (x, sigmoid)
}"""


#: A Dropout in training mode before the scores.
_DROPOUT = """sums = Add (products, offsets)
    ratio = Constant <value = float {0.5}> ()
    trains = Constant <value = bool {1}> ()
    kept_sums = Dropout (sums, ratio, trains)
    scores = head.activate (kept_sums)"""
_SCORES = """sums = Add (products, offsets)
    scores = head.activate (sums)"""


def encoder(*, trains: bool = False) -> ir.Model:
    """The transformer of samples/zoo with one layer, and the head.

    With ``trains``, the head has a Dropout in training mode, and its weights are overridable.
    """
    sys.path.insert(0, str(_SAMPLES))
    try:
        proto = importlib.import_module("zoo.transformer").transformer(layers=1, hidden=_HIDDEN)
    finally:
        sys.path.remove(str(_SAMPLES))
    assert _SCORES in _HEAD
    head = onnx.parser.parse_model(_HEAD.replace(_SCORES, _DROPOUT) if trains else _HEAD)
    random = np.random.default_rng(0)
    proto.ir_version = head.ir_version  # functions need 8
    proto.opset_import[0].version = 17  # its operators are the same; gradients need 16
    proto.opset_import.append(helper.make_opsetid("head", 1))
    proto.graph.input.append(helper.make_tensor_value_info("use_pooled", TensorProto.BOOL, []))
    proto.graph.node.extend(head.graph.node)
    proto.graph.initializer.extend(head.graph.initializer)
    for name, rows in (("head.weight", _HIDDEN), ("head.places", 64)):
        weight = random.standard_normal((rows, _LABELS)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
        if trains:
            proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, weight.shape))
    proto.graph.output.extend(head.graph.output)
    proto.functions.extend(head.functions)
    return ir.from_proto(proto)


def profile(model: ir.Model) -> Profile:
    """The profile of two runs of :func:`encoder` with equal shapes and different contents."""
    with Recorder(model, watch=Watch.ALL) as recorder:
        for seed in range(2):
            ids = np.random.default_rng(seed).integers(0, 100, (2, 8))
            mask = np.arange(16).reshape(2, 8) // 4 != seed  # 12 of 16 tokens
            recorder.run(
                {"input_ids": ids, "attention_mask": mask.astype(np.int64), "use_pooled": np.array(seed == 0)}
            )
        return recorder.profile
