"""Bundles as zip files: loading, and refused members."""

from __future__ import annotations

import os
import pickle
import stat
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import api
from graphopt.errors import InvalidModel, UsageError
from graphopt.specialization.bundle.archive import check_replaceable_archive
from graphopt.specialization.bundle.loaded_bundle import Bundle

from ..model_testing import parse

MODEL = f"""
g (float[N, 16] x) => (float[N, 32] y)
<float[16, 32] w = {{{", ".join(str(number / 512) for number in range(512))}}}>
{{ z = MatMul(x, w)  y = Relu(z) }}
"""
FEEDS = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "m.gopt"
    graphopt.aot_compile(parse(MODEL), path, archive=True, verify=False)
    return path


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _zip(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("name", ["m.gopt", "m.zip", "m"])
def test_a_zip_file_loads_under_any_name(made: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(made.read_bytes())
    assert api.is_bundle(path)
    bundle = graphopt.load(path)
    assert isinstance(bundle, Bundle) and bundle.folder == path
    path.unlink()  # its members are extracted
    np.testing.assert_allclose(bundle.run(FEEDS)["y"], api.run(parse(MODEL), FEEDS)["y"], rtol=1e-6)


def test_a_folder_and_a_zip_file_have_equal_members(tmp_path: Path) -> None:
    for name, archive in (("m", False), ("z", True)):  # a record of settings names the form
        graphopt.aot_compile(
            parse(MODEL), tmp_path / name, archive=archive, verify=False, record_settings=False
        )
    files = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    members = _members(tmp_path / "z")
    assert files == members and next(iter(members)) == "manifest.json"
    other = _zip(tmp_path / "other", dict(sorted(files.items())))
    assert Bundle(other).run(FEEDS)["y"].shape == (2, 32)


def test_a_zip_file_is_reproducible(made: Path, tmp_path: Path) -> None:
    graphopt.aot_compile(parse(MODEL), tmp_path / "m", archive=True, verify=False)
    assert (tmp_path / "m").read_bytes() == made.read_bytes()


def test_a_zip_file_is_pickled_by_its_path(made: Path) -> None:
    bundle = pickle.loads(pickle.dumps(Bundle(made, device="cpu")))
    assert bundle.folder == made and bundle.run(FEEDS)["y"].shape == (2, 32)


def test_extracted_members_are_removed(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bundle = Bundle(made, device="cpu")
    assert os.listdir(tmp_path)
    del bundle
    assert not os.listdir(tmp_path)


# Refused files ------------------------------------------------------------------------------------


def _deflated(members: dict[str, bytes], path: Path) -> None:
    _zip(path, members, zipfile.ZIP_DEFLATED)


def _renamed(name: str) -> Callable[[dict[str, bytes], Path], None]:
    def change(members: dict[str, bytes], path: Path) -> None:
        _zip(path, {**members, name: b"other"})

    return change


def _repeated(members: dict[str, bytes], path: Path) -> None:
    with zipfile.ZipFile(_zip(path, members), "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("general.onnx", members["general.onnx"])


def _linked(members: dict[str, bytes], path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.external_attr = (stat.S_IFLNK if name == "weights.bin" else stat.S_IFREG | 0o644) << 16
            archive.writestr(info, b"/etc/passwd" if name == "weights.bin" else data)


def _encrypted(members: dict[str, bytes], path: Path) -> None:
    data = bytearray(_zip(path, members).read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    path.write_bytes(data)


def _overlapping(members: dict[str, bytes], path: Path) -> None:
    """Many members that share the bytes of one, as in zip bombs without recursion."""
    bomb = bytes(100_000)
    _zip(path, {**members, "bomb": bomb})
    whole = path.read_bytes()
    end = whole.rindex(b"PK\x05\x06")
    start = struct.unpack_from("<I", whole, end + 16)[0]
    directory = whole[start:end]
    entry = directory[directory.rindex(b"PK\x01\x02") :]
    copies = b"".join(entry.replace(b"bomb", f"bo{number:02d}".encode()) for number in range(20))
    tail = bytearray(whole[end:])
    count = len(members) + 21
    struct.pack_into("<HHI", tail, 8, count, count, len(directory) + len(copies))
    path.write_bytes(whole[:start] + directory + copies + bytes(tail))


def _without(name: str) -> Callable[[dict[str, bytes], Path], None]:
    def change(members: dict[str, bytes], path: Path) -> None:
        _zip(path, {key: data for key, data in members.items() if key != name})

    return change


def _flipped(name: str) -> Callable[[dict[str, bytes], Path], None]:
    """A changed member with a valid CRC."""

    def change(members: dict[str, bytes], path: Path) -> None:
        data = bytearray(members[name])
        data[len(data) // 2] ^= 1
        _zip(path, {**members, name: bytes(data)})

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_deflated, "manifest.json is compressed"),
        (_repeated, "two members are called general.onnx"),
        (_linked, "weights.bin is a symbolic link"),
        (_encrypted, "manifest.json is encrypted"),
        (_overlapping, "its members overlap"),
        (_renamed("../out.onnx"), "member outside of the bundle: '../out.onnx'"),
        (_renamed("/out.onnx"), "member outside of the bundle: '/out.onnx'"),
        (_renamed("a/out.onnx"), "member outside of the bundle: 'a/out.onnx'"),
        (_renamed("a\\out.onnx"), "member outside of the bundle: 'a\\\\out.onnx'"),
        (_renamed("c:out.onnx"), "member outside of the bundle: 'c:out.onnx'"),
        (_renamed("folder/"), "member outside of the bundle: 'folder/'"),
        (_renamed(".."), "member outside of the bundle: '..'"),
        (_renamed("notes.txt"), "contains notes.txt, which its manifest does not list"),
        (_without("manifest.json"), "it has no manifest.json"),
        (_without("weights.bin"), "lacks weights.bin"),
        (_flipped("weights.bin"), "weights.bin does not match its checksum"),
        (_flipped("general.onnx"), "general.onnx does not match its checksum"),
        (_flipped("manifest.json"), "manifest.json"),
        (lambda members, path: path.write_bytes(b""), "not a zip file, or truncated"),
        (lambda members, path: path.write_bytes(b"other"), "not a zip file, or truncated"),
        (lambda members, path: _zip(path, {}), "it has no manifest.json"),
    ],
)
def test_unsafe_or_damaged_zip_files_are_refused(
    made: Path, tmp_path: Path, change: Callable[[dict[str, bytes], Path], object], words: str
) -> None:
    path = tmp_path / "m.gopt"
    change(_members(made), path)
    with pytest.raises(InvalidModel) as failure:
        Bundle(path)
    message = failure.value.message
    assert words in message and str(path) in message and "\n" not in message
    assert os.listdir(tmp_path) == ["m.gopt"]


def test_each_cut_is_refused(made: Path, tmp_path: Path) -> None:
    whole, path = made.read_bytes(), tmp_path / "m.gopt"
    for size in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidModel, match=r"m\.gopt"):
            Bundle(path)


def test_each_changed_byte_is_refused_or_has_no_effect(made: Path, tmp_path: Path) -> None:
    whole, path = made.read_bytes(), tmp_path / "m.gopt"
    expected, members = Bundle(made).run(FEEDS)["y"], _members(made)
    refused, random = 0, np.random.default_rng(0)
    places = sorted({*random.choice(len(whole), 60, replace=False), *range(len(whole) - 60, len(whole))})
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << int(random.integers(8))
        path.write_bytes(data)
        try:
            bundle = Bundle(path)
        except (InvalidModel, UsageError) as failure:
            assert "\n" not in failure.message
            refused += 1
        else:  # a time, an attribute or a comment of a member
            assert _members(path) == members
            assert bundle.run(FEEDS)["y"].tobytes() == expected.tobytes()
    assert refused > 60


# Replaced files -----------------------------------------------------------------------------------


def test_only_another_bundle_is_replaced(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gopt"
    path.write_bytes(made.read_bytes())
    graphopt.aot_compile(parse(MODEL.replace("Relu", "Neg")), path, archive=True, verify=False)
    assert path.read_bytes() != made.read_bytes()
    for content in (b"", b"mine", b"PK\x03\x04mine"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="is not replaced"):
            check_replaceable_archive(path)
        with pytest.raises(UsageError, match="is not replaced"):
            graphopt.aot_compile(parse(MODEL), path, archive=True, verify=False)
        assert path.read_bytes() == content


def test_forms_do_not_replace_each_other(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gopt"
    path.write_bytes(made.read_bytes())
    with pytest.raises(UsageError, match="form of a zip file") as caught:
        graphopt.aot_compile(parse(MODEL), path, verify=False)
    assert caught.value.__notes__ == ["hint: archive=True, or another path"]
    path.unlink()
    graphopt.aot_compile(parse(MODEL), path, verify=False)
    with pytest.raises(UsageError, match="form of a folder") as caught:
        graphopt.aot_compile(parse(MODEL), path, archive=True, verify=False)
    assert caught.value.__notes__ == ["hint: archive=False, or another path"]
    assert Bundle(path).check()
