"""graphopt dump: models as text, diffs, ONNX files and graphs, between passes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import click
import onnx
import onnx.parser
import pytest

from graphopt import ir, optimize
from graphopt.cli.output import pager
from tests.cli.conftest import Invoke
from tests.golden_files import GoldenFiles
from zoo import SAMPLES

GOLDEN = Path(__file__).parent / "golden"


def test_unchanged_model(invoke: Invoke, small: Path) -> None:
    lines = invoke("dump", small).out.splitlines()
    assert "  input %x: f32[N, 4]" in lines
    assert any(line.startswith("  %b: f32[N, 4] = Relu(%a)") for line in lines)
    assert json.loads(invoke("dump", small, "--json").out)["text"].splitlines() == lines


@pytest.mark.parametrize("option", ["-O1", "--exact", "--passes=dce", "--stop-after=3", "--fold-limit=1KiB"])
def test_options_of_passes_need_passes(invoke: Invoke, small: Path, option: str) -> None:
    outcome = invoke("dump", small, option)
    assert outcome.status == 2 and "needs --pass-by-pass" in outcome.err


def headings(out: str) -> list[str]:
    """The headings, without their rules."""
    return [line.strip("─ ") for line in out.splitlines() if line.startswith("──")]


def test_pass_by_pass_prints_a_summary_and_changes(invoke: Invoke, small: Path) -> None:
    out = invoke("dump", small, "--pass-by-pass", "--passes", "dce,peephole,dce").out
    assert out.splitlines() == [
        "3 → 1 nodes; 2 of 3 passes changed the model",
        "  peephole  3 → 1  1 drop-identity, 1 drop-zero",
        "  dce           1  1 unread constant removed",
        "",
        "── peephole ─ 3 → 1 nodes ─ 1 drop-identity, 1 drop-zero ───────────────────────────────────────────",
        "-   %a: f32[N, 4] = Identity(%x)  → %x                            by drop-identity",
        "~   %b → %y: f32[N, 4] = Relu(%a → %x)                            by peephole",
        "-   %y: f32[N, 4] = Add(%b, {-0.0})                               by drop-zero",
    ]


def test_whole_models(invoke: Invoke, small: Path) -> None:
    arguments = ["dump", small, "--pass-by-pass", "--full", "--passes", "dce,peephole,dce"]
    out = invoke(*arguments).out
    assert [heading.split(" ─ ")[0] for heading in headings(out)] == ["input", "dce", "peephole", "dce"]
    assert out.count("output %y") == 4
    assert len(headings(invoke(*arguments, "--changed").out)) == 1


def test_only_changed_lines(invoke: Invoke, small: Path) -> None:
    out = invoke("dump", small, "--pass-by-pass", "--changed", "--passes", "cse,peephole,cse").out
    assert [heading.split(" ─ ")[0] for heading in headings(out)] == ["peephole"]
    assert out.splitlines()[1:] == ["    %y: f32[N, 4] = Relu(%x)"]


def test_passes_without_changes(invoke: Invoke, small: Path) -> None:
    out = invoke("dump", small, "--pass-by-pass", "--passes", "dce").out
    assert out == "3 nodes; none of 1 pass changed the model\n"
    out = invoke("dump", small, "--pass-by-pass", "--diff", "--passes", "dce").out
    assert "nothing changed" in out.splitlines()[-1]


def test_the_full_form_of_a_diff(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "transformer.onnx"
    path.write_bytes(SAMPLES["transformer"].build().SerializeToString())
    out = invoke("dump", path, "--pass-by-pass", "-v", "--passes", "peephole").out
    lines = [line for line in out.splitlines() if line[:1] in "-+~"]
    assert "# /encoder/layer.0/attention/" in out and not any("…" in line for line in lines)
    assert not any(line.startswith("~") for line in lines)


def test_a_diff_in_json(invoke: Invoke, small: Path) -> None:
    result = json.loads(invoke("dump", small, "--pass-by-pass", "--passes", "peephole", "--json").out)
    (stage,) = result["diffs"]
    assert (stage["pass"], stage["nodes"]) == ("peephole", [3, 1])
    assert stage["changes"][0] == {
        "kind": "removed",
        "line": "node",
        "graph": [],
        "name": "a",
        "operator": "Identity",
        "by": "drop-identity",
        "unread": False,
        "before": "%a: f32[N, 4] = Identity(%x)",
        "after": None,
        "replaced_by": ["%x"],
    }
    assert "by drop-identity" in result["text"]


def test_the_filter(invoke: Invoke, small: Path) -> None:
    arguments = ["dump", small, "--pass-by-pass", "--passes", "peephole"]
    out = invoke(*arguments, "--filter", "Add|%y").out
    assert "Identity" not in out and "Add" in out
    nothing = invoke(*arguments, "--filter", "nothing like it")
    assert nothing.out == "" and "no line matches --filter nothing like it" in nothing.err
    assert "no line matches" in invoke("dump", small, "--filter", "nothing like it").err


def test_colours_are_for_marks_and_rules_only(invoke: Invoke, small: Path) -> None:
    arguments = ["dump", small, "--pass-by-pass", "--passes", "peephole"]
    plain = invoke(*arguments).out
    assert "\x1b" not in plain
    for variable in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        out = invoke(*arguments, environ={variable: "1"}).out
        line = next(line for line in out.splitlines() if "Identity" in line)
        assert line.startswith("\x1b[31m-\x1b[0m   %a: f32[N, 4] = Identity(%x)")
        assert line.endswith("\x1b[36mby drop-identity\x1b[0m")
        assert click.unstyle(out) == plain
        assert invoke(*arguments, environ={variable: "1", "NO_COLOR": "1"}).out == plain
        assert invoke(*arguments, environ={variable: "0"}).out == plain


@pytest.mark.parametrize(
    ("lines", "option", "paged"), [(5, "--pager", True), (50, "--pager", False), (5, "--no-pager", False)]
)
def test_pager_receives_output_longer_than_a_screen(
    invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch, lines: int, option: str, paged: bool
) -> None:
    pages: list[str] = []
    monkeypatch.setattr(pager, "_is_interactive", lambda: True)
    monkeypatch.setattr(pager.shutil, "get_terminal_size", lambda: os.terminal_size((80, lines)))
    monkeypatch.setattr(pager.click, "echo_via_pager", lambda text, color: pages.append("".join(text)))
    out = invoke("dump", small, "--pass-by-pass", "--passes", "peephole", option).out
    assert bool(pages) == paged and bool(out) != paged


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_all_removed_and_added_nodes_are_printed(invoke: Invoke, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(SAMPLES[name].build().SerializeToString())
    lines = invoke("dump", path, "--pass-by-pass").out.splitlines()
    assert max(map(len, lines)) <= 160
    shown = {mark: "\n".join(line for line in lines if line[:1] in (mark, "~")) for mark in "-+"}
    before, after = ir.load(path), optimize(path, verify=False)[0]
    originals, results = first_results(before), first_results(after)
    missing = [value for value in originals if value not in results and not mentions(shown["-"], value)]
    missing += [value for value in results if value not in originals and not mentions(shown["+"], value)]
    assert not missing


def first_results(model: ir.Model) -> dict[str, None]:
    """How the first result of each node but Constant is printed."""
    names = ir.Names.of(model)
    nodes = [node for graph in ir.graphs_of(model) for node in graph if node.op_type != "Constant"]
    return dict.fromkeys(names(node.outputs[0]) for node in nodes if node.outputs)


def mentions(text: str, value: str) -> bool:
    """Whether ``text`` has a line that defines ``value``."""
    return re.search(rf"(^[-+~] +|, |→ ){re.escape(value)}(:|,| =| →)", text, re.MULTILINE) is not None


@pytest.mark.parametrize(("format_", "suffix"), [("onnx", "onnx"), ("text", "txt"), ("dot", "dot")])
def test_files(invoke: Invoke, small: Path, format_: str, suffix: str) -> None:
    outcome = invoke(
        "dump", small, "--pass-by-pass", "--format", format_, "-o", "stages", "--passes", "dce,peephole"
    )
    assert outcome.status == 0 and outcome.out == ""
    assert "wrote     3 files to stages" in outcome.err
    names = sorted(path.name for path in Path("stages").iterdir())
    assert names == [f"000-input.{suffix}", f"001-after-dce.{suffix}", f"002-after-peephole.{suffix}"]
    if format_ == "onnx":
        assert [len(onnx.load(Path("stages") / name).graph.node) for name in names] == [3, 3, 1]
        assert invoke("verify", small, Path("stages") / names[2]).status == 0
    elif format_ == "dot":
        text = (Path("stages") / names[2]).read_text()
        assert text.startswith("digraph") and text.count('label="Relu"') == 1
        assert text.count("{") == text.count("}")
    else:
        assert "Relu" in (Path("stages") / names[2]).read_text()


def test_diffs_in_files(invoke: Invoke, small: Path) -> None:
    invoke("dump", small, "--pass-by-pass", "--diff", "-o", "stages", "--passes", "peephole")
    assert sorted(path.name for path in Path("stages").iterdir()) == [
        "000-input.txt",
        "001-after-peephole.diff",
    ]


def test_a_path_with_the_suffix_of_a_form_is_a_file(invoke: Invoke, small: Path) -> None:
    outcome = invoke("dump", small, "-o", "model.txt")
    assert outcome.out == "" and "wrote     model.txt" in outcome.err
    assert Path("model.txt").read_text() == invoke("dump", small).out
    assert invoke("dump", small, "-o", "model.dot").status == 0
    assert Path("model.dot").read_text().startswith("digraph")
    assert invoke("dump", small, "-o", "copy.onnx").status == 0
    assert len(onnx.load("copy.onnx").graph.node) == 3
    invoke("dump", small, "--pass-by-pass", "-o", "changes.diff", "--passes", "peephole")
    assert "by drop-identity" in Path("changes.diff").read_text()
    refused = invoke("dump", small, "--pass-by-pass", "-o", "stages.onnx")
    assert refused.status == 2 and "name a folder" in refused.err
    Path("stages.txt").mkdir()
    invoke("dump", small, "-o", "stages.txt")
    assert [path.name for path in Path("stages.txt").iterdir()] == ["model.txt"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--diff"], "--diff needs --pass-by-pass"),
        (["--full"], "--full needs --pass-by-pass"),
        (["--pass-by-pass", "--full", "--diff"], "exclude each other"),
        (["--format", "onnx"], "name a folder, or an .onnx file"),
        (["--pass-by-pass", "--format", "dot", "--diff"], "compares text"),
        (["--filter", "("], "no regular expression"),
        (["--format", "svg"], "svg"),
    ],
    ids=" ".join,
)
def test_options_that_exclude_each_other(
    invoke: Invoke, small: Path, arguments: list[str], words: str
) -> None:
    outcome = invoke("dump", small, *arguments)
    assert outcome.status == 2 and words in outcome.err and outcome.out == ""


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_sample_can_be_dumped_in_every_form(invoke: Invoke, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(SAMPLES[name].build().SerializeToString())
    assert invoke("dump", path, "--pass-by-pass").out.count("\n── ") >= 1
    assert invoke("dump", path, "--format", "dot", "-o", "dots").status == 0
    assert invoke("dump", path, "--pass-by-pass", "--changed", "--format", "onnx", "-o", "onnx").status == 0
    for stage in Path("onnx").iterdir():
        assert invoke("inspect", stage).status == 0


def test_a_golden_diff(invoke: Invoke, tmp_path: Path, golden: GoldenFiles) -> None:
    path = tmp_path / "transformer.onnx"
    path.write_bytes(SAMPLES["transformer"].build().SerializeToString())
    arguments = [
        "--pipeline",
        "constant-propagation,peephole{families=identities},dce",
        "--filter",
        "layer.0/attention/self",
    ]
    out = invoke("dump", path, "--pass-by-pass", *arguments).out
    golden.check(GOLDEN / "dump-diff.txt", out)


def test_the_documentation_shows_the_golden_diff() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert (GOLDEN / "dump-diff.txt").read_text(encoding="utf-8") in page


def test_each_body_has_its_braces(invoke: Invoke, tmp_path: Path) -> None:
    def branch(op: str, result: str) -> str:
        return f"b_{result} () => (float[2] {result}) {{ {result} = {op}(x) }}"

    ifs = [
        f"i{n} = If(c) <then_branch = {branch('Sin', f't{n}')}, else_branch = {branch('Cos', f'e{n}')}>"
        for n in (0, 1)
    ]
    path = tmp_path / "m.onnx"
    path.write_bytes(
        onnx.parser.parse_model(
            f'<ir_version: 9, opset_import: ["" : 17]> g (bool c, float[2] x) => (float[2] y) {{ '
            f"{' '.join(ifs)} y = Add(i0, i1) }}"
        ).SerializeToString()
    )
    lines = [line.strip() for line in invoke("dump", path).out.splitlines()]
    assert lines.count("then_branch {") == lines.count("else_branch {") == 2
    assert lines.count("}") == 5
