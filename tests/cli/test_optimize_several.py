"""Several models in one call of ``optimize``: relative paths, the summary, reports of unfinished runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt.errors import InvalidModel
from tests.cli.conftest import SMALL, WEIGHTS, Invoke

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A folder with models of equal names, one of them with 4 kB of external data."""
    folder = tmp_path / "hub"
    for name in ("a", "b/onnx", "c"):
        (folder / name).mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(SMALL), folder / "a" / "model.onnx")
    proto = onnx.parser.parse_model(WEIGHTS.replace("8", "32").replace("ir_version: 32", "ir_version: 8"))
    del proto.graph.initializer[:]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(32, dtype=np.float32), "w"))
    onnx.save(proto, folder / "b/onnx/model.onnx", save_as_external_data=True, location="model.onnx_data")
    plain = SMALL.replace("a = Identity(x)\n  b = Relu(a)\n  y = Add(b, zero)", "y = Relu(x)")
    plain = plain.replace(" <float zero = {-0.0}>", "")
    onnx.save(onnx.parser.parse_model(plain), folder / "c" / "model.onnx")
    return folder


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_models_keep_their_relative_paths(invoke: Invoke, hub: Path, tmp_path: Path) -> None:
    sources = [hub / "a/model.onnx", hub / "b/onnx/model.onnx", hub / "c/model.onnx"]
    outcome = invoke("optimize", *sources, "-o", tmp_path / "out")
    assert outcome.status == 0, outcome.err
    written = files(tmp_path / "out")
    assert [name for name in written if name.endswith(".onnx")] == [
        "a/model.onnx",
        "b/onnx/model.onnx",
        "c/model.onnx",
    ]
    data = [name for name in written if not name.endswith(".onnx")]
    assert data == ["b/onnx/model.onnx.data"]
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == [
        *written[:1],
        "b/onnx/model.onnx",
        "c/model.onnx",
        "total",
    ]
    assert lines[3].split()[1:4] == ["6", "→", "3"]
    assert lines[-1] == "  3 models optimized (1 unchanged)"
    for name in ("a/model.onnx", "b/onnx/model.onnx"):
        assert invoke("verify", hub / name, tmp_path / "out" / name).status == 0


def test_paths_are_relative_to_the_deepest_common_folder(
    invoke: Invoke, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hub / "b")
    both = ["onnx/../onnx/model.onnx", f"{hub}/a/model.onnx"]  # a relative and an absolute path
    assert invoke("optimize", *both, "-o", tmp_path / "one", "--no-verify").status == 0
    assert [name for name in files(tmp_path / "one") if name.endswith(".onnx")] == [
        "a/model.onnx",
        "b/onnx/model.onnx",
    ]
    assert invoke("optimize", hub / "a", hub / "c", "-o", tmp_path / "two", "--no-verify").status == 0
    assert files(tmp_path / "two") == ["a/model.onnx", "c/model.onnx"]


def test_results_may_replace_their_models(invoke: Invoke, hub: Path) -> None:
    sources = [hub / "a/model.onnx", hub / "b/onnx/model.onnx"]
    assert invoke("optimize", *sources, "-o", hub).status == 0
    assert [node.op_type for node in onnx.load(hub / "a/model.onnx").graph.node] == ["Relu"]
    assert [node.op_type for node in onnx.load(hub / "b/onnx/model.onnx").graph.node] == ["Gemm"]


def test_clashes_are_one_error(invoke: Invoke, hub: Path, tmp_path: Path) -> None:
    twice = invoke("optimize", hub / "a/model.onnx", hub / "a/../a/model.onnx", "-o", tmp_path / "out")
    assert twice.status == 2 and twice.out == ""
    assert twice.err.splitlines() == [
        f"graphopt: two of the models would be written to {tmp_path}/out/model.onnx",
        "hint: name each model once",
    ]
    (hub / "a/a").mkdir()
    (hub / "a/a/model.onnx").write_bytes((hub / "a/model.onnx").read_bytes())
    nested = invoke("optimize", hub / "a/a/model.onnx", hub / "a/model.onnx", "-o", hub / "a/a")
    assert nested.status == 2
    assert f"would replace {hub}/a/a/model.onnx, which is also to be optimized" in nested.err
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "a").write_text("a file")
    outcome = invoke("optimize", hub / "a/model.onnx", hub / "c/model.onnx", "-o", blocked)
    assert outcome.status == 2 and "a is a file, not a folder" in outcome.err
    assert not (tmp_path / "out").exists() and files(blocked) == ["a"]


