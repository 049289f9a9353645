"""Bisection names the rule and the node, its reproducer replays, and reduce shrinks the model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from graphopt import ir
from graphopt.context import Action, Options
from graphopt.cost import Costs, shipped
from graphopt.debug.bisect import Bisection
from graphopt.debug.checks import CheckOptions, make_check
from graphopt.debug.culprit import Culprit
from graphopt.debug.delta_debugging import minimize
from graphopt.debug.reduce_model import StillFails, reduce
from graphopt.debug.reproducer import Case, isolated, load, replay, save, save_culprit
from graphopt.debug.trial_run import Trial, _from_journal, _RewriteRecorder, find_node, steps_text
from graphopt.errors import UsageError, VerificationFailed
from graphopt.numerics import Numerics
from graphopt.ort.devices import Device
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipeline_steps import Fixpoint
from graphopt.passes.pipelines import make_pipeline
from graphopt.process.child import Child
from graphopt.rewrite.rewrite_filter import RewriteLimit, RewriteSite
from graphopt.rules.identities import drop_identity
from tests.debug import faulty_passes
from tests.model_testing import ops, parse


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return ir.from_proto(faulty_passes.big_model())


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Child(preload=("onnxruntime", "graphopt.ort.model_runs", "graphopt.debug.trial_run")) as process:
        yield process


def trial(model: ir.Model, *names: str) -> Trial:
    passes = ["dce", *(f"tests.debug.faulty_passes:{name}" for name in names), "dce"]
    return Trial(model, make_pipeline((), passes))


def bisect(tried: Trial, check: CheckOptions, child: Child) -> tuple[Culprit | None, int]:
    with make_check(check, tried.model) as judge:
        bisection = Bisection(isolated(tried, check, child), judge)
        return bisection.find(), bisection.runs


DRILLS = [
    ("WrongConstant", "numerics", "wrong-constant at first_11"),
    ("SwappedInputs", "numerics", "swapped-inputs at sub_20"),
    ("LostOutput", "valid", "lost-output at add_35"),
    ("OtherDtype", "numerics", "other-dtype at sub_7"),
    ("Cycle", "valid", "cycle at sub_13"),
    ("MakesNan", "numerics", "makes-nan at softmax_2"),
    ("Grows", "size", "grows at add_30"),
    ("Slow", "work", "slow at softmax_9"),
    ("OneShapeOnly", "numerics", "one-shape-only at add_25"),
    ("Fails", "numerics", "fails at second_22"),
    ("Dies", "crash", "dies at second_23"),
    ("WrongAttribute", "numerics", "wrong-attribute at softmax_33"),
]


@pytest.mark.parametrize(("name", "kind", "guilty"), DRILLS, ids=[drill[0] for drill in DRILLS])
def test_a_planted_fault(
    name: str, kind: str, guilty: str, model: ir.Model, child: Child, tmp_path: Path
) -> None:
    tried, check = trial(model, name), CheckOptions(kind)
    culprit, runs = bisect(tried, check, child)
    assert culprit is not None and culprit.place is not None
    assert str(culprit.place) == guilty
    assert culprit.pass_index == 2 and culprit.pass_text == culprit.place.owner
    assert culprit.needs == () and culprit.masked_by is None
    assert runs <= math.log2(len(model.graph)) + 10
    assert any(culprit.place.node in line or "Mul" in line for line in culprit.lines)

    folder = tmp_path / "reproducer"
    assert save_culprit(folder, culprit, tried, check, ["graphopt", "bisect"])
    assert replay(folder) is not None
    assert len(load(folder).pipeline) == 1 and load(folder).what == guilty
    assert ("inputs.npz" in [path.name for path in folder.iterdir()]) is (culprit.feeds is not None)
    harmless = json.loads((folder / "case.json").read_text())
    harmless["limits"]["first"] = 0
    (folder / "case.json").write_text(json.dumps(harmless))
    assert replay(folder) is None

    small = reduce(model, StillFails(tried, check, RewriteLimit(), child), around=culprit.place.node)
    assert small.nodes[0] > 200 and small.nodes[1] < 10 and len(small.model.graph) == small.nodes[1]
    again, _ = bisect(trial(small.model, name), check, child)
    assert again is not None and again.place == culprit.place


def test_a_reproducer_keeps_the_options_of_a_foreign_pass(
    model: ir.Model, child: Child, tmp_path: Path
) -> None:
    tried = Trial(model, Pipeline((Fixpoint((faulty_passes.WrongFactor(factor=3.0),), rounds=1),)))
    culprit, _ = bisect(tried, CheckOptions(), child)
    assert culprit is not None and save_culprit(tmp_path, culprit, tried, CheckOptions())
    assert load(tmp_path).pipeline == ("tests.debug.faulty_passes:WrongFactor{factor=3.0}",)
    assert replay(tmp_path) is not None
    assert steps_text(tried.pipeline) == ["fixpoint(tests.debug.faulty_passes:WrongFactor{factor=3.0})"]


def test_a_case_keeps_all_options(tmp_path: Path) -> None:
    options = Options(
        Numerics.EXACT,
        fold_limit=1,
        time_limit=2.0,
        memory_limit=3,
        dim_ranges={"n": (1, None)},
        skip=frozenset({"a", "b"}),
        only=frozenset({"c"}),
        refused=frozenset({("d", "e")}),
        withheld=(("d", "e", "because"),),
        share_buffers=(("past", "present"),),
        portable=True,
        strict_fusion={"block": frozenset({"f", "g"})},
        device=Device("cuda", 1),
        costs=Costs("made up", "cuda", "somewhere", shipped("cpu").grids[:2]),
        kernels=True,
        weights=("w",),
        own=frozenset({"h"}),
    )
    plain = Options()
    unset = [
        item.name for item in fields(Options) if getattr(options, item.name) == getattr(plain, item.name)
    ]
    assert unset == ["rules"]  # code without a file
    options_and_rules = replace(options, rules=(drop_identity,))
    case = Case(
        "what",
        "why",
        ("dce",),
        options_and_rules,
        RewriteLimit(first=1),
        CheckOptions(numerics=Numerics.EXACT),
    )
    save(tmp_path, parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"), case)
    assert load(tmp_path) == replace(case, options=options)


@pytest.mark.parametrize(
    ("passes", "rules"),
    [
        pytest.param(("FlipFirst", "FlipSecond"), ("flip-first", "flip-second"), id="passes"),
        pytest.param(("FlipBoth",), ("rule-a", "rule-b"), id="rules of one pass, side by side"),
    ],
)
def test_two_faults_that_mask_each_other(
    model: ir.Model, child: Child, tmp_path: Path, passes: tuple[str, ...], rules: tuple[str, str]
) -> None:
    tried = trial(model, *passes)
    culprit, _ = bisect(tried, CheckOptions(), child)
    assert culprit is not None and culprit.masked_by is not None
    assert culprit.place == RewriteSite(rules[0], "first_5")
    assert culprit.masked_by.place == RewriteSite(rules[1], "second_5")
    assert save_culprit(tmp_path, culprit, tried, CheckOptions())
    assert replay(tmp_path) is not None
    small = reduce(model, StillFails(tried, CheckOptions(), culprit.limits, child), around="first_5")
    assert small.nodes[1] < 10


def test_two_rewrites_that_are_harmful_together(model: ir.Model, child: Child, tmp_path: Path) -> None:
    tried = trial(model, "Together")
    culprit, _ = bisect(tried, CheckOptions(), child)
    assert culprit is not None and culprit.place == RewriteSite("together", "sub_28")
    assert culprit.needs == (RewriteSite("together", "sub_3"),)
    assert save_culprit(tmp_path, culprit, tried, CheckOptions())
    assert replay(tmp_path) is not None
    small = reduce(model, StillFails(tried, CheckOptions(), RewriteLimit(), child), around="sub_28")
    assert small.nodes[1] < 10


def test_a_pass_that_changes_the_model_outside_of_rewrites(
    model: ir.Model, child: Child, tmp_path: Path
) -> None:
    tried = trial(model, "Unasked")
    culprit, _ = bisect(tried, CheckOptions(), child)
    assert culprit is not None and culprit.place is None
    assert (culprit.title, culprit.pass_index) == ("pass unasked", 2)
    assert any(line.startswith("- %d_0 = Sub(%q_0, %x)") for line in culprit.lines)
    assert save_culprit(tmp_path, culprit, tried, CheckOptions())
    assert load(tmp_path).pipeline == ("tests.debug.faulty_passes:Unasked",)
    assert replay(tmp_path) is not None
    small = reduce(model, StillFails(tried, CheckOptions(), RewriteLimit(), child))
    assert small.nodes[1] < 10


def test_a_rule_that_fails_is_named(model: ir.Model, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.rewrite import Exact, rule
    from graphopt.transforms.scalar import peephole

    @rule(lambda op, x: op.Softmax(x, axis=-1), numerics=Exact)
    def divide_by_zero(op: object, m: object, x: object) -> object:
        """Fail."""
        return 1 // 0

    monkeypatch.setattr(peephole, "admitted_rules", lambda *arguments: [divide_by_zero])
    culprit, _ = bisect(Trial(model, make_pipeline("dce,peephole")), CheckOptions(), child)
    assert culprit is not None and culprit.place == RewriteSite("divide-by-zero", "softmax_0")
    assert "ZeroDivisionError" in culprit.reason


def test_a_rule_that_does_not_terminate_is_named(
    model: ir.Model, child: Child, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from graphopt.rewrite import Exact, rule
    from graphopt.transforms.scalar import peephole

    @rule(lambda op, x: op.Softmax(x, axis=-1), numerics=Exact)
    def double(op: Any, m: Any, x: ir.Value) -> object:
        """Softmax(x) → Softmax(Softmax(x)), which never terminates."""
        if not (m.root.name or "").startswith("softmax_7"):
            return m.no("it is another one")
        return op.Softmax(op.Softmax(x, axis=-1), axis=-1)

    monkeypatch.setattr(peephole, "admitted_rules", lambda *arguments: [double])
    tried = Trial(model, make_pipeline("dce,peephole"))
    culprit, _ = bisect(tried, CheckOptions("valid"), child)
    assert culprit is not None and culprit.place is not None
    assert culprit.place.owner == "double" and culprit.place.node.startswith("softmax_7")
    assert "double does not come to an end" in culprit.reason
    assert save_culprit(tmp_path, culprit, tried, CheckOptions("valid"))
    assert "double does not come to an end" in (replay(tmp_path) or "")
    small = reduce(model, StillFails(tried, CheckOptions("valid"), RewriteLimit(), child), around="softmax_7")
    assert small.nodes[1] < 10


def test_a_wrong_rule_of_the_default_pipeline_is_dropped(
    model: ir.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    import graphopt
    from graphopt.rewrite import Exact, rule
    from graphopt.transforms.scalar import peephole

    @rule(lambda op, x: op.Softmax(x, axis=-1), numerics=Exact)
    def to_log_softmax(op: Any, m: Any, x: ir.Value) -> object:
        """Softmax is LogSoftmax, at one node."""
        return op.LogSoftmax(x, axis=-1) if m.root.name == "softmax_7" else m.no("it is not")

    sound = peephole.admitted_rules
    monkeypatch.setattr(peephole, "admitted_rules", lambda *arguments: [to_log_softmax, *sound(*arguments)])
    result = graphopt.optimize(model)
    assert [(drop.owner, drop.node) for drop in result.report.dropped] == [("to-log-softmax", "softmax_7")]
    assert result.verdict is not None and result.verdict.ok
    assert ops(result.model).count("Softmax") == faulty_passes.BRANCHES and "Mul" not in ops(result.model)
    with pytest.raises(VerificationFailed):
        graphopt.optimize(model, strict=True)


def test_bisection_of_a_correct_pipeline_finds_no_culprit(model: ir.Model, child: Child) -> None:
    culprit, _ = bisect(Trial(model, make_pipeline("O2")), CheckOptions("valid"), child)
    assert culprit is None


def test_a_check_that_fails_from_the_start(model: ir.Model, child: Child) -> None:
    with pytest.raises(VerificationFailed, match="before any pass"):
        bisect(trial(model, "WrongConstant"), CheckOptions("false {model}"), child)


def test_command_as_the_check_of_bisect(model: ir.Model, child: Child, tmp_path: Path) -> None:
    script = "import onnx, sys; sys.exit(any(n.op_type == 'Log' for n in onnx.load(sys.argv[1]).graph.node))"
    (tmp_path / "check.py").write_text(script)
    import sys

    check = CheckOptions(f"{sys.executable} {tmp_path / 'check.py'} {{model}}")
    tried = trial(model, "MakesNan")
    small = Trial(
        reduce(model, StillFails(tried, CheckOptions(), RewriteLimit(), child)).model, tried.pipeline
    )
    culprit, _ = bisect(small, check, child)
    assert culprit is not None and str(culprit.place) == "makes-nan at softmax_2"
    assert "status 1" in culprit.reason
    save_culprit(tmp_path / "case", culprit, small, check)
    with pytest.raises(UsageError, match="would run the command"):
        replay(tmp_path / "case")
    assert replay(tmp_path / "case", allow_command=True) is not None
    for command in ("no placeholder", "'unbalanced"):
        with pytest.raises(UsageError):
            CheckOptions(command)


def test_reducing_is_deterministic_and_needs_a_failure(model: ir.Model, child: Child) -> None:
    tried = trial(model, "SwappedInputs")
    results = [
        reduce(model, StillFails(tried, CheckOptions(), RewriteLimit(), child), around="sub_20")
        for _ in range(2)
    ]
    assert ir.to_bytes(results[0].model) == ir.to_bytes(results[1].model)
    with pytest.raises(VerificationFailed, match="nothing to reduce"):
        reduce(model, lambda candidate: False)


def test_reducing_keeps_bodies_and_drops_functions_and_sizes() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    main (float[N, 64] x, bool c) => (float[N, 64] y) {
      a = Relu(x)
      b = local.twice(a)
      d = If (c) <then_branch = g1 () => (float[N, 64] t) { t = Sin(b) },
                  else_branch = g2 () => (float[N, 64] e) { e = Cos(a) }>
      y = Neg(d)
    }
    <domain: "local", opset_import: ["" : 17]>
    twice (p) => (q) { q = Add(p, p) }
    """

    def has_sin(model: ir.Model) -> bool:
        return ir.find_fault(model) is None and any(
            node.op_type == "Sin" for node in ir.walk_nodes(model.graph)
        )

    result = reduce(parse(text), has_sin)
    assert ops(result.model) == ["If"] and not result.model.functions
    assert result.model.graph.inputs[0].shape is not None and 64 not in result.model.graph.inputs[0].shape


