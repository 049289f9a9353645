"""The walk-throughs in samples/ run to their end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WALKTHROUGHS = sorted(path for path in (ROOT / "samples").glob("[0-9]*") if path.suffix in (".py", ".sh"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which `graphopt` and `python3` are those of the running interpreter and this source tree."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (
        ("python3", ""),
        ("graphopt", ' -c "from graphopt.cli.main import run; run()"'),
    ):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        program.chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}


@pytest.mark.skipif(shutil.which("bash") is None, reason="the walk-throughs are bash scripts")
@pytest.mark.parametrize("script", WALKTHROUGHS, ids=lambda path: path.stem)
def test_runs_to_its_end(script: Path, environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable if script.suffix == ".py" else "bash", str(script), str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert done.stdout
    if script.stem == "00_demo":  # fits a screen, and reports the outcome
        lines = done.stdout.splitlines()
        assert len(lines) < 60 and max(map(len, lines)) <= 80
        assert "verified  bit-identical" in done.stdout.rpartition("$ graphopt verify")[2]


def test_the_sample_pass_is_imported_without_running(environment: dict[str, str], tmp_path: Path) -> None:
    shutil.copy(ROOT / "samples" / "05_own_pass.py", tmp_path / "own_pass.py")
    code = "from graphopt.passes.load_pass import load_pass; load_pass('own_pass:FastDivision')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and not (tmp_path / "build").exists()


def test_readme_lists_all_walkthroughs() -> None:
    readme = (ROOT / "samples" / "README.md").read_text(encoding="utf-8")
    assert WALKTHROUGHS
    for script in WALKTHROUGHS:
        assert f"[{script.name}]({script.name})" in readme