def test_folders_of_reproducers_and_dumps_do_not_clash(invoke: Invoke, hub: Path, tmp_path: Path) -> None:
    sources = [hub / "a/model.onnx", hub / "c/model.onnx"]
    options = ("--dump-dir", tmp_path / "dump", "--no-verify")
    assert invoke("optimize", *sources, "-o", tmp_path / "out", *options).status == 0
    dumped = files(tmp_path / "dump")
    assert any(name.startswith("a/model/") for name in dumped)
    assert all(name.startswith(("a/model/", "c/model/")) for name in dumped)


def test_summary_and_report_with_a_failure(invoke: Invoke, hub: Path, tmp_path: Path) -> None:
    (hub / "b" / "bad.onnx").write_text("no model")
    sources = [hub / name for name in ("a/model.onnx", "b/bad.onnx", "c/model.onnx")]
    report = tmp_path / "report.json"
    command = ("optimize", *sources, "-o", tmp_path / "out", "--no-verify", "--report", report)
    outcome = invoke(*command)
    assert outcome.status == 3
    lines = outcome.out.splitlines()
    assert lines[1] == ("  b/bad.onnx    failed: it is not an ONNX model, but a text file")
    assert lines[-1] == "  2 models optimized (1 unchanged, 2 not verified), 1 failed"
    data = json.loads(report.read_text())
    summary = data["summary"]
    assert {
        key: summary[key] for key in ("models", "optimized", "unchanged", "unverified", "failed", "left")
    } == {
        "models": 3,
        "optimized": 2,
        "unchanged": 1,
        "unverified": 2,
        "failed": 1,
        "left": 0,
    }
    assert summary["nodes"] == [4, 2]
    sizes = [
        sum((folder / name).stat().st_size for name in ("a/model.onnx", "c/model.onnx"))
        for folder in (hub, tmp_path / "out")
    ]
    assert summary["file_bytes"] == sizes
    assert (data["interrupted"], data["status"]) == (False, 3)
    assert [model["source"] for model in data["models"]] == [str(path) for path in sources]
    assert data["models"][1]["error"]["status"] == 3
    as_json = json.loads(invoke(*command, "--json").out)
    assert as_json["summary"]["failed"] == 1 and as_json["status"] == 3
    dry = json.loads(invoke("optimize", *sources[::2], "--dry-run", "--no-verify", "--json").out)
    assert dry["summary"]["file_bytes"] is None and dry["summary"]["nodes"] == [4, 2]


def test_report_of_a_failing_model(invoke: Invoke, tmp_path: Path) -> None:
    bad, report = tmp_path / "bad.onnx", tmp_path / "report.json"
    bad.write_text("no model")
    for command in (
        ("optimize", bad, "-o", tmp_path / "o.onnx"),
        ("compile", bad, "-o", tmp_path / "o.gopt"),
    ):
        report.unlink(missing_ok=True)
        outcome = invoke(*command, "--report", report)
        assert outcome.status == 3
        data = json.loads(report.read_text())
        assert data["source"] == str(bad) and data["error"]["status"] == data["status"] == 3
        assert data["error"]["message"] in outcome.err and data["interrupted"] is False