def test_minimize() -> None:
    wanted = {3, 17, 18, 40}
    tries = []

    def fails(items: object) -> bool:
        tries.append(items)
        return wanted <= set(items)  # type: ignore[call-overload]

    assert minimize(list(range(64)), fails) == sorted(wanted)
    assert len(tries) < 200


def test_limits() -> None:
    from graphopt.context import Action

    place = RewriteSite("cse", "n")
    assert RewriteLimit(first=2)(Action(2, "cse", "n")) and not RewriteLimit(first=2)(Action(3, "cse", "n"))
    assert not RewriteLimit(without=frozenset([place]))(Action(1, "cse", "n"))
    assert RewriteLimit(without=frozenset([place]))(Action(1, "cse", "m"))
    assert not RewriteLimit(owners=frozenset(["cse"]))(Action(1, "cse", "n"))
    assert RewriteLimit(only=frozenset([place]))(Action(9, "cse", "n"))
    assert not replace(RewriteLimit(only=frozenset([place])), first=0)(Action(1, "cse", "n"))


def test_a_folder_without_a_reproducer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a reproducer"):
        load(tmp_path)
    (tmp_path / "case.json").write_text("{")
    with pytest.raises(UsageError, match="can't read"):
        load(tmp_path)
    (tmp_path / "case.json").write_text('{"format": 99}')
    with pytest.raises(UsageError, match="another format"):
        load(tmp_path)


def test_find_node(model: ir.Model) -> None:
    node = find_node(model, "sub_3")
    assert node is not None and node.op_type == "Sub"
    assert find_node(model, "nowhere") is None


def test_journal_of_a_dead_process_has_all_node_names(tmp_path: Path) -> None:
    name = "a\nb\tc"
    trace = _RewriteRecorder(RewriteLimit(), tmp_path / "journal")
    trace.passes.append("peephole")
    trace._write("pass", "peephole")
    trace(Action(1, "drop-cast", name))
    trace.close()
    assert [step.place for step in _from_journal(tmp_path / "journal", "died").steps] == [
        RewriteSite("drop-cast", name)
    ]
