"""New parameters for an optimized model, refused if constants were folded from the old ones."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt import api, ir
from graphopt.errors import InvalidModel, UsageError
from graphopt.specialization.build_variants import Specialization
from graphopt.specialization.versioned_model import versioned_model
from tests.model_testing import parse

KEY = "graphopt:folded"
ONE = np.ones((1, 3), np.float32)
#: ``w`` is read directly, and also as a factor of a constant product.
SHARED = """m (float[N,3] x) => (float[N,3] y)
    <float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3,3] v = {9, 8, 7, 6, 5, 4, 3, 2, 1}, float[3] b = {1, 2, 3}> {
    p = MatMul(w, v) h = MatMul(x, p) g = MatMul(x, w) s = Mul(h, g) y = Sub(s, b) }"""
NEW = np.arange(9, dtype=np.float32).reshape(3, 3)


def optimized(text: str | ir.Model, **options: Any) -> ir.Model:
    model = parse(text) if isinstance(text, str) else text
    return graphopt.optimize(model, verify=False, **options).model


#: A model whose variant has static shapes.
VARIANTS = """m (float[N,8] x) => (float[N,8] y) <float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}> {
    s = Shape(x) e = Expand(b, s) g = Add(x, e) r = Reshape(g, s) y = Relu(r) }"""
#: The same with weights in Constant nodes.
IN_NODES = """m (float[N,3] x) => (float[N,3] y) <float[3] b = {1, 2, 3}> {
    w = Constant<value = float[3,3] {1, 2, 3, 4, 5, 6, 7, 8, 9}>()
    v = Constant<value = float[3,3] {9, 8, 7, 6, 5, 4, 3, 2, 1}>()
    p = MatMul(w, v) h = MatMul(x, p) g = MatMul(x, w) s = Mul(h, g) y = Sub(s, b) }"""


def test_weights_in_constant_nodes_can_be_replaced() -> None:
    model = optimized(IN_NODES)
    for name in ("w", "v"):
        with pytest.raises(UsageError, match=f"computed from '{name}'"):
            graphopt.unlift_parameters(model, {name: NEW, "b": ONE[0]})
    lifted, parameters = graphopt.lift_parameters(model)
    arrays = {name: tensor.numpy() + 1 for name, tensor in parameters.tensors.items()}
    changed, told = graphopt.unlift_parameters(model, arrays)
    assert len(told.placed) == 3
    want = graphopt.run(lifted, {"x": ONE, **arrays})["y"]
    assert np.array_equal(graphopt.run(changed, {"x": ONE})["y"], want)


@pytest.mark.parametrize("form", ["memory", "m.onnx", "m.json", "again"])
def test_parameter_folded_into_a_constant_is_refused(tmp_path: Path, form: str) -> None:
    model = optimized(SHARED)
    if form == "again":
        model = optimized(model)
    if "." in form:
        graphopt.save(model, tmp_path / form)
        model = graphopt.load_model(tmp_path / form)
    assert "w" in model.graph.initializers and "v" not in model.graph.initializers
    for name in ("w", "v"):
        with pytest.raises(UsageError, match=f"computed from '{name}'"):
            graphopt.unlift_parameters(model, {name: NEW, "b": ONE[0]})
    changed, told = graphopt.unlift_parameters(model, {"b": ONE[0]})
    assert told.placed == ["b"]
    whole, _ = graphopt.unlift_parameters(parse(SHARED), {"b": ONE[0]})
    assert np.array_equal(graphopt.run(changed, {"x": ONE})["y"], graphopt.run(whole, {"x": ONE})["y"])


#: A model whose branch is selected by facts, from constants that are then removed.
CHOSEN = """m (float[N,3] x) => (float[N,3] y) <float t = {1}, float z = {0}, float[3] b = {1, 2, 3}> {
    c = Greater(t, z)
    y = If(c) <then_branch = a () => (float[N,3] p) { p = Mul(x, b) },
               else_branch = e () => (float[N,3] q) { q = Add(x, b) }> }"""


@pytest.mark.parametrize("pipeline", ["O1", "O2", "O3"])
def test_constants_used_by_removed_facts_are_recorded(tmp_path: Path, pipeline: str) -> None:
    model = optimized(CHOSEN, pipeline=pipeline)
    assert list(model.graph.initializers) == ["b"]
    graphopt.save(model, tmp_path / "m.onnx")
    for found in (model, optimized(graphopt.load_model(tmp_path / "m.onnx"))):
        for name in ("t", "z"):
            with pytest.raises(UsageError, match=f"'{name}' is built into nodes or branches"):
                graphopt.unlift_parameters(found, {name: np.float32(7), "b": ONE[0]})
        graphopt.unlift_parameters(found, {"t": np.float32(1), "b": ONE[0]})


def test_parameters_can_be_unlifted_one_by_one() -> None:
    lifted, parameters = graphopt.lift_parameters(optimized(SHARED))
    arrays = {name: tensor.numpy() + 1 for name, tensor in parameters.tensors.items()}
    model, _ = graphopt.unlift_parameters(lifted, {"w": arrays.pop("w")})
    model, _ = graphopt.unlift_parameters(model, arrays)
    with pytest.raises(UsageError, match="'p_folded' was computed from 'w'"):
        graphopt.unlift_parameters(model, {"w": parameters.tensors["w"].numpy()})


def test_constant_with_the_name_of_its_source_is_not_replaced() -> None:
    model = parse("m (float[N,3] x) => (float[N,3] y) <float[3] w = {2, 4, 6}> { y = Mul(x, w) }")
    old = np.array([1, 2, 3], np.float32)  # the constant is twice this value
    record = ir.FoldRecord({"w": ir.digest_of(ir.tensor(old))}, {"w": ("w",)})
    ir.keep_record(model, record)
    with pytest.raises(UsageError, match="'w' was computed from 'w'"):
        graphopt.unlift_parameters(model, {"w": old + 1})


def test_unchanged_contents_are_accepted() -> None:
    original = parse(SHARED)
    model = optimized(SHARED)
    own = {name: value.const_value.numpy() for name, value in original.graph.initializers.items()}
    changed, told = graphopt.unlift_parameters(model, own | {"b": ONE[0]})
    assert (told.placed, told.unused) == (["w", "b"], ["v"])
    assert np.array_equal(changed.graph.initializers["b"].const_value.numpy(), ONE[0])


def test_parameters_lifted_from_the_optimized_model_are_accepted() -> None:
    model = optimized(SHARED)
    lifted, parameters = graphopt.lift_parameters(model)
    arrays = {name: tensor.numpy() + 1 for name, tensor in parameters.tensors.items()}
    for target in (lifted, model):
        changed, told = graphopt.unlift_parameters(target, arrays)
        assert told.placed and not told.unused
        again, _ = graphopt.unlift_parameters(changed, arrays)
        fed = {"x": ONE, **arrays}
        assert np.array_equal(graphopt.run(again, {"x": ONE})["y"], graphopt.run(lifted, fed)["y"])
        graphopt.unlift_parameters(changed, {"w": arrays["w"]})  # the contents that it has now
        with pytest.raises(UsageError, match="computed from 'w'"):
            graphopt.unlift_parameters(changed, {"w": arrays["w"] - 1})


@pytest.mark.parametrize(
    "text, name",
    [
        # the number selects a rewrite, becomes an attribute, or is folded into another constant
        ("<float[1] w = {1}, float[3] b = {1, 2, 3}> { h = Mul(x, w) i = Mul(h, b) y = Add(i, w) }", "w"),
        (
            "<float w = {3}, float z = {0}, float k = {6}> "
            "{ h = Add(x, w) i = Clip(h, z, k) j = Div(i, k) y = Mul(j, w) }",
            "w",
        ),
        (
            "<float[3] w = {2, 3, 4}, float[3] b = {1, 2, 3}> { h = Add(x, w) i = Add(h, b) j = Mul(i, w) y = Div(j, i) }",
            "b",
        ),
    ],
)
def test_constant_that_decided_a_rewrite_is_refused(text: str, name: str) -> None:
    model = optimized("m (float[N,3] x) => (float[N,3] y) " + text)
    shape = (
        parse("m (float[N,3] x) => (float[N,3] y) " + text).graph.initializers[name].const_value.shape.numpy()
    )
    with pytest.raises(UsageError, match=f"'{name}'"):
        graphopt.unlift_parameters(model, {name: np.full(shape, 7, np.float32)})


def test_merged_parameters_must_stay_equal() -> None:
    model = optimized(
        """m (float[N,3] x) => (float[N,3] y) <float[3] a = {1, 2, 3}, float[3] b = {1, 2, 3}> {
        h = Mul(x, a) i = Sigmoid(h) y = Mul(i, b) }"""
    )
    assert list(model.graph.initializers) == ["a"]
    for given in ({"a": ONE[0]}, {"b": ONE[0], "a": np.zeros(3, np.float32)}):
        with pytest.raises(UsageError, match="'a' was merged with 'b'"):
            graphopt.unlift_parameters(model, given)
    changed, _ = graphopt.unlift_parameters(model, {"a": ONE[0], "b": ONE[0]})
    assert changed.graph.initializers["a"].const_value.numpy().tolist() == [1, 1, 1]


def test_merged_parameters_are_not_lifted(tmp_path: Path) -> None:
    text = """m (float[N,3] x) => (float[N,3] y) <float[3] a = {1, 2, 3}, float[3] b = {1, 2, 3}> {
        h = Mul(x, a) i = Sigmoid(h) y = Mul(i, b) }"""
    graphopt.save(optimized(text), tmp_path / "m.onnx")
    for which in ("params", "a"):
        with pytest.raises(UsageError, match="'a' was merged with 'b'"):
            graphopt.lift_parameters(tmp_path / "m.onnx", which)
    lifted, parameters = graphopt.lift_parameters(parse(text))
    model = optimized(lifted)
    assert list(parameters.tensors) == ["a", "b"] and [port.name for port in model.graph.inputs] == [
        "x",
        "a",
        "b",
    ]


def test_weights_not_read_by_rewrites_can_be_replaced() -> None:
    model = optimized(
        """m (float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {0.5, -0.5}> {
        h = MatMul(x, w) s = Add(h, b) y = Relu(s) }""",
        pipeline="O3",
    )
    changed, told = graphopt.unlift_parameters(model, {"w": np.ones((3, 2), np.float32)})
    assert told.placed == ["w"] and graphopt.run(changed, {"x": ONE})["y"].tolist() == [[3.5, 2.5]]


def test_record_names_the_sources_of_derived_constants(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    graphopt.save(optimized(SHARED), path)
    record = ir.fold_record(graphopt.load_model(path))
    assert list(record.derived.values()) == [("w", "v")] and set(record.digests) == {"w", "v"}
    graphopt.save(graphopt.load_model(path), tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == path.read_bytes()


def test_long_record_is_compact(tmp_path: Path) -> None:
    names = [f"encoder/layer_{index}/attention/query/kernel" for index in range(500)]
    derived = {f"{name}_folded": (name, names[0]) for name in names[1:]}
    record = ir.FoldRecord(
        {name: f"{index:08x}" for index, name in enumerate(names)}, derived, {}, frozenset(names)
    )
    text = record.to_json()
    assert len(text) < 10_000
    assert ir.FoldRecord.parse(text) == record


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"version": 1}',
        '{"version":1,"initializers":{},"derived":{"a":[0]},"merged":{},"built_in":[]}',
        "[" * 9999,
        '{"zlib": "%"}',
        '{"zlib": ""}',
        json.dumps({"zlib": base64.b85encode(zlib.compress(b"[]" * 99)).decode()}),
        json.dumps({"zlib": base64.b85encode(zlib.compress(b" " * 99)[:-5]).decode()}),
    ],
)
def test_invalid_record_is_refused_when_used(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.onnx"
    graphopt.save(parse(SHARED), path)
    proto = onnx.load(path)
    proto.metadata_props.add(key=KEY, value=text)
    onnx.save(proto, path)
    model = graphopt.load_model(path)
    graphopt.save(model, path)
    for found in (model, graphopt.load_model(path)):
        with pytest.raises(InvalidModel, match="record of folded constants"):
            graphopt.unlift_parameters(found, {"b": ONE[0]})


@pytest.mark.parametrize("single_file", [False, True])
def test_model_with_variants_refuses_new_weights(single_file: bool, tmp_path: Path) -> None:
    """Each branch has its own copy, and a name would replace only one of them."""
    original = parse(VARIANTS)
    profile = graphopt.record_profile(original, [{"x": np.ones((3, 8), np.float32)}])
    how = Specialization(profile, single_file=single_file)
    model = versioned_model(api.specialize(original, how, bundle=True, verify=False), how)
    graphopt.save(model, tmp_path / "m.onnx")
    for found in (model, graphopt.load_model(tmp_path / "m.onnx")):
        with pytest.raises(UsageError, match="'b' is built into nodes or branches"):
            graphopt.unlift_parameters(found, {"b": np.ones(8, np.float32), "other": ONE})


def test_copies_of_a_parameter_count_as_the_parameter() -> None:
    """As torch.onnx writes parameters that are equal when a model is exported."""
    model = optimized(
        """m (float[N,3] x) => (float[N,3] y) <float[3] a = {1, 2, 3}> {
        b = Identity(a) c = Identity(b) h = Mul(x, a) i = Sigmoid(h) j = Add(i, b) k = Tanh(j) y = Sub(k, c) }""",
        pipeline="O3",
    )
    assert list(model.graph.initializers) == ["a"]
    changed, told = graphopt.unlift_parameters(model, {"a": ONE[0]})
    assert told.placed == ["a"]
    want = np.tanh(1 / (1 + np.exp(-ONE)) + 1) - 1
    assert np.allclose(graphopt.run(changed, {"x": ONE})["y"], want)
