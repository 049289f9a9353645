"""``--trace`` and ``GRAPHOPT_TRACE``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Invoke
from .test_bad_input import check


def test_a_command_is_traced(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    assert (
        invoke("optimize", small, "-o", "out.onnx", "--trace", "t.jsonl", "--set", "cache=true").status == 0
    )
    events = [json.loads(line) for line in Path("t.jsonl").read_text().splitlines()]
    assert [one["name"] for one in events if one["event"] == "command"] == ["optimize"] * 2
    assert {"operation", "graph", "pass", "verification", "cache"} <= {one["event"] for one in events}
    assert invoke("inspect", small, "--trace", "t.jsonl").status == 0  # appends
    names = [json.loads(line)["event"] for line in Path("t.jsonl").read_text().splitlines()]
    assert (
        names[: len(events)] == [one["event"] for one in events] and names[len(events) :] == ["command"] * 2
    )


def test_the_variable_traces_every_command(invoke: Invoke, small: Path) -> None:
    environ = {"GRAPHOPT_TRACE": "t.json"}
    invoke("optimize", small, "-o", "out.onnx", environ=environ)
    invoke("verify", small, "out.onnx", environ=environ)
    found = json.loads(Path("t.json").read_text())
    assert [one["name"] for one in found if one["ph"] == "B" and one["cat"] == "command"] == [
        "optimize",
        "verify",
    ]


def test_formats(invoke: Invoke, small: Path) -> None:
    invoke("inspect", small, "--trace", "t.json", "--trace-format", "lines")
    assert [json.loads(line)["event"] for line in Path("t.json").read_text().splitlines()] == ["command"] * 2
    check(invoke("inspect", small, "--set", "trace-format=xml"), 2, "trace-format can't be 'xml'")


def test_failing_commands_are_traced(invoke: Invoke, small: Path) -> None:
    assert invoke("optimize", small, "--passes", "nothing", "--trace", "t.jsonl").status == 2
    last = json.loads(Path("t.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "command" and last["error"].startswith("UsageError: ")


@pytest.mark.parametrize("path", ["/dev/full", "missing/t.jsonl"])
def test_results_do_not_depend_on_the_trace(invoke: Invoke, small: Path, path: str) -> None:
    outcome = invoke("optimize", small, "-o", "out.onnx", environ={"GRAPHOPT_TRACE": path})
    assert outcome.status == 0 and Path("out.onnx").exists()
    (warning,) = [line for line in outcome.err.splitlines() if "trace" in line]
    assert warning.startswith(f"graphopt: warning: the trace {path} can't be written: ")


def test_the_trace_does_not_replace_files(invoke: Invoke, small: Path) -> None:
    content = small.read_bytes()
    check(invoke("inspect", small, "--trace", small), 2, f"--trace would write over {small}")
    check(invoke("inspect", small, "--trace", "none/t.jsonl"), 2, "there is no folder none")
    Path("notes.json").write_text('{"mine": 1}')
    outcome = invoke("inspect", small, "--trace", "notes.json")
    assert outcome.status == 0 and "not a trace in Chrome's format" in outcome.err
    assert Path("notes.json").read_text() == '{"mine": 1}' and small.read_bytes() == content


@pytest.mark.parametrize(
    "content", [b"\x93NUMPY\x01\x00", b'{\n  "mine": 1\n}\n', b'{"mine": 1}', b"1\n", b"text\n"]
)
def test_lines_are_not_appended_to_other_files(invoke: Invoke, small: Path, content: bytes) -> None:
    Path("mine").write_bytes(content)
    outcome = invoke("inspect", small, "--trace", "mine")
    assert outcome.status == 0 and "not a trace in JSON lines" in outcome.err
    assert Path("mine").read_bytes() == content
