"""The commands in the README and the documentation have existing options, and run in a shell, page by page.

Commands are lines of ``console`` blocks that begin with ``$``, and lines of blocks without a language that begin
with ``graphopt`` or ``$ graphopt``. A ``python`` block that begins with a comment such as ``# own.py`` is a file
of that name, which the commands of the page find.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt.cli.framework.command_list import NAMES
from graphopt.cli.main import cli

ROOT = Path(__file__).parent.parent
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in DOCS if "\n```console\n" in page.read_text()]
_BLOCK = re.compile(r"^```(console|python|)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")
_SHELL = re.compile(r"\s(?:\||>|2>|#)\s?.*")

#: Words in the place of commands: a notation of ``--help``, and an example of a command that does not exist.
_OTHERS = {"help", "quantize"}

#: The model of blocks without a language.
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
model (int64[N, S] ids, float[N, 1, S] mask) => (float[N, 8] logits) <float[100, 8] table, float[8, 8] weight> {
    rows = Gather (table, ids)
    factor = Transpose <perm = [0, 2, 1]> (mask)
    masked = Mul (rows, factor)
    mean = ReduceMean <axes = [1], keepdims = 0> (masked)
    activated = Tanh (mean)
    logits = MatMul (activated, weight)
}"""

#: Commands that tests do not run, by a part of their text, with the reason.
NOT_RUN = {
    "mine.passes": "the pass exists only in the text",
    "still_fails.py": "the reader writes the check",
    "graphopt calibrate": "measures for a minute",
    "graphopt config diff": "has the exit status 1, because the settings differ",
    "graphopt bench": "measures, and compares with other tools",
    "graphopt bailout": "tests/samples runs 08_bailouts.sh",
    "--tune": "measures for a minute",
    "trained.safetensors": "the trained weights exist only in the text",
    "exported.safetensors": "the weights of the framework exist only in the text",
    "graphopt completion": "starts in the configuration of a shell",
    "--strict-fusion": "tests/cli/test_explain.py runs the examples of strict fusion",
    "--fuser native": "needs a C compiler",
    "kernels model.opt.onnx --device cuda": "reads the result of a command that needs a GPU",
    "--filter": "names scopes of another model",
}


def script(page: str, folder: Path) -> str:
    """The shell script of the commands in ``console`` blocks; files of the page are written to ``folder``."""
    lines: list[str] = []
    for kind, text in _BLOCK.findall(page):
        if kind == "python":
            if title := _FILE.match(text):
                (folder / title[1]).write_text(text)
        elif kind == "console":
            # the output of a command is below it, indented or not; a here-document belongs to its command
            end = None
            for line in text.splitlines():
                if end is not None:
                    lines.append(line)
                    end = None if line == end else end
                elif line.startswith("$ "):
                    lines.append(line[2:])
                    end = found[1] if (found := re.search(r"<<'(\w+)'", line)) else None
    return "\n".join(lines) + "\n"


def plain_commands(page: str) -> list[str]:
    """The calls of graphopt in blocks without a language."""
    texts = [text.replace("\\\n", " ") for kind, text in _BLOCK.findall(page) if not kind]
    lines = [line.removeprefix("$ ") for text in texts for line in text.splitlines()]
    return [line for line in lines if line.startswith("graphopt ")]


def runnable_commands(page: str) -> list[str]:
    """The plain commands that tests run; diff ends with status 1 if models differ."""
    found = [line for line in plain_commands(page) if not any(part in line for part in NOT_RUN)]
    return [f"{line} || [ $? -eq 1 ]" if line.startswith("graphopt diff ") else line for line in found]


def fault(command: str) -> str | None:
    """The name of a command or option in ``command`` that does not exist."""
    words = shlex.split(_SHELL.sub("", command))[1:]
    if not words or words[0].startswith("-"):
        return None
    name, *rest = words
    if name not in NAMES:
        return name if re.fullmatch(r"[a-z-]+", name) and name not in _OTHERS else None
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    known = {option for param in found.params for option in (*param.opts, *param.secondary_opts)}
    for word in rest[: rest.index("--") if "--" in rest else None]:
        option = word.partition("=")[0]
        if re.match(r"--?[A-Za-z]", word) and not {option, option[:2]} & {
            *known,
            "--help",
            "--help-all",
            "-v",
        }:
            return option
    return None


