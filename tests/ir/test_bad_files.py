"""Files that can't be loaded are rejected in one line, with the correct error."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from graphopt.errors import GraphoptError, InvalidModel, UsageError
from tests.ir.models import chain, external, floats, model, weight

NODE = helper.make_node
ADD = [NODE("Add", ["x", "w"], ["y"])]


def _refused(error: pytest.ExceptionInfo[GraphoptError]) -> None:
    assert "\n" not in error.value.message
    assert len(error.value.message) < 400


def test_files_that_are_no_models(tmp_path: Path) -> None:
    good = chain(50).SerializeToString()
    contents = {
        "empty": b"",
        "random": random.Random(0).randbytes(5000),
        "text": b"not a model",
        "cut": good[: len(good) // 2],
        "cut_early": good[:3],
        "not_even_a_graph": onnx.ModelProto(ir_version=8).SerializeToString(),
        "no_version": onnx.ModelProto(graph=chain(1).graph).SerializeToString(),
    }
    for name, data in contents.items():
        (tmp_path / f"{name}.onnx").write_bytes(data)
        with pytest.raises(InvalidModel) as error:
            ir.load(tmp_path / f"{name}.onnx")
        _refused(error)
    texts = {
        "cut.onnxtxt": "<ir_version: 8> graph (",
        "number.onnxtxt": "<ir_version: 8> g (float x) => (float y) { y = Elu <alpha = 1e999> (x) }",
        "integer.onnxtxt": "<ir_version: 99999999999999999999> g () => () {}",
        "no.onnxjson": "[]",
        "cut.onnxjson": '{"graph": {',
        "odd.onnxjson": '{"irVersion": 1e999}',
        "deep.onnxjson": "[" * 100_000,
        "deep.json": '{"graph":' * 100_000,
        "long.json": f'{{"graphopt": 1, "{"x" * 5000}": 1}}',
        "long_type.json": f'{{"graphopt": 1, "graph": {{"inputs": [{{"name": "x", "type": "{"f" * 5000}[]"}}]}}}}',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(InvalidModel) as error:
            ir.load(tmp_path / name)
        _refused(error)


def test_truncated_and_corrupted_files_do_not_crash(tmp_path: Path) -> None:
    good = model(
        [NODE("Add", ["x", "w"], ["t"]), NODE("LeakyRelu", ["t"], ["y"], alpha=0.5)],
        [weight("w", 4)],
        producer_name="tests",
    ).SerializeToString()
    path = tmp_path / "m.onnx"
    draw = random.Random(1)
    variants = [good[:cut] for cut in range(1, len(good))]
    for _ in range(300):
        broken = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        variants.append(bytes(broken))
    refused = 0
    for data in variants:
        path.write_bytes(data)
        try:
            ir.to_proto(ir.load(path))
        except InvalidModel:
            refused += 1
    assert refused > len(variants) // 2


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.onnx", Path("/dev/zero"), "a\0b", tmp_path / ("n" * 256)):
        with pytest.raises(UsageError) as error:
            ir.load(path)
        _refused(error)


def _dense(name: str = "w", **fields: object) -> TensorProto:
    return TensorProto(name=name, data_type=TensorProto.FLOAT, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (_dense(dims=[4], raw_data=bytes(8)), "has 8 bytes"),
        (_dense(dims=[4], raw_data=bytes(20)), "has 20 bytes"),
        (_dense(dims=[4], float_data=[1, 2]), "has 2 numbers"),
        (_dense(dims=[4]), "has 0 numbers"),
        (_dense(dims=[-4], raw_data=bytes(16)), "negative"),
        (TensorProto(name="w", data_type=TensorProto.STRING, dims=[2], string_data=[b"a"]), "has 1 strings"),
        (TensorProto(name="w", dims=[4], raw_data=bytes(16)), "no element type"),
        (TensorProto(name="w", data_type=99, dims=[4], raw_data=bytes(16)), "99"),
    ],
)
def test_tensors_with_the_wrong_amount_of_data(tensor: TensorProto, reason: str) -> None:
    with pytest.raises(InvalidModel, match=reason) as error:
        ir.from_proto(model(ADD, [tensor]))
    _refused(error)
    constant = NODE("Constant", [], ["w"], value=tensor)
    with pytest.raises(InvalidModel, match=reason) as error:
        ir.from_proto(model([constant, *ADD]))
    _refused(error)


def test_tensors_in_every_field_are_loaded(tmp_path: Path) -> None:
    kinds = {
        "int4": TensorProto(data_type=TensorProto.INT4, dims=[3], int32_data=[0x21, 0x03]),
        "packed": TensorProto(data_type=TensorProto.INT4, dims=[3], raw_data=b"\x21\x03"),
        "half": TensorProto(data_type=TensorProto.FLOAT16, dims=[1], int32_data=[0x3C00]),
        "complex": TensorProto(data_type=TensorProto.COMPLEX64, dims=[1], float_data=[1, 2]),
        "unsigned": TensorProto(data_type=TensorProto.UINT32, dims=[1], uint64_data=[7]),
        "nothing": TensorProto(data_type=TensorProto.FLOAT, dims=[0, 3]),
        "scalar": TensorProto(data_type=TensorProto.FLOAT, raw_data=bytes(4)),
    }
    for name, tensor in kinds.items():
        tensor.name = name
    loaded = ir.from_proto(model([NODE("Neg", ["x"], ["y"])], list(kinds.values()), ir_version=10, opset=21))
    shapes = {name: value.const_value.numpy().shape for name, value in loaded.graph.initializers.items()}
    assert shapes == {name: tuple(tensor.dims) for name, tensor in kinds.items()}


# Structure ----------------------------------------------------------------------------------


def _body(result: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", [], [floats(result, "N", 4)])


def _branches(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.ModelProto:
    condition = numpy_helper.from_array(np.array(True), "c")
    node = NODE("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)
    return model([NODE("Abs", ["x"], ["t"]), node], [condition])


def _function(name: str, nodes: list[onnx.NodeProto], **fields: object) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a"], ["b"], nodes, imports, **fields)  # type: ignore[arg-type]


CALL = [NODE("F", ["x"], ["y"], domain="local")]


def _calls(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    return model(CALL, domains=("local",), functions=list(functions))


NEG_Z = _body("z", [NODE("Neg", ["x"], ["z"])])

FAULTS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "dangling input": (lambda: model([NODE("Add", ["x", "nowhere"], ["y"], "add")]), "'add' reads 'nowhere'"),
    "dangling output": (
        lambda: model([NODE("Neg", ["x"], ["t"])]),
        "output 'y' of graph 'g' has no definition",
    ),
    "dangling in a body": (
        lambda: _branches(NEG_Z, _body("z", [NODE("Neg", ["gone"], ["z"])])),
        "reads 'gone'",
    ),
    "a body returns nothing it knows": (lambda: _branches(NEG_Z, _body("gone", [])), "reads 'gone'"),
    "out of scope": (
        lambda: model(
            [
                *_branches(_body("z", [NODE("Neg", ["x"], ["z"])]), NEG_Z).graph.node[:1],
                NODE("Add", ["x", "z"], ["y"], "add"),
            ]
        ),
        "'add' reads 'z'",
    ),
    "cycle": (
        lambda: model([NODE("Add", ["x", "b"], ["a"], "one"), NODE("Neg", ["a"], ["b"], "two"), *CYCLE_END]),
        "cycle: (one → two → one|two → one → two)",
    ),
    "cycle through a body": (
        lambda: model(
            [
                NODE("Neg", ["y"], ["t"], "neg"),
                NODE(
                    "If",
                    ["c"],
                    ["y"],
                    "if",
                    then_branch=_body("z", [NODE("Abs", ["t"], ["z"])]),
                    else_branch=NEG_Z,
                ),
            ],
            [numpy_helper.from_array(np.array(True), "c")],
        ),
        "cycle: (neg → if → neg|if → neg → if)",
    ),
    "defined twice": (
        lambda: model([NODE("Neg", ["x"], ["y"]), NODE("Abs", ["x"], ["y"])]),
        "'y' is defined 2",
    ),
    "an input defined again": (
        lambda: model([NODE("Neg", ["x"], ["x"]), NODE("Abs", ["x"], ["y"])]),
        "'x' is",
    ),
    "a weight defined again": (
        lambda: model([NODE("Neg", ["x"], ["w"]), *ADD], [weight("w", 4)]),
        "'w' is defined 2",
    ),
    "defined outside and in a body": (
        lambda: _branches(_body("t", [NODE("Neg", ["x"], ["t"])]), NEG_Z),
        "'t' is defined twice",
    ),
    "two inputs of one name": (
        lambda: model([NODE("Neg", ["x"], ["y"])], inputs=[floats("x", 4), floats("x", 4)]),
        "'x' is defined 2",
    ),
    "node names": (
        lambda: model([NODE("Neg", ["x"], ["t"], "n"), NODE("Neg", ["t"], ["y"], "n")]),
        "two nodes have the name 'n'",
    ),
    "an input without a type": (
        lambda: model([NODE("Neg", ["x"], ["y"])], inputs=[onnx.ValueInfoProto(name="x")]),
        "'x' has no type",
    ),
    "recursion": (
        lambda: _calls(
            _function("F", [NODE("G", ["a"], ["b"], domain="local")]),
            _function("G", [NODE("F", ["a"], ["b"], domain="local")]),
            _function("H", [NODE("Neg", ["a"], ["b"])]),
        ),
        "recursive functions: (F → G → F|G → F → G)",
    ),
    "no opset": (lambda: _without_opset(chain(1)), "does not import"),
    "a function's domain is not imported": (
        lambda: model(CALL, functions=[_function("F", [NODE("Neg", ["a"], ["b"])])]),
        "of domain 'local'",
    ),
    "a function imports too little": (
        lambda: _calls(_function("F", [NODE("Gelu", ["a"], ["b"], domain="com.microsoft")])),
        "function F does not import",
    ),
    "no such overload": (
        lambda: model(
            [NODE("F", ["x"], ["y"], domain="local", overload="two")], domains=("local",), ir_version=10
        ),
        "does not exist",
    ),
    "dangling in a function": (
        lambda: _calls(_function("F", [NODE("Neg", ["gone"], ["b"])])),
        "reads 'gone'",
    ),
}
FAULTS |= {
    "two functions of one name": (
        lambda: _calls(
            _function("F", [NODE("Neg", ["a"], ["b"])]), _function("F", [NODE("Abs", ["a"], ["b"])])
        ),
        "2 functions have the name local::F",
    ),
    "a function that defines a value twice": (
        lambda: _calls(_function("F", [NODE("Neg", ["a"], ["b"]), NODE("Abs", ["a"], ["b"])])),
        "'b' is defined 2 times in function 'F'",
    ),
    "an attribute given twice": (
        lambda: model([_attribute_again(NODE("Elu", ["x"], ["y"], "n", alpha=1.0))]),
        "Elu 'n' has attribute 'alpha' 2 times",
    ),
}
CYCLE_END = [NODE("Add", ["a", "b"], ["y"])]


def _attribute_again(node: onnx.NodeProto) -> onnx.NodeProto:
    node.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, f=2.0)
    return node


def _without_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    del proto.opset_import[:]
    return proto


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_structure(fault: str) -> None:
    build, reason = FAULTS[fault]
    with pytest.raises(InvalidModel, match=reason) as error:
        ir.from_proto(build())
    _refused(error)


def test_a_long_cycle_is_found_without_recursion() -> None:
    proto = chain(10_000)
    proto.graph.node[0].input[0] = "y"
    with pytest.raises(InvalidModel, match=r"cycle: n.* → …"):
        ir.from_proto(proto)


def test_references_outside_functions_pass_as_in_onnxruntime() -> None:
    node = NODE("LeakyRelu", ["x"], ["y"])
    node.attribute.add(name="alpha", ref_attr_name="a", type=onnx.AttributeProto.FLOAT)
    ir.validate(ir.from_proto(model([node])))
    function = _function("F", [NODE("LeakyRelu", ["a"], ["b"])])
    function.node[0].attribute.add(name="alpha", ref_attr_name="undeclared", type=onnx.AttributeProto.FLOAT)
    loaded = ir.from_proto(_calls(function))
    ir.validate(loaded)
    assert list(next(iter(loaded.functions.values())).attributes) == ["undeclared"]


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    proto = model([NODE("Neg", ["x"], ["y"], "NODE", doc_string="DOCS")])
    data = proto.SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data.replace(b"DOCS", b"D\xffCS").replace(b"NODE", b"N\xffDE"))
    node = next(iter(ir.load(path).graph))
    assert (node.name, node.doc_string) == ("N\ufffdDE", "D\ufffdCS")
    for old, new in ((b"\x01y", b"\x01\xff"), (b"Neg", b"N\xffg")):
        path.write_bytes(data.replace(old, new))
        with pytest.raises(InvalidModel, match="UTF-8") as error:
            ir.load(path)
        _refused(error)


def _field(number: int, data: bytes) -> bytes:
    size, digits = len(data), []
    while size > 127:
        digits.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *digits, size]) + data


def test_bodies_nested_deeper_than_protobuf_reads(tmp_path: Path) -> None:
    body = helper.make_graph([NODE("Neg", ["x"], ["z"])], "b", [], []).SerializeToString()
    for _ in range(60):
        attribute = onnx.AttributeProto(name="body", type=onnx.AttributeProto.GRAPH).SerializeToString()
        node = NODE("Loop", ["", ""], []).SerializeToString() + _field(5, attribute + _field(6, body))
        body = _field(1, node)
    (tmp_path / "m.onnx").write_bytes(onnx.ModelProto(ir_version=8).SerializeToString() + _field(7, body))
    with pytest.raises(InvalidModel, match="nests bodies 60 deep") as error:
        ir.load(tmp_path / "m.onnx")
    _refused(error)


def test_a_model_without_an_ir_version(tmp_path: Path) -> None:
    proto = chain(1)
    for version in (0, None):
        proto.ClearField("ir_version") if version is None else setattr(proto, "ir_version", version)
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(InvalidModel, match=r"ir_version is 0") as error:
            ir.load(tmp_path / "m.onnx")
        _refused(error)


# External data ------------------------------------------------------------------------------


def test_external_data_that_is_missing_or_short(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    external(path, {"w": np.ones((4, 4), np.float32)}, write=False)
    with pytest.raises(InvalidModel, match="is missing") as error:
        ir.load(path)
    _refused(error)
    (tmp_path / "w.bin").write_bytes(bytes(60))
    with pytest.raises(InvalidModel, match="ends at byte 64") as error:
        ir.load(path)
    _refused(error)
    (tmp_path / "w.bin").write_bytes(b"")
    with pytest.raises(InvalidModel, match="ends at byte 64"):
        ir.load(path)
    (tmp_path / "w.bin").write_bytes(bytes(64))
    ir.load(path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"length": "32"}, "has 32 bytes"),
        ({"offset": "-4"}, "negative"),
        ({"offset": "a"}, "can't be read"),
        ({"location": ""}, "has no location"),
        ({"location": "."}, "is missing"),
        ({"location": "w\0"}, "an invalid path"),
    ],
)
def test_invalid_external_data_entries_are_refused(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    path = tmp_path / "m.onnx"
    external(path, {"w": np.ones((4, 4), np.float32)})
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        entry.value = changes.get(entry.key, entry.value)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidModel, match=reason) as error:
        ir.load(path)
    _refused(error)


def test_external_data_outside_the_folder_needs_permission(tmp_path: Path) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    folder.mkdir(), outside.mkdir()
    (outside / "w.bin").write_bytes(np.ones((4, 4), np.float32).tobytes())
    (folder / "link.bin").symlink_to(outside / "w.bin")
    (folder / "loop.bin").symlink_to(folder / "loop.bin")
    array = {"w": np.ones((4, 4), np.float32)}
    for location in ("../outside/w.bin", str(outside / "w.bin"), "link.bin", "../model/../outside/w.bin"):
        external(folder / "m.onnx", array, location=location, write=False)
        with pytest.raises(InvalidModel, match="outside the model's folder") as error:
            ir.load(folder / "m.onnx")
        _refused(error)
        assert error.value.hint is not None and f"--allow-external {outside}" in error.value.hint
        ir.load(folder / "m.onnx", allow_external=[outside])
        with pytest.raises(InvalidModel):
            ir.load(folder / "m.onnx", allow_external=[tmp_path / "elsewhere"])
    external(folder / "m.onnx", array, location="loop.bin", write=False)
    with pytest.raises(InvalidModel) as error:
        ir.load(folder / "m.onnx")
    _refused(error)
    # a path that returns into the folder is inside
    (folder / "w.bin").write_bytes((outside / "w.bin").read_bytes())
    for location in ("../model/w.bin", str(folder / "w.bin")):
        external(folder / "m.onnx", array, location=location, write=False)
        ir.load(folder / "m.onnx")


def test_a_proto_in_memory_has_no_folder(tmp_path: Path) -> None:
    external(tmp_path / "m.onnx", {"w": np.ones((4, 4), np.float32)})
    with pytest.raises(InvalidModel, match="in another file"):
        ir.from_proto(onnx.load(tmp_path / "m.onnx", load_external_data=False))
    ir.from_proto(onnx.load(tmp_path / "m.onnx"))
