"""Each change of each file of a bundle is refused, and the error names the file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import api
from graphopt.errors import GraphoptError, InvalidModel, RuntimeFailure
from graphopt.specialization.build_record import BuildRecord, OriginalFile
from graphopt.specialization.build_variants import Specialization
from graphopt.specialization.bundle.kernel_files import BundleKernels
from graphopt.specialization.bundle.loaded_bundle import Bundle
from graphopt.specialization.bundle.save import save_with_kernels

from ..model_testing import parse
from .bundle_files import edited

MODEL = f"""
g (float[N, 16] x, int64 i) => (float[N, 32] y)
<float[16, 32] w = {{{", ".join(str(number / 512) for number in range(512))}}}>
{{
  z = MatMul(x, w)
  f = Cast <to = 1> (i)
  y = Add(z, f)
}}
"""
#: The files of :func:`made`, the library under the name that this machine gives it.
FILES = ["manifest.json", "general.onnx", "static-1.onnx", "static-2.onnx", "weights.bin", "kernels"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with variants, weights and a stand-in for a library, which is never loaded."""
    folder = tmp_path_factory.mktemp("bundles")
    runs = [{"x": np.ones((rows, 16), np.float32), "i": np.array(3)} for rows in (1, 4)]
    how = Specialization(graphopt.record_profile(parse(MODEL), runs))
    found = api.specialize(parse(MODEL), how, bundle=True, verify=False, pipeline="O1")
    origin = BuildRecord(original=OriginalFile("m.onnx", "0" * 64, "torch 2"))
    (folder / "built.so").write_bytes(b"\x7fELF" + bytes(range(100)))
    kernels = BundleKernels(folder / "built.so", levels=(2, 3, 4))
    save_with_kernels(replace(found, build_record=origin), folder / "m.gopt", kernels)
    return folder / "m.gopt"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "m.gopt"))


def _file(folder: Path, name: str) -> Path:
    return next(path for path in sorted(folder.iterdir()) if path.name.startswith(name))


def _flip(place: float) -> Callable[[Path], object]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(place * (len(data) - 1))] ^= 1
        path.write_bytes(data)

    return flip


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)  # more than the newline of the manifest


def _link(path: Path) -> None:
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


def _link_inside(path: Path) -> None:
    """Replace the file by a link to another file of the bundle."""
    other = min(item for item in path.parent.iterdir() if item != path)
    path.unlink()
    path.symlink_to(other.name)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _swap(path: Path) -> None:
    """Exchange the file with the next one, in alphabetical order."""
    files = sorted(path.parent.iterdir())
    other = files[(files.index(path) + 1) % len(files)]
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two), other.write_bytes(one)


