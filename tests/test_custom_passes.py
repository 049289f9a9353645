"""Passes and rules that callers hand in: their exceptions are raised, their wrong results reported."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest

import graphopt
from graphopt import config, ir
from graphopt.context import Context, Options
from graphopt.errors import ExitStatus, PassFailed, UsageError, blamed
from graphopt.passes.base import Pass
from graphopt.rewrite import Approximates, Exact, Match, Outcome, Reassociates, rule
from graphopt.rewrite.replacement_builder import Builder
from graphopt.rewrite.rule import Rule
from graphopt.transforms.scalar.dce import DeadCodeElimination
from tests.model_testing import ops, parse, run_pipeline

MODEL = "g (float[N] x) => (float[N] y) { a = Relu(x)  b = Neg(a)  y = Sin(b) }"


class Boom(Exception):
    """Raised by the code of a user."""


class CountRelus(Pass):
    """Count Relus, with a typo."""

    def run(self, model: ir.Model, cx: Context) -> None:
        """Fail."""
        list(model.graph.nodes)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Chained(Pass):
    """Raise an exception that has a cause."""

    deep: bool = False

    def run(self, model: ir.Model, cx: Context) -> None:
        """Fail."""
        try:
            {}["missing"]
        except KeyError as error:
            raise Boom("chained") from error


class FailingOnnxIr(onnx_ir.passes.InPlacePass):
    """A pass of onnx-ir that fails."""

    def call(self, model: ir.Model) -> onnx_ir.passes.PassResult:
        """Fail."""
        raise Boom("onnx-ir")


class RenameNodes(onnx_ir.passes.InPlacePass):
    """A pass of onnx-ir with an argument."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def call(self, model: ir.Model) -> onnx_ir.passes.PassResult:
        """Rename all nodes."""
        for index, node in enumerate(model.graph):
            node.name = f"{self._prefix}{index}"
        return onnx_ir.passes.PassResult(model, modified=True)


