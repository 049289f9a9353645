"""Arrays of other byte orders and layouts, and of Python objects, in everything that runs a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import graphopt
from graphopt import api, ir
from graphopt.errors import RuntimeFailure, UsageError
from graphopt.inputs.feeds import InputOptions
from graphopt.specialization.build_variants import Specialization
from graphopt.specialization.bundle.save import save_bundle
from graphopt.util import ort_array_conversion
from graphopt.util.ort_array_conversion import (
    LOW_TYPES,
    bytes_on_device,
    from_ort_value,
    native,
    native_feeds,
    to_ort_value,
)
from tests.model_testing import parse

TEXT = "m (float[N, 4] x) => (float[N, 4] y) { v = Abs (x) y = Neg (v) }"
TOTAL = """m (float[N, 4] x) => (float loss) {
    v = Abs (x) h = Mul(v, v) loss = ReduceSum<keepdims=0>(h) }"""
X = np.arange(8, dtype=np.float32).reshape(2, 4)
LAYOUTS = {
    "big-endian": X.astype(">f4"),
    "columns first": np.asfortranarray(X),
    "every second": np.repeat(X, 2, axis=1)[:, ::2],
    "backwards": X[::-1, ::-1].copy()[::-1, ::-1],
    "stride 0": np.broadcast_to(X[:1], (2, 4)),
    "read-only": np.frombuffer(X.tobytes(), np.float32).reshape(2, 4),
    "unaligned": np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 4),
}
Run = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module", params=["run", "executor", "vjp", "bundle", "value_and_grad", "made up"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    model = parse(TEXT)
    match request.param:
        case "run":
            return lambda feeds: graphopt.run(model, feeds)["y"]
        case "executor":
            executor = graphopt.compile(model, verify=False)
            return lambda feeds: executor(feeds)["y"]
        case "vjp":
            return partial(_differentiated, graphopt.compile(model, verify=False))
        case "bundle":
            folder = tmp_path_factory.mktemp("bundle") / "b"
            how = Specialization(graphopt.record_profile(model, [{"x": X}]), most=1)
            save_bundle(api.specialize(model, how, bundle=True, verify=False), folder)
            bundle = graphopt.load(folder)
            return lambda feeds: bundle.run(feeds)["y"]
        case "value_and_grad":
            step = graphopt.value_and_grad(parse(TOTAL), "loss", ["x"])
            return lambda feeds: -step(feeds)[1]["x"] / 2
    return lambda feeds: api.try_out(model, InputOptions(arrays=feeds)).outputs["y"]


def _differentiated(made: graphopt.Executor, feeds: dict[str, Any]) -> Any:
    outputs, pullback = made.vjp(feeds, ["x"])
    assert pullback({"y": np.ones((2, 4), ">f4")})["x"].tolist() == (-np.sign(feeds["x"])).tolist()
    return outputs["y"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_read_as_numpy_reads_them(run: Run, layout: str) -> None:
    x = LAYOUTS[layout]
    np.testing.assert_array_equal(run({"x": x}), -np.abs(x.astype(np.float32)))


@pytest.mark.parametrize(
    "x",
    [X.astype(object), np.ma.masked_less(X, 3), np.array([None, "a"], object)],
    ids=["objects", "masked", "None"],
)
def test_arrays_of_other_objects_are_refused(run: Run, x: Any) -> None:
    with pytest.raises(UsageError, match="'x' is a"):
        run({"x": x})


def test_scalars_and_sequences() -> None:
    assert native(np.float64(2), "x").shape == () and native(np.array(2, ">i2"), "x").dtype == np.int16
    parts = native([np.ones(2, ">f8"), np.float32(1)], "x")
    assert [part.dtype for part in parts] == [np.float64, np.float32]
    plain = {"x": X, "s": np.array(["a", b"b"], object), "n": None, "l": [X]}
    assert native_feeds(plain) is plain
    assert native(np.array(["a"], ">U3"), "x").tolist() == ["a"]
    made = graphopt.compile(parse("m (float x) => (float y) { y = Neg(x) }"), verify=False)
    assert made({"x": np.float32(2)})["y"] == -2


def test_python_constants_as_inputs() -> None:
    model = parse(TEXT)
    value = ir.Editor(model).constant(model.graph, np.array([1, 2], ">i8"), "c")
    assert value.const_value is not None and value.const_value.numpy().tolist() == [1, 2]


def test_files_of_other_machines(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.astype(">f4"))
    given = InputOptions(files=(("x", tmp_path / "x.npy"),))
    assert np.array_equal(api.try_out(parse(TEXT), given).outputs["y"], -X)


def test_profiles_of_arrays_in_another_byte_order() -> None:
    found = [graphopt.record_profile(parse(TEXT), [{"x": x}]) for x in (X, X.astype(">f4"))]
    assert found[0].patterns == found[1].patterns


def test_training_on_arrays_in_another_byte_order() -> None:
    text = """m (float[N,2] x) => (float loss) <float[2,2] w = {1.0, 2.0, 3.0, 4.0}> {
        h = MatMul(x, w) loss = ReduceMean <keepdims = 0> (h) }"""
    losses = []
    for dtype in ("<f4", ">f4"):
        trainer = graphopt.Trainer(graphopt.train_step(parse(text), "loss", "sgd"))
        losses.append([trainer.step({"x": np.ones((3, 2), dtype)}) for _ in range(2)])
    assert losses[0] == losses[1] and losses[0][0] == 5
    with pytest.raises(UsageError, match="masked"):
        trainer.step({"x": np.ma.masked_less(np.ones((3, 2), np.float32), 3)})


class OnDevice:
    """An OrtValue whose memory the CPU must not read, because it is on another device."""

    def __init__(self, value: onnxruntime.OrtValue) -> None:
        self._value = value

    def device_name(self) -> str:
        return "cuda"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._value, name)


@pytest.mark.parametrize("type_", ["tensor(bfloat16)", "tensor(float8e4m3fn)", "tensor(int4)"])
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2)])
def test_values_on_a_device_are_copied_by_the_device(
    monkeypatch: pytest.MonkeyPatch, type_: str, shape: tuple[int, ...]
) -> None:
    count = int(np.prod(shape))
    array = (np.arange(count) % 7).reshape(shape).astype(LOW_TYPES[type_].dtype)
    value = to_ort_value(array, type_)
    copies = []

    def copy(device: str, address: int, size: int) -> bytes:
        copies.append(device)
        return bytes_on_device("cpu", address, size)

    monkeypatch.setattr(ort_array_conversion, "bytes_on_device", copy)
    found = from_ort_value(OnDevice(value))
    assert found.dtype == array.dtype and found.shape == shape
    np.testing.assert_array_equal(found.astype(np.float32), array.astype(np.float32))
    assert copies == ["cuda"] * (count > 0)


def test_unknown_devices_are_one_error() -> None:
    with pytest.raises(RuntimeFailure, match="device 'npu' can't be read"):
        bytes_on_device("npu", 0, 1)
