"""samples/host/host.c, with gcc's sanitizers, against bundles in Python."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import graphopt
from benchmarks import c_host
from benchmarks.c_host import HostRun, differences, run
from graphopt import ir
from graphopt.profile import Guard, ValueProfile
from graphopt.specialization.bundle.kernel_files import machine
from graphopt.util.ort_array_conversion import LOW_TYPES

from ..model_testing import parse
from .c_bundles import add_file, read_manifest, write_bundle, write_manifest

#: d has a default.
MODEL = """
g (float[N, 4] x, float[K, M] y, int64[2] i, bool f, float[4] d = {1, 2, 3, 4}) => (float[A, 4] z, int64[2] j, float[K, M] u)
{
  s = Add(x, d)
  n = Neg(s)
  z = Where(f, s, n)
  j = Add(i, i)
  u = Identity(y)
}
"""


def _feeds(x: int, y: tuple[int, int], i: tuple[int, int] = (1, 2), f: bool = True) -> dict[str, np.ndarray]:
    random = np.random.default_rng(x)
    return {
        "x": random.normal(size=(x, 4)).astype(np.float32),
        "y": random.normal(size=y).astype(np.float32),
        "i": np.array(i),
        "f": np.array(f),
    }


FLOAT, LONG, BOOL = "tensor(float)", "tensor(int64)", "tensor(bool)"
#: In this order, each guard has more freedom than the one before.
GUARDS = {
    "contents": Guard(
        {
            "x": ValueProfile(FLOAT, (1, 4)),
            "i": ValueProfile(LONG, (2,), (1, -2)),
            "f": ValueProfile(BOOL, (), (1,)),
        },
        ("d",),
    ),
    "sizes": Guard({"x": ValueProfile(FLOAT, (1, 4)), "y": ValueProfile(FLOAT, (2, 3))}, ("d",)),
    "equal": Guard({"x": ValueProfile(FLOAT, ("n", 4)), "y": ValueProfile(FLOAT, ("n", "n"))}, ("d",)),
    "default": Guard({"d": ValueProfile(FLOAT, (4,)), "x": ValueProfile(FLOAT, ("n", "m"))}),
    "any-size": Guard({"x": ValueProfile(FLOAT, ("?", 4)), "y": ValueProfile(FLOAT, ("?", 5))}),
    "rare": Guard({"d": ValueProfile(FLOAT, (4,), always=False), "y": ValueProfile("", ("a", "a"))}),
    "unknown-input": Guard({"q": ValueProfile(FLOAT, (4,))}),
    "type": Guard({"y": ValueProfile("tensor(double)")}),
    "no-shape": Guard({"y": ValueProfile(FLOAT), "i": ValueProfile(LONG, (2,), (0, 0))}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with all kinds of guards."""
    return write_bundle(tmp_path_factory.mktemp("bundle") / "model.gopt", parse(MODEL), GUARDS)


def _compare(program: Path, folder: Path, feeds: dict[str, np.ndarray], scratch: Path) -> HostRun:
    found = run(program, folder, feeds, scratch)
    assert differences(found, graphopt.Bundle(folder, device="cpu"), feeds) == []
    return found


@pytest.mark.parametrize(
    "variant, feeds",
    [
        ("contents", _feeds(1, (2, 3), (1, -2))),
        ("sizes", _feeds(1, (2, 3), (1, 2))),
        ("sizes", _feeds(1, (2, 3), (1, -2), False)),
        ("equal", _feeds(3, (3, 3))),
        ("general", _feeds(3, (3, 2))),
        ("default", _feeds(3, (3, 3)) | {"d": np.ones(4, np.float32)}),
        ("any-size", _feeds(3, (7, 5))),
        ("rare", _feeds(3, (2, 2))),
        ("rare", _feeds(3, (0, 0))),
        ("no-shape", _feeds(0, (2, 3), (0, 0))),
        ("general", _feeds(0, (2, 3))),
    ],
)
def test_runs_the_variant_that_python_runs(program, folder, tmp_path, variant, feeds) -> None:
    assert _compare(program, folder, feeds, tmp_path / "run").variant == variant


def test_random_guards_select_the_same_variants(program, tmp_path) -> None:
    random = np.random.default_rng(0)
    sizes = (0, 1, 2, 3, 4)

    def expected(rank: int, type_: str) -> ValueProfile:
        dims = tuple(random.choice(["a", "b", "?", *"1234"], rank))
        shape = tuple(int(dim) if dim.isdigit() else str(dim) for dim in dims)
        return ValueProfile(type_, None if random.random() < 0.1 else shape, None, random.random() < 0.8)

    chosen = set()
    for bundle in range(3):
        guards = {
            f"v{number}": Guard(
                {
                    name: expected(rank, FLOAT)
                    for name, rank in (("x", 2), ("y", 2), ("d", 1))
                    if random.random() < 0.7
                },
                ("d",) if random.random() < 0.3 else (),
            )
            for number in range(6)
        }
        folder = write_bundle(tmp_path / f"{bundle}.gopt", parse(MODEL), guards)
        for number in range(6):
            feeds = _feeds(int(random.choice(sizes)), (int(random.choice(sizes)), int(random.choice(sizes))))
            if random.random() < 0.5:
                feeds["d"] = np.ones(4, np.float32)
            chosen.add(_compare(program, folder, feeds, tmp_path / f"{bundle}-{number}").variant)
    assert len(chosen) >= 4


