"""graphopt optimize --html, and graphopt.report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import graphopt
from tests.cli.conftest import Invoke
from tests.page.page_parser import parsed


def test_the_page_of_an_optimization(invoke: Invoke, small: Path) -> None:
    outcome = invoke("optimize", small, "-o", "out.onnx", "--html", "page.html")
    assert outcome.status == 0, outcome
    assert "wrote page.html, " in outcome.out
    data = parsed(Path("page.html").read_bytes()).data
    assert [graph["label"] for graph in data["graphs"]] == [str(small), "out.onnx"]
    assert data["stages"] and data["makers"]
    assert data["command"] == f"graphopt optimize {small} -o out.onnx --html page.html"
    assert Path("out.onnx").exists()


def test_the_page_does_not_change_the_result(invoke: Invoke, small: Path) -> None:
    assert invoke("optimize", small, "-o", "a.onnx", "--html", "page.html").status == 0
    assert invoke("optimize", small, "-o", "b.onnx").status == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()


def test_the_original_is_in_the_page_although_its_file_is_replaced(invoke: Invoke, small: Path) -> None:
    assert invoke("optimize", small, "-o", small, "--html", "page.html").status == 0
    original, result = parsed(Path("page.html").read_bytes()).data["graphs"]
    assert (len(original["nodes"]["name"]), len(result["nodes"]["name"])) == (3, 1)


def test_a_dry_run_writes_the_page(invoke: Invoke, small: Path) -> None:
    assert invoke("optimize", small, "--dry-run", "--html", "page.html").status == 0
    assert [path.name for path in Path().iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--html", "page.txt"], "page.txt needs the suffix .html"),
        (["--html", "missing/page.html"], "missing"),
        (["--html", "page.html", "other.onnx"], "--html needs one model; several are given"),
        (["--html", "page.html", "--profile", "profile.json"], "--html"),
    ],
)
def test_bad_input(invoke: Invoke, small: Path, arguments: list[str], message: str) -> None:
    for name in ("other.onnx", "profile.json"):
        Path(name).write_bytes(small.read_bytes())
    Path("out").mkdir()
    outcome = invoke("optimize", small, *arguments, "-o", "out")
    assert outcome.status == 2 and message in outcome.err.splitlines()[0], outcome
    assert sorted(path.name for path in Path().iterdir()) == ["other.onnx", "out", "profile.json"]
    assert not list(Path("out").iterdir())


def test_no_page_of_a_failure(invoke: Invoke) -> None:
    Path("damaged.onnx").write_bytes(b"\xff" * 100)
    assert invoke("optimize", "damaged.onnx", "-o", "out.onnx", "--html", "page.html").status == 3
    assert [path.name for path in Path().iterdir()] == ["damaged.onnx"]


def test_the_page_in_python(small: Path) -> None:
    page = graphopt.report(str(small), verify=False)
    data = parsed(page).data
    assert len(data["graphs"]) == 2 and data["stages"]


def test_the_page_of_two_models_in_python(small: Path) -> None:
    result = graphopt.optimize(str(small), verify=False, provenance=True)
    pages = [graphopt.report(str(small), result.model) for _ in range(2)]
    assert pages[0] == pages[1]
    data = parsed(pages[0]).data
    assert data["makers"] and not data["stages"]


def test_pages_are_not_imported_without_the_option(small: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from graphopt.cli.main import main; "
        "status = main(sys.argv[1:], {'GRAPHOPT_CACHE': 'false'}); "
        "print([name for name in sys.modules if name.startswith(('graphopt.page', 'jinja2', 'fast_sug'))]); "
        "sys.exit(int(status))"
    )
    words = ["optimize", str(small), "-o", str(tmp_path / "out.onnx"), "-q", "--no-verify"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
