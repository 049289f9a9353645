"""graphopt bisect, reduce and replay, and the handling of wrong results by optimize."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphopt.debug.command_checks import shell_symbol
from graphopt.debug.drop_faulty_rewrites import repair
from graphopt.debug.reproducer import load
from tests.cli.conftest import Invoke
from tests.debug import faulty_passes

PLANTED = "tests.debug.faulty_passes"


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model of more than 200 nodes."""
    path = tmp_path_factory.mktemp("models") / "big.onnx"
    onnx.save(faulty_passes.big_model(), path)
    return path


def plant(*names: str) -> list[str]:
    return ["--passes", "dce", *(word for name in names for word in ("--post-pass", f"{PLANTED}:{name}"))]


def test_bisect_and_replay(invoke: Invoke, big: Path) -> None:
    outcome = invoke("bisect", big, *plant("SwappedInputs"))
    assert outcome.status == 1
    assert "rewrite    124: swapped-inputs at sub_20" in outcome.out
    assert "    - %d_20 = Sub(%q_20, %x)  # sub_20" in outcome.out
    assert "    + %d_20 = Sub(%x, %q_20)  # sub_20" in outcome.out
    assert "wrote      big.repro: graphopt replay big.repro" in outcome.out
    again = invoke("replay", "big.repro")
    assert again.status == 1 and "swapped-inputs at sub_20" in again.out
    case = load(Path("big.repro"))
    assert case.command[:2] == ("graphopt", "bisect") and "onnxruntime" in " ".join(case.versions)
    assert "graphopt replay ." in Path("big.repro/README.md").read_text()


def test_an_earlier_reproducer_stays(invoke: Invoke, big: Path) -> None:
    Path("big.repro").mkdir()
    Path("big.repro/case.json").write_text("an earlier one")
    outcome = invoke("bisect", big, *plant("SwappedInputs"))
    assert outcome.status == 1 and "wrote      big.repro-2: graphopt replay big.repro-2" in outcome.out
    assert Path("big.repro/case.json").read_text() == "an earlier one"


def test_json(invoke: Invoke, big: Path) -> None:
    outcome = invoke("bisect", big, *plant("FlipFirst", "FlipSecond"), "--json", "-o", "here")
    result = json.loads(outcome.out)
    assert (result["culprit"]["owner"], result["culprit"]["node"]) == ("flip-first", "first_5")
    assert result["culprit"]["masked_by"] == {"owner": "flip-second", "node": "second_5"}
    assert result["reproducer"] == "here" and result["runs"] < 30
    assert json.loads(invoke("replay", "here", "--json").out)["what"] == "flip-first at first_5"


def test_bisect_finds_nothing(invoke: Invoke, small: Path) -> None:
    outcome = invoke("bisect", small, "--check", "size")
    assert outcome.status == 0 and "no fault  after every rewrite that was tried" in outcome.out
    assert not Path("small.repro").exists()


_CUSTOM = """
<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]>
custom (float[4] x) => (float[4] y) {
  a = Identity(x)
  b = my.domain.Unheard(a)
  [second_22] y = Relu(b)
}
"""


@pytest.mark.parametrize("check", ["numerics", "crash"])
def test_check_without_comparisons_is_not_verified(invoke: Invoke, tmp_path: Path, check: str) -> None:
    path = tmp_path / "custom.onnx"
    onnx.save(onnx.parser.parse_model(_CUSTOM), path)
    for arguments in (["bisect", path], ["reduce", path, "-o", "r.onnx"]):
        outcome = invoke(*arguments, "--check", check)
        assert outcome.status == 6 and "not verified: the original does not run (" in outcome.err
        assert "holds" not in outcome.out + outcome.err
    failing = invoke("bisect", path, "--check", check, *plant("Fails"), "-o", "kept")
    assert failing.status == 1 and "nothing to divide by" in failing.out


