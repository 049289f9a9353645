"""References by name remain valid after values are replaced or renamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt import ir
from tests.ir.models import floats, model, run

NODE = helper.make_node
X = np.arange(8, dtype=np.float32).reshape(2, 4) - 3
ROLES = {"SCALE_TENSOR": "x_scale", "ZERO_POINT_TENSOR": "x_zero"}


def _annotate(graph: onnx.GraphProto, tensor: str, roles: dict[str, str] | None = None) -> None:
    annotation = graph.quantization_annotation.add(tensor_name=tensor)
    for key, value in (roles or ROLES).items():
        annotation.quant_parameter_tensor_names.add(key=key, value=value)


def _annotations(graph: onnx.GraphProto) -> dict[str, dict[str, str]]:
    """Annotations by tensor; each refers to existing tensors."""
    assert len({item.tensor_name for item in graph.quantization_annotation}) == len(
        graph.quantization_annotation
    )
    return {
        item.tensor_name: {entry.key: entry.value for entry in item.quant_parameter_tensor_names}
        for item in graph.quantization_annotation
    }


def _scalar(name: str, number: float | np.generic) -> TensorProto:
    return numpy_helper.from_array(np.asarray(number), name)


PARAMETERS = [_scalar("x_scale", np.float32(0.1)), _scalar("x_zero", np.int8(0)), _scalar("copy", np.int8(0))]
WEIGHT = numpy_helper.from_array(np.eye(4, dtype=np.float32) * 2, "weight")


def _annotated() -> onnx.ModelProto:
    """MatMul and Add become a Gemm with the output's name; zero points are equal and unread."""
    proto = model(
        [
            NODE("Identity", ["x"], ["same"]),
            NODE("MatMul", ["same", "weight"], ["h"]),
            NODE("Mul", ["x_scale", "one"], ["bias"]),
            NODE("Add", ["h", "bias"], ["y"]),
        ],
        [*PARAMETERS, WEIGHT, _scalar("one", np.float32(1))],
    )
    for name in ("x", "weight", "y"):
        _annotate(proto.graph, name)
    return proto


def _sparse() -> onnx.ModelProto:
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [3.0])
    proto = model([NODE("Add", ["x", "s"], ["h"]), NODE("Identity", ["h"], ["y"])])
    indices = helper.make_tensor("", TensorProto.INT64, [1], [2])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    return proto


def _in_a_body() -> onnx.ModelProto:
    """A body with an annotated value that has the name of an outer one; the If is removed, and its branch inlined."""
    branch = helper.make_graph(
        [NODE("Identity", ["x"], ["i"]), NODE("Mul", ["i", "x_scale"], ["z"])],
        "b",
        [],
        [floats("z", "N", 4)],
        [_scalar("x_scale", np.float32(0.5)), _scalar("x_zero", np.int8(1))],
    )
    _annotate(branch, "z")
    other = helper.make_graph([NODE("Neg", ["x"], ["z2"])], "b", [], [floats("z2", "N", 4)])
    proto = model(
        [
            NODE("Mul", ["x", "x_scale"], ["h"]),
            NODE("If", ["c"], ["k"], then_branch=branch, else_branch=other),
            NODE("Add", ["h", "k"], ["y"]),
        ],
        [*PARAMETERS, _scalar("c", np.bool_(True))],
    )
    _annotate(proto.graph, "h")
    return proto


def _forms(proto: onnx.ModelProto, form: str, folder: Path) -> Path:
    onnx.save(proto, folder / "m.onnx")
    if form == "json":
        graphopt.save(graphopt.load_model(folder / "m.onnx"), folder / "m.json")
    return folder / ("m.json" if form == "json" else "m.onnx")


def _optimized(proto: onnx.ModelProto, level: str, form: str, folder: Path) -> onnx.ModelProto:
    done = graphopt.optimize(_forms(proto, form, folder), pipeline=level, verify=False)
    graphopt.save(done.model, folder / f"out.{form}")
    result = ir.to_proto(graphopt.load_model(folder / f"out.{form}"))
    np.testing.assert_allclose(run(result, x=X)[0], run(proto, x=X)[0], rtol=1e-6)
    return result


levels = pytest.mark.parametrize("level", ["O1", "O2", "O3"])
forms = pytest.mark.parametrize("form", ["onnx", "json"])


@levels
@forms
def test_annotations_follow_their_tensors(level: str, form: str, tmp_path: Path) -> None:
    graph = _optimized(_annotated(), level, form, tmp_path).graph
    assert _annotations(graph) == dict.fromkeys(("x", "weight", "y"), ROLES)
    held = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer}
    assert held["x_scale"] == np.float32(0.1) and held["x_zero"] == 0


