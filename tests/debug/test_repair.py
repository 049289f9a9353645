"""Repair by optimize of passes and rules that fail, break the model, or do not terminate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import graphopt
from graphopt import ir
from graphopt.debug.reproducer import replay
from graphopt.errors import ExitStatus, NotFused, PassFailed, VerificationFailed
from graphopt.passes.base import Pass
from graphopt.rewrite import Exact, rule
from graphopt.rewrite.rule import Rule
from graphopt.rules import all_rules
from graphopt.transforms.scalar import peephole
from tests.cli.broken_passes import Crash
from tests.debug import faulty_passes
from tests.model_testing import ops, parse


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return ir.from_proto(faulty_passes.big_model())


@pytest.fixture(autouse=True)
def as_in_graphopt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the faulty passes as graphopt's, because exceptions of custom passes are raised."""
    monkeypatch.setattr("graphopt.optimization_attempt.own_passes", lambda passes: [])


@pytest.fixture
def small() -> ir.Model:
    return parse("""
    <ir_version: 8, opset_import: ["" : 17]>
    small (float[N, 4] x) => (float[N, 4] y) {
      [first] a = Sin(x)
      [second] b = Sin(a)
      [last] y = Relu(b)
    }
    """)


def plant(monkeypatch: pytest.MonkeyPatch, *rules: Rule) -> None:
    """Make peephole also apply ``rules``."""
    sound = peephole.admitted_rules
    monkeypatch.setattr(peephole, "admitted_rules", lambda *arguments: [*rules, *sound(*arguments)])


def dropped(result: graphopt.api.Result) -> list[tuple[str, str]]:
    return [(drop.owner, drop.node) for drop in result.report.dropped]


@pytest.mark.parametrize("verify", [True, False], ids=["verified", "not-verified"])
@pytest.mark.parametrize(
    ("fault", "guilty"),
    [
        (faulty_passes.Fails, ("fails", "second_22")),
        (faulty_passes.Cycle, ("cycle", "sub_13")),
        (faulty_passes.LostOutput, ("lost-output", "add_35")),
        (faulty_passes.NeverEnds, ("never-ends", "")),
        (Crash, ("crash", "")),
    ],
)
def test_a_harmful_rewrite_is_dropped(
    fault: type[Pass], guilty: tuple[str, str], verify: bool, model: ir.Model
) -> None:
    result = graphopt.optimize(model, pipeline="dce", post_passes=[fault()], verify=verify)
    assert dropped(result) == [guilty]
    assert ir.find_fault(result.model) is None and len(result.model.graph) == len(model.graph)
    assert [value.name for value in result.model.graph.outputs] == ["y"]
    with pytest.raises((PassFailed, VerificationFailed)):
        graphopt.optimize(model, pipeline="dce", post_passes=[fault()], verify=verify, strict=True)


def test_rewrites_with_unwritable_results_are_dropped(model: ir.Model) -> None:
    result = graphopt.optimize(model, pipeline="dce", post_passes=[faulty_passes.CanNotBeWritten()])
    assert dropped(result) == [("can-not-be-written", "softmax_4")]
    with pytest.raises(VerificationFailed):
        graphopt.optimize(model, pipeline="dce", post_passes=[faulty_passes.CanNotBeWritten()], strict=True)


