"""Lifting and unlifting parameters, also through files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.errors import UsageError
from graphopt.parameters import parameter_files
from graphopt.parameters.lifting import Parameters, as_parameters
from tests.model_testing import parse

TEXT = """m (float[N,3] x) => (float[N,2] y)
    <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {0.5, -0.5}, float scale = {2}, int64[1] axis = {0}> {
    h = MatMul(x, w) s = Add(h, b) t = Mul(s, scale) u = Unsqueeze(t, axis) y = Squeeze(u, axis) }"""
X = np.array([[1, 0, -1], [2, 1, 0]], np.float32)


@pytest.mark.parametrize("ir_version", [3, 8])
@pytest.mark.parametrize("suffix", parameter_files.SUFFIXES)
def test_lift_and_unlift_round_trip(tmp_path: Path, suffix: str, ir_version: int) -> None:
    model = parse(TEXT, ir_version=ir_version)
    if ir_version < 4:
        model.graph.inputs.extend(model.graph.initializers.values())
    lifted, parameters = graphopt.lift_parameters(model)
    assert [value.name for value in lifted.graph.inputs if not value.is_initializer()] == ["x", "w", "b"]
    assert list(parameters.tensors) == ["w", "b"], "no scalars, no whole numbers"
    arrays = {name: tensor.numpy() for name, tensor in parameters.tensors.items()}
    expected = graphopt.run(model, {"x": X})["y"]
    assert np.array_equal(graphopt.run(lifted, {"x": X, **arrays})["y"], expected)
    path = tmp_path / f"weights{suffix}"
    parameter_files.write(path, parameters)
    whole, told = graphopt.unlift_parameters(lifted, path)
    assert (told.placed, told.unused, told.open) == (["w", "b"], [], ["x"])
    assert np.array_equal(graphopt.run(whole, {"x": X})["y"], expected)
    assert [value.name for value in whole.graph.inputs] == [value.name for value in model.graph.inputs][
        : len(whole.graph.inputs)
    ]


def test_unlift_replaces_initializers() -> None:
    model = parse(TEXT)
    changed, told = graphopt.unlift_parameters(model, {"b": np.zeros(2, np.float32), "other": np.ones(3)})
    assert told.placed == ["b"] and told.unused == ["other"]
    before, after = (graphopt.run(m, {"x": X})["y"] for m in (model, changed))
    assert np.allclose(before - after, [1, -1])


def test_mismatched_tensors_are_refused_without_changes() -> None:
    lifted, _ = graphopt.lift_parameters(parse(TEXT), "w,b")
    for tensors, message in (
        ({"w": np.ones((2, 3), np.float32)}, "'w' is 3x2, and the tensor 2x3"),
        ({"b": np.ones(2), "w": np.ones((3, 2), np.float32)}, "'b' is float32, and the tensor float64"),
        ({"other": np.ones(2)}, "has the name of"),
    ):
        with pytest.raises(UsageError, match=message):
            graphopt.unlift_parameters(lifted, tensors)
    assert not lifted.graph.initializers.keys() & {"w", "b"}
    with pytest.raises(UsageError, match="scael"):
        graphopt.lift_parameters(parse(TEXT), "scael")


def test_tied_tensors_are_written_once(tmp_path: Path) -> None:
    model = parse(
        "m (float[N] x) => (float[N] y) <float[1] a = {1}, float[1] b = {1}> { h = Add(x, a) y = Mul(h, b) }"
    )
    tensor = model.graph.initializers["a"].const_value
    model.graph.initializers["b"].const_value = tensor
    _, parameters = graphopt.lift_parameters(model)
    assert parameters.tied == {"b": "a"}
    parameter_files.write(tmp_path / "w.safetensors", parameters)
    from safetensors import safe_open

    with safe_open(tmp_path / "w.safetensors", framework="numpy") as file:
        assert list(file.keys()) == ["a"] and file.metadata()["b"] == "a"
    again = parameter_files.read(tmp_path / "w.safetensors")
    assert list(again.tensors) == ["a", "b"] and again.tied == {"b": "a"}


def test_element_types_without_numpy_equivalent(tmp_path: Path) -> None:
    parameters = as_parameters({"w": np.ones(2, ml_dtypes.bfloat16)})
    parameter_files.write(tmp_path / "w.safetensors", parameters)
    assert parameter_files.read(tmp_path / "w.safetensors").tensors["w"].dtype == ir.DataType.BFLOAT16
    with pytest.raises(UsageError, match="bfloat16"):
        parameter_files.write(tmp_path / "w.npz", parameters)
    assert not (tmp_path / "w.npz").exists()


@pytest.mark.parametrize("name", ["w.safetensors", "w.npz", "w.bin"])
def test_invalid_files_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(UsageError):
        parameter_files.read(path)
    path.write_bytes(b"no such thing")
    with pytest.raises(UsageError, match=name):
        parameter_files.read(path)
    with pytest.raises(UsageError):
        parameter_files.write(tmp_path / "gone" / "w.safetensors", Parameters())


def test_parameters_of_a_joint_graph_have_gradients(tmp_path: Path) -> None:
    model = parse("""m (float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[1] c = {4}> {
        d = Sqrt(c) h = MatMul(x, w) y = Div(h, d) }""")
    joint = graphopt.differentiate(model, "cross_entropy:y,labels", ["w"])
    _, parameters = graphopt.lift_parameters(joint.model)
    assert list(parameters.tensors) == ["w"]
    both = graphopt.differentiate(model, "cross_entropy:y,labels")
    assert list(both.gradients) == ["w", "c"], "constants that folding makes are no parameters"
    assert list(graphopt.differentiate(both.model, "loss").gradients) == ["w", "c"]


@pytest.mark.parametrize("suffix", parameter_files.SUFFIXES)
def test_scalars_and_byte_order(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    model = parse("m (float[N] x) => (float[N] y) <float s = {2}> { y = Mul(x, s) }")
    lifted, parameters = graphopt.lift_parameters(model, "s")
    parameter_files.write(path, parameters)
    whole, _ = graphopt.unlift_parameters(lifted, path)
    assert whole.graph.initializers["s"].const_value.shape.numpy() == ()
    whole, _ = graphopt.unlift_parameters(lifted, {"s": np.array(3, ">f4")})
    assert graphopt.run(whole, {"x": np.ones(1, np.float32)})["y"] == 3
    with pytest.raises(UsageError, match="'s' can't be a tensor"):
        graphopt.unlift_parameters(lifted, {"s": np.array("2020-01-01", "datetime64[s]")})


def test_reserved_names_of_safetensors(tmp_path: Path) -> None:
    path, one = tmp_path / "w.safetensors", np.ones(1, np.float32)
    with pytest.raises(UsageError, match="__metadata__"):
        parameter_files.write(path, as_parameters({"__metadata__": one}))
    tied = as_parameters({"pt": one, "format": one})
    tied.tied["format"] = "pt"
    parameter_files.write(path, tied)
    assert sorted(parameter_files.read(path).tensors) == ["format", "pt"]
    tied = as_parameters({"a": one, "b": one})
    tied.tied["b"], tied.metadata["b"] = "a", "a"  # which would read as a tie
    parameter_files.write(path, tied)
    assert sorted(parameter_files.read(path).tensors) == ["a", "b"]
    from safetensors.numpy import save_file

    save_file({"pt": one}, path, metadata={"format": "pt"})
    assert list(parameter_files.read(path).tensors) == ["pt"]


def test_metadata(tmp_path: Path) -> None:
    parameters = as_parameters({"a": np.ones(1, np.float32), "b": np.zeros(1, np.float32)})
    parameters.tied["c"] = "a"
    parameters.tensors["c"] = parameters.tensors["a"]
    parameters.metadata["steps"] = "12"
    parameter_files.write(tmp_path / "w.safetensors", parameters)
    found = parameter_files.read(tmp_path / "w.safetensors")
    assert found.metadata == {"steps": "12"} and found.tied == {"c": "a"}
    with pytest.raises(UsageError, match="metadata"):
        parameter_files.write(tmp_path / "w.npz", parameters)
    assert not (tmp_path / "w.npz").exists()


CONSTANTS = """m (float[2,4] x, bool c) => (float[?,?] y) {
    one = Constant<value_floats = [2.0]>()
    s = Constant<value = float[4] {1, 2, 3, 4}>()
    a = Mul(x, s) b = Mul(a, one)
    y = If(c) <then_branch = t () => (float[?,?] p) {
            w = Constant<value = float[4,2] {1, 2, 3, 4, 5, 6, 7, 8}>() bias = Constant<value_floats = [0.5]>()
            p = Gemm(b, w, bias) },
        else_branch = e () => (float[?,?] q) {
            w = Constant<value = float[4,2] {8, 7, 6, 5, 4, 3, 2, 1}>() q = MatMul(b, w) }> }"""


@pytest.mark.parametrize("ir_version", [3, 8])
def test_weights_in_constant_nodes_are_parameters(ir_version: int) -> None:
    model = parse(CONSTANTS, ir_version=ir_version)
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "c": np.array(True)}
    lifted, parameters = graphopt.lift_parameters(model)
    names = ["s", "w", "bias", "w_1"]
    assert list(parameters.tensors) == names, "'one' is a setting, the bias of a Gemm a parameter"
    arrays = {name: tensor.numpy() for name, tensor in parameters.tensors.items()}
    for taken in (True, False):
        fed = feeds | {"c": np.array(taken)}
        expected = graphopt.run(model, fed)["y"]
        assert np.array_equal(graphopt.run(lifted, {**fed, **arrays})["y"], expected)
        changed, told = graphopt.unlift_parameters(model, {"w": arrays["w"] * 2})
        assert told.placed == ["w"]
        assert np.array_equal(graphopt.run(changed, fed)["y"], expected) != taken
    named, found = graphopt.lift_parameters(model, "one")
    assert list(found.tensors) == ["one"] and "one" in [value.name for value in named.graph.inputs]


def test_training_of_weights_in_constant_nodes() -> None:
    model = parse(CONSTANTS)
    feeds = {"x": np.ones((2, 4), np.float32), "c": np.array(True), "t": np.zeros((2, 2), np.float32)}
    joint = graphopt.differentiate(model, "mse:y,t")
    assert list(joint.gradients) == ["s", "w", "bias", "w_1"]
    found = graphopt.run(joint.model, feeds)
    assert found["grad.w"].any() and found["grad.bias"].any() and not found["grad.w_1"].any()
    trainer = graphopt.Trainer(graphopt.train_step(model, "mse:y,t", "sgd", learning_rate=1e-5))
    losses = [float(trainer.step(feeds)) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    assert not np.array_equal(trainer.parameters()["w"], np.arange(1, 9, dtype=np.float32).reshape(4, 2))


@pytest.mark.parametrize("suffix", parameter_files.SUFFIXES)
def test_concurrent_writers_of_a_file(tmp_path: Path, suffix: str) -> None:
    path, failures = tmp_path / f"checkpoint{suffix}", []

    def work(number: int) -> None:
        arrays = {f"w{k}": np.full((64, 64), number, np.float32) for k in range(8)}
        try:
            for _ in range(20):
                parameter_files.write(path, as_parameters(arrays))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    seen = set()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            seen.add(
                len({float(tensor.numpy()[0, 0]) for tensor in parameter_files.read(path).tensors.values()})
            )
    for thread in threads:
        thread.join()
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert failures == [] and seen <= {1} and [file.name for file in tmp_path.iterdir()] == [path.name]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
