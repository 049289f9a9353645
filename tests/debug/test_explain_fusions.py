"""Explanations name the obstacle: without it, the fusion applies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from graphopt import api, config, ir
from graphopt.errors import UsageError
from tests.model_testing import ATTENTION_STEPS, parse

ATTENTION = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[B, S, 8] q, float[B, T, 8] k, float[B, T, 8] v, MASK mask) => (RESULTS)
    <int64[4] heads = {0, 0, 2, 4}, int64[3] rows = {0, 0, 8}, float scale = {0.5}, float half = {0.5}>
{
    a = Reshape(q, heads)
    b = Transpose<perm = [0, 2, 1, 3]>(a)
    c = Reshape(k, heads)
    d = Transpose<perm = [0, 2, 3, 1]>(c)
    e = MatMul(b, d)
    f = Mul(e, scale)
    h = Add(f, mask)
    PROBABILITIES
    j = Reshape(v, heads)
    l = Transpose<perm = [0, 2, 1, 3]>(j)
    m = MatMul(i, l)
    n = Transpose<perm = [0, 2, 1, 3]>(m)
    y = Reshape(n, rows)
}
"""
LAYER_NORM = """
<ir_version: 8, opset_import: ["" : OPSET]>
g (float[N, 3, 4] x) => (float[N, 3, 4] y) <float eps = {0.00001}, float two = {2.0}>
{
    m = ReduceMean<axes = [-1]>(x)
    d = Sub(x, m)
    p = Pow(d, two)
    v = ReduceMean<axes = [-1]>(p)
    s = Add(v, eps)
    r = Sqrt(s)
    y = Div(d, r)
}
"""
GELU = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x) => (float[N, 4] y) <float root = {ROOT}, float one = {1.0}, float half = {HALF}>
{
    a = Div(x, root)
    b = Erf(a)
    c = Add(b, one)
    d = Mul(x, c)
    y = Mul(d, half)
}
"""
ROTARY = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[B, S, 8] x, float[ROWS, S, 2] f) => (float[B, 2, S, 4] y)
    <int64[4] heads = {0, 0, 2, 4}, int64[2] halves = {2, 2}, int64[1] one = {1}>
{
    a = Reshape(x, heads)
    q = Transpose<perm = [0, 2, 1, 3]>(a)
    g = Concat<axis = -1>(f, f)
    c = Cos(g)
    d = Unsqueeze(c, one)
    s = Sin(g)
    e = Unsqueeze(s, one)
    first, second = Split<axis = -1>(q, halves)
    n = Neg(second)
    t = Concat<axis = -1>(n, first)
    u = Mul(q, d)
    v = Mul(t, e)
    y = Add(u, v)
}
"""


@dataclass(frozen=True)
class Case:
    """A model that is not fused, the report about it, and the change that makes it fuse.

    Attributes:
        words: replacements for these words in the text of the model, before and after the correction.
        asked: arguments that correct it instead.
        given: arguments in any case.
    """

    text: str
    words: dict[str, tuple[str, str]]
    rule: str
    reason: str
    value: str
    hint: str | None
    asked: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)

    def model(self, *, mended: bool) -> ir.Model:
        """The model, before or after mending."""
        text = self.text
        for word, choices in self.words.items():
            text = text.replace(word, choices[mended])
        return parse(text)


