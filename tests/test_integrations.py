"""The GitHub action, the pre-commit hooks and the Dockerfile, as far as they run without their services."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

import graphopt

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="they are shell scripts")

_HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y)'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder with two models, one with a redundant Identity; `graphopt` is this source tree's."""
    program = tmp_path / "bin" / "graphopt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m graphopt "$@"\n')
    program.chmod(0o755)
    folder = tmp_path / "a repository"
    (folder / "sub folder").mkdir(parents=True)
    for name, body in (
        ("first.onnx", "y = Relu(x)"),
        ("sub folder/second.onnx", "a = Identity(x) y = Relu(a)"),
    ):
        onnx.save(onnx.parser.parse_model(f"{_HEAD} {{ {body} }}"), folder / name)
    return folder


def _run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder.parent / "bin"), os.environ["PATH"]])
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def _operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def _action(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    defaults = {
        "MODELS": "**/*.onnx",
        "OPTIONS": "--require-verified",
        "OUTPUT": str(folder.parent / "results"),
    }
    summary = str(folder.parent / "summary.md")
    script = str(ROOT / ".github" / "action" / "optimize.sh")
    return _run([script], folder, GITHUB_STEP_SUMMARY=summary, **(defaults | inputs))


def test_the_action_optimizes_all_models_and_summarizes(repository: Path) -> None:
    done = _action(repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _operators(repository.parent / "results" / "sub folder" / "second.onnx") == ["Relu"]
    assert "2 models, 0 failed" in done.stdout
    summary = (repository.parent / "summary.md").read_text()
    assert "### first.onnx: ok" in summary and "verified  bit-identical" in summary


def test_action_fails_if_a_model_fails(repository: Path) -> None:
    (repository / "broken.onnx").write_bytes(b"no model")
    done = _action(repository, OPTIONS="-O1 --quiet")
    assert done.returncode == 1
    assert "::error file=broken.onnx::graphopt: " in done.stdout
    assert "3 models, 1 failed" in done.stdout


def test_action_fails_if_no_model_matches(repository: Path) -> None:
    done = _action(repository, MODELS="models/*.onnx")
    assert done.returncode == 2 and "::error::no model matches: models/*.onnx" in done.stdout


def _hook(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    found = re.search(rf"- id: {name}\n(?:  .*\n)*?  entry: sh -c '(.*)' graphopt\n", text)
    assert found is not None
    return _run(["sh", "-c", found[1], "graphopt", *arguments], folder)


def test_optimize_hook_is_idempotent(repository: Path) -> None:
    models = ["first.onnx", "sub folder/second.onnx"]
    assert _hook("graphopt-optimize", repository, "--exact", *models).returncode == 0
    assert _operators(repository / models[1]) == ["Relu"]
    before = [(repository / model).read_bytes() for model in models]
    assert _hook("graphopt-optimize", repository, "--exact", *models).returncode == 0
    assert [(repository / model).read_bytes() for model in models] == before


def test_the_second_hook_compares_pairs(repository: Path) -> None:
    shutil.copy(repository / "first.onnx", repository / "first.opt.onnx")
    shutil.copy(repository / "first.onnx", repository / "alone.opt.onnx")
    assert _hook("graphopt-verify", repository, "first.opt.onnx", "alone.opt.onnx").returncode == 0
    onnx.save(onnx.parser.parse_model(f"{_HEAD} {{ y = Neg(x) }}"), repository / "first.opt.onnx")
    assert _hook("graphopt-verify", repository, "first.opt.onnx").returncode == 1


def test_the_files_that_the_dockerfile_needs_exist() -> None:
    text = (ROOT / ".ci" / "Dockerfile").read_text()
    for name in re.findall(r"/src/([\w.-]+)", text):
        assert (ROOT / name).exists()
    assert (ROOT / ".dockerignore").exists()


def test_the_citation_names_the_version() -> None:
    assert f"version: {graphopt.__version__}\n" in (ROOT / "CITATION.cff").read_text()