def test_a_rule_that_fails_at_one_node(model: ir.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    @rule(lambda op, x: op.Softmax(x, axis=-1), numerics=Exact)
    def divide(op: Any, m: Any, x: ir.Value) -> object:
        """Fail at one node."""
        return 1 // 0 if m.root.name == "softmax_7" else m.no("it is another one")

    plant(monkeypatch, divide)
    result = graphopt.optimize(model)
    assert dropped(result) == [("divide", "softmax_7")]
    assert "Mul" not in ops(result.model), "the sound rules went on"
    assert result.verdict is not None and result.verdict.ok
    with pytest.raises(PassFailed, match="rule divide at softmax_7: ZeroDivisionError") as failure:
        graphopt.optimize(model, strict=True)
    assert failure.value.status == ExitStatus.INTERNAL and failure.value.node == "softmax_7"


def test_a_rule_that_fails_everywhere(
    small: ir.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @rule(lambda op, x: op.Sin(x), numerics=Exact)
    def look_up(op: Any, m: Any, x: ir.Value) -> object:
        """Fail."""
        return {}["missing"]

    plant(monkeypatch, look_up)
    result = graphopt.optimize(small, save_repro=tmp_path)
    assert dropped(result) == [("look-up", "first"), ("look-up", "")]
    assert "KeyError: 'missing'" in (replay(tmp_path / "dropped-1") or "")


def test_rules_that_undo_each_other_are_dropped(small: ir.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    @rule(lambda op, x: op.Relu(x), numerics=Exact)
    def there(op: Any, m: Any, x: ir.Value) -> object:
        """One way."""
        return op.Max(x, x)

    @rule(lambda op, x: op.Max(x, x), numerics=Exact)
    def back(op: Any, m: Any, x: ir.Value) -> object:
        """And back again."""
        return op.Relu(x)

    plant(monkeypatch, there, back)
    result = graphopt.optimize(small, pipeline="peephole", verify=False)
    assert dropped(result) in ([("there", "")], [("back", "")])
    assert "does not come to an end" in result.report.dropped[0].reason
    assert ir.find_fault(result.model) is None


def test_a_rule_that_does_not_terminate_is_dropped(
    small: ir.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @rule(lambda op, x: op.Relu(x), numerics=Exact)
    def double(op: Any, m: Any, x: ir.Value) -> object:
        """Relu is Relu of Relu."""
        return op.Relu(op.Relu(x))

    plant(monkeypatch, double)
    result = graphopt.optimize(small, save_repro=tmp_path)
    assert dropped(result) == [("double", "")]
    assert ops(result.model) == ["Sin", "Sin", "Relu"]
    assert "double does not come to an end" in (replay(tmp_path / "dropped-1") or "")
    with pytest.raises(PassFailed, match="double does not come to an end: 1"):
        graphopt.optimize(small, strict=True)


def test_several_faults_at_once(model: ir.Model) -> None:
    planted = [faulty_passes.Fails(), Crash(), faulty_passes.WrongConstant()]
    result = graphopt.optimize(model, pipeline="dce", post_passes=planted)
    assert sorted(dropped(result)) == [
        ("crash", ""),
        ("fails", "second_22"),
        ("wrong-constant", "first_11"),
    ]


def test_no_search_if_onnxruntime_cannot_optimize_the_original() -> None:
    branch = """e () => (float[E, F] e) {
        s = Shape(x) f = Cast<to = 1>(s) h = Mul(f, halves) i = Cast<to = 7>(h) r = Reshape(x, i) e = MatMul(r, w)
    }"""
    model = parse(
        f"""g (float[1, 6] x, bool b) => (float[A, B] y)
            <float[2, 2] w = {{1, 1, 1, 1}}, float[2] halves = {{2, 0.5}}> {{
            y = If<then_branch = t () => (float[C, D] t) {{ d = Add(x, x) t = Mul(d, d) }}, else_branch = {branch}>(b)
        }}"""
    )
    result = graphopt.optimize(model)
    assert "constant-propagation" in {drop.owner for drop in result.report.dropped}
    assert result.report.search_runs == 2 and ops(result.model) == ops(model)
    assert result.report.verdict is not None and result.report.verdict.ok


def test_rewrites_dropped_by_verification_are_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(op: Any, m: Any, a: ir.Value, b: ir.Value) -> object:
        return op.fused(op.Relu(a)) if m.root.name == "wrong" else m.no("it is another one")

    (gelu,) = [rule for rule in all_rules() if rule.name == "gelu"]
    guilty = replace(gelu, replace=wrong)
    rules = [guilty if rule is gelu else rule for rule in all_rules()]
    monkeypatch.setattr("graphopt.rules.all_rules", lambda: rules)
    gelus = parse("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 4] x) => (float[N, 4] y) <float root = {1.4142135}, float one = {1.0}, float half = {0.5}> {
      a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) [wrong] y = Mul(d, half)
    }
    """)
    report = graphopt.optimize(gelus, pipeline="O3").report
    assert [drop.owner for drop in report.dropped] == ["gelu"]
    assert [(place.rule, place.reason) for place in report.missed] == [("gelu", "dropped by verification")]
    assert "  not fused 1 × gelu: dropped by verification" in str(report).splitlines()
    assert report.fused == []
    assert report.seconds["repair"] > 0 and "searched for what to drop: " in str(report)
    assert report.to_dict()["dropped"][0]["failed"] is False
    with pytest.raises(NotFused) as raised:
        graphopt.optimize(gelus, pipeline="O3", strict_fusion=["wrong"])
    assert raised.value.details == ("gelu: dropped by verification", "  Mul wrong"), raised.value
