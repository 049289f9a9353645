"""samples/host/host.c refuses damaged bundles and arrays in one line, without a fault that the sanitizers report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.c_host import run
from graphopt.profile import Guard, ValueProfile

from ..model_testing import parse
from .c_bundles import add_file, read_manifest, write_bundle, write_manifest

WEIGHTS = ", ".join(str(number / 512) for number in range(512))
MODEL = f"""
g (float[N, 16] x, int64[1] i, float[32] d = {{{", ".join(["1"] * 32)}}}) => (float[N, 32] y)
<float[16, 32] w = {{{WEIGHTS}}}>
{{
  z = MatMul(x, w)
  y = Add(z, d)
}}
"""
GUARDS = {
    "one": Guard(
        {
            "x": ValueProfile("tensor(float)", (1, 16)),
            "i": ValueProfile("tensor(int64)", (1,), (3,)),
            "d": ValueProfile("tensor(float)", ("n",), always=False),
        }
    ),
    "any": Guard({"x": ValueProfile("tensor(float)", ("n", "m"))}, ("d",)),
}
FEEDS = {"x": np.ones((1, 16), np.float32), "i": np.array([3])}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "model.gopt"
    return write_bundle(folder, parse(MODEL), GUARDS, session_options='{"device": "cpu", "threads": 1}')


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model.gopt"))


def _refused(program: Path, folder: Path, scratch: Path, feeds: dict[str, Any] | None = None) -> str:
    """The error, of one line, of a run that writes nothing."""
    found = run(program, folder, FEEDS if feeds is None else feeds, scratch)
    assert found.status == 1, found.errors
    assert found.errors.startswith("error: ") and found.errors.count("\n") == 1, found.errors
    assert not found.outputs
    return found.errors


FILES = ("general.onnx", "one.onnx", "any.onnx", "weights.bin", "manifest.json")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("way", ["changed", "truncated", "longer", "removed", "linked", "folder"])
def test_a_damaged_file_is_named(program, folder, tmp_path, name, way) -> None:
    file = folder / name
    data = bytearray(file.read_bytes())
    file.unlink()
    if way == "changed":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif way == "truncated":
        file.write_bytes(data[:-1] if name != "manifest.json" else data[:-3])
    elif way == "longer":
        file.write_bytes(data + b"x")
    elif way == "linked":
        (tmp_path / "other").write_bytes(data)
        file.symlink_to(tmp_path / "other")
    elif way == "folder":
        file.mkdir()
    assert name in _refused(program, folder, tmp_path / "run")


@pytest.mark.parametrize("name", ["../outside.onnx", "/etc/passwd", "..", "", "a/b", "a\\b"])
def test_files_outside_of_the_bundle_are_refused(program, folder, tmp_path, name) -> None:
    (tmp_path / "outside.onnx").write_bytes((folder / "general.onnx").read_bytes())
    data = read_manifest(folder)
    data["general"]["file"] = name
    data["files"][name] = data["files"].pop("general.onnx")
    write_manifest(folder, data)
    assert f"file outside of the bundle: '{name}'" in _refused(program, folder, tmp_path / "run")


@pytest.mark.parametrize(
    "entry, value, message",
    [
        ("device", "cuda", "the bundle is for the device cuda, this program runs on the CPU"),
        ("system", "win32", "the bundle is for the system win32, this is linux"),
        ("machine", "riscv64", "the bundle is for the machine riscv64, this is"),
    ],
)
def test_another_target_is_refused(program, folder, tmp_path, entry, value, message) -> None:
    data = read_manifest(folder)
    data["target"][entry] = value
    write_manifest(folder, data)
    assert message in _refused(program, folder, tmp_path / "run")


def test_other_formats_are_refused(program, folder, tmp_path) -> None:
    data = read_manifest(folder)
    write_manifest(folder, data | {"graphopt_bundle": 4})
    assert "manifest.json has format 4, this program reads format 3" in _refused(
        program, folder, tmp_path / "4"
    )
    data.pop("graphopt_bundle")
    write_manifest(folder, data)
    assert "manifest.json is not that of a bundle" in _refused(program, folder, tmp_path / "none")
    file = tmp_path / "zipped.gopt"
    file.write_bytes(b"PK\x03\x04")
    assert "is not a folder; unpack a zipped bundle" in _refused(program, file, tmp_path / "zip")
    assert "is not a bundle" in _refused(program, tmp_path, tmp_path / "folder")
    assert "No such file" in _refused(program, tmp_path / "absent", tmp_path / "run")


def test_models_that_onnxruntime_refuses(program, folder, tmp_path) -> None:
    (folder / "one.onnx").write_bytes(b"no model")
    data = read_manifest(folder)
    add_file(data, folder / "one.onnx")
    data["versions"] = {"onnxruntime": "99.1.0"}
    write_manifest(folder, data)
    error = _refused(program, folder, tmp_path / "run")
    assert "onnxruntime failed to load the model" in error
    assert "(the bundle was written with onnxruntime 99.1.0, this is " in error


def test_libraries_that_models_need(program, folder, tmp_path) -> None:
    data = read_manifest(folder)
    data["operators"]["libraries"] = ["my.domain"]
    write_manifest(folder, data)
    message = "the models need a library with the operators of the domain 'my.domain'"
    assert message in _refused(program, folder, tmp_path / "run")
    found = run(program, folder, FEEDS, tmp_path / "given", "--library", str(tmp_path / "no.so"))
    assert found.status == 1 and "onnxruntime failed to load a library" in found.errors


@pytest.mark.parametrize(
    "feeds, message",
    [
        ({"x": FEEDS["x"]}, "the model needs a value for input 'i'"),
        (FEEDS | {"z": FEEDS["x"]}, "is not NAME=FILE.npy with the name of an input"),
        (FEEDS | {"x": np.ones((1, 16))}, "input 'x' expects tensor(float), "),
        (FEEDS | {"x": np.ones((1, 15), np.float32)}, "onnxruntime failed to run the model: "),
        (FEEDS | {"i": np.array(["3"])}, "input 'i' expects tensor(int64), "),
        (FEEDS | {"i": np.zeros(1, [("a", "i8")])}, "is not a .npy file of one type of elements"),
        (FEEDS | {"i": np.array(["3"], object)}, "contains Python objects"),
    ],
)
def test_inputs_that_do_not_fit(program, folder, tmp_path, feeds, message) -> None:
    assert message in _refused(program, folder, tmp_path / "run", feeds)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 16), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 16), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 16), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 16, }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 16)",
        b"{'descr': '<f4', 'fortran_order': False}",
        b"{'descr': '<f', 'fortran_order': False, 'shape': (1, 16), }",
        b"{'descr': '<f99999999999999999999', 'fortran_order': False, 'shape': (1, 16), }",
        b"{'descr': '<V0', 'fortran_order': False, 'shape': (1, 16), }",
        b"{'descr': '', 'fortran_order': False, 'shape': (1, 16), }",
        b"{'descr': '<f4', 'fortran_order': maybe, 'shape': (1, 16), }",
        b"{'descr': '<f4', 'other': 1, 'fortran_order': False, 'shape': (1, 16), }",
        b"{'shape': (" + b"1, " * 70 + b"16), 'descr': '<f4', 'fortran_order': True, }",
        b"",
        b"\xff",
    ],
)
def test_malformed_arrays(program, folder, tmp_path, header) -> None:
    file = tmp_path / "x.npy"
    file.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\x00" * 64)
    words = [f"x={file}", f"i={tmp_path / 'i.npy'}", "-o", str(tmp_path / "out")]
    np.save(tmp_path / "i.npy", FEEDS["i"])
    done = subprocess.run([str(program), str(folder), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "out").exists()


def test_outputs_that_can_not_be_written(program, folder, tmp_path) -> None:
    (tmp_path / "run" / "out" / "y.npy").mkdir(parents=True)
    for name, array in FEEDS.items():
        np.save(tmp_path / f"{name}.npy", array)
    words = [*(f"{name}={tmp_path / name}.npy" for name in FEEDS), "-o", str(tmp_path / "run" / "out")]
    done = subprocess.run([str(program), str(folder), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "error: can't write " in done.stderr
    assert os.listdir(tmp_path / "run" / "out") == ["y.npy"]


def test_usage(program, folder) -> None:
    for words in ([], [str(folder), "-o"], [str(folder), "--other"]):
        done = subprocess.run([str(program), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and done.stderr.startswith("usage: ")


def _open(opener: Path, original: Path, folder: Path, texts: list[bytes]) -> list[str]:
    """The results of opening copies of a bundle with these manifests."""
    folders = []
    for number, text in enumerate(texts):
        copy = folder / str(number)
        copy.mkdir()
        for name in FILES[:-1]:
            os.link(original / name, copy / name)
        (copy / "manifest.json").write_bytes(text)
        folders.append(str(copy))
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=1"}
    done = subprocess.run(
        [str(opener), *folders], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(texts)
    assert all(line.startswith(("error: ", "opened: ")) for line in lines)
    return lines


def test_changed_bytes_of_the_manifest_are_refused(opener, original, tmp_path) -> None:
    text = (original / "manifest.json").read_bytes()
    random = np.random.default_rng(0)
    texts = [text]
    for _ in range(400):
        changed = bytearray(text)
        for position in random.integers(0, len(text), random.integers(1, 4)):
            kind = random.integers(0, 4)
            if kind == 0:
                changed[position : position + 1] = bytes([random.integers(0, 256)])
            elif kind == 1:
                del changed[position : position + random.integers(1, 40)]
            elif kind == 2:
                changed[position:position] = random.choice(
                    [b"[", b"{", b'"', b"\\u12", b"\\ud800", b"\xf0\x9d", b"9" * 400]
                )
            else:
                del changed[position:]
        texts.append(bytes(changed))
    lines = _open(opener, original, tmp_path, texts)
    assert lines[0] == "opened: the model needs a value for input 'x'"
    for changed, line in zip(texts[1:], lines[1:], strict=True):
        assert line.startswith("error: ") or _equal(changed, text), (line, changed)


def _equal(one: bytes, other: bytes) -> bool:
    """Whether two texts are the same JSON, apart from spaces."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


