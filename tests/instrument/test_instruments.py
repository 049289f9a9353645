"""Instruments watch: counts, logs, checks after each pass, a limit on rewrites."""

from __future__ import annotations

import io
import re
from collections import Counter
from dataclasses import replace

import pytest

from graphopt import ir
from graphopt.api import context_for, optimize
from graphopt.context import Refusal
from graphopt.errors import UsageError, VerificationFailed
from graphopt.instrument.dump import Dump, DumpOptions
from graphopt.instrument.dump_text import Rounds, Stage
from graphopt.instrument.log import Level, Log, parse_log
from graphopt.instrument.model_summary import Interface, Summary, weights
from graphopt.instrument.report import Report
from graphopt.instrument.rewrite_stats import RefusalCount, Stats
from graphopt.instrument.validate_each import ValidateEach
from graphopt.ir import printer
from graphopt.modeldiff import snapshot
from graphopt.passes.pass_records import PassRecord
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry
from graphopt.rules import all_rules
from tests.cli.broken_passes import ReluToSigmoid, Unsort
from tests.model_testing import parse

SMALL = """
small (float[N, 4] x) => (float[N, 4] y) <float zero = {-0.0}> {
  a = Identity(x)
  b = Relu(a)
  y = Add(b, zero)
}
"""


# What is in a model -------------------------------------------------------------------------


def test_summary_counts_bodies_but_not_constants() -> None:
    model = parse("""
        g (bool c, float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> {
          y = If (c) <
            then_branch = t () => (float[2] p) { one = Constant <value_float = 1.0> () p = Add(x, one) },
            else_branch = e () => (float[2] q) { q = Mul(x, w) }>
        }""")
    summary = Summary.of(model)
    assert summary.ops == {"Add": 1, "If": 1, "Mul": 1}
    assert (summary.nodes, summary.constants, summary.parameters, summary.weight_bytes) == (3, 1, 2, 8)


def test_tied_weights_count_once() -> None:
    model = parse("g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { a = Add(x, w) y = Mul(a, w) }")
    (value,) = model.graph.initializers.values()
    twin = ir.Value(name="twin", const_value=value.const_value)
    model.graph.register_initializer(twin)
    assert len(list(weights(model))) == 1


def test_interface() -> None:
    model = parse("g (float[N, M] x, float[N, ?] z, float s = {1.0}) => (float[N, K] y) { y = Add(x, z) }")
    interface = Interface.of(model)
    assert interface.symbols == ["N", "M", "z@1"]
    assert [port.name for port in interface.ports("required")] == ["x", "z"]
    assert [port.name for port in interface.ports("overridable")] == ["s"]


# Counting -----------------------------------------------------------------------------------


def test_stats_attribute_removed_nodes_to_rules() -> None:
    stats, model = Stats(), parse(SMALL)
    cx = context_for(model, observers=[stats])
    Pipeline.parse("peephole", registry()).run(model, cx, [stats])
    assert stats.rewrites["Identity"]["drop-identity"] == 1
    assert "Relu" not in stats.rewrites


def test_attributed_counts_equal_the_total_or_list_others() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    before, after = (
        replace(Summary.of(model), ops=ops) for ops in ({"A": 9, "B": 9, "C": 0}, {"A": 4, "B": 4, "C": 2})
    )
    rewrites = {
        "A": Counter({"one": 3, "two": 2}),
        "B": Counter({"one": 3, "two": 1, "three": 1}),
        "C": Counter({"one": -2}),
    }
    report = Report("", before, after, Interface.of(model), [], rewrites=rewrites)
    credit = {row[0].strip(): row[4] for row in report.table().rows if row[0].strip() in "ABC"}
    assert credit == {"A": "one ×3, two ×2", "B": "one ×3, two, others", "C": "one ×2"}


def test_avoidable_refusals_are_reported_first() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    idle = RefusalCount("drop-transpose", "it moves axes", 50, "a")
    stuck = RefusalCount("part-of-shape", "rank or indices unknown", 2, "b")
    summary = Summary.of(model)
    report = Report("", summary, summary, Interface.of(model), [], refusals=[idle, stuck])
    once, twice = ("\n".join(report.lines(verbose)) for verbose in (1, 2))
    assert "left alone 2 × part-of-shape: rank or indices unknown (such as b)" in once
    assert "it moves axes" not in once and "left alone for 1 more reason (-vv" in once
    assert "it moves axes" in twice


