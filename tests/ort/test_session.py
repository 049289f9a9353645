"""Sessions: all element types as inputs and outputs, and short errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphopt.errors import RuntimeFailure
from graphopt.ort import session
from graphopt.ort.error_text import explain
from graphopt.util.ort_array_conversion import LOW_TYPES, pack, unpack
from tests.ort.build import data


def identity(type_, opset=21):
    x, y = helper.make_value_info("x", type_), helper.make_value_info("y", type_)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10
    ).SerializeToString()


def cast(from_, to):
    x, y = helper.make_tensor_value_info("x", from_, [None]), helper.make_tensor_value_info("y", to, [None])
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=to)], "g", [x], [y])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11
    ).SerializeToString()


@pytest.mark.parametrize("optimizations", ["off", "default"])
def test_ordinary_tensors(optimizations):
    model = data("g (float[N] x, float[N] z) => (float[N] y, float[N] w) { y = Add(x, z) w = Mul(x, z) }")
    made = session.create(model, optimizations=optimizations, threads=1)
    x = np.array([1, 2, 3], np.float32)
    y, w = session.run(made, {"x": x, "z": x})
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(w, x * x)
    (again,) = session.run(made, {"x": x, "z": x}, ["w"])
    np.testing.assert_array_equal(again, w)


def test_models_are_read_from_files_too(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(data("g (float[N] x) => (float[N] y) { y = Neg(x) }"))
    for source in (path, str(path)):
        (y,) = session.run(session.create(source), {"x": np.ones(2, np.float32)})
        np.testing.assert_array_equal(y, [-1, -1])


@pytest.mark.parametrize("name", ["tensor(bfloat16)", "tensor(float8e4m3fn)", "tensor(float8e5m2)"])
def test_low_precision_floats_are_inputs_and_outputs(name):
    low = LOW_TYPES[name]
    made = session.create(identity(helper.make_tensor_type_proto(low.code, [None])))
    x = np.array([1, -2, 0.5, np.nan], np.float32).astype(low.dtype)
    (y,) = session.run(made, {"x": x})
    assert y.dtype == low.dtype
    assert y.tobytes() == x.tobytes()
    (from_bits,) = session.run(made, {"x": x.view(np.uint8 if low.bits == 8 else np.uint16)})
    assert from_bits.tobytes() == x.tobytes()


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("tensor(int4)", [-8, 7, 0, -1, 3]),
        ("tensor(uint4)", [15, 0, 9, 1]),
        ("tensor(int2)", [-2, 1, 0, -1, 1]),
        ("tensor(uint2)", [3, 0, 1]),
    ],
)
def test_packed_integers_are_inputs_and_outputs(name, numbers):
    low = LOW_TYPES[name]
    numbers = np.array(numbers, np.float32)
    into, out = cast(TensorProto.FLOAT, low.code), cast(low.code, TensorProto.FLOAT)
    (packed,) = session.run(session.create(into), {"x": numbers})
    assert packed.dtype == low.dtype
    (y,) = session.run(session.create(out), {"x": packed})
    np.testing.assert_array_equal(y, numbers)


@pytest.mark.parametrize("name", LOW_TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (8,)])
def test_packing_loses_nothing(name, shape):
    low = LOW_TYPES[name]
    bits = np.random.default_rng(0).integers(0, 2**low.bits, shape)
    if low.name.startswith("int"):
        array = (bits - 2 ** (low.bits - 1)).astype(np.int8).astype(low.dtype)
    else:
        array = bits.astype(np.uint16 if low.bits == 16 else np.uint8).view(low.dtype)
    back = unpack(pack(array, low.bits), low, shape)
    assert (back.dtype, back.shape, back.tobytes()) == (low.dtype, shape, array.tobytes())
    expected = onnx.numpy_helper.from_array(np.asarray(array)).raw_data
    assert pack(array, low.bits) == expected


def test_strings():
    made = session.create(identity(helper.make_tensor_type_proto(TensorProto.STRING, [None])))
    x = np.array(["a", "", "ü"], dtype=object)
    (y,) = session.run(made, {"x": x})
    assert y.tolist() == x.tolist()


@pytest.mark.parametrize(
    "value", [[], [np.ones(2, np.float32)], [np.ones(2, np.float32), np.zeros(3, np.float32)]]
)
def test_sequences(value):
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    (y,) = session.run(session.create(identity(helper.make_sequence_type_proto(element))), {"x": value})
    assert [item.tolist() for item in y] == [item.tolist() for item in value]


@pytest.mark.parametrize("value", [None, np.ones(2, np.float32)])
def test_optionals(value):
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, [None])
    (y,) = session.run(session.create(identity(helper.make_optional_type_proto(element))), {"x": value})
    assert (y is None) == (value is None)
    assert value is None or y.tolist() == value.tolist()


def test_maps_are_returned_as_dicts():
    model = data(
        """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (float[1, 2] x) => (seq(map(string, float)) y) {
            y = ai.onnx.ml.ZipMap <classlabels_strings = ["a", "b"]> (x)
        }"""
    )
    (y,) = session.run(session.create(model), {"x": np.array([[0.25, 0.75]], np.float32)})
    assert y == [{"a": 0.25, "b": 0.75}]


def test_a_sequence_beside_a_low_type_is_refused():
    model = data(
        "g (bfloat16[2] x, float[2] z) => (bfloat16[2] y, seq(float[2]) s) "
        "{ y = Identity(x) s = SequenceConstruct(z) }",
        ir_version=10,
        opset=21,
    )
    feeds = {"x": np.ones(2, ml_dtypes.bfloat16), "z": np.ones(2, np.float32)}
    with pytest.raises(RuntimeFailure, match=r"can't give a seq\(tensor\(float\)\)"):
        session.run(session.create(model), feeds)


def test_invalid_model_is_a_one_line_error(tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(RuntimeFailure) as caught:
        session.create(path)
    assert str(caught.value) == "onnxruntime can't load the model: Protobuf parsing failed"


def test_a_failing_node_is_named():
    made = session.create(data("g (float[2] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }"))
    with pytest.raises(RuntimeFailure, match=r"Gather '.*': indices element out of data bounds, idx=7"):
        session.run(made, {"x": np.ones(2, np.float32), "i": np.array([7])})


@pytest.mark.parametrize(
    ("told", "short"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Add node. "
            "Name:'a.b' Status Message: /onnxruntime_src/core/math.h:583 void onnxruntime::Iter::Append(int, "
            "int) axis == 1 || axis == largest was false. Attempting to broadcast. 2 by 4\n",
            "Add 'a.b': Attempting to broadcast. 2 by 4",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from /tmp/x y.onnx failed:/src/model_load_utils.h:46 "
            "void onnxruntime::utils::Validate(const std::map<int>&, bool) ONNX Runtime only *guarantees* "
            "support for released opsets. Opset 99 is under development. Current official support for "
            "domain ai.onnx is till opset 26.",
            "opset 99 of ai.onnx is unknown (last: 26)",
        ),
        ("", "Exception"),
    ],
)
def test_onnxruntime_errors_are_shortened(told, short):
    assert explain(Exception(told)) == short


def test_sessions_print_nothing_to_stderr(capfd):
    with pytest.raises(RuntimeFailure):
        session.create(data("g (string[2] x) => (string[2] y) { y = Relu(x) }"))
    made = session.create(data("g (float[2] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }"))
    with pytest.raises(RuntimeFailure):
        session.run(made, {"x": np.ones(2, np.float32), "i": np.array([7])})
    assert capfd.readouterr() == ("", "")
