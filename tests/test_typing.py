"""The package in type checkers and interactive sessions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import types
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import api
from graphopt.specialization.build_variants import Specialization
from graphopt.util.html_blocks import html_of
from graphopt.util.text_tables import Table
from tests.model_testing import parse

ROOT = Path(__file__).parent.parent
MODEL = "g (float[N] x) => (float[N] y) { a = Identity(x)  y = Relu(a) }"

RIGHT = """
import numpy as np
import onnx
import graphopt
from graphopt import GraphoptError, Model, Report, optimize

def user(proto: onnx.ModelProto) -> np.ndarray:
    model, report = optimize(proto)
    a: Model = model
    b: Report = report
    c: str = graphopt.__version__
    d: onnx.ModelProto = graphopt.optimize("model.onnx").to_proto()
    e: dict[str, np.ndarray] = graphopt.run(proto.SerializeToString(), {})
    f: dict[str, np.ndarray] = graphopt.compile(a)({})
    graphopt.ir.save(a, "model.onnx")
    try:
        return e["y"] if "y" in e else f["y"]
    except GraphoptError as error:
        raise SystemExit(error.hint) from error
"""
WRONG = """
import graphopt
graphopt.optimise("model.onnx")
graphopt.optimize("model.onnx", exakt=True)
graphopt.optimize(7)
graphopt.run("model.onnx", {})["y"].no_such_attribute
"""


@pytest.mark.slow  # mypy reads all that graphopt imports
def test_mypy_accepts_correct_calls_and_reports_misspelt_arguments(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary"),
            *("--ignore-missing-imports", "right.py", "wrong.py"),
        ],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = done.stdout.splitlines()
    assert [line.split(":")[:2] for line in errors if ": error: " in line] == [
        ["wrong.py", "3"],
        ["wrong.py", "4"],
        ["wrong.py", "5"],
        ["wrong.py", "6"],
    ], done.stdout + done.stderr
    assert '"optimise"' in errors[0]


def test_stub_has_no_getattr_and_packages_declare_all() -> None:
    tree = ast.parse((ROOT / "graphopt" / "__init__.pyi").read_text())
    assert "__getattr__" not in {item.name for item in tree.body if isinstance(item, ast.FunctionDef)}
    for path in sorted((ROOT / "graphopt").rglob("__init__.py")):
        text = path.read_text()
        if re.search(r"^from graphopt\b.* import", text, re.MULTILINE):
            assert "__all__ = " in text or text.startswith("# mypy: implicit-reexport\n"), path


def test_dir_lists_exactly_the_public_names() -> None:
    for name in graphopt.__all__:
        found = getattr(graphopt, name)
        if isinstance(found, types.ModuleType):
            assert found.__name__ == f"graphopt.{name}"
        elif hasattr(found, "__name__") and name != "ModelLike":
            assert found.__name__ == name
    public = [name for name in dir(graphopt) if not name.startswith("_")]
    assert public == [name for name in sorted(graphopt.__all__) if not name.startswith("_")]
    assert {"Report", "Model", "GraphoptError", "to_proto"} <= set(public)
    assert {"Any", "TYPE_CHECKING", "annotations", "importlib"}.isdisjoint(public)


def test_a_misspelt_name_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(AttributeError, match="no attribute 'optimise'; nearest: optimize") as caught:
        graphopt.optimise  # type: ignore[attr-defined] # noqa: B018
    assert caught.value.name == "optimise"
    assert caught.value.obj is None  # with it, the interpreter adds a second suggestion


# Interactive sessions ----------------------------------------------------------------------


def test_representations_are_short() -> None:
    result = graphopt.optimize(parse(MODEL))
    headline = "nodes 2 → 1, weights 0 B → 0 B, verified"
    assert repr(result) == f"Result({headline}; it has .model, .report, .to_proto() and .save(path))"
    assert repr(result.report) == f"Report({headline}; print(report) shows all of it)"
    assert "Record(" in repr(result.report.passes[0]) and len(repr(result.report.passes[0])) < 100
    assert repr(result.verdict).startswith("Verdict(ok=True, bit-identical in ")
    executor = graphopt.compile(parse(MODEL))
    assert repr(executor) == "Executor((x) -> (y), last_plan=None)"
    executor({"x": np.ones(2, np.float32)})
    assert repr(executor) == "Executor((x) -> (y), last_plan='general')"
    nested = graphopt.compile(parse(MODEL), outputs=["y"])
    assert nested({"x": np.array([-1, 1], np.float32)})[0].tolist() == [0, 1]
    assert repr(nested).startswith("NestedExecutor(")


def test_representations_of_models_with_gradients_are_short() -> None:
    network = parse(
        "g (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }"
    )
    for found in (
        graphopt.differentiate(network, "mse:y,target"),
        graphopt.split(network, "mse:y,target"),
        graphopt.train_step(network, "mse:y,target"),
        graphopt.partition(network),
    ):
        assert len(repr(found)) < 1500 and "Model(" not in repr(found)


def test_representations_of_bailouts_and_variants_are_short() -> None:
    model = parse("g (float[N] x) => (float[M] y) { i = NonZero(x)  s = Cast<to = 1>(i)  y = ReduceSum(s) }")
    profile = graphopt.record_profile(model, [{"x": np.ones(3, np.float32)}] * 2)
    found, _ = api.bailout(model, 0, verify=False)
    bailed = api.with_bailouts(model, profile, verify=False)
    variants = api.specialize(model, Specialization(profile), verify=False)
    for item in (found, bailed, bailed.inserted, variants):
        assert "Model(" not in repr(item) and len(repr(item)) < 2000


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_self_contained_and_escaped() -> None:
    table = Table(["", "<b>"], "<>")
    table.add("  <script>alert(1)</script>", "a & b")
    cells = _Cells()
    cells.feed(html_of([table, "  kept <i>", ""]))
    assert cells.tags == ["table", "tr", "th", "th", "tr", "td", "td", "div"]
    assert "<script>alert(1)</script>" in cells.text and "a & b" in cells.text and "kept <i>" in cells.text
    result = graphopt.optimize(parse(MODEL), verify=False)
    assert result._repr_html_() == result.report._repr_html_()
    assert result._repr_html_().startswith("<table>") and "drop-identity" in result._repr_html_()


def test_results_have_html_for_notebooks() -> None:
    hostile = "<script>alert(1)</script>"
    model = parse(MODEL)
    model.graph[0].name = hostile
    executor = graphopt.compile(model)
    executor({"x": np.ones(2, np.float32)})
    result = graphopt.optimize(model)
    verdict = graphopt.verify(model, result.model)
    shown = [
        (verdict, verdict.agreement),
        (graphopt.partition(model, minimum=1), "group_0"),
        (graphopt.lineage(model), "drop-identity"),
        (executor, "general"),
        (executor.debug_state(), "general"),
    ]
    for item, text in shown:
        cells = _Cells()
        cells.feed(item._repr_html_())
        assert text in cells.text and "table" in cells.tags and "script" not in cells.tags
    assert hostile in graphopt.lineage(model).originals