def test_bisect_with_a_command(invoke: Invoke, small: Path) -> None:
    Path("check.py").write_text("import onnx, sys; sys.exit(len(onnx.load(sys.argv[1]).graph.node) < 2)\n")
    outcome = invoke("bisect", small, "--check", f"{sys.executable} check.py {{model}}")
    assert outcome.status == 1 and "rewrite    2: " in outcome.out
    refused = invoke("replay", "small.repro")
    assert refused.status == 2 and "--allow-command" in refused.err
    assert invoke("replay", "small.repro", "--allow-command").status == 1
    assert invoke("bisect", small, "--check", "numerix").status == 2
    assert invoke("bisect", small, "--check", "nowhere-to-be-found {model}").status == 2


def test_check_command_that_cannot_run_is_an_error(invoke: Invoke, small: Path) -> None:
    for check in (f"{sys.executable} gone.py {{model}}", "sh -c 'exit 127' {model}", "./gone.sh {model}"):
        for arguments in (["bisect", small], ["reduce", small, "-o", "r.onnx"]):
            outcome = invoke(*arguments, "--check", check)
            assert outcome.status == 2 and "run" in outcome.err and not list(Path().iterdir())


@pytest.mark.parametrize(
    ("check", "symbol"),
    [
        ("true {model} && false", "&&"),
        ("cat {model} | false", "|"),
        ("true {model}; false", ";"),
        ("cat {model} > out", ">"),
        ("true {model} &", "&"),
        ("python $SCRIPT {model}", "$"),
        ("test `cat {model}`", "`"),
    ],
)
def test_no_shell_runs_a_command(invoke: Invoke, small: Path, check: str, symbol: str) -> None:
    for arguments in (["bisect", small], ["reduce", small, "-o", "r.onnx"]):
        outcome = invoke(*arguments, "--check", check)
        assert outcome.status == 2 and repr(symbol) in outcome.err and "sh -c" in outcome.err


def test_quoted_arguments_are_passed_through(invoke: Invoke, small: Path) -> None:
    for check in ("sh -c 'test -s $0 && exit 1' {model}", 'sh -c "test -s $0; exit 1" {model}'):
        outcome = invoke("reduce", small, "-o", "r.onnx", "-O0", "--check", check)
        assert outcome.status == 0, outcome
    for command in (r"test x = \; {model}", "test 5$ {model}", "test '|' {model}"):
        assert shell_symbol(command) is None