def run(commands: str, folder: Path) -> None:
    """Run ``commands`` in ``folder``."""
    programs = folder.parent / "bin"
    programs.mkdir()
    for name, arguments in (("python3", ""), ("graphopt", " -m graphopt")):
        program = programs / name  # they add this source tree to the PYTHONPATH of a command
        path = f'PYTHONPATH="$PYTHONPATH:{ROOT}"'
        program.write_text(f'#!/bin/sh\n{path} exec "{sys.executable}"{arguments} "$@"\n')
        program.chmod(0o755)
    environment = os.environ | {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
    }
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="the commands are for bash")


@needs_bash
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    run(script(page.read_text(), folder), folder)


def prepare(folder: Path) -> None:
    """Write the files that plain commands name: :data:`MODEL`, inputs, profiles, and the sample model."""
    random = np.random.default_rng(0)
    proto = onnx.parser.parse_model(MODEL)
    shapes = {"table": (100, 8), "weight": (8, 8)}
    graph = proto.graph
    for value in [value for value in graph.value_info if value.name in shapes]:
        graph.value_info.remove(value)
    for name, shape in shapes.items():
        graph.initializer.append(onnx.numpy_helper.from_array(random.random(shape, np.float32), name))
    onnx.save(proto, folder / "model.onnx")
    runs = [
        {"ids": random.integers(0, 100, size), "mask": np.ones((size[0], 1, size[1]), np.float32)}
        for size in ((1, 8), (2, 4))
    ]
    for name in ("requests", "today"):
        (folder / name).mkdir()
        for number, feeds in enumerate(runs):
            np.savez(folder / name / f"{number}.npz", **feeds)
    for name in ("monday.json", "tuesday.json"):
        graphopt.record_profile(proto, runs).write(folder / name)
    for name in ("transformer.onnx", "build/demo/transformer.onnx"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "graphopt/cli/files/sample.onnx", folder / name)


@needs_bash
@pytest.mark.parametrize(
    "page", [page for page in DOCS if runnable_commands(page.read_text())], ids=lambda page: page.stem
)
def test_plain_commands_run(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    prepare(folder)
    run("\n".join(runnable_commands(page.read_text())), folder)


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_commands_and_options_exist(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    commands = [*plain_commands(text), *script(text, tmp_path).splitlines()]
    commands += re.findall(r"`(graphopt [^`\n]+)`", text)
    assert [
        found for command in commands if command.startswith("graphopt ") if (found := fault(command))
    ] == []


def test_commands_that_are_not_run_exist() -> None:
    commands = [command for page in DOCS for command in plain_commands(page.read_text())]
    assert [part for part in NOT_RUN if not any(part in command for command in commands)] == []


def test_missing_options_are_found() -> None:
    assert fault("graphopt optimize a.onnx --exat") == "--exat"
    assert fault("graphopt optimise a.onnx") == "optimise"
    assert fault("graphopt optimize a.onnx -O3 --dim=a=1 | cat --exat") is None


def test_pages_show_commands() -> None:
    assert {page.stem for page in PAGES} >= {"getting-started", "write-a-rule"}


def test_output_is_no_command(tmp_path: Path) -> None:
    page = "```console\n$ cat <<'END'\n$ text\nEND\n$ a b\nprinted\n```\n\n```python\n# own.py\nx = 1\n```\n"
    assert script(page, tmp_path) == "cat <<'END'\n$ text\nEND\na b\n"
    assert (tmp_path / "own.py").read_text() == "# own.py\nx = 1\n"
    assert plain_commands("```\n$ graphopt a \\\n  b\nprinted\ngraphopt c\n```\n") == [
        "graphopt a    b",
        "graphopt c",
    ]
