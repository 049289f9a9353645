"""A model written in pieces has the bytes that protobuf writes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir


def weight(name: str, size: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.arange(size, dtype=np.float32), name)


def model() -> onnx.ModelProto:
    """Large, small, empty and documented weights, a typed one, and a large one in a body."""
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], ["z"])],
        "body",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [weight("inner", 300_000)],
    )
    names = ["large", "small", "also_large", "empty", "documented", "typed", "größte"]
    weights = [
        weight(name, size)
        for name, size in zip(names, (300_000, 3, 262_144, 0, 300_000, 0, 5_000_000), strict=True)
    ]
    weights[4].doc_string = "why"
    weights[5] = helper.make_tensor("typed", TensorProto.FLOAT, [300_000], np.ones(300_000))
    nodes = [helper.make_node("Concat", names, ["x"], axis=0)]
    nodes.append(helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="test"
    )


def test_streamed_bytes_equal_those_of_protobuf(tmp_path) -> None:
    loaded = ir.from_proto(model())
    whole = ir.to_proto(loaded).SerializeToString()
    ir.save(loaded, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == whole
    assert ir.to_bytes(loaded) == whole
    again = onnx.load(tmp_path / "model.onnx").graph.initializer
    for before, after in zip(model().graph.initializer, again, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(before), numpy_helper.to_array(after))


def test_models_that_share_a_weight_may_have_other_names_for_it() -> None:
    loaded = ir.from_proto(model())
    whole, other = ir.to_bytes(loaded), loaded.clone()
    values = other.graph.initializers
    assert values["large"].const_value is loaded.graph.initializers["large"].const_value
    for name in ("large", "also_large"):
        ir.Editor(other).rename(values[name], f"{name}_2")
    renamed = onnx.load_from_string(ir.to_bytes(other)).graph.initializer
    assert [weight.name for weight in renamed if "_2" in weight.name] == ["large_2", "also_large_2"]
    assert all(len(weight.raw_data) >= 2**20 for weight in renamed if "_2" in weight.name)
    assert ir.to_bytes(loaded) == whole


def test_large_weights_are_not_copied_into_a_proto(tmp_path, monkeypatch) -> None:
    loaded = ir.from_proto(model())
    sizes = []
    to_proto = onnx_ir.to_proto
    monkeypatch.setattr(onnx_ir, "to_proto", lambda m: sizes.append(to_proto(m).ByteSize()) or to_proto(m))
    ir.save(loaded, tmp_path / "model.onnx")
    assert sizes and sizes[0] < 6_000_000 < 24_000_000 < (tmp_path / "model.onnx").stat().st_size
    assert loaded.graph.initializers["large"].const_value.numpy()[-1] == 299_999


@pytest.mark.parametrize("size", [2**18, 2**18 + 1, 2**19, 2**21 - 1, 2**21])
def test_lengths_of_every_width(size: int) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size])],
        [weight("w", size)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    loaded = ir.from_proto(proto)
    assert ir.to_bytes(loaded) == ir.to_proto(loaded).SerializeToString()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int64"])
def test_arrays_are_written_like_protos(tmp_path, dtype: str) -> None:
    loaded = ir.from_proto(model())
    array = (np.arange(2_400_000) % 7).astype(dtype).reshape(1200, 2000)
    for name, changed in (("large", array), ("also_large", array.T)):
        value = loaded.graph.initializers[name]
        value.const_value = onnx_ir.Tensor(changed, name=name)
    whole = ir.to_proto(loaded).SerializeToString()
    ir.save(loaded, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == whole
    assert ir.to_bytes(loaded) == whole