def test_dce_removes_and_rewrites_nothing() -> None:
    model = parse("g (float[2] x) => (float[2] y) { z = Exp(x) y = Relu(x) }")
    cx = context_for(model)
    (record,) = Pipeline.parse("dce", registry()).run(model, cx).records
    assert record.describe() == "removed ×1"
    assert str(Stage(record, 2).heading(0)).startswith("── dce ─ 2 → 1 nodes ─ 1 removed ──")


def test_stats_count_each_refused_site_once() -> None:
    stats = Stats()
    for node in ("a", "b", "a"):
        stats.refused(Refusal("rule", node, "because"))
    stats.refused(Refusal("other", "a", "because"))
    assert [(item.rule, item.count, item.example) for item in stats.refusals] == [
        ("rule", 2, "a"),
        ("other", 1, "a"),
    ]


def test_weight_bytes_are_counted_after_each_pass() -> None:
    model = parse("""
        g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}, float[3] unused = {1.0, 2.0, 3.0}> {
          y = Add(x, w)
        }""")
    _, report = optimize(model, pipeline="cse,dce", weigh_each=True, verify=False)
    assert report.weight_bytes == {1: 20, 2: 8}
    assert [record["weight_bytes"] for record in report.to_dict()["passes"]] == [20, 8]


# Logging ------------------------------------------------------------------------------------


def test_the_specification() -> None:
    names = ["dce", "peephole", "constant-propagation", "transpose"]
    assert parse_log("dce:>peephole:>>transpose", names) == {
        "dce": Level.DUMP,
        "peephole": Level.UPDATE,
        "transpose": Level.DEBUG,
    }
    assert parse_log("constant_propagation.py", names) == {"constant-propagation": Level.DUMP}
    for spec in (">>>dce", "dce:", "dce::cse", ""):
        with pytest.raises(UsageError):
            parse_log(spec, names)


def logged(spec: str, pipeline: str = "dce,peephole") -> list[str]:
    """The log of a run on the small model."""
    stream, model = io.StringIO(), parse(SMALL)
    known = registry()
    log = Log(spec, stream, known.passes, all_rules())
    Pipeline.parse(pipeline, known).run(model, context_for(model, observers=[log]), [log])
    lines = stream.getvalue().splitlines()
    assert all(re.match(r"\[(DUMP|UPDATE|DEBUG) \w+\.py:\d+\] ", line) for line in lines)
    return lines


def test_plain_names_dump_the_graph() -> None:
    lines = logged("dce")
    assert {line.split("]")[0].split(":")[0] for line in lines} == {"[DUMP dce.py"}
    assert sum("Relu" in line for line in lines) == 1  # dce changes nothing, so it is not printed again
    assert lines[-1].endswith("(nothing changed)")
    assert sum("Relu" in line for line in logged("peephole")) == 2


def test_one_mark_adds_rewrites() -> None:
    lines = logged(">drop-identity")
    updates = [line for line in lines if line.startswith("[UPDATE identities.py:")]
    assert len(updates) == 1 and "drop-identity: Identity" in updates[0]
    assert not any(line.startswith("[DUMP") for line in lines)
    plain = logged("drop-identity")
    assert {line.split(":")[0] for line in plain} == {"[DUMP peephole.py"}
    assert any(line.startswith("[DUMP") for line in logged(">peephole"))
    assert sum(line.startswith("[UPDATE") for line in logged(">peephole")) == 2


def test_dump_of_a_fusion_rule_shows_its_pass() -> None:
    assert {line.split(":")[0] for line in logged("layer-norm", "peephole,fuse-builtin")} == {
        "[DUMP fuse_builtin.py"
    }


def test_two_marks_add_refusals() -> None:
    text = "g (float[N] x) => (float[M] y) <int64[1] shape = {-1}> { y = Reshape(x, shape) }"
    stream, model, known = io.StringIO(), parse(text), registry()
    log = Log(">>identities", stream, known.passes, all_rules())
    Pipeline.parse("peephole", known).run(model, context_for(model, observers=[log]), [log])
    log.refused(Refusal("drop-identity", "node", "it is needed", "value"))
    assert (
        stream.getvalue().splitlines()[-1].endswith("drop-identity leaves node alone: it is needed (value)")
    )
    assert "[DEBUG identities.py:" in stream.getvalue() and "[DUMP" not in stream.getvalue()
    log.refused(Refusal("collapse-views", "node", "another family"))
    assert "another family" not in stream.getvalue()


