"""The pass merge-ifs."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.verification.verifier import verify
from tests.model_testing import ops, parse, run_pipeline


def _optimized(text: str, pipeline: str, **header: int) -> ir.Model:
    """``text`` after ``pipeline``, which must keep every bit of the results."""
    original, model = parse(text, **header), parse(text, **header)
    run_pipeline(model, pipeline)
    ir.validate(model)
    verdict = verify(original, model, numerics=Numerics.EXACT)
    assert verdict.ok, verdict.failures
    assert verdict.rows
    return model


def _branches(node: ir.Node) -> list[list[str]]:
    return [[inner.op_type for inner in body] for body in ir.bodies(node)]


def _row(count: int) -> ir.Model:
    """A row of Ifs with one condition, in which each reads the preceding one."""
    lines = [
        f"v{i} = If (c) < then_branch = t () => (float[N] t{i}) {{ t{i} = Sin({f'v{i - 1}' if i else 'x'}) }},"
        f" else_branch = e () => (float[N] e{i}) {{ e{i} = Cos({f'v{i - 1}' if i else 'x'}) }} >"
        for i in range(count)
    ]
    return parse(f"g (float[N] x, bool c) => (float[N] v{count - 1}) {{" + "\n".join(lines) + "}")


def test_second_branch_reads_results_of_the_first() -> None:
    model = _optimized(
        """g (float[N] x, bool c) => (float[N] y, float[N] z) {
            y = If (c) < then_branch = t () => (float[N] t1) { t1 = Neg(x) },
                         else_branch = e () => (float[N] e1) { e1 = Abs(x) } >
            z = If (c) < then_branch = t2 () => (float[N] t3) { t3 = Exp(y) },
                         else_branch = e2 () => (float[N] e3) { e3 = Add(x, y) } >
        }""",
        "merge-ifs",
    )
    assert ops(model) == ["If"]
    (node,) = model.graph
    assert _branches(node) == [["Neg", "Exp"], ["Abs", "Add"]]
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_merge_at_the_second_if_unless_it_has_earlier_readers() -> None:
    model = _optimized(
        """g (float[N] x, bool c) => (float[N] y, float[N] z) {
            a = If (c) < then_branch = t () => (float[N] t1) { t1 = Neg(x) },
                         else_branch = e () => (float[N] e1) { e1 = Abs(x) } >
            b = Exp(x)
            z = If (c) < then_branch = t2 () => (float[N] t3) { t3 = Exp(b) },
                         else_branch = e2 () => (float[N] e3) { e3 = Add(a, b) } >
            y = Relu(a)
        }""",
        "merge-ifs",
    )
    assert ops(model) == ["Exp", "If", "Relu"]


def test_ifs_with_dependent_nodes_between_are_not_merged() -> None:
    model = _optimized(
        """g (float[N] x, bool c, bool d) => (float[N] z, float[N] w) {
            a = If (c) < then_branch = t () => (float[N] t1) { t1 = Neg(x) },
                         else_branch = e () => (float[N] e1) { e1 = Abs(x) } >
            b = Exp(a)
            z = If (c) < then_branch = t2 () => (float[N] t3) { t3 = Exp(b) },
                         else_branch = e2 () => (float[N] e3) { e3 = Add(x, b) } >
            w = If (d) < then_branch = t4 () => (float[N] t5) { t5 = Sin(x) },
                         else_branch = e4 () => (float[N] e5) { e5 = Cos(x) } >
        }""",
        "merge-ifs",
    )
    assert ops(model) == ["If", "Exp", "If", "If"]


def test_ifs_with_nested_ifs_and_initializers_are_merged() -> None:
    inner = (
        "If (d) < then_branch = p () => (float[N] {0}p) {{ {0}p = Mul(x, {0}w) }},"
        " else_branch = q () => (float[N] {0}q) {{ {0}q = Neg({0}r) }} >"
    )
    text = "g (float[N] x, bool c, bool d) => (float[N] y0, float[N] y1, float[N] y2) {\n"
    for i in range(3):
        body = inner.format(f"v{i}").replace(f"v{i}w", "x").replace(f"Neg(v{i}r)", f"Sub(x, k{i})")
        text += f"""
            y{i} = If (c) < then_branch = t () => (float[N] t{i}) <float[1] k{i} = {{{i}.0}}> {{ t{i} = {body} }},
                            else_branch = e () => (float[N] e{i}) {{ e{i} = Identity(x) }} >"""
    model = _optimized(text + "}", "merge-ifs")
    assert ops(model) == ["If"]
    (node,) = model.graph
    assert _branches(node) == [["If"], ["Identity"] * 3]


def test_merging_is_linear_in_the_number_of_ifs() -> None:
    edits = []
    for count in (200, 400):
        model = _row(count)
        _, cx = run_pipeline(model, "merge-ifs")
        (node,) = model.graph
        assert len(node.outputs) == 1
        names = [value.name or "" for body in ir.bodies(node) for inner in body for value in inner.outputs]
        assert max(map(len, [node.name or "", *names])) < 20
        edits.append(sum(cx.edit.counts.values()))
    assert edits[1] < 2.1 * edits[0]


def test_groups_on_two_conditions_keep_their_order() -> None:
    def branches(i: int, first: str, second: str) -> str:
        return (
            f"(c{i % 2}) < then_branch = t () => (float[N] t{i}) {{ t{i} = Add({first}, {second}) }},"
            f" else_branch = e () => (float[N] e{i}) {{ e{i} = Sub({first}, {second}) }} >"
        )

    rng = np.random.default_rng(0)
    for _ in range(6):
        values, lines = ["x"], []
        for i in range(8):
            first, second = (values[-1 - min(int(rng.exponential(2)), len(values) - 1)] for _ in range(2))
            if rng.random() < 0.3:
                lines.append(f"n{i} = Neg({first})")
                values.append(f"n{i}")
            lines.append(f"v{i} = If {branches(i, first, second)}")
            values.append(f"v{i}")
        outputs = ", ".join(f"float[N] {value}" for value in ("v7", "v6", "v3"))
        text = f"g (float[N] x, bool c0, bool c1) => ({outputs}) {{" + "\n".join(lines) + "}"
        _optimized(text, "merge-ifs")
