"""The commands in ``console`` blocks of the documentation run in a shell, page by page.

A ``python`` block that begins with a comment such as ``# own.py`` is a file of that name, which the
commands of the page find.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if "\n```console\n" in page.read_text()]
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")


def script(page: str, folder: Path) -> str:
    """The shell script of a page's commands; its files are written to ``folder``."""
    lines: list[str] = []
    for kind, text in _BLOCK.findall(page):
        if kind == "python":
            if title := _FILE.match(text):
                (folder / title[1]).write_text(text)
        else:  # the output of a command is below it, indented or not; a here-document belongs to its command
            end = None
            for line in text.splitlines():
                if end is not None:
                    lines.append(line)
                    end = None if line == end else end
                elif line.startswith("$ "):
                    lines.append(line[2:])
                    end = found[1] if (found := re.search(r"<<'(\w+)'", line)) else None
    return "\n".join(lines) + "\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="the commands are for bash")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (("python3", ""), ("graphopt", " -m graphopt")):
        program = programs / name  # they add this source tree to the PYTHONPATH of a command
        path = f'PYTHONPATH="$PYTHONPATH:{ROOT}"'
        program.write_text(f'#!/bin/sh\n{path} exec "{sys.executable}"{arguments} "$@"\n')
        program.chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    environment = os.environ | {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    commands = script(page.read_text(), folder)
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


def test_pages_show_commands() -> None:
    assert {page.stem for page in PAGES} >= {"getting-started", "write-a-rule"}


def test_output_is_no_command(tmp_path: Path) -> None:
    page = "```console\n$ cat <<'END'\n$ text\nEND\n$ a b\nprinted\n```\n\n```python\n# own.py\nx = 1\n```\n"
    assert script(page, tmp_path) == "cat <<'END'\n$ text\nEND\na b\n"
    assert (tmp_path / "own.py").read_text() == "# own.py\nx = 1\n"