@rule(lambda op, x, y: op.Add(x, y), numerics=Exact)
def double_negation(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """x + y = -(-(x + y)), which a rule of graphopt undoes."""
    return op.Neg(op.Neg(op.Add(x, y)))


@rule(lambda op, x, y: op.Add(x, y), numerics=Exact)
def fourfold_negation(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """x + y = -(-(-(-(x + y)))), which a rule of graphopt undoes in two rewrites."""
    return op.Neg(op.Neg(op.Neg(op.Neg(op.Add(x, y)))))


@rule(lambda op, x: op.Relu(x), numerics=Exact)
def negate_relu_twice(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Relu(x) = -(-Relu(x)), once a run."""
    if any(node.op_type == "Neg" for node in ir.readers(m.root.outputs[0])):
        return m.no("it is negated")
    return op.Neg(op.Neg(op.Relu(x)))


@rule(lambda op, x: op.Sin(op.Neg(x)), numerics=Reassociates)
def sin_of_neg(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Sin(-x) → -Sin(x)."""
    return op.Neg(op.Sin(x))


@rule(lambda op, x: op.Sin(x), numerics=Exact)
def failing_rule(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Fail."""
    raise Boom("in a rule")


@rule(lambda op, x: op.Sin(x), numerics=Exact)
def wrong_rule(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Sin(x) → Cos(x), which is wrong."""
    return op.Cos(x)


@rule(lambda op, x: op.Sin(x), numerics=Approximates)
def coarse_rule(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Sin(x) → x, declared as an approximation."""
    return x


@rule(lambda op, x: op.Relu(x), numerics=Exact)
def refusing_rule(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Refuse every match."""
    return m.no("not today", x)


def _lines(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


# Exceptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["pre_passes", "post_passes", "pipeline"])
def test_exceptions_of_custom_passes_are_raised_unchanged(place: str) -> None:
    arguments: dict[str, Any] = {place: [CountRelus()]}
    with pytest.raises(AttributeError, match="no attribute 'nodes'") as caught:
        graphopt.optimize(parse(MODEL), **arguments)
    assert "list(model.graph.nodes)" in _lines(caught.value)
    (note,) = caught.value.__notes__
    assert re.fullmatch(
        r"graphopt: raised by pass \d+ \(count-relus\)\nat \S*test_custom_passes.py:\d+", note
    )


def test_the_cause_of_an_exception_stays() -> None:
    with pytest.raises(Boom, match="chained") as caught:
        graphopt.optimize(parse(MODEL), pipeline="dce", post_passes=[Chained(deep=True)])
    assert isinstance(caught.value.__cause__, KeyError)
    (note,) = caught.value.__notes__
    assert note.startswith("graphopt: raised by pass 2 (chained{deep})\nat ")
    assert "PassFailed" not in _lines(caught.value)


def test_exceptions_of_onnx_ir_passes_are_raised_unchanged() -> None:
    with pytest.raises(Boom, match="onnx-ir") as caught:
        graphopt.optimize(parse(MODEL), pipeline="", post_passes=[FailingOnnxIr()])
    assert "FailingOnnxIr" in caught.value.__notes__[0]


def test_exceptions_of_custom_rules_are_raised_unchanged() -> None:
    with pytest.raises(Boom, match="in a rule") as caught:
        graphopt.optimize(parse(MODEL), rules=[failing_rule])
    assert "(peephole, rule failing-rule at " in caught.value.__notes__[0]
    assert "PassFailed" not in _lines(caught.value)


def test_executors_raise_exceptions_of_custom_passes() -> None:
    executor = graphopt.compile(parse(MODEL), post_passes=[CountRelus()])
    with pytest.raises(AttributeError, match="no attribute 'nodes'"):
        executor({"x": np.ones(2, np.float32)})


def test_failing_builtin_pass_is_dropped_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: Pass, model: ir.Model, cx: Context) -> None:
        raise Boom("inside")

    monkeypatch.setattr(DeadCodeElimination, "run", fail)
    report = graphopt.optimize(parse(MODEL), pipeline="dce,cse", post_passes=["dce"]).report
    assert "dropped: dce, everywhere: pass 1 (dce): Boom: inside" in str(report)
    with pytest.raises(PassFailed, match="Boom: inside"):
        graphopt.optimize(parse(MODEL), pipeline="dce", strict=True)


# Names and types ---------------------------------------------------------------------------


def test_a_pass_needs_neither_a_name_nor_fields() -> None:
    assert str(CountRelus()) == "count-relus" and CountRelus.name == "count-relus"
    assert str(Chained(deep=True)) == "chained{deep}"


def test_passes_of_onnx_ir_may_be_objects() -> None:
    model, report = graphopt.optimize(parse(MODEL), pipeline="", post_passes=[RenameNodes("n")])
    assert [node.name for node in model.graph] == ["n0", "n1", "n2"]
    assert report.pipeline.startswith("onnx-ir{path=") and report.pipeline.endswith(":RenameNodes}")


def test_one_pass_needs_no_list() -> None:
    assert graphopt.optimize(parse(MODEL), pipeline="", post_passes="dce,cse").report.pipeline == "dce,cse"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (sin_of_neg, r"'sin-of-neg' is a rewrite rule, not a pass: pass it as rules=\[...\]"),
        (CountRelus, r"CountRelus is a class; give an instance: CountRelus\(\)"),
        (7, "not int"),
    ],
)
def test_invalid_passes_are_one_clear_type_error(given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        graphopt.optimize(parse(MODEL), post_passes=[given])
    with pytest.raises(TypeError, match=message):
        graphopt.optimize(parse(MODEL), pipeline=[given])


def test_nonterminating_pass_is_stopped() -> None:
    class Forever(graphopt.Pass):
        def run(self, model: ir.Model, cx: Context) -> None:
            while cx.begin_rewrite(self.name, model.graph[0]) is not None:
                pass

    with pytest.raises(
        PassFailed, match=r"rewriting does not come to an end: \d,\d+ rewrites, the latest by forever$"
    ):
        graphopt.optimize(parse(MODEL), pipeline=[Forever()], strict=True)


# Rules -------------------------------------------------------------------------------------


def test_custom_rules_run_together_with_builtin_rules() -> None:
    model, report = graphopt.optimize(parse(MODEL), rules=[sin_of_neg], pipeline="peephole")
    assert ops(model) == ["Relu", "Sin", "Neg"]
    assert report.rules()["sin-of-neg"] == 1 and report.verdict is not None and report.verdict.ok
    assert ops(graphopt.optimize(parse(MODEL), pipeline="peephole").model) == ["Relu", "Neg", "Sin"]
    assert ops(graphopt.optimize(parse(MODEL), rules=[sin_of_neg], skip=["sin-of-neg"]).model) == [
        "Relu",
        "Neg",
        "Sin",
    ]
    only = graphopt.optimize(parse(MODEL), rules=[sin_of_neg], only=["sin-of-neg"])
    assert only.report.rules()["sin-of-neg"] == 1


def test_custom_rules_run_in_executors() -> None:
    executor = graphopt.compile(parse(MODEL), rules=[sin_of_neg])
    assert executor({"x": np.array([-1, 2], np.float32)})["y"].tolist() == [0, -np.sin(np.float32(2))]


def test_refusals_of_custom_rules_are_reported() -> None:
    report = graphopt.optimize(parse(MODEL), rules=[refusing_rule]).report
    assert [(item.rule, item.reason) for item in report.refusals if item.rule == "refusing-rule"] == [
        ("refusing-rule", "not today")
    ]


def test_wrong_custom_rule_is_dropped_and_reported() -> None:
    model, report = graphopt.optimize(parse(MODEL), rules=[wrong_rule])
    assert ops(model) == ["Relu", "Neg", "Sin"]
    assert [drop.owner for drop in report.dropped] == ["wrong-rule"]
    assert "dropped: wrong-rule at " in str(report)


@rule(lambda op, x: op.Identity(x), numerics=Exact)
def drop_identity(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """A rule with a name that graphopt has."""
    return x


def test_rule_named_by_import_path_runs_as_a_pass() -> None:
    place = f"{__name__}:sin_of_neg"
    for given in ({"pre_passes": [place]}, {"post_passes": [place]}, {"pipeline": f"dce,{place}"}):
        model, report = graphopt.optimize(parse(MODEL), **{"pipeline": "dce", **given})
        assert ops(model) == ["Relu", "Sin", "Neg"]
        assert sum(record.rewrites["sin-of-neg"] for record in report.passes) == 1
    report = graphopt.optimize(parse(MODEL), post_passes=[f"{__name__}:coarse_rule"]).report
    assert any("rule coarse-rule did not run" in str(record.remarks) for record in report.passes)
    dropped = graphopt.optimize(parse(MODEL), post_passes=[f"{__name__}:wrong_rule"]).report.dropped
    assert [one.owner for one in dropped] == ["wrong-rule"]
    with pytest.raises(UsageError, match="takes no options"):
        graphopt.optimize(parse(MODEL), pipeline=f"{place}{{deep=true}}")
    with pytest.raises(UsageError, match="os:sep is not a rule"):
        graphopt.optimize(parse(MODEL), pipeline="own-rule{path=os:sep}")


def test_rule_named_by_import_path_can_be_skipped() -> None:
    """As repair, tuning and callers do."""
    skipped, place = parse(MODEL), f"{__name__}:sin_of_neg"
    run_pipeline(skipped, place, options=Options(skip=frozenset({"sin-of-neg"})))
    assert ops(skipped) == ["Relu", "Neg", "Sin"]
    given = {"pipeline": "dce", "pre_passes": [place], "post_passes": [place]}  # one rule, named twice
    assert ops(graphopt.optimize(parse(MODEL), skip="sin-of-neg", **given).model) == ["Relu", "Neg", "Sin"]
    with pytest.raises(UsageError, match="nearest: sin-of-neg"):
        graphopt.optimize(parse(MODEL), skip="sin-of-negs", **given)


def test_rule_named_by_import_path_runs_only_if_selected() -> None:
    given = {"pipeline": "dce", "pre_passes": [f"{__name__}:sin_of_neg"]}
    assert ops(graphopt.optimize(parse(MODEL), only="drop-identity", **given).model) == ["Relu", "Neg", "Sin"]
    assert ops(graphopt.optimize(parse(MODEL), only="sin-of-neg", **given).model) == ["Relu", "Sin", "Neg"]


@pytest.mark.parametrize("given", [{"pre_passes": [f"{__name__}:sin_of_neg"]}, {"rules": [sin_of_neg]}])
@pytest.mark.parametrize(("level", "logged"), [("", "DUMP"), (">", "UPDATE")])
def test_custom_rules_are_logged(
    capsys: pytest.CaptureFixture[str], given: dict[str, Any], level: str, logged: str
) -> None:
    with config.patch(log=f"{level}sin-of-neg"):
        graphopt.optimize(parse(MODEL), pipeline="peephole", **given)
    assert capsys.readouterr().err.startswith(f"[{logged} ")


def test_custom_passes_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with config.patch(log="idle"):
        graphopt.optimize(parse(MODEL), pipeline="dce", pre_passes=[Idle()])
    assert "before 1 idle:" in capsys.readouterr().err


class Idle(Pass):
    """Do nothing."""

    name = "idle"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Do nothing."""


def test_rule_named_by_import_path_cannot_have_a_builtin_name() -> None:
    with pytest.raises(UsageError, match="there is another rule called 'drop-identity'"):
        graphopt.optimize(parse(MODEL), post_passes=[f"{__name__}:drop_identity"])


@pytest.mark.parametrize("own", [double_negation, fourfold_negation])
def test_custom_rule_undone_by_a_builtin_rule_is_dropped(own: Rule) -> None:
    model = parse("g (float[N] x, float[N] y) => (float[N] z) { a = Add(x, y)  z = Relu(a) }")
    model, report = graphopt.optimize(model, rules=[own], pipeline="peephole")
    (dropped,) = report.dropped
    assert dropped.owner == own.name
    assert f"{own.name} does not come to an end, along with cancel-negations" in dropped.reason
    assert ops(model) == ["Add", "Relu"]


def test_a_fixpoint_whose_passes_undo_each_other_is_reported() -> None:
    model = parse("g (float[N] x, float[N] y) => (float[N] z) { a = Add(x, y)  z = Relu(a) }")
    place = f"{__name__}:negate_relu_twice"
    report = graphopt.optimize(model, pipeline=f"fixpoint({place},peephole)").report
    remark = (
        "fixpoint stopped after 10 rounds in which passes still changed the model: "
        "own-rule (negate-relu-twice), peephole (cancel-negations)"
    )
    assert remark in report.remarks and remark in str(report)
    settled = graphopt.optimize(model, pipeline="fixpoint(cse,peephole)").report
    assert not any("fixpoint" in remark for remark in settled.remarks)


@rule(lambda op, x: op.Relu(x), numerics=Exact)
def refused_after_a_constant(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """No rewrite, although it creates a constant first."""
    op.Add(x, np.float32(1))
    return m.no("never")


@pytest.mark.parametrize("imports", ["", ', "local" : 1'])
def test_a_discarded_replacement_is_no_change(imports: str) -> None:
    text = "g (float[N] x) => (float[N] z) { z = Relu(x) }"
    if imports:  # constants of functions are nodes
        text = "g (float[N] x) => (float[N] z) { z = local.f(x) }"
        text += ' <domain: "local", opset_import: ["" : 17]> f (x) => (z) { z = Relu(x) }'
    model = parse(f'<ir_version: 8, opset_import: ["" : 17{imports}]> {text}')
    rules = [refused_after_a_constant]
    report = graphopt.optimize(model, pipeline="fixpoint(peephole)", rules=rules).report
    assert [record.changes for record in report.passes] == [{}]
    assert not report.remarks


def test_rewrites_beyond_the_limit_are_no_changes() -> None:
    model = parse("g (float[N] x) => (float[N] z) { a = HardSwish(x)  b = Neg(a)  z = Neg(b) }")
    pipeline = "fixpoint(decompose{ops=HardSwish})"
    report = graphopt.optimize(model, pipeline=pipeline, stop_after=0).report
    assert [record.changes for record in report.passes] == [{}] and not report.remarks
    assert graphopt.optimize(model, pipeline=pipeline).report.optimized.nodes == 7


def test_a_rule_that_the_numerics_exclude_is_reported() -> None:
    model, report = graphopt.optimize(parse(MODEL), rules=[coarse_rule])
    assert ops(model) == ["Relu", "Neg", "Sin"]
    assert any(
        "rule coarse-rule did not run: its numerics, approximates, need fast_math=True" in remark
        for remark in report.remarks
    )


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ([CountRelus()], TypeError, "not CountRelus; passes are given as post_passes"),
        ([sin_of_neg, sin_of_neg], UsageError, "there is another rule called 'sin-of-neg'"),
    ],
)
def test_invalid_rules_are_one_clear_error(rules: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        graphopt.optimize(parse(MODEL), rules=rules)


def test_rules_need_a_pass_that_applies_them() -> None:
    with pytest.raises(UsageError, match="no pass of the pipeline applies rule 'sin-of-neg'"):
        graphopt.optimize(parse(MODEL), rules=[sin_of_neg], pipeline="dce")


# The command line --------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--pre-pass", "--post-pass", "--passes"])
def test_the_command_line_names_the_line_that_failed(
    option: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from graphopt.cli.main import main

    onnx.save(ir.to_proto(parse(MODEL)), tmp_path / "model.onnx")
    arguments = ["optimize", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "out.onnx")]
    arguments += [option, "tests.test_custom_passes:CountRelus"]
    assert main(arguments, {}) == ExitStatus.USAGE
    assert not (tmp_path / "out.onnx").exists()
    line, hint = capfd.readouterr().err.splitlines()[-2:]
    number = next(
        index
        for index, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "graph.nodes)" in text
    )
    assert line.startswith("graphopt: pass ") and "(count-relus) raised AttributeError at " in line
    assert f"tests/test_custom_passes.py:{number}: " in line and line.endswith("has no attribute 'nodes'")
    assert hint == "hint: --debug shows the traceback"
    assert main([*arguments, "--debug"], {}) == ExitStatus.USAGE
    printed = capfd.readouterr().err
    assert "Traceback" in printed and "list(model.graph.nodes)" in printed and "--debug" not in printed


@pytest.mark.parametrize(("name", "kind"), [("drop-identity", "rule"), ("dce", "pass")])
def test_custom_pass_cannot_have_a_builtin_name(name: str, kind: str) -> None:
    own = type("Mine", (graphopt.Pass,), {"name": name, "run": lambda self, model, cx: None})()
    with pytest.raises(UsageError, match=f"Mine is named '{name}', like a {kind} of graphopt"):
        graphopt.optimize(ir.to_proto(parse(MODEL)), post_passes=[own])


def _returning(result: Any) -> Rule:
    @rule(lambda op, x: op.Sin(x), numerics=Exact)
    def wrong_result(op: Builder, m: Match, x: ir.Value) -> Outcome:
        """Return an object other than a value."""
        return (x, x) if result == "two" else result  # type: ignore[no-any-return]

    return wrong_result


@pytest.mark.parametrize(
    ("result", "shown"),
    [("x", "str"), (None, "None"), (2.0, "float"), ("two", "2 values"), ((None, 1), "int")],
)
def test_rules_that_return_no_value_are_errors(result: Any, shown: str) -> None:
    message = f"wrong-result returned {shown}: return a value for 1 output, several in a tuple, or m.no"
    with pytest.raises(TypeError, match=re.escape(message)):
        graphopt.optimize(parse(MODEL), rules=[_returning(result)])


def test_the_line_at_fault_is_one_of_the_users() -> None:
    for given, own in (({"rules": [_returning(2.0)]}, False), ({"post_passes": [CountRelus()]}, True)):
        with pytest.raises((TypeError, AttributeError)) as caught:
            graphopt.optimize(parse(MODEL), **given)
        _, place = blamed(caught.value) or ("", "")
        assert ("test_custom_passes.py:" in place) == own  # graphopt itself found the other one


class Exits(Pass):
    """End the process."""

    def run(self, model: ir.Model, cx: Context) -> None:
        """Exit."""
        raise SystemExit(3)


def test_a_pass_that_ends_the_process_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"pass \d+ \(exits\) ends the process: SystemExit: 3"):
        graphopt.optimize(parse(MODEL), post_passes=[Exits()])