#: Replacements of entries of the manifest.
VALUES = (
    None,
    True,
    0,
    -1,
    2**63,
    -(2**63),
    1e300,
    "",
    "x",
    "general",
    "tensor(float)",
    [],
    {},
    [[]],
    {"": {}},
    ["a", 1],
)


def test_changed_entries_of_the_manifest_are_no_crash(opener, original, tmp_path) -> None:
    text = json.dumps(read_manifest(original))
    texts = []
    paths = list(_paths(json.loads(text)))
    random = np.random.default_rng(0)
    for number in range(600):
        data = json.loads(text)
        for path in (paths[random.integers(len(paths))] for _ in range(1 + number % 2)):
            _change(data, path, random)
        write_manifest(tmp_path, data)
        texts.append((tmp_path / "manifest.json").read_bytes())
    lines = _open(opener, original, tmp_path, texts)
    assert sum("malformed manifest.json" in line for line in lines) > 100
    assert sum(line.startswith("opened: ") for line in lines) > 100


def _paths(item: Any) -> list[tuple[Any, ...]]:
    """The paths of all entries below ``item``, without the checksum."""
    parts = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    found: list[tuple[Any, ...]] = []
    for key, part in parts:
        if key != "checksum":
            found += [(key,), *((key, *rest) for rest in _paths(part))]
    return found


