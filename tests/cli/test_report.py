"""graphopt report and graphopt view: files, errors, and determinism."""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from graphopt.page import page_server
from graphopt.page.page_server import PageServer
from tests.cli.conftest import Invoke
from tests.page.page_parser import parsed

HOSTILE = "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"


def _without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make imports of ``package`` fail."""
    original: Callable[..., Any] = builtins.__import__

    def find(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(f"No module named {package!r}")
        return original(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", find)
    monkeypatch.setitem(sys.modules, package, None)  # also for importlib


def test_a_page_of_an_optimization(invoke: Invoke, small: Path) -> None:
    outcome = invoke("report", small, "-o", "page.html")
    assert outcome.status == 0, outcome
    assert "  wrote     page.html, " in outcome.out
    data = parsed(Path("page.html").read_bytes()).data
    original, result = data["graphs"]
    assert (len(original["nodes"]["name"]), len(result["nodes"]["name"])) == (3, 1)
    assert data["stages"] and data["makers"]
    assert data["command"] == f"graphopt report {small} -o page.html"


def test_the_page_is_beside_the_model_by_default(invoke: Invoke, small: Path) -> None:
    assert invoke("report", small, "--no-verify").status == 0
    assert small.with_name("small.report.html").exists()
    assert sorted(path.name for path in small.parent.glob("small*")) == ["small.onnx", "small.report.html"]


def test_json(invoke: Invoke, small: Path) -> None:
    found = json.loads(invoke("report", small, "-o", "page.html", "--json").out)
    assert (found["model"], found["other"], found["page"]) == (str(small), None, "page.html")
    assert found["bytes"] == Path("page.html").stat().st_size
    assert found["report"]["optimized"]["nodes"] == 1


def test_a_page_of_two_models(invoke: Invoke, small: Path) -> None:
    assert invoke("optimize", small, "-o", "result.onnx", "--provenance").status == 0
    outcome = invoke("report", small, "result.onnx", "-o", "page.html")
    assert outcome.status == 0, outcome
    data = parsed(Path("page.html").read_bytes()).data
    assert [graph["label"] for graph in data["graphs"]] == [str(small), "result.onnx"]
    assert data["makers"] and not data["stages"]
    line = f"nodes of result.onnx related to nodes of {small}: 1 of 1"
    assert line in outcome.out and line in [
        one.text for one in parsed(Path("page.html").read_bytes()).all("p")
    ]


def test_unrelated_models_are_named(invoke: Invoke, small: Path) -> None:
    other = onnx.load(small)
    for index, node in enumerate(other.graph.node):
        node.name = f"other_{index}"
    onnx.save(other, "other.onnx")
    outcome = invoke("report", small, "other.onnx", "-o", "page.html")
    assert f"no node of other.onnx is related to one of {small} by lineage or by name" in outcome.out


def test_a_model_and_itself(invoke: Invoke, small: Path) -> None:
    assert invoke("report", small, small, "-o", "page.html").status == 0
    graphs = parsed(Path("page.html").read_bytes()).data["graphs"]
    assert [graph["label"] for graph in graphs] == [str(small), f"{small} (OTHER)"]
    assert [graph["nodes"]["fate"] for graph in graphs] == [[0, 0, 0]] * 2


def test_the_page_of_two_models_has_the_same_bytes_in_two_runs(invoke: Invoke, small: Path) -> None:
    assert invoke("optimize", small, "-o", "result.onnx", "--provenance").status == 0
    pages = []
    for _ in range(2):
        assert invoke("report", small, "result.onnx", "-o", "page.html").status == 0
        pages.append(Path("page.html").read_bytes())
    assert pages[0] == pages[1]


def test_graphs_and_relations_of_an_optimization_are_equal_in_two_runs(invoke: Invoke, small: Path) -> None:
    found = []
    for _ in range(2):
        assert invoke("report", small, "-o", "page.html", "--no-verify").status == 0
        data = parsed(Path("page.html").read_bytes()).data
        stages = [{key: item for key, item in stage.items() if key != "seconds"} for stage in data["stages"]]
        found.append((data["graphs"], data["makers"], stages))
    assert found[0] == found[1]


def test_hostile_names(invoke: Invoke, tmp_path: Path, small: Path) -> None:
    proto = onnx.load(small)
    for node in proto.graph.node:
        node.name = f"{HOSTILE}/{node.op_type}/{HOSTILE}"
        node.doc_string = HOSTILE
    for names in (*(node.input for node in proto.graph.node), *(node.output for node in proto.graph.node)):
        names[:] = [name if name in ("x", "y") else HOSTILE + name for name in names]
    proto.graph.initializer[0].name = HOSTILE + proto.graph.initializer[0].name
    proto.metadata_props.add(key=HOSTILE, value=HOSTILE)
    proto.producer_name = HOSTILE
    path = tmp_path / "<img src=x>.onnx"
    onnx.save(proto, path)
    pages = []
    for model in (path, small):
        assert invoke("report", model, "-o", "page.html").status == 0
        pages.append(parsed(Path("page.html").read_bytes()))
    assert {one.tag for one in pages[0].elements} == {one.tag for one in pages[1].elements}
    assert len(pages[0].all("script")) == 2 and not pages[0].all("img")
    assert pages[0].data["graphs"][0]["nodes"]["name"][0] == f"{HOSTILE}/Identity/{HOSTILE}"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["missing.onnx"], 2, "missing.onnx"),
        (["{small}", "missing.onnx"], 2, "missing.onnx"),
        (["{small}", "-o", "page.pdf"], 2, "page.pdf"),
        (["{small}", "-o", "missing/page.html"], 2, "missing"),
        (["{small}", "-o", "."], 2, "."),
        (["{small}", "-o", "/proc/page.html"], 2, "/proc/page.html"),
        (["damaged.onnx", "-o", "page.html"], 3, "damaged.onnx"),
        (["{small}", "damaged.onnx", "-o", "page.html"], 3, "damaged.onnx"),
        (["{small}", "-o", "page.html", "--pipeline", "none-such"], 2, "none-such"),
    ],
)
def test_bad_input(invoke: Invoke, small: Path, arguments: list[str], status: int, message: str) -> None:
    Path("damaged.onnx").write_bytes(b"\xff" * 100)
    outcome = invoke("report", *(one.format(small=small) for one in arguments))
    assert outcome.status == status, outcome
    (line, *more) = outcome.err.splitlines()
    assert message in line and all(one.startswith("hint: ") for one in more)
    assert [path.name for path in Path().iterdir()] == ["damaged.onnx"]


@pytest.mark.parametrize(("package", "module"), [("jinja2", "jinja2"), ("fast-sugiyama", "fast_sugiyama")])
@pytest.mark.parametrize("command", ["report", "view"])
def test_missing_packages(
    invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch, command: str, package: str, module: str
) -> None:
    _without(monkeypatch, module)
    outcome = invoke(command, small, *(["-o", "page.html"] if command == "report" else []))
    assert outcome.status == 2
    assert outcome.err.splitlines() == [
        f"graphopt: the report page requires the package {package}",
        "hint: pip install 'graphopt[report]'",
    ]
    assert not outcome.out and not list(Path().iterdir())


def test_standard_input_needs_a_name_for_the_page(invoke: Invoke, small: Path, monkeypatch: Any) -> None:
    with small.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        outcome = invoke("report", "-")
    assert outcome.status == 2 and "hint: -o FILE.html" in outcome.err


def test_view_serves_until_interrupted(invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[PageServer] = []
    opened: list[str] = []

    def interrupt(self: PageServer) -> None:
        served.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(page_server.PageServer, "serve_forever", interrupt)
    monkeypatch.setattr("webbrowser.open", opened.append)
    outcome = invoke("view", small, "--open")
    assert outcome.status == 0, outcome
    (server,) = served
    assert outcome.out.splitlines()[0] == f"  {server.url}  (Ctrl-C ends)"
    assert server.path not in opened[0] and opened[0].startswith(f"http://{server.host}/")
    (graph,) = parsed(server.page).data["graphs"]
    assert graph["nodes"]["name"] == ["Identity(a)", "Relu(b)", "Add(y)"]
    as_json = invoke("view", small, "--json")
    assert json.loads(as_json.out) == {"model": str(small), "url": served[1].url}
    assert served[1].url in as_json.err


def test_view_of_a_port_in_use(invoke: Invoke, small: Path) -> None:
    with PageServer(b"") as server:
        outcome = invoke("view", small, "--port", server.server_address[1])
    assert outcome.status == 2
    assert outcome.err.splitlines() == [
        f"graphopt: port {server.server_address[1]} can't be used: Address already in use",
        "hint: omit --port for a free one",
    ]


@pytest.mark.parametrize("model", ["missing.onnx", "damaged.onnx"])
def test_view_of_bad_models(invoke: Invoke, model: str) -> None:
    Path("damaged.onnx").write_bytes(b"\xff" * 100)
    outcome = invoke("view", model)
    assert outcome.status in (2, 3) and model in outcome.err.splitlines()[0]