def test_failures_in_the_list_do_not_repeat_the_file(
    invoke: Invoke, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are ``t`` and ``nope.onnx``; the former also occurs in words of its message."""
    monkeypatch.chdir(hub)
    Path("t").write_text("no model")
    outcome = invoke("optimize", "nope.onnx", "t", "a/model.onnx", "-o", "out", "--no-verify")
    lines = [line.strip() for line in outcome.out.splitlines()[:2]]
    assert lines[0] == "nope.onnx     failed: no such file"
    assert lines[1].endswith("failed: it is not an ONNX model, but a text file")
    assert "no such file: nope.onnx" in outcome.err


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), None])
def test_interruption_of_a_list(
    invoke: Invoke, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: BaseException | None
) -> None:
    """Also if the interrupt occurs while an extension module loads, which raises an ImportError."""
    from graphopt.cli.optimize_job import Job

    original = Job.optimize

    def optimize(self: Job, source: Path, *arguments: Any) -> Any:
        if source.parent.name == "c":
            if cause is None:
                raise KeyboardInterrupt
            raise ImportError("initialization failed") from cause
        return original(self, source, *arguments)

    monkeypatch.setattr(Job, "optimize", optimize)
    sources = [hub / name for name in ("a/model.onnx", "c/model.onnx", "b/onnx/model.onnx")]
    report = tmp_path / "report.json"
    command = ("optimize", *sources, "-o", tmp_path / "out", "--no-verify", "--report", report)
    outcome = invoke(*command)
    assert outcome.status == 130
    assert (
        outcome.out.splitlines()[-1] == "  1 model optimized (1 not verified), 1 interrupted, 1 not started"
    )
    assert f"interrupted; wrote {tmp_path}/out/a/model.onnx, {report}" in outcome.err
    data = json.loads(report.read_text())
    assert (data["interrupted"], data["status"]) == (True, 130)
    assert (data["summary"]["interrupted"], data["summary"]["left"]) == (1, 1)
    assert [model["source"] for model in data["models"]] == [str(sources[0])]
    assert json.loads(invoke(*command, "--json").out)["interrupted"] is True


@pytest.mark.parametrize("place", ["_write", "warnings_of", "as_dict"])
def test_a_model_written_before_the_interruption_is_done(
    invoke: Invoke, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The interrupt occurs right after the write, during the work after it, or during the creation of the entry."""
    from graphopt.cli import optimize_job
    from graphopt.cli.views import optimization

    module: Any = optimization if place == "as_dict" else optimize_job
    original, calls = getattr(module, place), []

    def interrupt(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        calls.append(place)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(module, place, interrupt)
    report, target = tmp_path / "c.json", tmp_path / "out"
    sources = [hub / "a/model.onnx", hub / "c/model.onnx"]
    outcome = invoke("optimize", *sources, "-o", target, "--no-cache", "--report", report)
    assert outcome.status == 130 and files(target) == ["a/model.onnx"]
    data = json.loads(report.read_text())
    assert [model["target"] for model in data["models"]] == [str(target / "a/model.onnx")]
    assert [data["summary"][key] for key in ("optimized", "interrupted", "left")] == [1, 0, 1]
    assert outcome.out.splitlines()[-1].endswith(", 1 not started")


def test_interruption_of_one_model(
    invoke: Invoke, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("graphopt.compiler.environment.Environment.load", interrupt)
    source, report = hub / "a/model.onnx", tmp_path / "report.json"
    outcome = invoke("optimize", source, "-o", tmp_path / "o.onnx", "--report", report, "--json")
    assert outcome.status == 130
    assert (
        json.loads(outcome.out)
        == json.loads(report.read_text())
        == {"source": str(source), "interrupted": True}
    )


def test_a_failed_write_of_the_report_keeps_the_first_error(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphopt.cli import report_file

    def fail(*arguments: object) -> None:
        raise InvalidModel("the disk is full")

    monkeypatch.setattr(report_file.publish, "write", fail)
    bad = tmp_path / "bad.onnx"
    bad.write_text("no model")
    outcome = invoke("optimize", bad, "-o", tmp_path / "o.onnx", "--report", tmp_path / "report.json")
    assert outcome.status == 3 and "is not an ONNX model" in outcome.err
    assert "warning: the report is not written: the disk is full" in outcome.err


def test_a_real_interrupt(hub: Path, tmp_path: Path) -> None:
    """SIGINT after the first of three models, one of which waits in a pass."""
    report = tmp_path / "report.json"
    sources = [hub / name for name in ("a/model.onnx", "c/model.onnx", "b/onnx/model.onnx")]
    (tmp_path / "waiting.py").write_text(
        "import time\n"
        "from dataclasses import dataclass\n"
        "from pathlib import Path\n"
        "from graphopt.passes.base import Pass\n"
        "@dataclass(frozen=True)\n"
        "class Wait(Pass):\n"
        "    name = 'wait'\n"
        "    def run(self, model, cx):\n"
        "        if len(list(model.graph)) == 1 and model.graph[0].op_type == 'Relu':\n"
        f"            Path({str(tmp_path / 'waits')!r}).touch()\n"
        "            time.sleep(300)\n"
    )
    words = ["optimize", *map(str, sources), "-o", str(tmp_path / "out"), "--report", str(report)]
    words += ["--json", "--no-verify", "--no-cache", "--pre-pass", "waiting:Wait"]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "graphopt", *words],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    while not (tmp_path / "waits").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert "interrupted; wrote" in err and "Traceback" not in err
    data = json.loads(report.read_text())
    assert data == json.loads(out)
    assert data["interrupted"] is True
    assert (data["summary"]["interrupted"], data["summary"]["left"]) == (1, 1)
    assert [model["source"] for model in data["models"]] == [str(sources[0])]
    assert files(tmp_path / "out") == ["a/model.onnx"]