def test_files_named_by_a_command_are_kept(
    invoke: Invoke, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("my").mkdir()
    script = Path("my/check.sh")
    script.write_text("#!/bin/sh\ngrep -q Identity $1\n")
    script.chmod(0o755)
    arguments = ["bisect", small, "--check", "./my/check.sh {model}"]
    outcome = invoke(*arguments, "--save-repro", "whole")
    assert outcome.status == 1 and "wrote      small.repro: graphopt replay" in outcome.out, outcome
    assert Path("small.repro/check/1/check.sh").read_bytes() == script.read_bytes()
    assert "--allow-command" in Path("small.repro/README.md").read_text()
    assert not Path("small.repro/inputs.npz").exists()
    script.unlink()
    monkeypatch.chdir(tmp_path)
    for name, status in (("small.repro", 1), ("whole", 0)):
        assert invoke("replay", f"cwd/{name}", "--allow-command").status == status
    Path("cwd/small.repro/check/1/check.sh").unlink()
    assert invoke("replay", "cwd/small.repro", "--allow-command").status == 2


def test_reduce(invoke: Invoke, big: Path) -> None:
    outcome = invoke("reduce", big, "-o", "small.onnx", *plant("WrongAttribute"))
    assert outcome.status == 0 and "wrong-attribute at softmax_33" in outcome.out
    assert "small.onnx: 1 node of 216" in outcome.out
    assert [node.name for node in onnx.load("small.onnx").graph.node] == ["softmax_33"]
    assert "small.inputs.npz: inputs that show the fault" in outcome.out
    (read,) = onnx.load("small.onnx").graph.input
    assert np.load("small.inputs.npz")[read.name].ndim == 2
    assert invoke("run", "small.onnx", "--input", "small.inputs.npz").status == 0
    held = invoke("reduce", big, "-o", "none.onnx", "--passes", "dce")
    assert held.status == 1 and "nothing to reduce" in held.err and not Path("none.onnx").exists()


@pytest.mark.parametrize(
    ("words", "seconds"), [([], 10.0), (["--set", "verify-seconds=80"], 80.0), (["--seconds", "3"], 3.0)]
)
def test_bisect_compares_for_as_long_as_optimize(
    invoke: Invoke, big: Path, words: list[str], seconds: float
) -> None:
    assert invoke("bisect", big, *plant("SwappedInputs"), *words).status == 1
    assert load(Path("big.repro")).check.seconds == seconds


def test_reduce_a_model_by_a_command(invoke: Invoke, small: Path) -> None:
    Path("check.py").write_text(
        "import onnx, sys; sys.exit(any(n.op_type == 'Relu' for n in onnx.load(sys.argv[1]).graph.node))\n"
    )
    outcome = invoke(
        "reduce", small, "-o", "r.onnx", "-O0", "--check", f"{sys.executable} check.py {{model}}"
    )
    assert outcome.status == 0, outcome.err
    assert [node.op_type for node in onnx.load("r.onnx").graph.node] == ["Relu"]


def test_optimize_drops_the_rewrite_at_fault(invoke: Invoke, big: Path) -> None:
    outcome = invoke("optimize", big, "-o", "out.onnx", *plant("WrongConstant"), "--save-repro", "kept")
    assert outcome.status == 0
    assert outcome.err.splitlines()[0].startswith(
        "graphopt: warning: dropped wrong-constant at first_11: output 'y': "
    )
    assert "dropped: wrong-constant at first_11 (pass wrong-constant)" in outcome.out
    assert invoke("verify", big, "out.onnx").status == 0
    assert invoke("replay", "kept/dropped-1").status == 1
    again = invoke("replay", "kept")
    assert again.status == 0 and "as recorded" in again.out


def test_optimize_drops_failing_rewrites(invoke: Invoke, big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "graphopt.optimization_attempt.own_passes", lambda passes: []
    )  # as if graphopt's own pass failed
    arguments = ["optimize", big, "-o", "out.onnx", *plant("Fails")]
    outcome = invoke(*arguments, "--save-repro", "kept")
    assert outcome.status == 0 and "warning: dropped fails at second_22: " in outcome.err
    assert "ZeroDivisionError: nothing to divide by" in outcome.err
    assert invoke("replay", "kept/dropped-1").status == 1
    strict = invoke(*arguments, "--strict", "-o", "none.onnx")
    assert strict.status == 70 and not Path("none.onnx").exists()
    assert len(strict.err.splitlines()) == 2 and "hint: --debug shows the traceback" in strict.err


def test_rule_at_fault_twice_is_dropped_everywhere(invoke: Invoke, big: Path) -> None:
    outcome = invoke("optimize", big, "-o", "out.onnx", *plant("ManyWrong"), "--json")
    dropped = json.loads(outcome.out)["dropped"]
    assert [(drop["owner"], drop["node"]) for drop in dropped] == [
        ("many-wrong", "first_0"),
        ("many-wrong", ""),
    ]
    assert outcome.status == 0 and "many-wrong, everywhere" in outcome.err


@pytest.mark.parametrize(
    ("name", "owner"), [("Unasked", "unasked"), ("Cycle", "cycle"), ("LostOutput", "lost")]
)
def test_other_faulty_rewrites_are_dropped(invoke: Invoke, big: Path, name: str, owner: str) -> None:
    outcome = invoke("optimize", big, "-o", "out.onnx", *plant(name))
    assert outcome.status == 0 and f"warning: dropped {owner}" in outcome.err
    assert invoke("verify", big, "out.onnx").status == 0


def test_strict(invoke: Invoke, big: Path) -> None:
    outcome = invoke("optimize", big, "-o", "out.onnx", *plant("WrongConstant"), "--strict")
    assert outcome.status == 1 and "is not the same" in outcome.err
    assert not Path("out.onnx").exists()


def test_after_the_last_drop_no_optional_pass_runs(
    invoke: Invoke, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphopt.debug.drop_faulty_rewrites.repair", partial(repair, most_drops=1))
    outcome = invoke("optimize", big, "-o", "out.onnx", *plant("ManyWrong", "SwappedInputs"))
    assert outcome.status == 0 and "warning: dropped many-wrong at first_0" in outcome.err
    assert "swapped-inputs, everywhere" in outcome.err
    assert invoke("verify", big, "out.onnx").status == 0
