"""The comparison of written bytes between two versions of graphopt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import same_bytes
from samples import models

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "benchmarks" / "same_bytes.py"), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_second_run_finds_the_same_bytes_and_a_changed_hash_is_reported(tmp_path: Path) -> None:
    folder, table = tmp_path / "models", tmp_path / "table.json"
    folder.mkdir()
    models.write("functions", folder)
    (folder / "broken.onnx").write_bytes(b"no model")
    done = run(folder, "--table", table)
    assert done.returncode == 0, done.stderr
    found = json.loads(table.read_text())["models"]
    assert set(found) == {"models/functions.onnx", "models/broken.onnx"}
    assert found["models/broken.onnx"]["-O1"]["error"] == "exit status 3"
    hashes = found["models/functions.onnx"]
    assert set(hashes) == {"source", *same_bytes.LEVELS}
    assert hashes["-O2"]["file"] != hashes["source"]["file"]

    again = run(folder, "--against", table, "--levels", "O2", "native")
    assert again.returncode == 0 and "2 compared, 0 differences" in again.stdout, again.stdout + again.stderr

    hashes["-O2"]["data"] = "another"
    table.write_text(json.dumps({"models": found}))
    changed = run(folder, "--against", table, "--levels", "O2", "--only", "functions")
    assert changed.returncode == 1
    assert changed.stdout.splitlines()[0] == "models/functions.onnx -O2: data"


def test_a_table_is_continued_and_a_changed_model_is_optimized_again(tmp_path: Path) -> None:
    path = models.write("functions", tmp_path)
    (case,) = same_bytes.cases_of([path])
    table = same_bytes.Table(tmp_path / "table.json")
    assert table.missing(case, ["-O1", "-O2"]) == ["-O1", "-O2"]
    table.add(case.name, "-O1", {"file": "0"})
    table.save()
    again = same_bytes.Table(tmp_path / "table.json")
    assert again.missing(case, ["-O1", "-O2"]) == ["-O2"]
    path.write_bytes(path.read_bytes() + b"\0")
    assert again.missing(case, ["-O1", "-O2"]) == ["-O1", "-O2"]


def test_errors_differ_by_kind_and_timeouts_are_not_compared() -> None:
    def compare(before: same_bytes.Hashes, after: same_bytes.Hashes) -> list[tuple[str, str]]:
        return list(same_bytes.differences({"-O2": before}, {"-O2": after}))

    error, model = {"error": "exit status 3", "message": "no model"}, {"file": "1", "data": "2"}
    assert compare(error, error | {"message": "not a model"}) == []
    assert compare(error, {"error": "SIGSEGV"}) == [("-O2", "exit status 3 (no model) → SIGSEGV")]
    assert compare(model, error) == [("-O2", "a model → exit status 3 (no model)")]
    assert compare(model, {"file": "3", "data": "2"}) == [("-O2", "file")]
    assert compare(model, {"error": "timeout"}) == []


def test_a_sample_of_each_folder_precedes_the_rest(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for name in ("x", "y", "z"):
            (tmp_path / folder / f"{name}.onnx").touch()
    cases = same_bytes.cases_of([tmp_path / "a", tmp_path / "b"], sample=1)
    assert [case.name[0] for case in cases] == ["a", "b", "a", "a", "b", "b"]


def test_a_child_that_dies_is_replaced(tmp_path: Path) -> None:
    path = models.write("functions", tmp_path)
    (case,) = same_bytes.cases_of([path])
    child = same_bytes.Child(ROOT, tmp_path, seconds=60)
    try:
        first = child.optimize(case, "-O1")
        assert child.process is not None
        child.process.kill()
        child.process.wait()
        assert child.optimize(case, "-O1") == {"error": "SIGKILL"}
        assert child.optimize(case, "-O1") == first
        child.seconds = 0
        assert child.optimize(case, "-O1") == {"error": "timeout"}
    finally:
        child.end()
