"""Signatures: their contents, and that every change of the interface is reported."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from graphopt.ir.signature import Signature, diff
from graphopt.util.ort_array_conversion import numpy_type
from tests.ort.build import parse

ORIGINAL = "g (float[N, 3] x, int64[K] i) => (float[N, 3] y, int64[K] j) { y = Relu(x) j = Identity(i) }"


def changes(text, original=ORIGINAL, **settings):
    found = diff(Signature.of(parse(original)), Signature.of(parse(text)), **settings)
    return [str(change) for change in found]


def test_signature_has_names_types_dims_and_kinds():
    signature = Signature.of(
        parse(
            "g (float16[N, 3, ?] x, seq(int64) s, optional(float[2]) o, bool b) => (string[K] t) "
            "{ t = Cast <to = 8> (x) }"
        )
    )
    told = [(port.name, port.type, port.dims, port.kind, port.element) for port in signature.inputs]
    assert told == [
        ("x", "tensor(float16)", ("N", 3, None), "tensor", "float16"),
        ("s", "seq(tensor(int64))", (), "seq", "int64"),
        ("o", "optional(tensor(float))", (2,), "optional", "float"),
        ("b", "tensor(bool)", (), "tensor", "bool"),
    ]
    assert [port.type for port in signature.outputs] == ["tensor(string)"]


def test_types_that_onnx_ir_lacks():
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (map(string, int64) m) => (seq(map(string, float)) y) {
            x = ai.onnx.ml.DictVectorizer <string_vocabulary = ["a"]> (m)
            f = Cast <to = 1> (x)
            y = ai.onnx.ml.ZipMap <classlabels_strings = ["a"]> (f)
        }"""
    )
    signature = Signature.of(model)
    assert signature.inputs[0].type == "map(string,tensor(int64))"
    assert signature.inputs[0].kind == "map"
    assert signature.outputs[0].type == "seq(map(string,tensor(float)))"


@pytest.mark.parametrize(("ir_version", "role"), [(3, "constant"), (4, "overridable"), (8, "overridable")])
def test_initializers_among_the_inputs(ir_version, role):
    model = parse(
        "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }",
        ir_version=ir_version,
    )
    signature = Signature.of(model)
    assert [(port.name, port.role) for port in signature.inputs] == [("x", "required"), ("w", role)]
    assert [port.name for port in signature.fed] == ["x"]


def test_equal_signatures_have_no_changes():
    assert changes(ORIGINAL) == []


BODY = "{ y = Relu(x) j = Identity(i) }"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            f"g (float[N, 3] x2, int64[K] i) => (float[N, 3] y, int64[K] j) {BODY.replace('x', 'x2')}",
            ["input 'x' is gone", "input 'x2' is new"],
        ),
        (
            f"g (float[N, 3] x) => (float[N, 3] y, int64[K] j) {BODY.replace('(i)', '(x)')}",
            ["input 'i' is gone"],
        ),
        (
            f"g (int64[K] i, float[N, 3] x) => (float[N, 3] y, int64[K] j) {BODY}",
            ["the inputs changed their order"],
        ),
        (f"g (float[N, 3] x, int64[K] i) => (float[N, 3] y) {BODY}", ["output 'j' is gone"]),
        (
            f"g (double[N, 3] x, int64[K] i) => (float[N, 3] y, int64[K] j) {BODY}",
            ["input 'x' was of type f32[N, 3], now f64[N, 3]"],
        ),
        (
            f"g (float[N, 3, 1] x, int64[K] i) => (float[N, 3] y, int64[K] j) {BODY}",
            ["input 'x' was of rank 2, now 3"],
        ),
        (
            f"g (float[N, 4] x, int64[K] i) => (float[N, 3] y, int64[K] j) {BODY}",
            ["input 'x': dimension 1 was 3, now 4"],
        ),
        (
            f"g (float[1, 3] x, int64[K] i) => (float[N, 3] y, int64[K] j) {BODY}",
            ["input 'x': dimension 0 was dynamic (N), now fixed to 1"],
        ),
        (
            f"g (float[M, 3] x, int64[K] i) => (float[N, 3] y, int64[K] j) {BODY}",
            ["input 'x': dimension 0 was N, now M"],
        ),
        (
            f"g (float[N, ?] x, int64[K] i) => (float[N, 3] y, int64[K] j) {BODY}",
            ["input 'x': dimension 1 was 3, now unnamed"],
        ),
        (
            f"g (float[N, 3] x, int64[K] i) => (float[5, 3] y, int64[K] j) {BODY}",
            ["output 'y': dimension 0 was dynamic (N), now fixed to 5"],
        ),
        (
            f"g (float[N, 3] x, int64[K] i) => (float y, int64[K] j) {BODY}",
            ["output 'y' was of rank 2, now 0"],
        ),
    ],
)
def test_changes_of_signatures_are_described(text, told):
    assert changes(text) == told


def test_an_overridable_initializer_lost():
    original = "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    assert changes("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }", original) == [
        "input 'w' is gone"
    ]
    required = "g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }"
    assert changes(required, original) == ["input 'w' was overridable, now required"]


def test_wrong_declarations_may_be_corrected():
    text = f"g (float[N, 3] x, int64[K] i) => (float[N, 3, 1] y, int64[K] j) {BODY}"
    assert changes(text, distrusted={"y"}) == []
    assert changes(text, distrusted={"j"}) == ["output 'y' was of rank 2, now 3"]


def test_naming_an_anonymous_dimension_is_no_change():
    original = "g (float[?, 3] x) => (float[?, 3] y) { y = Relu(x) }"
    assert changes("g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }", original) == []
    assert changes("g (float[2, 3] x) => (float[?, 3] y) { y = Relu(x) }", original) == [
        "input 'x': dimension 0 was dynamic (unnamed), now fixed to 2"
    ]


def test_changes_of_signatures_have_kinds():
    text = f"g (float[N, 4] x2, int64[2] i) => (float[N, 3, 1] y, double[K] j) {BODY.replace('x', 'x2')}"
    found = diff(Signature.of(parse(ORIGINAL)), Signature.of(parse(text)))
    assert [(change.kind, change.port) for change in found] == [
        ("gone", "x"),
        ("new", "x2"),
        ("dim", "i"),
        ("rank", "y"),
        ("type", "j"),
    ]


@pytest.mark.parametrize(
    ("type_", "dtype"),
    [
        ("tensor(float)", np.float32),
        ("tensor(double)", np.float64),
        ("tensor(int64)", np.int64),
        ("tensor(bool)", np.bool_),
        ("tensor(string)", object),
        ("tensor(bfloat16)", ml_dtypes.bfloat16),
        ("tensor(float8e5m2fnuz)", ml_dtypes.float8_e5m2fnuz),
        ("tensor(int4)", ml_dtypes.int4),
        ("seq(tensor(float))", None),
        ("tensor(float3)", None),
    ],
)
def test_numpy_types_of_onnx_types(type_: str, dtype: type | None) -> None:
    assert numpy_type(type_) == (None if dtype is None else np.dtype(dtype))
