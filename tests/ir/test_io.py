"""Loading and saving preserve the contents of files, and neither copy nor corrupt external data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from graphopt.errors import ResourceLimit, UsageError
from graphopt.ir.io import save as ir_io
from graphopt.util.weight_placement import WeightPlacement
from tests.ir.models import chain, external, floats, model, run, weight
from tests.model_testing import parse


def _unchanged(proto: onnx.ModelProto) -> None:
    before = proto.SerializeToString(deterministic=True)
    after = ir.to_proto(ir.from_proto(proto)).SerializeToString(deterministic=True)
    assert after == before


def test_identity_keeps_every_byte_of_a_plain_model() -> None:
    proto = model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"], "relu", doc_string="a node"),
            helper.make_node("Split", ["r"], ["", "y"], axis=1, num_outputs=2),
        ],
        [weight("w", 4, 8)],
        opset=18,
        producer_name="tests",
        producer_version="",
        model_version=0,
        doc_string="",
    )
    # out of the order of nodes, and explicitly nothing where nothing is the default
    proto.graph.value_info.extend([floats("r", "N", 8), floats("h", "N", 8)])
    proto.opset_import.insert(0, helper.make_opsetid("com.microsoft", 1))
    for key in ("z", "a"):
        proto.metadata_props.add(key=key, value="kept in this order")
    proto.graph.initializer[0].metadata_props.add(key="origin", value="of the tensor")
    proto.graph.quantization_annotation.add(tensor_name="r").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="w"
    )
    _unchanged(proto)


def test_identity_keeps_types_that_onnx_ir_lacks() -> None:
    key = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    zipped = helper.make_value_info("y", helper.make_sequence_type_proto(key))
    proto = model(
        [helper.make_node("ZipMap", ["x"], ["y"], "zip", domain="ai.onnx.ml", classlabels_int64s=[0, 1])],
        outputs=[zipped],
        domains=("ai.onnx.ml",),
    )
    _unchanged(proto)


def test_identity_keeps_sparse_tensors_training_info_and_bytes() -> None:
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("s", TensorProto.FLOAT, [1], [5.0]),
        helper.make_tensor("s_indices", TensorProto.INT64, [1], [1]),
        [4],
    )
    default = onnx.SparseTensorProto.FromString(sparse.SerializeToString())
    default.values.name = "d"
    proto = model(
        [
            helper.make_node("Constant", [], ["c"], sparse_value=sparse),
            helper.make_node("Sum", ["x", "s", "c", "d"], ["y"]),
            helper.make_node(
                "Blob", ["x"], ["unread"], domain="vendor", data=[b"\xff\xfe", b"ok"], one=b"\xff"
            ),
        ],
        inputs=[floats("x", "N", 4), floats("d", 4)],
        domains=("vendor",),
    )
    proto.graph.sparse_initializer.extend([sparse, default])
    info = proto.training_info.add()
    info.update_binding.add(key="s", value="c")
    before = proto.SerializeToString(deterministic=True)
    loaded = ir.from_proto(proto)
    # a sparse initializer that an input lists is its default, and comes after the others
    after = ir.to_proto(loaded)
    assert sorted(t.values.name for t in after.graph.sparse_initializer) == ["d", "s"]
    del after.graph.sparse_initializer[:]
    original = onnx.ModelProto.FromString(before)
    del original.graph.sparse_initializer[:]
    assert after.SerializeToString(deterministic=True) == original.SerializeToString(deterministic=True)
    cloned = ir.to_proto(ir.clone(loaded))
    assert len(cloned.training_info) == 1


def test_identity_keeps_declared_types_of_functions() -> None:
    function = helper.make_function(
        "local", "F", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    function.value_info.extend([floats("b", 4), floats("a", 4)])
    _unchanged(
        model(
            [helper.make_node("F", ["x"], ["y"], domain="local")],
            domains=("local",),
            functions=[function],
            ir_version=10,
        )
    )


def test_an_output_that_is_returned_twice_keeps_both_declarations() -> None:
    _unchanged(
        model([helper.make_node("Neg", ["x"], ["y"])], outputs=[floats("y", "N", 4), floats("y", "M", 4)])
    )


def test_an_input_that_is_returned_keeps_its_own_declaration() -> None:
    infos = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Neg", ["v"], ["w"])],
        "body",
        [infos("i", TensorProto.INT64, []), infos("c", TensorProto.BOOL, []), floats("v", 4)],
        [infos("c", TensorProto.BOOL, None), floats("w", 4), infos("v", TensorProto.FLOAT, None)],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y", "rows"], body=body)
    outputs = [floats("y", 4), infos("rows", TensorProto.FLOAT, None), floats("x", None)]
    inputs = [infos("n", TensorProto.INT64, []), floats("x", 4)]
    proto = model([loop], inputs=inputs, outputs=outputs)
    loaded = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    assert loaded.graph.inputs[1].shape == ir.Shape([4])
    saved = ir.to_bytes(loaded)
    assert onnx.ModelProto.FromString(saved) == proto
    x = np.ones(4, np.float32)
    assert run(saved, n=np.array(3), x=x)[0].tolist() == [-1] * 4  # a body of unknown shapes can't be run


def test_external_data_is_mapped_once_and_tied_weights_are_written_once(tmp_path: Path) -> None:
    array = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    external(tmp_path / "m.onnx", {"a": array, "b": array + 1})
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    tied = proto.graph.initializer[1].external_data
    tied[1].value = proto.graph.initializer[0].external_data[1].value  # both at the same offset
    onnx.save(proto, tmp_path / "tied.onnx")

    loaded = ir.load(tmp_path / "tied.onnx")
    a, b = (value.const_value for value in loaded.graph.initializers.values())
    assert a is not None and b is not None
    assert ir.storage_of(a) == ir.storage_of(b)
    files = ir.save(loaded, tmp_path / "out.onnx")
    assert [file.name for file in files] == ["out.onnx", "out.onnx.data"]
    assert files[1].stat().st_size == array.nbytes
    x = np.ones((1000, 4), np.float32)
    np.testing.assert_array_equal(run(files[0], x=x)[0], run(tmp_path / "tied.onnx", x=x)[0])


def test_small_external_tensors_move_into_the_model(tmp_path: Path) -> None:
    external(tmp_path / "m.onnx", {"small": np.ones(4, np.float32), "large": np.ones((500, 4), np.float32)})
    (tmp_path / "elsewhere").mkdir()
    files = ir.save(ir.load(tmp_path / "m.onnx"), tmp_path / "elsewhere" / "out.onnx")
    saved = onnx.load(files[0], load_external_data=False)
    places = {tensor.name: tensor.data_location for tensor in saved.graph.initializer}
    assert places == {"small": TensorProto.DEFAULT, "large": TensorProto.EXTERNAL}
    assert run(files[0], x=np.ones((500, 4), np.float32))[0].max() == 3
    alone = ir.save(ir.load(tmp_path / "m.onnx"), tmp_path / "elsewhere" / "alone.onnx", weights="inside")
    assert len(alone) == 1
    assert run(alone[0], x=np.ones((500, 4), np.float32))[0].max() == 3


def test_no_data_file_is_written_when_every_external_tensor_is_small(tmp_path: Path) -> None:
    external(tmp_path / "m.onnx", {"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)})
    (tmp_path / "elsewhere").mkdir()
    files = ir.save(ir.load(tmp_path / "m.onnx"), tmp_path / "elsewhere" / "out.onnx")
    assert files == [tmp_path / "elsewhere" / "out.onnx"]
    assert list((tmp_path / "elsewhere").iterdir()) == files
    assert run(files[0], x=np.ones((2, 4), np.float32))[0].max() == 3


def test_external_attributes_of_constant_nodes_move_along(tmp_path: Path) -> None:
    value = TensorProto(
        name="v", data_type=TensorProto.FLOAT, dims=[500, 4], data_location=TensorProto.EXTERNAL
    )
    value.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(np.full(2000, 2, np.float32).tobytes())
    proto = model(
        [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Add", ["x", "c"], ["y"])]
    )
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "sub").mkdir()
    files = ir.save(ir.load(tmp_path / "m.onnx"), tmp_path / "sub" / "out.onnx")
    assert files[1].stat().st_size == 8000
    loaded = ir.load(files[0])
    assert ir.constant_of(next(iter(loaded.graph)).outputs[0]).numpy().max() == 2


@pytest.mark.parametrize("weights", ["beside", "inside"])
def test_saving_over_the_files_that_are_read(tmp_path: Path, weights: WeightPlacement) -> None:
    path = tmp_path / "m.onnx"
    a = np.arange(2000, dtype=np.float32).reshape(500, 4)
    external(path, {"a": a, "b": a * 2}, location="m.onnx.data")
    x = np.ones((500, 4), np.float32)
    expected = run(path, x=x)[0]
    loaded = ir.load(path)
    # drop the first weight, so that everything in the data file moves
    edit = ir.Editor(loaded)
    first, second = list(loaded.graph)
    edit.replace(first.outputs[0], loaded.graph.inputs[0])
    edit.remove(first)
    edit.remove_initializer(loaded.graph.initializers["a"])
    ir.save(loaded, path, weights=weights)
    np.testing.assert_array_equal(run(path, x=x)[0], expected - a)
    # the tensors still have their contents
    assert second.inputs[1] is not None and second.inputs[1].const_value is not None
    np.testing.assert_array_equal(second.inputs[1].const_value.numpy(), a * 2)
    ir.save(loaded, path)
    np.testing.assert_array_equal(run(path, x=x)[0], expected - a)


def _weights(path: Path) -> list[float]:
    return [float(numpy_helper.to_array(tensor).max()) for tensor in onnx.load(path).graph.initializer]


def _halved(path: Path) -> ir.Model:
    """A model with data beside it whose first weight is 1, loaded; the second, 2, would move in the file."""
    ones = np.ones((500, 4), np.float32)
    external(path, {"a": ones, "b": ones * 2}, location=f"{path.name}.data")
    loaded = ir.load(path)
    edit = ir.Editor(loaded)
    first = loaded.graph[0]
    edit.replace(first.outputs[0], loaded.graph.inputs[0])
    edit.remove(first)
    edit.remove_initializer(loaded.graph.initializers["a"])
    return loaded


@pytest.mark.parametrize("suffix", [".onnx", ".json"])
@pytest.mark.parametrize("replaced", [0, 1])
def test_interrupted_save_keeps_the_old_model_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, replaced: int
) -> None:
    loaded = _halved(tmp_path / "m.onnx")
    path = tmp_path / f"m{suffix}"
    if suffix == ".json":
        ir.save(ir.load(tmp_path / "m.onnx"), path)

    def weights() -> list[float]:
        values = ir.load(path).graph.initializers.values()
        return [float(value.const_value.numpy().max()) for value in values if value.const_value is not None]

    before = weights()
    really, done = os.replace, []

    def replace(source: object, target: object) -> None:
        if len(done) == replaced:
            raise KeyboardInterrupt
        done.append(really(source, target))  # type: ignore[call-overload]

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        ir.save(loaded, path)
    assert weights() == before == [1, 2]


def test_data_of_the_replaced_model_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    loaded = _halved(path)
    _, data = ir.save(loaded, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", data.name]
    assert data.name.startswith("m.onnx.") and data.name.endswith(".data") and data.name != "m.onnx.data"
    assert _weights(path) == [2]
    again = ir.save(ir.load(path), tmp_path / "out.onnx")
    assert ir.save(ir.load(path), tmp_path / "out.onnx") == again  # the same data keeps its name
    assert again[1].name == "out.onnx.data"


def test_data_that_another_model_reads_stays(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    loaded = _halved(path)
    other = path.rename(tmp_path / "other.onnx")
    _, data = ir.save(loaded, path)
    assert _weights(other) == [1, 2] and _weights(path) == [2]
    path.write_bytes(other.read_bytes())
    ir.save(loaded, path)
    assert _weights(other) == [1, 2] and _weights(path) == [2] and data.exists()


def test_a_model_is_not_saved_over_its_own_weights(tmp_path: Path) -> None:
    external(tmp_path / "m.onnx", {"a": np.ones((500, 4), np.float32)}, location="w.onnx")
    before = (tmp_path / "w.onnx").read_bytes()
    with pytest.raises(UsageError, match="it contains the model's weights"):
        ir.save(ir.load(tmp_path / "m.onnx"), tmp_path / "w.onnx")
    assert (tmp_path / "w.onnx").read_bytes() == before


def test_1200_external_weights_use_one_file_descriptor(tmp_path: Path) -> None:
    external(tmp_path / "m.onnx", {f"w{i}": np.full(4, i, np.float32) for i in range(1200)})
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    loaded = ir.load(tmp_path / "m.onnx")
    total = sum(float(value.const_value.numpy()[0]) for value in loaded.graph.initializers.values())
    assert total == sum(range(1200))
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) < before + 10


_HUGE = """
import re, sys
from graphopt import ir
model = ir.load(sys.argv[1])
weight = model.graph.initializers["w"].const_value
assert weight.nbytes > 2**31
assert weight.numpy()[-1, 0] == 0
ir.print_model(model), ir.validate(model), ir.clone(model)
print(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])  # ru_maxrss has the parent's
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts on sparse files and on /proc")
def test_more_than_two_gigabytes_use_little_memory(tmp_path: Path) -> None:
    rows = 2**27 + 1000
    proto = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[rows, 4], data_location=TensorProto.EXTERNAL
    )
    proto.external_data.add(key="location", value="w.bin")
    (tmp_path / "m.onnx").write_bytes(
        model(
            [helper.make_node("Gather", ["w", "i"], ["y"])],
            [proto, numpy_helper.from_array(np.array(3), "i")],
        ).SerializeToString()
    )
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(rows * 16)
    done = subprocess.run(
        [sys.executable, "-c", _HUGE, str(tmp_path / "m.onnx")], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 500 * 1024
    with pytest.raises(ResourceLimit, match="2 GB"):
        ir.save(ir.load(tmp_path / "m.onnx"), tmp_path / "out.onnx", weights="inside")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "w.bin"]


