"""Output on terminals of 60, 80 and 120 columns: whole words, no line too wide, no remains of a progress bar."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import click
import onnx
import onnx.parser
import pytest

from graphopt.cli.framework.help import HelpedCommand
from graphopt.cli.main import cli, main
from tests.cli.conftest import Invoke

pty = pytest.importorskip("pty", reason="pseudo-terminals are a POSIX feature")

WIDTHS = [60, 80, 120]

#: Two GELUs, one with a wrong constant, and a chain of element-wise operators, with long names.
MODEL = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "test">
wide (float[batch, 64] tokens) => (float[batch, 64] hidden)
    <float r = {1.4142135}, float one = {1.0}, float h = {0.5}, float w = {2.0}> {
  a = Identity(tokens)
  d = Div(a, r) e = Erf(d) f = Add(e, one) g = Mul(a, f) i = Mul(g, h)
  j = Div(i, w) k = Erf(j) l = Add(k, one) m = Mul(i, l) n = Mul(m, h)
  s = Sigmoid(n) t = Mul(s, n) u = Tanh(t)
  hidden = Softmax<axis = -1>(u)
}
"""
#: Figures and times, which differ from run to run.
_VOLATILE = re.compile(r"[\d.,:+×%−-]+|(ms|s|min|[kMG]?B),?")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The file of a model with long names."""
    proto = onnx.parser.parse_model(MODEL)
    for node in proto.graph.node:
        node.name = f"/encoder/layer.0/intermediate/{node.op_type}_{node.output[0]}"
    path = tmp_path / "wide.onnx"
    onnx.save(proto, path)
    return path


Show = Callable[..., list[str]]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Show:
    """Call ``graphopt`` on a terminal of some columns; returns the lines that it shows in the end."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def call(columns: int, *arguments: object, environ: dict[str, str] | None = None) -> list[str]:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 1000, columns, 0, 0))
        parts: list[bytes] = []

        def read() -> None:
            while True:
                try:
                    data = os.read(master, 65536)
                except OSError:  # the other end is closed
                    return
                if not data:
                    return
                parts.append(data)

        reader = threading.Thread(target=read)
        reader.start()
        with monkeypatch.context() as patch, open(slave, "w", encoding="utf-8") as terminal:
            patch.setattr(sys, "stdout", terminal)
            patch.setattr(sys, "stderr", terminal)
            main([str(item) for item in arguments], {"XDG_CACHE_HOME": str(tmp_path), **(environ or {})})
        reader.join()
        os.close(master)
        return _screen(b"".join(parts).decode())

    return call


def _screen(text: str) -> list[str]:
    """The lines on a terminal after ``text``, without colours; lines that are too wide are not broken."""
    lines, row, column = [""], 0, 0
    for item in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if item == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif item == "\r":
            column = 0
        elif item.endswith("A") and item.startswith("\x1b"):
            row = max(0, row - int(item[2:-1] or 1))
        elif item == "\x1b[2K":
            lines[row] = ""
        elif not item.startswith("\x1b"):
            line = lines[row].ljust(column)
            lines[row] = line[:column] + item + line[column + len(item) :]
            column += len(item)
    return [line.rstrip() for line in lines]


#: No comparison is skipped for time, however busy the machine is.
PATIENT = ("--set", "verify-seconds=1000")