# Checking -----------------------------------------------------------------------------------


def run_checked(pass_: object, check: ValidateEach) -> None:
    model = parse(SMALL)
    Pipeline((*Pipeline.parse("dce", registry()).steps, pass_)).run(  # type: ignore[arg-type]
        model, context_for(model), [check]
    )


def test_structural_fault_names_its_pass() -> None:
    with pytest.raises(VerificationFailed, match=r"pass 2 \(unsort\) broke the model"):
        run_checked(Unsort(), ValidateEach())


def test_wrong_results_name_the_pass() -> None:
    from graphopt.verification.verifier import Verifier

    run_checked(ReluToSigmoid(), ValidateEach())  # the structure is sound
    with Verifier(parse(SMALL)) as verifier, pytest.raises(VerificationFailed) as caught:
        run_checked(ReluToSigmoid(), ValidateEach(verifier))
    assert "pass 2 (relu-to-sigmoid) changed the results" in caught.value.message
    assert "relu-to-sigmoid ×1" in (caught.value.hint or "")


# Headings -------------------------------------------------------------------------------------


def test_headings() -> None:
    record = PassRecord(
        3, "peephole", "peephole", 0.1, Counter(replace=2), Counter(a=2, b=1), 10, None, (), 1, 1
    )
    text = str(Stage(record, 12).heading(2))
    assert text.startswith("── peephole, round 1 of 2 ─ 12 → 10 nodes ─ 2 a, 1 b ───")
    assert len(text) == 100
    idle = PassRecord(3, "dce", "dce", 0.1, Counter(), Counter(), 10)
    assert "── dce ─ 10 nodes ─ nothing changed ──" in str(Stage(idle, 10).heading(0))


def test_rounds_without_changes_are_not_counted() -> None:
    model = parse("g (float[N] x) => (float[N] y) { a = Identity(x) b = Identity(a) y = Relu(b) }")
    history = Pipeline.parse("dce,fixpoint(peephole,dce)", registry()).run(model, context_for(model))
    rounds = [(record.name, record.round, record.loop) for record in history.records]
    assert rounds == [("dce", 0, 0), ("peephole", 1, 1), ("dce", 1, 1), ("peephole", 2, 1)]
    assert [Rounds(history.records).of(record) for record in history.records] == [0, 1, 1, 1]


def test_closed_pipe_is_no_failure_of_a_pass() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    model, known = parse("g (float[N] x) => (float[N] y) { a = Identity(x) y = Relu(a) }"), registry()
    log = Log("peephole:>>identities", Closed(), known.passes, all_rules())
    Pipeline.parse("peephole", known).run(model, context_for(model, observers=(log,)), (log,))
    assert [node.op_type for node in model.graph] == ["Relu"]


# Snapshots of dumps ---------------------------------------------------------------------------


def test_dump_of_changes_prints_the_model_once_per_pass_that_changes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()

    class Counted(snapshot.Snapshot):
        def __init__(self, *arguments: object, **options: object) -> None:
            calls["snapshots"] += 1
            super().__init__(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("graphopt.instrument.dump.Snapshot", Counted)
    model, dump = parse(SMALL), Dump(DumpOptions(changed=True, diff=True), lambda line: None)
    pipeline = Pipeline.parse("cse,dce,peephole,cse,fixpoint(peephole,dce),cse", registry())
    history = pipeline.run(model, context_for(model), (dump,))
    changing = [record for record in history.records if record.changes]
    assert 0 < len(changing) < len(history.records)
    assert calls["snapshots"] == 1 + len(changing)


def test_parts_of_unchanged_nodes_are_copied_from_the_earlier_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = parse("g (float[4] x) => (float[4] y) { a = LeakyRelu <alpha = 0.5> (x) b = Abs(a) y = Neg(b) }")
    first, second, _ = model.graph
    before = snapshot.Snapshot(model)
    printed: list[str] = []

    def node_comment(node: ir.Node) -> str:
        printed.append(node.op_type)
        return ""

    monkeypatch.setattr(printer, "node_comment", node_comment)
    second.outputs[0].name = "renamed"
    first.attributes.add(ir.Attr("alpha", ir.AttributeType.FLOAT, 0.25))
    after = snapshot.Snapshot(model, earlier=before)
    assert printed == ["LeakyRelu", "Abs"]
    assert list(after.lines.values()) == list(snapshot.Snapshot(model).lines.values())