def test_models_above_the_limit_use_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ir_io, "INLINE_LIMIT", 1000)
    loaded = ir.from_proto(model([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight("w", 4, 100)]))
    assert len(ir.save(loaded, tmp_path / "out.onnx", threshold=100)) == 2
    assert run(tmp_path / "out.onnx", x=np.ones((1, 4), np.float32))[0].shape == (1, 100)
    with pytest.raises(ResourceLimit):
        ir.to_bytes(loaded)


def test_text_loads_and_saves(tmp_path: Path) -> None:
    loaded = ir.from_proto(model([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight("w", 4, 4)]))
    ir.save(loaded, tmp_path / "m.onnxtxt")
    again = ir.load(tmp_path / "m.onnxtxt")
    assert ir.fingerprint(again, names=True) == ir.fingerprint(loaded, names=True)


def test_saving_is_deterministic_and_does_not_change_the_model(tmp_path: Path) -> None:
    loaded = ir.from_proto(model([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight("w", 4, 4)]))
    before = ir.fingerprint(loaded, names=True)
    for name in ("a.onnx", "b.onnx"):
        ir.save(loaded, tmp_path / name, weights="beside", threshold=1)
    first, second = (onnx.load(tmp_path / name, load_external_data=False) for name in ("a.onnx", "b.onnx"))
    assert first.graph.node == second.graph.node
    assert (tmp_path / "a.onnx.data").read_bytes() == (tmp_path / "b.onnx.data").read_bytes()
    assert ir.fingerprint(loaded, names=True) == before


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    loaded = ir.from_proto(chain(2))
    for path in (tmp_path, tmp_path / "missing" / "m.onnx", tmp_path / ("n" * 300)):
        for weights in ("beside", "inside"):
            with pytest.raises(UsageError, match="can't write"):
                ir.save(loaded, path, weights=weights)
    assert list(tmp_path.iterdir()) == []


