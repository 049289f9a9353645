"""Installation: requirements, versions of Python, and environments that are complete or absent."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import graphopt

ROOT = Path(__file__).resolve().parents[1]


def _names(requirements: list[str]) -> list[str]:
    """Without markers, comments and blanks, in order."""
    plain = (requirement.partition(";")[0].partition("#")[0].strip() for requirement in requirements)
    return sorted(requirement for requirement in plain if requirement)


def test_cpu_requirements_differ_only_in_the_build_of_onnxruntime() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    gpu = next(item for item in project["dependencies"] if item.startswith("onnxruntime-gpu"))
    expected = [item for item in project["dependencies"] if item != gpu]
    assert _names((ROOT / "requirements-cpu.txt").read_text().splitlines()) == _names(expected)


def test_the_citation_and_the_changelog_name_the_version() -> None:
    assert f"\nversion: {graphopt.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:2] == ["Unreleased", graphopt.__version__]


def test_make_targets_named_in_pages_and_workflows_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    workflows = [*(ROOT / ".github" / "workflows").iterdir(), ROOT / ".ci" / "run"]
    pages = [page.read_text(encoding="utf-8") for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]]
    named = set(re.findall(r"`make ([a-z-]+)", "".join(pages)))
    for workflow in workflows:
        named |= set(
            re.findall(r"(?:run: |^)make ([a-z-]+)", workflow.read_text(encoding="utf-8"), re.MULTILINE)
        )
    assert {"lint", "test", "docs", "dist"} <= named <= targets


def _python(folder: Path, version: str, supported: bool) -> Path:
    """A Python that only prints its version, and fails halfway through the creation of an environment."""
    program = folder / "python"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in --version) echo Python {version};;\n'
        f'  "-c import sys"*) exit {0 if supported else 1};;\n'
        '  "-m venv"*) mkdir "$3"; echo half-made > "$3/pyvenv.cfg"; exit 1;; esac\n'
    )
    program.chmod(0o755)
    return program


def _install(venv: Path, python: Path, ort: str = "gpu") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / ".ci" / "install", venv, python, ort], capture_output=True, text=True, check=False
    )


def test_an_old_python_is_refused_in_one_line(tmp_path: Path) -> None:
    python = _python(tmp_path, "3.10.13", supported=False)
    done = _install(tmp_path / "venv", python)
    assert done.returncode == 2 and done.stdout == ""
    message, hint = done.stderr.splitlines()
    assert message == f"graphopt: needs Python 3.11 or newer, but {python} is Python 3.10.13"
    assert hint == "hint: name a newer Python: make demo PYTHON=python3.12"
    assert not (tmp_path / "venv").exists()


def test_an_environment_of_an_old_python_is_named(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    _python(venv / "bin", "3.10.13", supported=False)
    done = _install(venv, _python(tmp_path, "3.12.1", supported=True))
    assert done.returncode == 2
    assert f"but {venv}/bin/python is Python 3.10.13" in done.stderr
    assert "hint: make clean, then" in done.stderr


def test_environment_is_created_completely_or_not_at_all(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / "pyvenv.cfg").write_text("an earlier one, interrupted")
    done = _install(venv, _python(tmp_path, "3.12.1", supported=True))
    assert done.returncode != 0
    assert not venv.exists()


@pytest.mark.parametrize("ort", ["cuda", ""])
def test_an_unknown_build_of_onnxruntime_is_refused(tmp_path: Path, ort: str) -> None:
    done = _install(tmp_path / "venv", _python(tmp_path, "3.12.1", supported=True), ort)
    assert done.returncode == 2
    assert "hint: ORT=gpu or ORT=cpu" in done.stderr
