"""Stored results of ``graphopt optimize``: reuse, keys, damage, bypasses, and failures of the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt.cost import shipped
from graphopt.ir.io.onnx_json import to_onnx_json
from graphopt.ir.json import to_json
from graphopt.result_cache import installed_code, key
from graphopt.util import model_suffixes
from graphopt.util.disk_store import Store
from tests.cli.conftest import Invoke, Outcome, with_large_weight

Optimize = Callable[..., dict[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def run(invoke: Invoke, store: Path) -> Callable[..., Outcome]:
    """Call graphopt with a store of its own, with the result cache switched on."""

    def call(*words: object, **environ: str) -> Outcome:
        return invoke(*words, environ={"GRAPHOPT_CACHE": "true", "GRAPHOPT_CACHE_DIR": str(store), **environ})

    return call


@pytest.fixture
def optimize(run: Callable[..., Outcome]) -> Optimize:
    """The JSON report of ``graphopt optimize``, which must succeed."""

    def call(*words: object, **environ: str) -> dict[str, Any]:
        done = run("optimize", *words, "--json", **environ)
        assert done.status == 0, done.err
        report: dict[str, Any] = json.loads(done.out)
        return report

    return call


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_second_run_writes_the_same_bytes_and_reports_the_verdict(
    optimize: Optimize, weights: Path
) -> None:
    first = optimize(weights, "-o", "a.onnx")
    second = optimize(weights, "-o", "b.onnx")
    assert (first["cache"]["hit"], second["cache"]["hit"]) == (False, True)
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert second["cache"]["key"] == first["cache"]["key"]
    assert second["verification"] == first["verification"] and first["verification"]["equal"]
    assert second["cache"]["original_seconds"]["optimize"] == first["seconds"]["optimize"]
    varying = ("cache", "seconds", "target")
    assert {k: v for k, v in first.items() if k not in varying} == {
        k: v for k, v in second.items() if k not in varying
    }


@pytest.mark.parametrize("verbose", [[], ["-v"], ["-vv"]])
def test_the_text_of_a_hit_is_that_of_the_first_run(
    run: Callable[..., Outcome], small: Path, verbose: list[str]
) -> None:
    first = run("optimize", small, "-o", "out.onnx", *verbose)
    second = run("optimize", small, "-o", "out.onnx", *verbose)
    ours = ("  cache ", "  cached ", "  wrote ")
    kept = [[line for line in done.out.splitlines() if not line.startswith(ours)] for done in (first, second)]
    assert kept[0] == kept[1]
    assert "  cached    the result of an earlier run" in second.out and "cached" not in first.out


@pytest.mark.parametrize("target", ["out.onnx", "out.json", "out.onnxtxt"])
def test_files_with_external_data_and_of_other_formats_are_the_same(
    optimize: Optimize, weights: Path, target: str
) -> None:
    model = with_large_weight(weights)
    onnx.save(model, weights)
    for folder, hit in (("one", False), ("two", True), ("two", True)):
        Path(folder).mkdir(exist_ok=True)
        found = optimize(weights, "-o", f"{folder}/{target}", "--weights", "beside")
        assert found["cache"]["hit"] is hit
    assert _files(Path("one")) == _files(Path("two"))
    assert len(_files(Path("one"))) == (1 if target == "out.onnxtxt" else 2)


def test_results_in_the_folder_of_their_original_refer_to_its_data(optimize: Optimize, weights: Path) -> None:
    """Hits have the bytes of the first result, also where the original has moved."""
    model = with_large_weight(weights)
    for folder in ("one", "two", "three"):
        Path(folder).mkdir()
    onnx.save(model, "one/in.onnx", save_as_external_data=True, location="in.bin", size_threshold=0)
    assert optimize("one/in.onnx", "-o", "one/out.onnx")["cache"]["hit"] is False
    written = _files(Path("one"))
    assert b"in.bin" in written["out.onnx"] and "out.onnx.data" not in written
    for name in ("in.onnx", "in.bin"):
        Path("one", name).rename(Path("two", name))
    assert optimize("two/in.onnx", "-o", "two/out.onnx")["cache"]["hit"] is True
    assert _files(Path("two")) == written
    # in another folder, all weights are copied, as without the cache
    assert optimize("two/in.onnx", "-o", "three/out.onnx")["cache"]["hit"] is True
    found = _files(Path("three"))
    assert sorted(found) == ["out.onnx", "out.onnx.data"] and b"in.bin" not in found["out.onnx"]
    assert optimize("two/in.onnx", "-o", "three/out.onnx", "--no-cache")["cache"] is None
    assert _files(Path("three")) == found


def test_external_data_of_the_model_is_part_of_the_key(optimize: Optimize, weights: Path) -> None:
    model = onnx.load(weights)
    onnx.save(model, "in.onnx", save_as_external_data=True, location="in.bin", size_threshold=0)
    assert not optimize("in.onnx", "-o", "a.onnx")["cache"]["hit"]
    assert optimize("in.onnx", "-o", "b.onnx")["cache"]["hit"]
    data = bytearray(Path("in.bin").read_bytes())
    data[3] ^= 1
    Path("in.bin").write_bytes(data)
    assert not optimize("in.onnx", "-o", "c.onnx")["cache"]["hit"]
    Path("in.bin").unlink()


@pytest.mark.parametrize(
    "words",
    [
        ["--exact"],
        ["-O1"],
        ["--skip", "cse"],
        ["--no-verify"],
        ["--dim", "N=2"],
        ["--input-shape", "x:3x4"],
        ["--seed", "1"],
        ["--set", "verify-seconds=9"],
        ["--strip-docs"],
        ["--device", "cpu"],
        ["--dry-run"],
    ],
    ids=" ".join,
)
def test_other_options_have_other_keys(optimize: Optimize, small: Path, words: list[str]) -> None:
    plain = optimize(small, "-o", "a.onnx")["cache"]
    changed = optimize(small, "-o", "b.onnx", *words)["cache"]
    assert changed["key"] != plain["key"] and not changed["hit"] and changed["reason"] is None
    assert optimize(small, "-o", "b.onnx", *words)["cache"]["hit"]


@pytest.mark.parametrize(
    "words", [["-v"], ["--set", "color=true"], ["--set", "pipelines=jit"], ["--set", "cache-size=1GiB"]]
)
def test_options_without_influence_have_the_same_key(
    optimize: Optimize, small: Path, words: list[str]
) -> None:
    optimize(small, "-o", "a.onnx")
    assert optimize(small, "-o", "b.onnx", *words)["cache"]["hit"]


def test_another_model_has_another_key(optimize: Optimize, weights: Path) -> None:
    optimize(weights, "-o", "a.onnx")
    model = onnx.load(weights)
    values = onnx.numpy_helper.to_array(model.graph.initializer[0]) + np.float32(1)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(values, "w"))
    onnx.save(model, "other.onnx")
    assert not optimize("other.onnx", "-o", "b.onnx")["cache"]["hit"]
    assert Path("a.onnx").read_bytes() != Path("b.onnx").read_bytes()


@pytest.mark.parametrize(
    ("name", "spelling"),
    [
        ("in.json", ""),
        ("in.json", r"\u0066ile"),
        ("in.onnxjson", ""),
        ("in.onnxjson", r"\u006cocation"),
        ("in.onnxtxt", ""),
    ],
)
def test_external_data_of_texts_is_part_of_the_key(
    optimize: Optimize, run: Callable[..., Outcome], weights: Path, name: str, spelling: str
) -> None:
    model = onnx.load(weights)
    onnx.save(model, "in.onnx", save_as_external_data=True, location="in.bin", size_threshold=0)
    proto = onnx.load("in.onnx", load_external_data=False)
    writers = {".json": lambda: to_json(proto, 1), ".onnxjson": lambda: to_onnx_json(proto)}
    text = writers.get(Path(name).suffix, lambda: onnx.printer.to_text(proto))()
    text = text.replace(json.loads(f'"{spelling}"'), spelling) if spelling else text
    Path(name).write_text(text)
    assert not optimize(name, "-o", "a.onnx")["cache"]["hit"]
    assert optimize(name, "-o", "b.onnx")["cache"]["hit"]
    data_file = bytearray(Path("in.bin").read_bytes())
    data_file[3] ^= 1
    Path("in.bin").write_bytes(data_file)
    assert not optimize(name, "-o", "c.onnx")["cache"]["hit"]
    Path("in.bin").unlink()
    assert run("optimize", name, "-o", "d.onnx").status == 3


def test_formats_of_other_packages_are_not_cached(
    optimize: Optimize, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_suffixes, "_known", [*model_suffixes.suffixes(), ".other"])
    small.rename("small.other")
    found = optimize("small.other", "-o", "out.onnx")["cache"]
    assert found["reason"] == "the format .other of another package may refer to any files"


def test_passes_of_libraries_are_cached(optimize: Optimize, small: Path) -> None:
    words = [small, "-o", "out.onnx", "--pre-pass", "onnx_ir.passes.common:LiftConstantsToInitializersPass"]
    first = optimize(*words)["cache"]
    assert optimize(*words)["cache"]["hit"] and first["reason"] is None


@pytest.mark.parametrize("option", ["--pre-pass", "--post-pass", "--pipeline"])
def test_passes_of_the_caller_are_not_cached(
    optimize: Optimize, small: Path, store: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    Path("own_of_a_test.py").write_text(
        "from graphopt.rewrite import Exact, rule\n"
        "@rule(lambda op, x: op.Identity(op.Identity(x)), numerics=Exact)\n"
        "def own(op, m, x):\n    return op.Identity(x)\n"
    )
    for _ in range(2):
        found = optimize(small, "-o", "out.onnx", option, "own_of_a_test:own")["cache"]
        assert (found["hit"], found["reason"]) == (False, "passes of the caller may depend on anything")
    assert not _entry_files(store)


def test_files_in_linked_folders_belong_to_a_package(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "package")
    digests = set()
    for number in range(2):
        (tmp_path / "elsewhere" / "part.py").write_text(f"NUMBER = 1{'0' * number}\n")
        digests.add(installed_code._files_digest(tmp_path / "package", is_imported=False))
    assert len(digests) == 2


def test_a_result_that_replaces_its_model_has_a_reason(optimize: Optimize, small: Path) -> None:
    assert optimize(small, "-o", small)["cache"]["reason"] == "the result replaces the model"


def _entry_files(store: Path) -> list[Path]:
    return sorted(path for path in (store / "results").rglob("*") if path.is_file())


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "removed"])
def test_damaged_entries_are_rebuilt(optimize: Optimize, weights: Path, store: Path, damage: str) -> None:
    optimize(weights, "-o", "out.onnx")
    written, names = Path("out.onnx").read_bytes(), [path.name for path in _entry_files(store)]
    assert names == ["key.json", "model.onnx", "report.json", "sha256sums"]
    for number in range(len(names)):
        file = _entry_files(store)[number]
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        changed = {"cut": content[:-1], "flipped": content, "emptied": b"", "removed": b""}[damage]
        file.write_bytes(changed)
        if damage == "removed":
            file.unlink()
        assert not optimize(weights, "-o", "out.onnx")["cache"]["hit"], file.name
        assert Path("out.onnx").read_bytes() == written
        assert optimize(weights, "-o", "out.onnx")["cache"]["hit"], file.name
    assert Path("out.onnx").read_bytes() == written


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--dump-dir", "dump"], "the option --dump-dir is given"),
        (["--html", "page.html"], "the option --html is given"),
        (["--save-repro", "repro"], "the option --save-repro is given"),
        (["--verify-each"], "the option --verify-each is given"),
        (["--log", "dce"], "the setting log is given"),
        (["--set", "cache-size=1"], "the model is larger than cache-size"),
    ],
)
def test_bypasses_have_a_reason(
    run: Callable[..., Outcome], optimize: Optimize, small: Path, words: list[str], reason: str
) -> None:
    for _ in range(2):
        for folder in ("dump", "repro"):
            if Path(folder).exists():
                Path(folder).rename(f"{folder}-{len(list(Path().iterdir()))}")
        found = optimize(small, "-o", "out.onnx", *words)["cache"]
        assert (found["hit"], found["reason"]) == (False, reason)
    done = run("optimize", small, "-o", "out.onnx", "--verify-each", "-v")
    assert "  cache     not used: the option --verify-each is given" in done.out


def test_no_cache_stores_nothing(optimize: Optimize, small: Path, store: Path) -> None:
    assert optimize(small, "-o", "out.onnx", "--no-cache")["cache"] is None
    assert not _entry_files(store)
    assert optimize(small, "-o", "out.onnx", GRAPHOPT_CACHE="false")["cache"] is None


def test_standard_output_is_not_cached(run: Callable[..., Outcome], small: Path, store: Path) -> None:
    with open("out.onnx", "wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "graphopt", "optimize", str(small), "-o", "-"],
            stdout=file,
            stderr=subprocess.PIPE,
            env={**os.environ, "GRAPHOPT_CACHE": "true", "GRAPHOPT_CACHE_DIR": str(store)},
            check=True,
        )
    assert done.returncode == 0 and not _entry_files(store)


def test_a_failing_run_stores_nothing(run: Callable[..., Outcome], store: Path) -> None:
    Path("bad.onnx").write_bytes(b"not a model")
    for _ in range(2):
        done = run("optimize", "bad.onnx", "-o", "out.onnx")
        assert done.status == 3 and not Path("out.onnx").exists()
    assert not _entry_files(store)


def test_several_models_are_reused_one_by_one(
    run: Callable[..., Outcome], small: Path, weights: Path
) -> None:
    run("optimize", small, "-o", "out.onnx")
    found = json.loads(run("optimize", small, weights, "-o", "folder/", "--json").out)
    assert [model["cache"]["hit"] for model in found["models"]] == [True, False]
    text = run("optimize", small, weights, "-o", "folder/").out
    assert text.count("  cached  ") == 2 and text.count("  verified") == 2
    assert Path("folder", "small.onnx").read_bytes() == Path("out.onnx").read_bytes()


def test_warnings_are_repeated(run: Callable[..., Outcome], tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17, "other" : 1]> m (float[N] x) => (float[N] y) { y = other.Op(x) }'
    onnx.save(onnx.parser.parse_model(text), "custom.onnx")
    first = run("optimize", "custom.onnx", "-o", "out.onnx")
    second = run("optimize", "custom.onnx", "-o", "out.onnx")
    assert "not verified" in first.err and first.err == second.err
    assert "cached" in second.out


def test_warnings_about_converted_inputs_are_repeated(run: Callable[..., Outcome], small: Path) -> None:
    ports = onnx.load(small).graph.input
    shapes = {port.name: [dim.dim_value or 2 for dim in port.type.tensor_type.shape.dim] for port in ports}
    np.savez("in.npz", **{name: np.ones(shape, np.float64) for name, shape in shapes.items()})
    words = ["optimize", small, "-o", "out.onnx", "--input", "in.npz"]
    first, second = run(*words), run(*words)
    for done in (first, second):
        assert (done.out + done.err).count("is converted from float64 to float32") == 1
    assert "cached" in second.out


@pytest.mark.parametrize("kind", ["a file in the way", "read-only"])
def test_a_store_that_cannot_be_written_only_warns(
    run: Callable[..., Outcome], small: Path, store: Path, kind: str
) -> None:
    if kind == "read-only":
        store.mkdir()
        store.chmod(0o500)
        if os.access(store, os.W_OK):
            pytest.skip("this user may write to read-only folders")
    else:
        store.write_text("not a folder")
    done = run("optimize", small, "-o", "out.onnx")
    assert done.status == 0 and Path("out.onnx").is_file()
    assert done.err.count("graphopt: warning: the result is not stored for later runs: ") == 1, done.err


def test_least_recently_used_results_are_removed(optimize: Optimize, small: Path, store: Path) -> None:
    words = ["--seed"]
    optimize(small, "-o", "out.onnx", *words, 1)
    size = sum(path.stat().st_size for path in _entry_files(store) if path.name != "sha256sums")
    limit = ["--set", f"cache-size={int(size * 2.5)}"]
    optimize(small, "-o", "out.onnx", *words, 2, *limit)
    for number, entry in enumerate(sorted((store / "results").glob("*/*"))):
        os.utime(entry, (number, number))
    assert optimize(small, "-o", "out.onnx", *words, 1, *limit)["cache"]["hit"]
    optimize(small, "-o", "out.onnx", *words, 3, *limit)
    assert optimize(small, "-o", "out.onnx", *words, 1, *limit)["cache"]["hit"]
    assert not optimize(small, "-o", "out.onnx", *words, 2, *limit)["cache"]["hit"]


_HIT = """
import sys
from graphopt.cli.main import main
status = main(["optimize", sys.argv[1], "-o", sys.argv[2], "--json"])
heavy = ("onnxruntime", "onnx", "numpy", "graphopt.ir", "graphopt.passes", "graphopt.compiler")
print(status, *(name for name in heavy if name in sys.modules), file=sys.stderr)
"""


def _environment(store: Path) -> dict[str, str]:
    return {**os.environ, "GRAPHOPT_CACHE": "true", "GRAPHOPT_CACHE_DIR": str(store)}


def test_a_hit_imports_neither_the_runtime_nor_the_passes(small: Path, tmp_path: Path, store: Path) -> None:
    words = [sys.executable, "-c", _HIT, str(small), str(tmp_path / "out.onnx")]
    for _ in range(2):
        done = subprocess.run(words, env=_environment(store), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["cache"]["hit"] and done.stderr.split() == ["0"]


def test_one_of_several_processes_builds_a_result(weights: Path, tmp_path: Path, store: Path) -> None:
    command = [sys.executable, "-m", "graphopt", "optimize", str(weights), "--json", "-o"]
    processes = [
        subprocess.Popen(
            [*command, str(tmp_path / f"{number}.onnx")], env=_environment(store), stdout=subprocess.PIPE
        )
        for number in range(4)
    ]
    reports = [json.loads(process.communicate()[0]) for process in processes]
    assert sum(not report["cache"]["hit"] for report in reports) == 1
    assert len({(tmp_path / f"{number}.onnx").read_bytes() for number in range(4)}) == 1
    assert not list((store / "building").iterdir())


def test_a_fresh_cache_is_empty_and_removed(optimize: Optimize, small: Path, store: Path) -> None:
    optimize(small, "-o", "a.onnx")
    before = sorted(store.rglob("*"))
    for _ in range(2):
        assert not optimize(small, "-o", "b.onnx", "--fresh-cache")["cache"]["hit"]
        assert sorted(store.rglob("*")) == before
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()


def test_a_fresh_cache_keeps_measured_costs(optimize: Optimize, small: Path, store: Path) -> None:
    data = shipped("cpu").text().encode()
    Store(store).put("costs", data, "0" * 64)
    parts = [optimize(small, "-o", "a.onnx", *words)["cache"]["key"] for words in ([], ["--fresh-cache"])]
    assert parts[0] == parts[1]


def test_code_that_changes_during_a_run_is_not_cached(
    optimize: Optimize, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter(({"graphopt": "old"}, {"graphopt": "new"}))
    monkeypatch.setattr(key, "code_parts", lambda: next(states))
    found = optimize(small, "-o", "out.onnx")["cache"]
    assert (found["hit"], found["reason"]) == (False, "code changed in the meantime")


def test_a_hit_removes_the_kernels_of_the_replaced_model(
    optimize: Optimize, run: Callable[..., Outcome], small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphopt.fusion import kernel_library

    optimize(small, "-o", "out.onnx")
    monkeypatch.setattr(kernel_library, "is_ours", lambda path: True)
    for words in (["--json"], []):
        Path("out.kernels.so").write_bytes(b"kernels")
        done = run("optimize", small, "-o", "out.onnx", *words)
        assert "removed out.kernels.so, the kernels of the replaced model" in done.out
        assert (
            not Path("out.kernels.so").exists() and "earlier run" in done.out
        ) or '"hit": true' in done.out