#: Element types by the number in ONNX, and one array of each.
NUMBERS = ("float", "double", "float16", "bool", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)))


def _array(type_: str) -> np.ndarray:
    low = LOW_TYPES.get(f"tensor({type_})")
    if low is not None:
        values = np.arange(-3, 4) if type_.startswith("int") and type_ != "int2" else np.arange(0, 2)
        return np.resize(values, (3, 3)).astype(low.dtype)
    name = {"float": "float32", "double": "float64"}.get(type_, type_)
    return np.random.default_rng(1).integers(0, 200, (3, 3)).astype(np.dtype(name))


def _passing(type_: str) -> str:
    """A graph that returns its input; onnxruntime converts types that it can't copy."""
    low = LOW_TYPES.get(f"tensor({type_})")
    nodes = "y = Identity(x)"
    if low is not None and low.bits < 8:
        nodes = f"f = Cast <to = 1> (x) y = Cast <to = {low.code}> (f)"
    elif type_ == "float8e8m0":
        nodes = "i = Identity(x) y = Identity(i)"
    header = '<ir_version: 13, opset_import: ["" : 25]>'
    return f"{header} g ({type_}[N, 3] x) => ({type_}[N, 3] y) {{ {nodes} }}"


@pytest.mark.parametrize("type_", [*NUMBERS, *(name[7:-1] for name in LOW_TYPES)])
def test_element_types_pass_unchanged(program, tmp_path, type_) -> None:
    guard = Guard({"x": ValueProfile(f"tensor({type_})", ("n", "n"))})
    try:
        model = parse(_passing(type_))
        graphopt.run(model, {"x": _array(type_)})
    except Exception as error:  # onnx's parser, or onnxruntime
        pytest.skip(f"onnx or onnxruntime has no {type_}: {error}")
    folder = write_bundle(tmp_path / "model.gopt", model, {"square": guard})
    assert _compare(program, folder, {"x": _array(type_)}, tmp_path / "run").variant == "square"


@pytest.mark.parametrize("type_", ["int4", "uint4", "int2", "int8"])
def test_contents_of_narrow_integers(program, tmp_path, type_) -> None:
    known, other = {"uint4": ((1, 5, 15), (1, 5, 7)), "int2": ((-2, 1, 0), (1, 1, 0))}.get(
        type_, ((-7, 5, 7), (7, 5, 7))
    )
    guard = Guard({"x": ValueProfile(f"tensor({type_})", (1, 3), known)})
    dtype = getattr(ml_dtypes, type_, type_)
    folder = write_bundle(tmp_path / "model.gopt", parse(_passing(type_)), {"known": guard})
    for variant, values in (("known", known), ("general", other)):
        found = _compare(program, folder, {"x": np.array([values]).astype(dtype)}, tmp_path / variant)
        assert found.variant == variant


@pytest.mark.parametrize(
    "array",
    [np.array(["a", "", "häß", "𝄞 clef"]), np.array([], "U3"), np.array([["one"], ["two"]], "S5")],
    ids=["unicode", "empty", "bytes"],
)
def test_strings_pass_unchanged(program, tmp_path, array) -> None:
    dims = ", ".join("NM"[: array.ndim])
    model = parse(f"g (string[{dims}] x) => (string[{dims}] y) {{ y = Identity(x) }}")
    guard = Guard({"x": ValueProfile("tensor(string)", (4,))})
    folder = write_bundle(tmp_path / "model.gopt", model, {"four": guard})
    found = run(program, folder, {"x": array}, tmp_path / "run")
    assert found.status == 0, found.errors
    assert found.variant == ("four" if array.shape == (4,) else "general")
    assert found.outputs["y"].tolist() == array.astype(str).tolist()


@pytest.mark.parametrize("change", [np.asfortranarray, lambda x: x.astype(x.dtype.newbyteorder(">"))])
def test_layouts_of_arrays(program, folder, tmp_path, change) -> None:
    feeds = {name: change(array) for name, array in _feeds(3, (7, 5)).items()}
    _compare(program, folder, feeds, tmp_path / "run")


def test_names_of_outputs_become_names_of_files(program, tmp_path) -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    model.graph.inputs[0].name, model.graph.outputs[0].name = "a=b", "../ö"
    folder = write_bundle(tmp_path / "model.gopt", model, {})
    found = run(program, folder, {"a=b": np.ones(2, np.float32)}, tmp_path / "run")
    assert found.status == 0, found.errors
    assert found.outputs.keys() == {"%2E.%2F%C3%B6"}


