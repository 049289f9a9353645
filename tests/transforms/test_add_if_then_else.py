"""add-if-then-else creates a Where only from an If that selects between tensors of one dtype and shape."""

from __future__ import annotations

import pytest

import graphopt
from graphopt import ir
from graphopt.context import Observer, Options, Refusal
from graphopt.numerics import Numerics
from tests.model_testing import ops, parse, run_pipeline


class _Refusals(Observer):
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def refused(self, refusal: Refusal) -> None:
        self.reasons.append(refusal.reason)


def _if(then: str, other: str, dims: str = "N") -> str:
    return f"""g (float[N] x, float[N] z, float[M] w, float[4] p, float[4] q, float[1,4] r, bool c)
        => (float[{dims}] y) <float k = {{2.0}}, int64 n = {{4}}, float[1] one = {{1.0}}> {{
            y = If (c) <
                then_branch = t () => (float[{dims}] t1) {{ {then} }},
                else_branch = e () => (float[{dims}] e1) {{ {other} }}
            >
        }}"""


def _run(
    text: str, pipeline: str = "add-if-then-else", options: Options | None = None
) -> tuple[ir.Model, str]:
    model, refusals = parse(text), _Refusals()
    run_pipeline(model, pipeline, options, observers=(refusals,))
    ir.validate(model)
    verdict = graphopt.verify(parse(text), model)
    assert verdict.ok, verdict
    return model, " ".join(refusals.reasons)


@pytest.mark.parametrize(
    ("then", "other", "dims", "left"),
    [
        ("t1 = Identity(x)", "e1 = Identity(z)", "N", ["Identity", "Identity", "Where"]),
        ("t1 = Identity(x)", "a = Identity(x) e1 = Identity(a)", "N", ["Identity"] * 3 + ["Where"]),
        ("t1 = Relu(p)", "e1 = Mul(q, k)", "4", ["Relu", "Mul", "Where"]),
        (
            "t1 = Constant<value = float[4] {1.0, 2.0, 3.0, 4.0}>()",
            "e1 = Sub(p, q)",
            "4",
            ["Constant", "Sub", "Where"],
        ),
    ],
)
def test_trivial_branches_become_a_where(then: str, other: str, dims: str, left: list[str]) -> None:
    model, _ = _run(_if(then, other, dims))
    assert ops(model) == left
    where = model.graph[-1]
    assert where.outputs[0].name == "y"
    assert ir.origins(where) == ("If(y)",) and ir.created_by(where) == "add-if-then-else"


@pytest.mark.parametrize(
    ("then", "other", "dims", "reason"),
    [
        ("t1 = Identity(x)", "e1 = Identity(w)", "K", "one shape"),
        ("t1 = Identity(p)", "e1 = Identity(one)", "K", "one shape"),
        ("t1 = Relu(x)", "e1 = Identity(x)", "N", "elements"),
        ("t1 = MatMul(r, p)", "e1 = Identity(one)", "1", "may fail"),
        ("t1 = RandomNormalLike(p)", "e1 = Identity(p)", "4", "random"),
        ("t1 = Mod<fmod = 1>(p, q)", "e1 = Identity(p)", "4", "may fail"),
        ("a = Abs(p) b = Neg(a) t1 = Relu(b)", "d = Neg(p) e1 = Abs(d)", "4", "more than 4 nodes"),
    ],
)
def test_other_ifs_stay_with_a_reason(then: str, other: str, dims: str, reason: str) -> None:
    model, text = parse(_if(then, other, dims)), _Refusals()
    run_pipeline(model, "add-if-then-else", observers=(text,))
    assert ops(model) == ["If"]
    assert reason in " ".join(text.reasons)


@pytest.mark.parametrize(
    ("declared", "opset", "reason"),
    [
        ("bool[1] c, float16[2] x", 17, "not known to be a scalar"),
        ("bool c, float16[2] x", 17, "no Where for float16"),
        ("bool c, float[2] x", 8, "no Where"),
    ],
)
def test_conditions_types_and_opsets_that_where_does_not_support(
    declared: str, opset: int, reason: str
) -> None:
    dtype = declared.split(", ")[1].split("[", maxsplit=1)[0]
    model, text = (
        parse(
            f"""g ({declared}) => ({dtype}[2] y) {{
                y = If (c) <
                    then_branch = t () => ({dtype}[2] t1) {{ t1 = Identity(x) }},
                    else_branch = e () => ({dtype}[2] e1) {{ e1 = Neg(x) }}
                >
            }}""",
            opset=opset,
        ),
        _Refusals(),
    )
    run_pipeline(model, "add-if-then-else", observers=(text,))
    assert ops(model) == ["If"]
    assert reason in " ".join(text.reasons)


def test_exact_numerics_keep_floats_in_their_if() -> None:
    text = _if("t1 = Identity(x)", "e1 = Identity(z)")
    assert ops(_run(text, options=Options(numerics=Numerics.EXACT))[0]) == ["If"]
    assert ops(_run(text.replace("float", "int64").replace("2.0", "2").replace("1.0", "1"))[0])[-1] == "Where"


def test_two_outputs_stay() -> None:
    model, reason = _run(
        """g (float[2] x, bool c) => (float[2] y, float[2] z) {
            y, z = If (c) <
                then_branch = t () => (float[2] a, float[2] b) { a = Neg(x) b = Identity(x) },
                else_branch = e () => (float[2] d, float[2] f) { d = Identity(x) f = Identity(x) }
            >
        }"""
    )
    assert ops(model) == ["If"] and "more than one output" in reason


def test_ifs_in_bodies_and_functions_and_names_in_both_branches() -> None:
    model, _ = _run(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2] x, bool c, bool d) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] t1) {
                    a = If (d) <
                        then_branch = tt () => (float[2] v) <float[2] k = {1.0, 2.0}> { s = Abs(k) v = Neg(s) },
                        else_branch = te () => (float[2] v) <float[2] k = {3.0, 4.0}> { s = Neg(k) v = Abs(s) }
                    >
                    t1 = own.Choose(a, d)
                },
                else_branch = e () => (float[2] e1) { e1 = Softmax(x) }
            >
        }
        <domain: "own", opset_import: ["" : 17]>
        Choose (p, b) => (q) {
            q = If (b) <
                then_branch = t () => (float[2] t1) { t1 = Constant<value = float[2] {1.0, 2.0}>() },
                else_branch = e () => (float[2] e1) { e1 = Constant<value = float[2] {1.0, 3.0}>() }
            >
        }"""
    )
    (outer,) = model.graph
    body = outer.attributes["then_branch"].as_graph()
    assert [node.op_type for node in body] == ["Abs", "Neg", "Neg", "Abs", "Where", "Choose"]
    assert outer.op_type == "If"
