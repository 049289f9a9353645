"""graphopt dump: models as text, diffs, ONNX files and graphs, between passes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from tests.cli.conftest import Invoke
from zoo import SAMPLES

GOLDEN = Path(__file__).parent / "golden"


def test_a_model_as_it_is(invoke: Invoke, small: Path) -> None:
    lines = invoke("dump", small).out.splitlines()
    assert "  input %x: f32[N,4]" in lines
    assert any(line.startswith("  %b: f32[N,4] = Relu(%a)") for line in lines)
    assert json.loads(invoke("dump", small, "--json").out)["text"].splitlines() == lines


@pytest.mark.parametrize("option", ["-O1", "--exact", "--passes=dce", "--stop-after=3", "--fold-limit=1KiB"])
def test_options_of_passes_need_passes(invoke: Invoke, small: Path, option: str) -> None:
    outcome = invoke("dump", small, option)
    assert outcome.status == 2 and "needs --pass-by-pass" in outcome.err


def test_pass_by_pass(invoke: Invoke, small: Path) -> None:
    out = invoke("dump", small, "--pass-by-pass", "--passes", "dce,peephole,dce").out
    headings = [line for line in out.splitlines() if line.startswith("──")]
    assert [heading.split(" ─ ")[0] for heading in headings] == [
        "── 000 input " + "─" * 87,
        "── 001 dce",
        "── 002 peephole",
        "── 003 dce",
    ]
    assert out.count("output %y") == 4 and "2 rewrites" in headings[2]


def test_only_what_changed(invoke: Invoke, small: Path) -> None:
    out = invoke("dump", small, "--pass-by-pass", "--changed", "--passes", "cse,peephole,cse").out
    assert [line[:15] for line in out.splitlines() if line.startswith("──")] == ["── 002 peephole"]
    assert "input %x" not in out


def test_a_diff(invoke: Invoke, small: Path) -> None:
    out = invoke("dump", small, "--pass-by-pass", "--changed", "--diff", "--passes", "peephole").out
    lines = out.splitlines()[1:]
    assert any(
        line.startswith("-   %a: f32[N,4] = Identity(%x)") and line.endswith("by drop-identity")
        for line in lines
    )
    assert "+   (uses of %a now read %x)" in lines
    assert {line[0] for line in lines} <= {"-", "+", " "}


def test_a_diff_of_nothing(invoke: Invoke, small: Path) -> None:
    assert invoke("dump", small, "--pass-by-pass", "--changed", "--diff", "--passes", "dce").out == ""
    out = invoke("dump", small, "--pass-by-pass", "--diff", "--passes", "dce").out
    assert "nothing changed" in out.splitlines()[-1]


def test_the_filter(invoke: Invoke, small: Path) -> None:
    arguments = ["dump", small, "--pass-by-pass", "--diff", "--changed", "--passes", "peephole"]
    out = invoke(*arguments, "--filter", "Add|%y").out
    assert "Identity" not in out and "Add" in out
    nothing = invoke(*arguments, "--filter", "nothing like it")
    assert nothing.out == "" and "no line matches --filter nothing like it" in nothing.err
    assert "no line matches" in invoke("dump", small, "--filter", "nothing like it").err


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--diff"], "--diff needs --pass-by-pass"),
        (["--format", "onnx"], "-o FOLDER"),
        (["--pass-by-pass", "--format", "dot", "--diff"], "is of text"),
        (["--filter", "("], "no regular expression"),
        (["--format", "svg"], "svg"),
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together(
    invoke: Invoke, small: Path, arguments: list[str], words: str
) -> None:
    outcome = invoke("dump", small, *arguments)
    assert outcome.status == 2 and words in outcome.err and outcome.out == ""


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_sample_can_be_dumped_in_every_form(invoke: Invoke, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(SAMPLES[name].build().SerializeToString())
    out = invoke("dump", path, "--pass-by-pass", "--changed", "--diff").out
    assert out.startswith("── ")
    assert invoke("dump", path, "--format", "dot", "-o", "dots").status == 0
    assert invoke("dump", path, "--pass-by-pass", "--changed", "--format", "onnx", "-o", "onnx").status == 0
    for stage in Path("onnx").iterdir():
        assert invoke("inspect", stage).status == 0


def test_a_golden_diff(invoke: Invoke, tmp_path: Path, update_golden: bool) -> None:
    path = tmp_path / "transformer.onnx"
    path.write_bytes(SAMPLES["transformer"].build().SerializeToString())
    arguments = [
        "--pipeline",
        "constant-propagation,peephole{families=identities},dce",
        "--filter",
        "layer.0/attention/self",
    ]
    out = invoke("dump", path, "--pass-by-pass", "--changed", "--diff", *arguments).out
    golden = GOLDEN / "dump-diff.txt"
    if update_golden:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(out, encoding="utf-8")
    assert out == golden.read_text(encoding="utf-8"), "run pytest with --update-golden if the change is meant"


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