CHANGES = {
    "flip the first byte": _flip(0),
    "flip a byte in the middle": _flip(0.5),
    "flip the last byte but one": _flip(0.999),
    "cut": _cut,
    "append": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "remove": Path.unlink,
    "rename": lambda path: path.rename(path.with_name("other")),
    "link": _link,
    "link to another file of the bundle": _link_inside,
    "folder": _folder,
    "swap": _swap,
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_refused(folder: Path, file: str, change: str) -> None:
    assert Bundle(folder).check()
    path = _file(folder, file)
    CHANGES[change](path)
    with pytest.raises(GraphoptError) as failure:
        Bundle(folder)
    names = FILES if change == "swap" else [path.name]
    assert any(name in failure.value.message for name in names) and "\n" not in failure.value.message


@pytest.mark.parametrize("name", ["notes.txt", "plan.json", ".hidden", "folder/"])
def test_added_files_are_refused(folder: Path, name: str) -> None:
    (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("{}")
    with pytest.raises(InvalidModel, match=f"contains {name.strip('/')}, which its manifest does not list"):
        Bundle(folder)


@pytest.mark.parametrize("text", ["", "{", '{"graphopt_bundle": 3', "[" * 100_000, "null", "[3]", "{}"])
def test_manifest_that_is_no_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(
        InvalidModel, match=r"manifest\.json: not (JSON, or truncated|the manifest of a bundle)"
    ):
        Bundle(folder)


def test_repeated_entries_are_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"weights":', '"weights": null, "weights":', 1))
    with pytest.raises(InvalidModel, match=r"manifest\.json: malformed manifest: an entry is repeated"):
        Bundle(folder)


# Entries of the manifest --------------------------------------------------------------------------

#: Entries that may be missing: of records, and of mappings with any keys.
_OPTIONAL = {
    "original",
    "versions.*",
    "settings.settings.*",
    "settings.arguments.*",
    "settings.arguments.profile.*",
    "settings.arguments",
    "settings.operation",
    "operators.opsets.*",
    "variants.0.session_options",
    "variants.0.guard.inputs.*",
    "variants.0.guard.inputs.x.*",
    "variants.0.guard.inputs.i.*",
    "inputs.0.dims",
    "inputs.1.dims",
    "outputs.0.dims",
}
#: Prefixes of entries that may have any value: of recorded settings.
_ANY = ("settings.settings.", "settings.arguments.")
#: Entries that may be null.
_NULLABLE = {
    "weights",
    "session_options",
    "kernels.0.cpu_level",
    "target.cpu_level",
    "target.system",
    "target.machine",
    "inputs.0.dims",
    "inputs.1.dims",
    "outputs.0.dims",
    "inputs.0.dims.0",
    "inputs.0.dims.1",
    "outputs.0.dims.0",
    "outputs.0.dims.1",
    "variants.0.guard.inputs.x.shape",
    "variants.0.guard.inputs.i.shape",
    "variants.0.guard.inputs.i.ints",
}


def _paths(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each entry; of the entries of a list, only those of the first item."""
    items = data.items() if isinstance(data, dict) else enumerate(data[:1]) if isinstance(data, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from _paths(value, (*at, key))


def _parent(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        data = data[key]
    return data


def _refusal(folder: Path, change: Callable[[dict[str, Any]], object]) -> str | None:
    """The error after ``change`` of the manifest and a new checksum; the manifest is restored."""
    whole = (folder / "manifest.json").read_bytes()
    try:
        Bundle(edited(folder, change))
    except GraphoptError as failure:
        assert "\n" not in failure.message
        return failure.message
    finally:
        (folder / "manifest.json").write_bytes(whole)
    return None


def test_each_changed_entry_is_refused_by_the_checksum(folder: Path) -> None:
    path = folder / "manifest.json"
    whole = json.loads(path.read_text())
    paths = list(_paths(whole))
    assert len(paths) > 60
    for place in paths:
        for change in ("remove", "replace"):
            data = json.loads(path.read_text())
            parent = _parent(data, place)
            if change == "remove":
                del parent[place[-1]]
            else:
                parent[place[-1]] = ["other"]
            (folder / "manifest.json").write_text(json.dumps(data))
            with pytest.raises(InvalidModel, match=r"manifest\.json"):
                Bundle(folder)
            path.write_text(json.dumps(whole))
    assert Bundle(folder).check()


def test_each_removed_entry_is_refused_despite_a_valid_checksum(folder: Path) -> None:
    accepted = set()
    for path in _paths(json.loads((folder / "manifest.json").read_text())):

        def remove(data: dict[str, Any], path: tuple[Any, ...] = path) -> None:
            del _parent(data, path)[path[-1]]

        if path[-1] == 0 or path == ("checksum",):  # items of lists may be missing
            continue
        name = ".".join(map(str, path))
        group = ".".join(map(str, (*path[:-1], "*")))
        message = _refusal(folder, remove)
        if message is None:
            accepted.add(name if name in _OPTIONAL else group)
        else:
            assert "manifest.json" in message or "does not list" in message, name
    assert accepted <= _OPTIONAL


@pytest.mark.parametrize("value", [None, 3.5, -1, "\0", [3], {"a": 3}, True], ids=repr)
def test_each_entry_of_a_wrong_type_is_refused_despite_a_valid_checksum(folder: Path, value: Any) -> None:
    for path in _paths(json.loads((folder / "manifest.json").read_text())):
        name = ".".join(map(str, path))
        old = _parent(json.loads((folder / "manifest.json").read_text()), path)[path[-1]]
        if name.startswith(_ANY) or (value is None and name in _NULLABLE):
            continue
        takes_text = name.rpartition(".")[0].endswith(("dims", "shape")) or (
            old is None and name in _NULLABLE
        )
        if type(value) is type(old) or (isinstance(value, str) and takes_text):
            continue  # another value of the right type

        def change(data: dict[str, Any], path: tuple[Any, ...] = path) -> None:
            _parent(data, path)[path[-1]] = value

        message = _refusal(folder, change)
        assert message is not None, name
        assert "manifest.json" in message, (name, message)


@pytest.mark.parametrize(
    "file",
    ["", ".", "..", "/etc/passwd", "../m.onnx", "a/b.onnx", "a\\b.onnx", "c:b.onnx", "a\0b", "manifest.json"],
)
@pytest.mark.parametrize("use", ["general", "variant", "weights", "kernels"])
def test_paths_out_of_the_folder_are_refused(folder: Path, use: str, file: str) -> None:
    def change(data: dict[str, Any]) -> None:
        places = {"general": (data["general"], "file"), "variant": (data["variants"][0], "file")}
        places |= {"weights": (data, "weights"), "kernels": (data["kernels"][0], "file")}
        entry, key = places[use]
        data["files"][file] = data["files"].pop(entry[key])
        entry[key] = file

    message = _refusal(folder, change)
    assert message is not None and f"manifest.json: file outside of the bundle: {file!r}" in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.update(graphopt_bundle=4), "unsupported format version 4"),
        (lambda data: data.update(graphopt_bundle=3.0), "unsupported format version 3.0"),
        (lambda data: data.update(other=3), "unknown entry 'other'"),
        (lambda data: data["target"].update(other=3), "unknown entry 'other'"),
        (lambda data: data["variants"].append(data["variants"][0]), "duplicate variant names"),
        (lambda data: data["variants"][0].update(name="general"), "duplicate variant names"),
        (
            lambda data: data["variants"][0].update(file="general.onnx"),
            "the file 'general.onnx' has two uses",
        ),
        (lambda data: data.update(weights="general.onnx"), "the file 'general.onnx' has two uses"),
        (lambda data: data.update(weights=None), "the file 'weights.bin' has no use"),
        (lambda data: data.update(weights="other.bin"), "no checksum of other.bin"),
        (lambda data: data.update(native=["other"]), "native kernels of an unknown variant"),
        (lambda data: data.update(native=["general"] * 2), "native must be a list of different strings"),
        (
            lambda data: data["files"]["weights.bin"].update(bytes=3),
            "weights.bin does not match its checksum",
        ),
        (lambda data: data["files"]["weights.bin"].update(sha256="0" * 64), "weights.bin does not match"),
        (
            lambda data: data["files"]["weights.bin"].update(sha256="A" * 64),
            "SHA-256 of the file 'weights.bin'",
        ),
        (lambda data: data.update(checksum="0" * 64), "its checksum does not match"),
    ],
)
def test_contradictions_are_refused(
    folder: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    message = _refusal(folder, change)
    assert message is not None and words in message


def test_unchecked_bundle_fails_on_first_use(folder: Path) -> None:
    (folder / "static-1.onnx").write_bytes(b"no model")
    bundle = Bundle(folder, check=False)
    feeds = {"x": np.ones((4, 16), np.float32), "i": np.array(3)}
    assert bundle.run(feeds)["y"].shape == (4, 32)
    with pytest.raises(RuntimeFailure, match=r"static-1 of .*onnxruntime can't load the model"):
        bundle.run({**feeds, "x": np.ones((1, 16), np.float32)})


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 9])
def test_each_flipped_bit_is_detected(folder: Path, step: int) -> None:
    random, count = np.random.default_rng(0), 0
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for place in random.choice(len(whole), 90, replace=False)[::step]:
            data = bytearray(whole)
            data[place] ^= 1 << int(random.integers(8))
            file.write_bytes(data)
            with pytest.raises(InvalidModel) as failure:
                Bundle(folder)
            assert file.name in failure.value.message
            count += 1
        file.write_bytes(whole)
    assert count == len(FILES) * 90 // step and Bundle(folder).check()