def _change(data: Any, path: tuple[Any, ...], random: np.random.Generator) -> None:
    """Replace, remove or repeat the entry at ``path``, if it still exists."""
    for key in path[:-1]:
        if not isinstance(data, list | dict) or (isinstance(data, dict) and key not in data):
            return
        if isinstance(data, list) and key >= len(data):
            return
        data = data[key]
    key = path[-1]
    changes: list[Callable[[], Any]] = [lambda: data.__setitem__(key, VALUES[random.integers(len(VALUES))])]
    if isinstance(data, dict):
        changes += [lambda: data.pop(key, None), lambda: data.update({f"{key}2": data.get(key)})]
    elif isinstance(data, list) and key < len(data):
        changes += [lambda: data.pop(key), lambda: data.append(data[key])]
    else:
        return
    changes[random.integers(len(changes))]()


@pytest.mark.parametrize(
    "text, message",
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1, "a": 2}', "duplicate key"),
        (b'{"a": "\xc0\x80"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": "\n"}', "control character in a string"),
        (b'{"a": "\\ud800"}', "unsupported escape"),
        (b'{"a": "\\u0000"}', "unsupported escape"),
        (b'{"a": "\\x"}', "unknown escape"),
        (b'{"a": 01}', "no comma or end"),
        (b'{"a": NaN}', "no value"),
        (b'{"a": 1,}', "no string"),
        (b'{"a": "', "unterminated string"),
        (b'{"a": "\\', "unterminated string"),
        (b"{} {}", "text after the end"),
        (b"\xef\xbb\xbf{}", "no value"),
        (b"", "no value"),
        (b"\x00", "no value"),
        (b"[]", "is not that of a bundle"),
    ],
)
def test_malformed_json(opener, original, tmp_path, text, message) -> None:
    assert message in _open(opener, original, tmp_path, [text])[0]
