"""The Python interface accepts a model in every form, and does not modify it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir
import pytest
from onnx import numpy_helper

import graphopt
from graphopt import api, ir
from graphopt.compiler import Compiler
from graphopt.errors import InvalidModel, UsageError

#: y = Relu(x · w), and an Identity to remove.
NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
network (float[N, 2] x) => (float[N, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
  a = MatMul(x, w)
  b = Identity(a)
  y = Relu(b)
}
"""
FEEDS = {"x": np.array([[1, -1]], np.float32)}
EXPECTED = np.zeros((1, 3), np.float32)
FORMS = ["path", "text path", "bytes", "proto", "graphopt model", "onnx-ir model"]


def network() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(NETWORK)
    (weight,) = proto.graph.initializer
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight), "w"))  # as raw_data
    return proto


def _form(kind: str, proto: onnx.ModelProto, folder: Path) -> Any:
    path = folder / "network.onnx"
    onnx.save(proto, path)
    match kind:
        case "path":
            return path
        case "text path":
            return str(path)
        case "bytes":
            return proto.SerializeToString()
        case "proto":
            return proto
        case "graphopt model":
            return graphopt.load_model(path)
    return onnx_ir.load(path)


def _bytes_of(form: Any) -> bytes:
    """The contents of a model in any form, by other means than graphopt's."""
    match form:
        case bytes():
            return form
        case onnx.ModelProto():
            return form.SerializeToString(deterministic=True)
        case onnx_ir.Model():
            return onnx_ir.to_proto(form).SerializeToString(deterministic=True)
    return Path(form).read_bytes()


def _train(model: Any) -> None:
    trainer = graphopt.Trainer(graphopt.train_step(model, "mse:y,target", "sgd"))
    assert trainer.step({**FEEDS, "target": np.ones((1, 3), np.float32)}) == 1.0
    assert isinstance(trainer.export(model), ir.Model)


def _differentiate(model: Any) -> None:
    loss, gradients = graphopt.value_and_grad(model, "mse:y,target")({**FEEDS, "target": EXPECTED + 2})
    assert loss == 4.0 and gradients["w"].shape == (2, 3)
    assert list(graphopt.differentiate(model, "mse:y,target").gradients) == ["w"]
    assert isinstance(graphopt.split(model, "mse:y,target").forward, ir.Model)


def _parameters(model: Any) -> None:
    lifted, _ = graphopt.lift_parameters(model)
    assert [value.name for value in lifted.graph.inputs] == ["x", "w"]
    whole, _ = graphopt.unlift_parameters(model, {"w": np.zeros((2, 3), np.float32)})
    assert not whole.graph.initializers["w"].const_value.numpy().any()


def _convert(model: Any) -> None:
    assert [node.op_type for node in graphopt.to_proto(model).graph.node] == ["MatMul", "Identity", "Relu"]


def _compile(model: Any) -> None:
    assert (graphopt.compile(model, verify=False)(FEEDS)["y"] == EXPECTED).all()


USES: dict[str, Callable[[Any], object]] = {
    "optimize": graphopt.optimize,
    "verify": lambda model: graphopt.verify(model, model),
    "run": lambda model: (graphopt.run(model, FEEDS)["y"] == EXPECTED).all(),
    "try_out": api.try_out,
    "explain": api.explain,
    "partition": lambda model: graphopt.partition(model).groups,
    "kernels": graphopt.list_kernels,
    "record_profile": lambda model: graphopt.record_profile(model, [FEEDS]).values["x"],
    "load": lambda model: isinstance(graphopt.load(model), ir.Model),
    "to_proto": _convert,
    "compile": _compile,
    "parameters": _parameters,
    "gradients": _differentiate,
    "training": _train,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", FORMS[2:])
def test_every_function_accepts_every_form_without_changing_it(kind: str, use: str, tmp_path: Path) -> None:
    form = _form(kind, network(), tmp_path)
    before = _bytes_of(form)
    assert USES[use](form) is not False
    assert _bytes_of(form) == before


@pytest.mark.parametrize("kind", FORMS)
def test_optimize_gives_the_same_result_for_every_form(kind: str, tmp_path: Path) -> None:
    result = graphopt.optimize(_form(kind, network(), tmp_path))
    assert [node.op_type for node in result.model.graph] == ["MatMul", "Relu"]
    assert result.verdict is not None and result.verdict.ok and result.verdict.rows
    assert (graphopt.run(result.model, FEEDS)["y"] == EXPECTED).all()


def test_the_result_unpacks_and_converts(tmp_path: Path) -> None:
    model, report = result = graphopt.optimize(network())
    assert (model, report) == (result.model, result.report)
    proto = result.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, tmp_path / "a.onnx")
    assert result.save(tmp_path / "b.onnx") == [tmp_path / "b.onnx"]
    for written in ("a.onnx", "b.onnx"):
        assert (graphopt.run(tmp_path / written, FEEDS)["y"] == EXPECTED).all()
    again = graphopt.to_proto(model)
    again.graph.name = "other"  # its own copy
    assert model.graph.name == result.to_proto().graph.name == "network"