def test_data_has_another_name_if_a_folder_has_the_default_name(tmp_path: Path) -> None:
    (tmp_path / "out.onnx.data").mkdir()
    external(tmp_path / "m.onnx", {"large": np.ones((500, 4), np.float32)})
    _, data = ir.save(ir.load(tmp_path / "m.onnx"), tmp_path / "out.onnx")
    assert data.is_file() and ir.data_files(tmp_path / "out.onnx") == [data]


def test_device_files_are_written_in_place() -> None:
    ir.save(ir.from_proto(chain(1)), os.devnull)
    assert not Path(os.devnull).is_file()


def test_long_chains_load_and_save(tmp_path: Path) -> None:
    proto = chain(10_000)
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    loaded = ir.load(tmp_path / "m.onnx")
    assert ir.is_sorted(loaded.graph)
    assert [node.name for node in loaded.graph] == [f"n{i}" for i in range(10_000)]
    ir.save(loaded, tmp_path / "out.onnx")
    assert len(onnx.load(tmp_path / "out.onnx").graph.node) == 10_000


def test_file_permissions_follow_the_umask(tmp_path: Path) -> None:
    loaded = ir.from_proto(chain(2))
    before = os.umask(0o027)
    try:
        written = ir.save(loaded, tmp_path / "m.onnx", weights="beside")
        written += ir.save(loaded, tmp_path / "m.json")
    finally:
        os.umask(before)
    assert [oct(path.stat().st_mode & 0o777) for path in written] == [oct(0o640)] * len(written)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("m.onnx", "backup.pb"),
        ("m.onnx", "m.onnx.bak"),
        ('a"b.json', "copy.json"),
        ("a\\b.json", "copy.json"),
    ],
)
def test_data_stays_for_models_of_any_suffix_and_names_of_any_spelling(
    tmp_path: Path, name: str, other: str
) -> None:
    source, path = tmp_path / "source" / "m.onnx", tmp_path / name
    source.parent.mkdir()
    loaded = _halved(source)
    ir.save(ir.load(source), path, weights="beside")
    (tmp_path / other).write_bytes(path.read_bytes())
    before = sorted(file.name for file in tmp_path.iterdir())
    ir.save(loaded, path, weights="beside")
    assert set(before) <= {file.name for file in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) > len(before)


def test_a_write_protected_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    ir.save(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"), path)
    before = path.read_bytes()
    path.chmod(0o444)
    for apart in (False, True):
        with pytest.raises(UsageError, match="it is write-protected"):
            ir.save(
                parse("g (float[N] x) => (float[N] y) { y = Exp(x) }"),
                path,
                weights="beside" if apart else "copy",
            )
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