PLAIN = {
    "MASK": ("float[B, 1, S, T]",) * 2,
    "RESULTS": ("float[B, S, 8] y",) * 2,
    "PROBABILITIES": ("i = Softmax<axis = -1>(h)",) * 2,
}
CASES = {
    "attention whose mask is of queries alone": Case(
        ATTENTION,
        {**PLAIN, "MASK": ("float[B, 1, S, 1]", "float[B, 1, S, T]")},
        "multi-head-attention",
        "the mask is broadcast over keys",
        "mask",
        "expand its last axis to T",
    ),
    "attention that returns what is inside": Case(
        ATTENTION,
        {**PLAIN, "RESULTS": ("float[B, S, 8] y, float[B, 2, S, T] i", "float[B, S, 8] y")},
        "multi-head-attention",
        "a value inside is a graph output, or has other readers",
        "i",
        "the graph returns 'i': remove that output",
    ),
    "attention with another operator in between": Case(
        ATTENTION,
        {
            **PLAIN,
            "PROBABILITIES": ("z = Softmax<axis = -1>(h) i = Clip(z, , half)", "i = Softmax<axis = -1>(h)"),
        },
        "multi-head-attention",
        "Clip(i) is between Softmax(z) and MatMul(m)",
        "i",
        "remove Clip(i), or move it out of the pattern",
    ),
    "layer norm of an old opset": Case(
        LAYER_NORM,
        {"OPSET": ("14", "17")},
        "layer-norm",
        "there is no LayerNormalization before opset 17",
        "x",
        "raise it: --target-opset 17; --tune tries whether it pays",
    ),
    "layer norm whose opset is raised": Case(
        LAYER_NORM,
        {"OPSET": ("14", "14")},
        "layer-norm",
        "there is no LayerNormalization before opset 17",
        "x",
        "raise it: --target-opset 17; --tune tries whether it pays",
        {"target_opset": 17},
    ),
    "GELU of another polynomial": Case(
        GELU,
        {"ROOT": ("2.0", "1.4142135"), "HALF": ("0.5", "0.5")},
        "gelu",
        "the argument of Erf is 0.5 x, in a GELU it is 0.707107 x",
        "a",
        "if a GELU is intended, correct its constants",
    ),
    "GELU with another factor": Case(
        GELU,
        {"ROOT": ("1.4142135", "1.4142135"), "HALF": ("0.25", "0.5")},
        "gelu",
        "the product is scaled by 0.25, in a GELU by 0.5",
        "b",
        "if a GELU is intended, correct its constants",
    ),
    "rotary embedding with positions for each row": Case(
        ROTARY,
        {"ROWS": ("B", "1")},
        "rotary-embedding",
        "the angles differ within the batch",
        "d",
        "use the same positions for the whole batch; --dim fixes a batch size of 1,"
        " --dim-range B=1: declares it nonempty",
    ),
    "rotary embedding of one row": Case(
        ROTARY,
        {"ROWS": ("B", "B")},
        "rotary-embedding",
        "the angles differ within the batch",
        "d",
        "use the same positions for the whole batch; --dim fixes a batch size of 1,"
        " --dim-range B=1: declares it nonempty",
        {"dims": {"B": 1}},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_fusion_applies_under_the_named_condition(case: Case) -> None:
    found = api.explain(case.model(mended=False), **case.given)
    (missed,) = found.missed
    told = (missed.rule, missed.reason, missed.value, missed.hint)
    assert told == (case.rule, case.reason, case.value, case.hint)
    assert not found.fused
    mended = api.explain(case.model(mended=True), **case.given, **case.asked)
    assert [one.rule for one in mended.fused] == [case.rule]
    assert not mended.missed


def test_explanations_include_facts_about_the_value() -> None:
    model = CASES["attention whose mask is of queries alone"].model(mended=False)
    assert api.explain(model).missed[0].about == "f32[B, 1, S, 1], an input"
    model = CASES["GELU of another polynomial"].model(mended=False)
    assert api.explain(model).missed[0].about == "f32[N, 4], computed by Div(a)"


def test_a_fused_operator_represents_all_nodes_that_it_computes() -> None:
    model = CASES["attention whose mask is of queries alone"].model(mended=True)
    before = [ir.label(node) for node in model.graph]
    (fused,) = api.explain(model).fused
    assert fused.op == "com.microsoft.MultiHeadAttention"
    joins = before[-2:]  # of the heads, which what splits them for the operators behind undoes
    assert sorted([*fused.origins, *joins]) == sorted(before)
    assert [ir.label(node) for node in model.graph] == before, "the model is left as it is"


def test_common_operators_are_skipped() -> None:
    model = parse("""
        g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z, float[N, 4] w, float[N, 4] v) {
            y = Softmax(x) z = Sqrt(x) w = Tanh(x) v = Sigmoid(x)
        }
    """)
    assert api.explain(model).missed == ()


def test_only_requested_patterns_are_explained() -> None:
    model = CASES["GELU of another polynomial"].model(mended=False)
    assert len(api.explain(model, ["gelu"]).missed) == len(api.explain(model, ["gelu", "rotary"]).missed) == 1
    assert api.explain(model, ["attention", "layer-norm"]).missed == ()
    with pytest.raises(UsageError, match="no pattern is called 'atention'; nearest: attention"):
        api.explain(model, ["atention"])
    with pytest.raises(UsageError, match="nearest: placement"):
        api.explain(model, ["placment"], device="cuda")


def test_patterns_of_other_options_name_the_option() -> None:
    model = CASES["GELU of another polynomial"].model(mended=False)
    with pytest.raises(UsageError, match="is for CUDA, and the target is the CPU") as error:
        api.explain(model, ["placement"], device="cpu")
    assert error.value.hint == "add --device cuda, which need not be present"
    with pytest.raises(UsageError, match="is for native kernels") as error:
        api.explain(model, ["fuse-groups"])
    assert error.value.hint == "add --fuser native"


def test_the_nearest_pattern_of_a_requested_node_is_explained() -> None:
    model = parse("""
        g (float[N, 2, S, S] x, float[N, 2, 8, S] v) => (float[N, 2, 8, S] y) {
            [plain] p = Softmax<axis = -1>(x) t = Transpose<perm = [0, 1, 3, 2]>(p) y = MatMul(v, t)
        }
    """)
    assert api.explain(model).missed == ()
    (missed,) = api.explain(model, node="plain").missed
    assert (missed.rule, missed.anchor) == ("multi-head-attention", "Softmax plain")
    assert missed.reason == "expected Softmax before MatMul(y), found 'v'"


SCALED = """
<ir_version: 8, opset_import: ["" : OPSET]>
g (float[N, 3, 4] x) => (float[N, 3, 4] y)
    <float eps = {0.00001}, float two = {2.0}, float[4] w = {1, 2, 3, 4}, float[4] z = {1, 2, 3, 4}>
{
    m = ReduceMean<axes = [-1]>(x)
    d = Sub(x, m)
    p = Pow(d, two)
    v = ReduceMean<axes = [-1]>(p)
    s = Add(v, eps)
    r = Sqrt(s)
    q = Div(d, r)
    o = Mul(q, w)
    y = Add(o, z)
}
"""


@pytest.mark.parametrize("pattern", ["layer-norm", "scale-into-norm", "bias-into-norm", "normalization"])
def test_a_fused_operator_is_found_by_every_rule_that_took_part(pattern: str) -> None:
    (fused,) = api.explain(parse(SCALED.replace("OPSET", "17")), [pattern]).fused
    assert fused.rules == ("layer-norm", "scale-into-norm", "bias-into-norm")
    assert (fused.rule, fused.op) == ("bias-into-norm", "LayerNormalization")


@pytest.mark.parametrize("portable", [False, True])
def test_refused_complete_match_is_nearer_than_a_larger_partial_match(portable: bool) -> None:
    (missed,) = api.explain(parse(SCALED.replace("OPSET", "14")), portable=portable).missed
    assert (missed.rule, missed.reason) == ("layer-norm", "there is no LayerNormalization before opset 17")
    assert missed.hint is not None and "--target-opset 17" in missed.hint


def test_unprofitable_fusions_are_reported_by_device() -> None:
    sums = SCALED.replace("OPSET", "17").replace(
        "g (float[N, 3, 4] x)", "g (float[N, 3, 4] a, float[N, 3, 4] b)"
    )
    model = parse(sums.replace("m = Red", "x = Add(a, b) m = Red"))
    with config.patch(costs="shipped"):
        (missed,) = api.explain(model, device="cpu").missed
        assert missed.rule == "skip-norm" and missed.reason.startswith(
            "it would not be faster: SkipLayerNorm"
        )
        found = api.explain(model, device="cuda")
    assert not found.missed and [one.op for one in found.fused] == ["com.microsoft.SkipLayerNormalization"]
    assert found.fused[0].rules == ("layer-norm", "scale-into-norm", "bias-into-norm", "skip-norm")


def test_unprofitable_passes_are_reported() -> None:
    numbers = {name: ", ".join(str(start + n) for n in range(16)) for start, name in enumerate("pqr")}
    weights = ", ".join(f"float[4, 4] {name} = {{{text}}}" for name, text in numbers.items())
    model = parse(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 4] x) => (float[N, 4] a, float[N, 4] b, float[N, 4] c) <{weights}>
        {{ a = MatMul(x, p) b = MatMul(x, q) c = MatMul(x, r) }}
    """)
    with config.patch(costs="shipped"):
        (missed,) = api.explain(model, device="cpu").missed
        assert "would not be faster: batch-mm" in missed.reason
        assert (missed.rule, missed.value, missed.anchor) == ("batch-mm", "a", "MatMul(a)")
        assert missed.origins == ("MatMul(a)", "MatMul(b)", "MatMul(c)")
        assert api.explain(model, node="MatMul(b)", device="cpu").missed == (missed,)
        assert api.explain(model, ["gelu"], device="cpu").missed == ()
        assert api.optimize(model, device="cpu", pipeline="O3").report.missed == [missed]


def test_sum_hidden_from_onnxruntime_is_reported_under_the_name_of_the_fusion() -> None:
    """Before opset 17 only the rule that keeps the sum apart weighs it, elsewhere the fusion does, too."""
    for opset, rules in (("14", ["layer-norm", "skip-norm"]), ("17", ["skip-norm"])):
        sums = SCALED.replace("OPSET", opset).replace(
            "g (float[N, 3, 4] x)", "g (float[N, 3, 4] a, float[N, 3, 4] b)"
        )
        model = parse(sums.replace("m = Red", "x = Add(a, b) m = Red"))
        with config.patch(costs="shipped"):
            found = api.explain(model, device="cpu").missed
            left_out = api.explain(model, skip=["skip-norm"], device="cpu").missed
        assert [place.rule for place in found] == rules
        assert [place.rule for place in left_out] == rules[:-1]
        assert (found[-1].value, found[-1].reason[:40]) == ("x", "it would not be faster: SkipLayerNormali")


@pytest.mark.parametrize("node", ["MatMul(e)", "Softmax(i)", "Reshape(j)"])
def test_only_the_requested_node_is_explained(node: str) -> None:
    model = CASES["attention whose mask is of queries alone"].model(mended=False)
    assert [place.rule for place in api.explain(model, node=node).missed] == ["multi-head-attention"]


def test_nodes_are_selected_by_scope_and_exporter_metadata() -> None:
    model = CASES["attention whose mask is of queries alone"].model(mended=False)
    for node in model.graph:
        node.name = f"/layer.0/attn/{node.op_type}_{node.outputs[0].name}"
        node.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'encoder', 'encoder.0', 'softmax']"
    for scope in ("/layer.0", "/layer.0/attn/", "encoder.0", "/layer.0/attn/Mul_f"):
        assert len(api.explain(model, node=scope).missed) == 1
    with pytest.raises(UsageError, match=r"no node or scope is called '/layer\.0/at'"):
        api.explain(model, node="/layer.0/at")


def test_bodies_are_searched() -> None:
    model = parse("""
        g (bool c, float[N, 4] x) => (float[N, 4] y) {
            y = If(c) <
                then_branch = t () => (float[N, 4] p) <float root = {2.0}, float one = {1.0}, float half = {0.5}> {
                    a = Div(x, root) b = Erf(a) c1 = Add(b, one) d = Mul(x, c1) p = Mul(d, half)
                },
                else_branch = e () => (float[N, 4] q) { q = Relu(x) }
            >
        }
    """)
    (missed,) = api.explain(model).missed
    assert missed.rule == "gelu" and missed.value == "a"


def test_all_dims_that_may_be_empty_are_reported_together() -> None:
    text = (
        """g (float[FIRST, seq, 32] q, float[SECOND, seq, 32] k, float[SECOND, seq, 32] v) => (float[b, seq, 32] y)
        <int64[4] heads = {0, 0, 4, 8}, int64[3] rows = {0, 0, 32}, float scale = {0.35}> {"""
        + ATTENTION_STEPS
        + "}"
    )
    model = parse(text.replace("FIRST", "batch").replace("SECOND", "batch"), opset=23)
    (missed,) = api.explain(model, ["attention"], portable=True).missed
    assert missed.reason == "an attention dim may be 0: batch, seq"
    assert missed.hint == "--dim-range batch=1: --dim-range seq=1:"
    ranges = {"batch": (1, None), "seq": (1, None)}
    assert not api.explain(model, ["attention"], portable=True, dim_ranges=ranges).missed


def test_unknown_nodes_suggest_only_nodes_that_contain_the_name() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Softmax(x) }")
    model.graph[0].name = "/encoder/Softmax"
    for name, answer in (("softmax", "nearest: /encoder/Softmax"), ("/foo", "'/foo'; graphopt dump")):
        with pytest.raises(UsageError, match=answer):
            api.explain(model, node=name)
        with pytest.raises(UsageError, match=answer):
            api.optimize(model, pipeline="O3", strict_fusion=[name])


def test_nodes_of_native_groups_are_not_reported_as_missed() -> None:
    text = """g (float[N,64] x, float[64] w) => (float[N,64] y) <float two = {2.0}, float e = {0.00001}> {
        m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean <axes = [-1]> (p)
        s = Add(v, e) r = Sqrt(s) n = Div(d, r) y = Mul(n, w)
    }"""
    model = parse(text, opset=13)
    assert [place.rule for place in api.optimize(model, pipeline="O3").report.missed] == ["layer-norm"]
    made, report = api.optimize(model, pipeline="native")
    assert made.functions and not report.missed