@levels
@forms
def test_annotations_of_bodies_survive_inlining(level: str, form: str, tmp_path: Path) -> None:
    graph = _optimized(_in_a_body(), level, form, tmp_path).graph
    held = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer}
    found = [
        [held[name] for name in roles.values()]
        for tensor, roles in _annotations(graph).items()
        if any(tensor in node.output for node in graph.node)
    ]
    assert sorted(found) == [[np.float32(0.1), 0], [0.5, 1]]


@levels
@forms
def test_sparse_initializers_keep_their_name(level: str, form: str, tmp_path: Path) -> None:
    done = graphopt.optimize(_forms(_sparse(), form, tmp_path), pipeline=level, verify=False)
    graph = ir.to_proto(done.model).graph
    assert [item.values.name for item in graph.sparse_initializer] == ["s"]
    assert [list(node.input) for node in graph.node] == [["x", "s"]]


@levels
@forms
def test_initializers_named_by_training_info_are_kept(level: str, form: str, tmp_path: Path) -> None:
    proto = model(
        [NODE("Mul", ["x", "w"], ["y"])], [_scalar("w", np.float32(2)), _scalar("rate", np.float32(0.1))]
    )
    info = proto.training_info.add()
    info.algorithm.CopyFrom(
        helper.make_graph([NODE("Mul", ["w", "rate"], ["new"])], "step", [], [floats("new")])
    )
    info.update_binding.add(key="w", value="new")
    graph = _optimized(proto, level, form, tmp_path).graph
    assert {tensor.name for tensor in graph.initializer} == {"w", "rate"}


@levels
@forms
def test_functions_are_found_by_overload_and_attribute(level: str, form: str, tmp_path: Path) -> None:
    functions = []
    for overload, op in (("one", "Elu"), ("two", "LeakyRelu")):
        inner = NODE(op, ["a"], ["b"])
        inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
        nodes = [NODE("Identity", ["p"], ["a"]), inner]
        made = helper.make_function(
            "local", "F", ["p"], ["b"], nodes, [helper.make_opsetid("", 17)], ["slope"]
        )
        made.overload = overload
        made.value_info.append(floats("a", "M", 4))
        functions.append(made)
    calls = [
        NODE("F", ["x"], ["h"], domain="local", overload="one", slope=0.5),
        NODE("F", ["h"], ["k"], domain="local", overload="two", slope=0.25),
        NODE("F", ["k"], ["y"], domain="local", overload="one", slope=2.0),
    ]
    proto = model(calls, functions=functions, domains=("local",), ir_version=10)
    result = _optimized(proto, level, form, tmp_path)
    onnx.checker.check_model(result)
    for function in result.functions:
        values = {*function.input, *(output for node in function.node for output in node.output)}
        assert {info.name for info in function.value_info} <= values


def test_annotation_of_a_missing_tensor_is_not_written() -> None:
    proto = _annotated()
    _annotate(proto.graph, "h", {"SCALE_TENSOR": "gone"})
    assert sorted(_annotations(ir.to_proto(ir.from_proto(proto)).graph)) == ["weight", "x", "y"]


def _twice() -> onnx.ModelProto:
    """``a`` and ``b`` are equal."""
    return model(
        [NODE("Abs", ["x"], ["a"]), NODE("Abs", ["x"], ["b"]), NODE("Add", ["a", "b"], ["y"])], PARAMETERS
    )


def test_replacement_keeps_its_own_annotation() -> None:
    proto = _twice()
    _annotate(proto.graph, "a", {"ZERO_POINT_TENSOR": "copy"})
    _annotate(proto.graph, "b")
    done = graphopt.optimize(ir.from_proto(proto), pipeline="cse,dce", verify=False)
    assert _annotations(ir.to_proto(done.model).graph) == {"a": {"ZERO_POINT_TENSOR": "copy"}}


def test_replacement_inherits_the_annotation() -> None:
    proto = _twice()
    _annotate(proto.graph, "b")
    done = graphopt.optimize(ir.from_proto(proto), pipeline="cse,dce", verify=False)
    assert list(_annotations(ir.to_proto(done.model).graph)) == ["a"]
    edit = ir.Editor(done.model)
    value = done.model.graph.initializers.pop("x_scale")
    edit.rename(value, "other")
    done.model.graph.initializers["other"] = value
    assert _annotations(ir.to_proto(done.model).graph)["a"]["SCALE_TENSOR"] == "other"
