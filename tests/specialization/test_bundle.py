"""Bundles: saving, loading and dispatching."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import api, config, ir
from graphopt.errors import InvalidModel, ResourceLimit, UsageError
from graphopt.profile import FusionStrategy, Guard, ValueProfile
from graphopt.specialization.build_variants import Specialization, Specialized
from graphopt.specialization.bundle.loaded_bundle import Bundle
from graphopt.specialization.bundle.read_manifest import parse, read_manifest
from graphopt.specialization.bundle.save import save_bundle
from graphopt.util.disk_store import Store

from ..model_testing import parse as parse_model
from .bundle_files import edited

#: y is x times a weight, shifted by a shape; i only says how much. The weight is large enough to be shared.
MODEL = f"""
g (float[N, 16] x, int64 i) => (float[N, 32] y, int64[2] size)
<float[16, 32] w = {{{", ".join(str(number / 512) for number in range(512))}}}>
{{
  z = MatMul(x, w)
  size = Shape(z)
  f = Cast <to = 1> (i)
  y = Add(z, f)
}}
"""


def _model() -> ir.Model:
    return parse_model(MODEL)


def _feeds(rows: int, i: int = 3) -> dict[str, np.ndarray]:
    x = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
    return {"x": x, "i": np.array(i)}


def _specialized(
    model: ir.Model, runs: list[dict[str, Any]], strategy: str = "static:2,dynamic:1"
) -> Specialized:
    profile = graphopt.record_profile(model, runs)
    how = Specialization(profile, FusionStrategy.parse(strategy))
    return api.specialize(model, how, bundle=True, verify=False, pipeline="O1")


@pytest.fixture(scope="module")
def found() -> Specialized:
    """Variants for one row (and 3), for four rows, and for any number of rows, in this order."""
    runs = [_feeds(1)] * 3 + [_feeds(4)] * 2 + [_feeds(7), _feeds(5)]
    return _specialized(_model(), runs)


@pytest.fixture
def folder(found: Specialized, tmp_path: Path) -> Path:
    save_bundle(found, tmp_path / "m.bundle")
    return tmp_path / "m.bundle"


def _same(bundle: Bundle, feeds: dict[str, Any], model: ir.Model) -> None:
    expected, outputs = graphopt.run(model, feeds), bundle.run(feeds)
    assert list(outputs) == list(expected)
    for name, array in expected.items():
        assert outputs[name].dtype == array.dtype
        np.testing.assert_allclose(outputs[name], array, rtol=1e-5, atol=1e-6)


def test_bundle_contains_manifest_models_and_weights(found: Specialized, tmp_path: Path) -> None:
    written = save_bundle(found, tmp_path / "b")
    assert [file.name for file in written] == [
        "manifest.json",
        "general.onnx",
        "static-1.onnx",
        "static-2.onnx",
        "dynamic-1.onnx",
        "weights.bin",
    ]
    assert sorted(os.listdir(tmp_path / "b")) == sorted(file.name for file in written)
    assert os.listdir(tmp_path) == ["b"]
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert manifest["model"] == ir.fingerprint(_model(), names=True)
    assert [variant["name"] for variant in manifest["variants"]] == ["static-1", "static-2", "dynamic-1"]
    assert manifest["versions"]["onnxruntime"]


def test_shared_weight_is_written_once(folder: Path) -> None:
    assert (folder / "weights.bin").stat().st_size == 16 * 32 * 4
    for file in folder.glob("*.onnx"):
        assert ir.data_files(file) == [folder / "weights.bin"]


def test_writing_is_deterministic(found: Specialized, tmp_path: Path) -> None:
    one, other = save_bundle(found, tmp_path / "a"), save_bundle(found, tmp_path / "b")
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in other]


def test_variants_declare_known_sizes(folder: Path) -> None:
    bundle = Bundle(folder)
    assert bundle.session("static-2").get_inputs()[0].shape == [4, 16]
    assert bundle.session("general").get_inputs()[0].shape == ["N", 16]


@pytest.mark.parametrize(
    ("rows", "i", "name"),
    [(1, 3, "static-1"), (4, 3, "static-2"), (9, 3, "dynamic-1"), (1, 5, "general"), (0, 3, "dynamic-1")],
)
def test_all_variants_compute_the_results_of_the_model(folder: Path, rows: int, i: int, name: str) -> None:
    bundle = Bundle(folder)
    assert bundle.choose(_feeds(rows, i)) == name
    _same(bundle, _feeds(rows, i), _model())


def test_explain_lists_violated_assumptions(folder: Path) -> None:
    reasons = Bundle(folder).explain(_feeds(4))
    assert list(reasons) == ["static-1", "static-2", "dynamic-1"]
    assert reasons["static-1"] == ["dim 0 of 'x' is 4, not 1"] and reasons["static-2"] == []


def test_wrong_type_is_reported(folder: Path) -> None:
    bundle = Bundle(folder)
    feeds = {**_feeds(1), "x": np.zeros((1, 16), np.float64)}
    assert bundle.choose(feeds) == "general"
    assert bundle.explain(feeds)["static-1"] == ["'x' holds float64, not float32"]
    with pytest.raises(UsageError, match="input 'x' expects float32, the array contains float64"):
        bundle.run(feeds)


def test_wrong_names_are_reported(folder: Path) -> None:
    bundle = Bundle(folder)
    for function in (bundle.run, bundle.choose, bundle.explain):
        with pytest.raises(UsageError, match="no input is called 'q'"):
            function({**_feeds(1), "q": np.zeros(1)})
        with pytest.raises(UsageError, match="needs a value for input 'i'"):
            function({"x": _feeds(1)["x"]})
    with pytest.raises(UsageError, match="no variant is called 'static'; nearest: static-"):
        bundle.session("static")


def test_sessions_are_created_once_and_on_demand(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.ort import session

    feeds = [_feeds(rows) for rows in (1, 4, 6, 1, 4, 6)]
    expected = [graphopt.run(_model(), each)["y"] for each in feeds]
    made: list[str] = []
    create: Callable[..., Any] = session.create

    def counting(model: Any, **options: Any) -> Any:
        made.append(Path(model).name)
        return create(model, **options)

    monkeypatch.setattr(session, "create", counting)
    bundle = Bundle(folder, threads=1)
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def work(shift: int) -> None:
        try:
            barrier.wait()
            for step in range(24):
                at = (step + shift) % len(feeds)
                np.testing.assert_allclose(bundle.run(feeds[at])["y"], expected[at], rtol=1e-5)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(made) == ["dynamic-1.onnx", "static-1.onnx", "static-2.onnx"]


def test_default_that_is_never_fed_becomes_a_constant(tmp_path: Path) -> None:
    model = parse_model("g (float[N] x, float[1] k = {2}) => (float[N] y) { y = Mul(x, k) }")
    x = np.ones(3, np.float32)
    found = _specialized(model, [{"x": x}] * 2)
    assert found.plan[0].guard.absent == ("k",)
    save_bundle(found, tmp_path / "b")
    bundle = Bundle(tmp_path / "b")
    assert bundle.choose({"x": x}) == "static-1"
    assert bundle.run({"x": x})["y"].tolist() == [2, 2, 2]
    other = {"x": x, "k": np.array([5], np.float32)}
    assert bundle.choose(other) == "general"
    assert bundle.explain(other)["static-1"] == ["'k' is fed, but its default is assumed"]
    assert bundle.run(other)["y"].tolist() == [5, 5, 5]


def test_sequence_inputs(tmp_path: Path) -> None:
    model = parse_model(
        "g (seq(float[N]) s, float[M] x) => (float[K] y) { a = ConcatFromSequence <axis = 0> (s)"
        "  r = Shape(x)  z = ConstantOfShape(r)  b = Add(x, z)  y = Concat <axis = 0> (a, b) }"
    )
    feeds = {"s": [np.ones(2, np.float32), np.zeros(1, np.float32)], "x": np.full(3, 7, np.float32)}
    save_bundle(_specialized(model, [feeds]), tmp_path / "b")
    bundle = Bundle(tmp_path / "b")
    for s in (feeds["s"], feeds["s"][:1]):
        assert bundle.choose({**feeds, "s": s}) == "static-1"
        _same(bundle, {**feeds, "s": s}, model)
    assert bundle.choose({**feeds, "x": np.ones(2, np.float32)}) == "general"


def test_element_types_without_numpy_equivalent(tmp_path: Path) -> None:
    import ml_dtypes

    model = parse_model("g (bfloat16[N] x) => (float[N] y) { y = Cast <to = 1> (x) }")
    feeds = {"x": np.ones(2, ml_dtypes.bfloat16)}
    save_bundle(_specialized(model, [feeds]), tmp_path / "b")
    bundle = Bundle(tmp_path / "b")
    assert bundle.choose(feeds) == "static-1" and bundle.run(feeds)["y"].tolist() == [1, 1]


def test_bundle_without_variants(tmp_path: Path) -> None:
    model = parse_model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    found = Specialized(model, [], [], api.optimize(model, verify=False).report, "0")
    save_bundle(found, tmp_path / "b")
    bundle = Bundle(tmp_path / "b")
    assert bundle.names == ["general"] and not (tmp_path / "b" / "weights.bin").exists()
    assert bundle.run({"x": np.ones(1, np.float32)})["y"].tolist() == [-1]


def test_models_with_guards_are_refused(tmp_path: Path) -> None:
    text = """g (float[N] x) => (float[N] y) { y = graphopt.profile.Guard <seen = "{}"> (x) }"""
    model = parse_model(text, domains=', "graphopt.profile" : 1')
    plain = parse_model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    found = Specialized(model, [], [], api.optimize(plain, verify=False).report, "0")
    with pytest.raises(UsageError, match=r"general\.onnx would have 1 guard, which no runtime supports"):
        save_bundle(found, tmp_path / "b")
    assert os.listdir(tmp_path) == []


def test_dynamic_variant_equal_to_the_general_model_is_dropped() -> None:
    model = parse_model("g (float[N, M] x) => (float[N, M] y) { y = Neg(x) }")
    runs = [{"x": np.ones(shape, np.float32)} for shape in ((1, 2), (3, 4))]
    found = _specialized(model, runs, "dynamic:1")
    assert found.branches == [] and found.report.variants[0].left_out == "it equals the general model"
    assert [branch.name for branch in _specialized(model, runs, "static:1").branches] == ["static-1"]


# Packed weights -------------------------------------------------------------------------------------


def _prepacked(folder: Path, cache: Path, **options: Any) -> Bundle:
    with config.patch(cache_dir=cache):
        return Bundle(folder, prepack=True, device="cpu", **options)


def test_prepacked_weights_are_cached_in_the_store(folder: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(folder))
    plain, packed = Bundle(folder), _prepacked(folder, tmp_path / "cache")
    for rows in (1, 4, 6):
        outputs = packed.run(_feeds(rows))
        for name, array in plain.run(_feeds(rows)).items():
            assert array.tobytes() == outputs[name].tobytes()
    assert packed.remarks == [] and sorted(os.listdir(folder)) == before
    store = Store(tmp_path / "cache")
    assert [entry.kind for entry in store.entries()] == ["loaded"] * 3 + ["prepacked"] * 3
    written = {entry.key: entry.modified for entry in store.entries()}
    again = _prepacked(folder, tmp_path / "cache")
    np.testing.assert_array_equal(again.run(_feeds(1))["y"], plain.run(_feeds(1))["y"])
    assert {entry.key: entry.modified for entry in store.entries()} == written


def test_changed_weights_are_packed_again(folder: Path, tmp_path: Path) -> None:
    _prepacked(folder, tmp_path / "cache").session("general")
    data = np.fromfile(folder / "weights.bin", np.float32)
    (data * 2).tofile(folder / "weights.bin")
    digest = hashlib.sha256((folder / "weights.bin").read_bytes()).hexdigest()
    edited(folder, lambda manifest: manifest["files"]["weights.bin"].update(sha256=digest))
    packed = _prepacked(folder, tmp_path / "cache")
    np.testing.assert_array_equal(
        packed.run(_feeds(2, 9))["y"], Bundle(folder, device="cpu").run(_feeds(2, 9))["y"]
    )


def test_damaged_prepacked_weights_are_packed_again(folder: Path, tmp_path: Path) -> None:
    expected = _prepacked(folder, tmp_path / "cache").run(_feeds(4))["y"]
    (packed,) = (tmp_path / "cache").rglob("weights.bin")
    whole = packed.read_bytes()
    for damaged in (whole[:-1], bytes(len(whole))):
        packed.write_bytes(damaged)
        again = _prepacked(folder, tmp_path / "cache")
        np.testing.assert_array_equal(again.run(_feeds(4))["y"], expected)
        assert packed.read_bytes() == whole and again.remarks == []


def test_edited_weights_do_not_use_stale_prepacked_ones(folder: Path, tmp_path: Path) -> None:
    _prepacked(folder, tmp_path / "cache").run(_feeds(4))
    data = np.fromfile(folder / "weights.bin", np.float32)
    (data * 2).tofile(folder / "weights.bin")
    with pytest.raises(InvalidModel, match=r"weights\.bin does not match its checksum"):
        _prepacked(folder, tmp_path / "cache")
    packed = _prepacked(folder, tmp_path / "cache", check=False).run(_feeds(4))
    np.testing.assert_array_equal(packed["y"], Bundle(folder, device="cpu", check=False).run(_feeds(4))["y"])


def test_failing_prepacking_falls_back_to_the_plain_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("no folder")
    packed = _prepacked(folder, tmp_path / "cache")
    _same(packed, _feeds(4), _model())
    (remark,) = packed.remarks
    assert remark.startswith("static-2: can't write to the store")
    damaged = _prepacked(folder, tmp_path / "other")
    monkeypatch.setattr(
        "graphopt.specialization.bundle.prepacked_weights._write",
        lambda model, place, choice: (place / "model.onnx").touch(),
    )
    _same(damaged, _feeds(4), _model())
    assert "can't load the model" in damaged.remarks[0]


def test_bundle_is_pickled_without_sessions(folder: Path) -> None:
    bundle = Bundle(folder, device="cpu", threads=1)
    expected = bundle.run(_feeds(1))["y"]
    other = pickle.loads(pickle.dumps(bundle))
    np.testing.assert_array_equal(other.run(_feeds(1))["y"], expected)


# Where bundles are written ------------------------------------------------------------------------


def test_bundle_can_replace_the_bundle_that_it_was_built_from(folder: Path, tmp_path: Path) -> None:
    old = Bundle(folder)
    model = old.model("general")  # its weight is in the folder
    runs = [_feeds(2)]
    save_bundle(_specialized(model, runs), folder)
    assert sorted(os.listdir(folder)) == ["general.onnx", "manifest.json", "static-1.onnx", "weights.bin"]
    assert os.listdir(tmp_path) == [folder.name]
    _same(Bundle(folder), _feeds(2), _model())


def test_empty_folder_is_used(found: Specialized, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    save_bundle(found, tmp_path / "b")
    assert Bundle(tmp_path / "b").names[-1] == "general"


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json", "plan.json"])
def test_folder_with_other_contents_is_not_replaced(found: Specialized, tmp_path: Path, name: str) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / name).write_text("{}")
    with pytest.raises(UsageError, match=r"not (the manifest of )?a bundle"):
        save_bundle(found, tmp_path / "b")
    assert os.listdir(tmp_path) == ["b"] and os.listdir(tmp_path / "b") == [name]


def test_bundle_with_foreign_files_is_not_replaced(found: Specialized, folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"contains notes\.txt, which its manifest does not list"):
        save_bundle(found, folder)
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "notes.txt").unlink()
    assert Bundle(folder).names[0] == "static-1"


def test_file_is_not_replaced(found: Specialized, tmp_path: Path) -> None:
    (tmp_path / "b").write_text("mine")
    with pytest.raises(UsageError, match="not a folder"):
        save_bundle(found, tmp_path / "b")
    assert (tmp_path / "b").read_text() == "mine"


def test_unwritable_location(found: Specialized, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"can't write .*: No such file or directory"):
        save_bundle(found, tmp_path / "missing" / "b")
    if os.geteuid():  # root can write everywhere
        tmp_path.chmod(0o500)
        with pytest.raises(UsageError, match=r"can't write .*: Permission denied"):
            save_bundle(found, tmp_path / "b")
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("calls", [1, 2])
def test_failure_keeps_the_older_bundle(
    found: Specialized, folder: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    rename, done = os.rename, 0

    def failing(source: Any, target: Any) -> None:
        nonlocal done
        done += 1
        if done == calls:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(
        "graphopt.publish.atomic_rename._renameat2", lambda: None
    )  # a system without RENAME_EXCHANGE
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(ResourceLimit, match="No space left on device"):
        save_bundle(found, folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert os.listdir(folder.parent) == [folder.name]


# Replaced while it is loaded ----------------------------------------------------------------------


@pytest.mark.parametrize("is_gone", [False, True])
def test_loaded_bundle_keeps_its_files_when_the_folder_is_replaced(folder: Path, is_gone: bool) -> None:
    bundle = Bundle(folder)
    _same(bundle, _feeds(1), _model())
    other = parse_model(MODEL.replace("Add(z, f)", "Sub(z, f)"))
    save_bundle(_specialized(other, [_feeds(4)]), folder)
    _same(Bundle(folder), _feeds(4), other)
    if is_gone:
        shutil.rmtree(folder)
    for rows in (4, 6):  # variants without a session yet
        _same(bundle, _feeds(rows), _model())
    assert "Sub" not in ir.print_model(bundle.model("static-2")) and bundle.path("static-2").is_file()


def test_bundle_replaced_while_a_session_is_created(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.ort import session

    other = _specialized(
        parse_model(MODEL.replace("Add(z, f)", "Sub(z, f)")), [_feeds(1)] * 3 + [_feeds(4)] * 2
    )
    create: Callable[..., Any] = session.create
    places: list[Path] = []

    def late(model: Any, **options: Any) -> Any:
        if not places:
            save_bundle(other, folder)
        places.append(model)
        return create(model, **options)

    bundle = Bundle(folder, device="cpu")
    expected = graphopt.run(_model(), _feeds(1))["y"]
    monkeypatch.setattr(session, "create", late)
    np.testing.assert_allclose(bundle.run(_feeds(1))["y"], expected, rtol=1e-5, atol=1e-6)
    assert [place.name for place in places] == ["static-1.onnx"] * 2 and places[0].parent == folder


#: Writes a bundle again and again.
_WRITER = """
import sys
from graphopt.specialization.bundle.save import save_bundle
from tests.specialization.test_bundle import _feeds, _model, _specialized
found = _specialized(_model(), [_feeds(1)] * 2, "static:1")
print("ready", flush=True)
sys.stdin.readline()
while True:
    save_bundle(found, sys.argv[1])
