"""Numbers and types of the JSON IR: every bit is preserved."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from graphopt.ir.json import tensors, type_text

_NUMERIC = [
    dtype
    for dtype in ir.DataType
    if dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING, ir.DataType.BOOL)
]


@pytest.mark.parametrize("dtype", _NUMERIC, ids=lambda dtype: dtype.name)
def test_every_bit_of_every_type_is_kept(dtype: ir.DataType) -> None:
    generator = np.random.default_rng(0)
    count = 1024 if dtype.bitwidth <= 8 else 256
    data = generator.integers(0, 256, max(1, count * dtype.bitwidth // 8), np.uint8)
    if dtype.bitwidth <= 8:  # all there are
        data = np.arange(256, dtype=np.uint8).repeat(3)
        count = data.size * 8 // dtype.bitwidth
    tensor = TensorProto(name="t", data_type=int(dtype), dims=[count], raw_data=data.tobytes())
    document = tensors.write_contents(tensor, 1 << 30)
    back = TensorProto(data_type=int(dtype), dims=[count])
    tensors.read_contents(back, json.loads(json.dumps(document, allow_nan=False)))
    assert back.raw_data == tensor.raw_data


@pytest.mark.parametrize(
    ("dtype", "bits", "expected"),
    [
        ("f32", 0x80000000, -0.0),
        ("f32", 0x3DCCCCCD, 0.1),
        ("f32", 0x00000001, 1e-45),
        ("f32", 0x7FC00000, "nan"),
        ("f32", 0xFFC00000, "nan:0xffc00000"),
        ("f32", 0x7F800001, "nan:0x7f800001"),
        ("f32", 0xFF800000, "-inf"),
        ("f16", 0x2E66, 0.1),
        ("bf16", 0x7FC1, "nan:0x7fc1"),
        ("bf16", 0x3F80, 1.0),
    ],
)
def test_text_of_floats(dtype: str, bits: int, expected: float | str) -> None:
    number, dims = type_text.read_tensor_type(f"{dtype}[]")
    raw = bits.to_bytes(4 if dtype == "f32" else 2, "little")
    tensor = TensorProto(data_type=number, dims=dims, raw_data=raw)
    found = tensors.write_contents(tensor, 1024)["data"]
    assert repr(found) == repr(expected)
    back = TensorProto(data_type=number)
    tensors.read_contents(back, {"data": found})
    assert back.raw_data == raw


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=300)
def test_numbers_of_attributes_are_kept(bits: int) -> None:
    number = struct.unpack("<f", struct.pack("<I", bits))[0]
    found = json.loads(json.dumps(tensors.write_float(number), allow_nan=False))
    assert struct.pack("<f", tensors.read_float(found)) == struct.pack("<f", number)


@pytest.mark.parametrize("dims", [[], [0], [3, 0], [0, 3], [10**12, 0], [1], [1, 1, 1], [2, 3]])
def test_shapes_of_constants(dims: list[int]) -> None:
    size = int(np.prod([float(dim) for dim in dims])) if dims else 1
    for data_type, contents in (
        (TensorProto.FLOAT, [0.5]),
        (TensorProto.BOOL, [True]),
        (TensorProto.STRING, [b"s"]),
    ):
        tensor = TensorProto(data_type=data_type, dims=dims)
        if data_type == TensorProto.STRING:
            tensor.string_data.extend(contents * size)
        else:
            tensor.raw_data = (b"\x01\0\0\0" if data_type == TensorProto.FLOAT else b"\x01") * size
        back = TensorProto(data_type=data_type, dims=dims)
        tensors.read_contents(back, tensors.write_contents(tensor, 1024))
        assert back == tensor


def test_contents_in_typed_fields_become_raw() -> None:
    nan = onnx.TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[2])
    # a signalling NaN, which Python's floats can't hold, in float_data
    nan.MergeFromString(b"\x22\x08\x01\x00\x80\x7f\x00\x00\x00\x80")
    assert tensors.bytes_of(nan) == b"\x01\x00\x80\x7f\x00\x00\x00\x80"
    for data_type, values in (
        (TensorProto.INT4, [-8, 7, 1]),
        (TensorProto.FLOAT16, [0.1]),
        (TensorProto.BOOL, [1]),
    ):
        tensor = helper.make_tensor("t", data_type, [len(values)], values)
        assert not tensor.raw_data
        assert tensors.bytes_of(tensor) == numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data


@pytest.mark.parametrize(
    "text",
    [
        "f32[]",
        "f32[...]",
        "f32[batch,3,?]",
        "f32[past_sequence_length + 1,-1,0]",
        "f32['floor(H/2)','?','...','a,b',' x','','it\\'s','7','a\\\\']",
        "f32[N@DATA_BATCH,3@'odd, one']@IMAGE",
        "seq(map(i64,f32[]))",
        "map(str,?)",
        "opt(seq(f16[N]@inner)@'')@outer",
        "sparse(f32[3,N])",
        "opaque(domain,'na,me')",
        "opaque(,)",
        "opaque('',x)",
        "seq()",
        "map(i64,)",
        "map(,f32[])",
        "?",
        "?@T",
        "[2,3]",
        "type99[...]",
        "undefined[1]",
        "bool[2]",
        "str[N]",
        "seq(opt(?))",
    ],
)
def test_types_are_kept(text: str) -> None:
    assert type_text.write_type(type_text.read_type(text)) == text


def test_types_may_have_blanks() -> None:
    assert type_text.write_type(type_text.read_type(" map( i64 , f32 [ N , 3 ] ) ")) == "map(i64,f32[N,3])"


_NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)


@given(
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), _NAMES), max_size=4), st.none() | _NAMES
)
@settings(max_examples=200)
def test_any_dims_are_kept(dims: list[Any], denotation: str | None) -> None:
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = 1
    proto.tensor_type.shape.SetInParent()
    for dim in dims:
        added = proto.tensor_type.shape.dim.add()
        if isinstance(dim, str):
            added.dim_param = dim
        elif dim is not None:
            added.dim_value = dim
        if denotation is not None:
            added.denotation = denotation
    assert type_text.read_type(type_text.write_type(proto)) == proto