COMMANDS = {
    "optimize": ("optimize", "{model}", "-o", "out.onnx", *PATIENT),
    "optimize -O3 -v": ("optimize", "{model}", "-o", "out.onnx", "-O3", "-v", *PATIENT),
    "verify": ("verify", "{model}", "{model}", *PATIENT),
    "compare -v": ("compare", "{model}", "{model}", "-v", "--device", "cpu"),
    "explain": ("explain", "{model}", "-v"),
    "partition": ("partition", "{model}", "--explain"),
    "kernels": ("kernels", "{model}"),
    "inspect": ("inspect", "{model}", "-v"),
    "run": ("run", "{model}", "--device", "cpu"),
    "passes": ("passes",),
    "passes peephole": ("passes", "peephole"),
    "pipelines": ("pipelines",),
    "bisect": ("bisect", "{model}", "--check", "valid"),
    "doctor": ("doctor",),
    "an error": ("inspect", "nowhere/to/be/found.onnx"),
    "a wrong option": ("optimize", "{model}", "-o", "nowhere/out.onnx"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_screens_fit_their_terminal(invoke: Invoke, show: Show, model: Path, name: str) -> None:
    os.rename(model, "wide.onnx")
    arguments = [text.format(model="wide.onnx") for text in COMMANDS[name]]
    piped = invoke(*arguments)
    assert piped.status == (2 if name.startswith("a") else 0), piped.err
    words = {word for word in f"{piped.out} {piped.err}".split() if not _VOLATILE.fullmatch(word)}
    for columns in WIDTHS:
        lines = show(columns, *arguments)
        shown = {word for line in lines for word in line.split()}
        assert not any("━" in line for line in lines), f"a progress bar is left at {columns} columns"
        torn = {word for word in words - shown if not any(char.isdigit() for char in word)}
        assert not torn, f"torn or missing at {columns} columns"
        wide = [line for line in lines if len(line) > columns and len(line.split()) > 1]
        assert not wide, f"wider than {columns} columns"


HELP = {f"{name} --help-all": (name, "--help-all") for name in cli.list_commands(None)}
HELP |= {f"{name} --help": (name, "--help") for name in cli.list_commands(None)}
MORE = {
    "--help": ("--help",),
    "report": ("{model}",),
    "diff": ("diff", "{model}", "{other}"),
    "diff -v": ("diff", "{model}", "{other}", "-v"),
    "dump": ("dump", "{model}"),
    "dump --pass-by-pass": ("dump", "{model}", "--pass-by-pass"),
    "bench": ("bench", "{model}", "{other}", "--processes", "2", "--seconds", "1"),
    "passes peephole -v": ("passes", "peephole", "-v"),
    "pipelines O3": ("pipelines", "O3"),
    "completion": ("completion",),
    **HELP,
}


@pytest.mark.parametrize("name", MORE)
def test_no_line_is_wider_than_the_terminal(invoke: Invoke, show: Show, model: Path, name: str) -> None:
    os.rename(model, "wide.onnx")
    proto = onnx.load("wide.onnx")
    proto.graph.node[-1].op_type = "LogSoftmax"
    onnx.save(proto, "other.onnx")
    arguments = [text.format(model="wide.onnx", other="other.onnx") for text in MORE[name]]
    for columns in WIDTHS[1:2] if name == "bench" else WIDTHS:
        lines = show(columns, *arguments)
        assert len(lines) > 1
        wide = [line for line in lines if len(line) > columns and (len(line.split()) > 1 or "──" in line)]
        assert not wide, f"wider than {columns} columns"


def test_rules_of_headings_fit_where_the_width_is_given(
    invoke: Invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    proto = onnx.load(model)
    proto.graph.node[-1].op_type = "LogSoftmax"
    onnx.save(proto, "other.onnx")
    piped = invoke("diff", model, "other.onnx").out
    assert [len(line) for line in piped.splitlines() if line.startswith("──")] == [60, 60]


def test_wrapped_examples_are_valid_shell_lines(show: Show) -> None:
    lines = show(60, "train-step", "--help")
    whole = "\n".join(lines).replace("\\\n", " ")
    command = cli.get_command(click.Context(cli), "train-step")
    assert isinstance(command, HelpedCommand)
    shown = [" ".join(line.split()) for line in whole.splitlines()]
    assert all(example in shown for example in command.examples[:4])


def test_the_report_at_60_columns(show: Show, invoke: Invoke, model: Path) -> None:
    os.rename(model, "wide.onnx")
    lines = show(60, "optimize", "wide.onnx", "-o", "out.onnx", *PATIENT)
    (begin,) = (number for number, line in enumerate(lines) if line.startswith("  verified"))
    expected = [
        "  verified  bit-identical in N comparisons of N shapes and",
        "            N kinds of values",
        "            onnxruntime, CPU, ",
    ]
    found = [re.sub(r"\d+", "N", line) for line in lines[begin : begin + 3]]
    assert found[:2] == expected[:2] and found[2].startswith(expected[2])


@pytest.mark.parametrize(("environ", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)], ids=str)
def test_terminals_get_colors(
    monkeypatch: pytest.MonkeyPatch,
    invoke: Invoke,
    show: Show,
    model: Path,
    environ: dict[str, str],
    colored: bool,
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(sys.modules[__name__], "_screen", lambda text: seen.append(text) or [])
    show(80, "verify", model, model, environ=environ)
    show(80, "inspect", "nowhere.onnx", environ=environ)
    verdict, error = seen
    assert ("\x1b[32m" in verdict and "\x1b[1m" in verdict) == colored
    assert ("\x1b[31m" in error) == colored