"""


def _writer(folder: Path) -> subprocess.Popen[str]:
    """A process that writes a bundle repeatedly."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def _start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize(
    ("rounds", "writers", "loads"), [(1, 1, 20), pytest.param(8, 2, 20, marks=pytest.mark.slow)]
)
def test_reader_beside_killed_writers(
    found: Specialized, folder: Path, rounds: int, writers: int, loads: int
) -> None:
    expected = graphopt.run(_model(), _feeds(1))["y"]
    for _ in range(rounds):
        processes = [_writer(folder) for _ in range(writers)]
        for process in processes:
            _start(process)
        for _ in range(loads):
            save_bundle(found, folder)  # with other variants than theirs
            for _ in range(2):
                np.testing.assert_allclose(Bundle(folder).run(_feeds(1))["y"], expected, rtol=1e-5, atol=1e-6)
        for process in processes:
            assert process.poll() is None
            process.kill()
            process.wait()
        assert Bundle(folder).check()
    save_bundle(found, folder)
    assert os.listdir(folder.parent) == [folder.name] and Bundle(folder).check()


def test_missing_bundle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a bundle: it has no manifest\.json"):
        Bundle(tmp_path)


def test_manifest_round_trips_through_json(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert parse(manifest.to_dict()) == manifest
    assert manifest.variants[0].guard == Guard(
        {"x": ValueProfile("tensor(float)", (1, 16)), "i": ValueProfile("tensor(int64)", (), (3,))}
    )