def test_inputs_of_optional_types(program, tmp_path) -> None:
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [None]))
    inputs = [helper.make_value_info("x", optional), helper.make_tensor_value_info("z", 1, ["N"])]
    outputs = [helper.make_tensor_value_info("y", 9, []), helper.make_tensor_value_info("w", 1, ["N"])]
    nodes = [helper.make_node("OptionalHasElement", ["x"], ["y"]), helper.make_node("Neg", ["z"], ["w"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    guards = {
        "fed": Guard({"x": ValueProfile("optional(tensor(float))")}),
        "absent": Guard({"z": ValueProfile(FLOAT, ("n",))}, ("x",)),
    }
    folder = write_bundle(tmp_path / "model.gopt", ir.from_proto(model), guards)
    feeds = {"z": np.ones(2, np.float32)}
    assert _compare(program, folder, feeds, tmp_path / "absent").variant == "absent"
    assert _compare(program, folder, feeds | {"x": feeds["z"]}, tmp_path / "fed").variant == "fed"


def test_weights_and_inputs_that_variants_lack(program, tmp_path) -> None:
    weights = ", ".join(str(number / 512) for number in range(512))
    model = parse(
        f"g (float[N, 16] x, int64 i) => (float[N, 32] y) <float[16, 32] w = {{{weights}}}> {{ y = MatMul(x, w) }}"
    )
    guard = Guard({"x": ValueProfile(FLOAT, (2, 16)), "i": ValueProfile(LONG, (), (3,))})
    folder = write_bundle(tmp_path / "model.gopt", model, {"two": guard})
    assert (folder / "weights.bin").is_file()
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32), "i": np.array(3)}
    assert _compare(program, folder, feeds, tmp_path / "hit").variant == "two"
    assert _compare(program, folder, feeds | {"i": np.array(4)}, tmp_path / "miss").variant == "general"


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 1, "spinning": False, "arena": False, "disabled": ["ConstantFolding", "GeluFusion"]},
        {"threads": 10**6},
        {"device": "cuda", "threads": 1},
        {"threads": True, "disabled": [1, "a", None]},
        [],
        "{",
    ],
)
def test_session_options_are_applied(program, tmp_path, options) -> None:
    text = json.dumps({"device": "cpu"} | options) if isinstance(options, dict) else json.dumps(options)
    folder = write_bundle(tmp_path / "model.gopt", parse(MODEL), GUARDS, session_options=text)
    _compare(program, folder, _feeds(3, (3, 3)), tmp_path / "run")


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose general model has a native group, with its kernels."""
    text = "g (float[N, 64] x) => (float[N, 64] y) { a = Exp(x) b = Add(a, x) c = Tanh(b) y = Mul(c, x) }"
    folder = tmp_path_factory.mktemp("native") / "model.gopt"
    compiled = graphopt.aot_compile(parse(text), folder, fuser="native", verify=False)
    if not compiled.report.kernels:
        pytest.skip("no kernels were built")
    return folder


def test_kernels_are_used_if_present(program, native, tmp_path) -> None:
    feeds = {"x": np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)}
    found = run(program, native, feeds, tmp_path / "with")
    assert differences(found, graphopt.Bundle(native, device="cpu", trusted=True), feeds) == []
    data = read_manifest(native)
    library = data["kernels"][0]["file"]
    without = tmp_path / "without.gopt"
    without.mkdir()
    (without / "general.onnx").write_bytes((native / "general.onnx").read_bytes())
    write_manifest(without, data | {"kernels": [], "files": {"general.onnx": data["files"]["general.onnx"]}})
    found = run(program, without, feeds, tmp_path / "run")
    expected = graphopt.run(graphopt.load(without / "general.onnx"), feeds, libraries=())
    assert c_host.same_bits(found.outputs["y"], expected["y"])
    # a library that is no library shows that the first run used its own
    (without / library).write_bytes(b"no library")
    broken = data | {"files": dict(data["files"])}
    add_file(broken, without / library)
    write_manifest(without, broken)
    found = run(program, without, feeds, tmp_path / "broken")
    assert found.status == 1 and "to load the kernels" in found.errors and library in found.errors


def test_the_highest_level_of_kernels_is_used(program, native, tmp_path) -> None:
    data = read_manifest(native)
    if machine() != "x86_64":
        pytest.skip("levels are those of x86-64")
    folder = tmp_path / "model.gopt"
    folder.mkdir()
    for name in data["files"]:
        (folder / name).write_bytes((native / name).read_bytes())
    for name in ("high.so", "other.so"):
        (folder / name).write_bytes(b"no library")
        add_file(data, folder / name)
    own = data["kernels"][0]
    unusable = [own | {"file": "high.so", "cpu_level": 9}, own | {"file": "other.so", "machine": "riscv64"}]
    feeds = {"x": np.ones((2, 64), np.float32)}
    for number, kernels in enumerate(itertools.permutations([own | {"cpu_level": 1}, *unusable])):
        write_manifest(folder, data | {"kernels": list(kernels)})
        assert run(program, folder, feeds, tmp_path / str(number)).errors == ""
    write_manifest(folder, data | {"kernels": unusable})
    found = run(program, folder, feeds, tmp_path / "none")
    assert (
        found.status == 1 and "the kernels of the bundle need x86-64-v9, this processor has" in found.errors
    )