def test_the_result_shares_nothing_with_the_given_proto() -> None:
    proto = network()
    model = graphopt.load_model(proto)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((2, 3), np.float32), "w"))
    assert model.graph.initializers["w"].const_value.numpy().tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "not int$"),
        (None, "not NoneType$"),
        (bytearray(b"x"), r"not bytearray; pass bytes\(bytearray\)$"),
        (network().graph, r"not GraphProto; onnx.helper.make_model\(graph\)"),
        (api.Result(None, None), "not Result$"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize(
    "use", [graphopt.optimize, graphopt.compile, graphopt.load, lambda model: graphopt.run(model, FEEDS)]
)
def test_other_types_are_one_clear_type_error(use: Any, given: object, message: str) -> None:
    with pytest.raises(TypeError, match=r"^a model is an onnx.ModelProto, .* graphopt.Model, " + message):
        use(given)


def test_the_error_for_a_result_names_its_model() -> None:
    result = graphopt.optimize(network(), verify=False)
    with pytest.raises(TypeError, match="not Result; pass its attribute 'model'"):
        graphopt.verify(network(), result)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"no model", network().SerializeToString()[:-10]])
def test_damaged_bytes_are_no_model(data: bytes) -> None:
    with pytest.raises(InvalidModel, match="the serialized model is not an ONNX model"):
        graphopt.optimize(data)


def test_an_empty_proto_is_no_model() -> None:
    with pytest.raises(InvalidModel, match="the ModelProto is not an ONNX model"):
        graphopt.optimize(onnx.ModelProto())
    proto = network()
    proto.ClearField("ir_version")
    with pytest.raises(InvalidModel, match="the ModelProto has no IR version"):
        graphopt.optimize(proto)


# External data -----------------------------------------------------------------------------


@pytest.fixture
def external(tmp_path: Path) -> Path:
    path = tmp_path / "external.onnx"
    onnx.save(network(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_proto_with_loaded_external_data_is_complete(external: Path) -> None:
    result = graphopt.optimize(onnx.load(external))
    assert result.verdict is not None and result.verdict.ok
    assert not result.to_proto().graph.initializer[0].external_data


@pytest.mark.parametrize("serialize", [False, True])
def test_a_proto_without_its_external_data_needs_a_folder(serialize: bool, external: Path) -> None:
    proto = onnx.load(external, load_external_data=False)
    given = proto.SerializeToString() if serialize else proto
    with pytest.raises(InvalidModel, match=r"'w' is in another file, 'weights.bin'") as caught:
        graphopt.optimize(given)
    assert caught.value.hint is not None and "base_dir" in caught.value.hint
    model = graphopt.load_model(given, base_dir=external.parent)
    assert (graphopt.run(model, FEEDS)["y"] == EXPECTED).all()
    assert graphopt.to_proto(model).graph.initializer[0].raw_data  # read from the file
    with pytest.raises(InvalidModel, match="is missing"):
        graphopt.load_model(given, base_dir=external.parent.parent)


def test_a_file_needs_no_base_folder(external: Path) -> None:
    with pytest.raises(UsageError, match="base_dir is for models in memory"):
        graphopt.load_model(external, base_dir=external.parent)


def test_tensors_marked_as_external_but_not_yet_saved_are_read() -> None:
    proto = network()
    array = numpy_helper.to_array(proto.graph.initializer[0])
    onnx.external_data_helper.convert_model_to_external_data(proto, location="later.bin", size_threshold=0)
    before = proto.SerializeToString()
    assert (graphopt.optimize(proto).model.graph.initializers["w"].const_value.numpy() == array).all()  # type: ignore[union-attr]
    assert proto.SerializeToString() == before


def test_onnx_ir_model_with_external_data_is_accepted(external: Path) -> None:
    model = onnx_ir.load(external)
    result = graphopt.optimize(model)
    assert result.verdict is not None and result.verdict.ok and result.verdict.rows
    assert result.to_proto().graph.initializer[0].raw_data


def test_unsorted_onnx_ir_model_is_accepted() -> None:
    proto = network()
    nodes = [*proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    assert [node.op_type for node in graphopt.optimize(onnx_ir.from_proto(proto)).model.graph] == [
        "MatMul",
        "Relu",
    ]


def test_large_protos_are_compared_without_a_second_serialized_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = network()
    found, original, _ = Compiler().working_copy(proto)
    assert original == proto.SerializeToString()
    monkeypatch.setattr("graphopt.ir.io.interoperability._SMALL", 10)
    found, original, _ = Compiler().working_copy(proto)
    assert isinstance(original, ir.Model) and original is not found
    assert graphopt.optimize(proto).verdict.ok  # type: ignore[union-attr]


def test_a_training_step_in_memory_needs_its_state(tmp_path: Path) -> None:
    step = graphopt.train_step(network(), "mse:y,target", "sgd")
    path, state, _ = step.save(tmp_path / "step.onnx")
    feeds = {**FEEDS, "target": np.ones((1, 3), np.float32)}
    assert graphopt.Trainer(path).step(feeds) == 1.0
    assert graphopt.Trainer(onnx.load(path), state).step(feeds) == 1.0
    with pytest.raises(UsageError, match="a training step in memory"):
        graphopt.Trainer(onnx.load(path))
