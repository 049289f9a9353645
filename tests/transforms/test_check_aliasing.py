"""check-aliasing determines whether an input and an output can share a buffer."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphopt
from graphopt import ir
from graphopt.context import Options
from graphopt.debug.reproducer import Case
from graphopt.errors import UsageError, VerificationFailed
from graphopt.inputs.shared_buffer_pairs import parse_pair
from tests.model_testing import parse, run_pipeline

#: One step of attention over a cache of fixed size; the new row is written at position ``at``.
CACHE = """g (float[1,2] q, float[N,2] past, int64[1,1] at, float[2,2] w)
    => (float[N,2] present, float[1,2] y) <int64 go = {{1}}> {{
        new = MatMul(q, w)
        present = ScatterND({data}, at, new)
        t = Transpose<perm = [1, 0]>({read})
        s = MatMul(q, t)
        p = Softmax<axis = -1>(s)
        y = MatMul(p, {read})
    }}"""


def check(text: str, pairs: str = "past=present", ir_version: int = 8, opset: int = 18) -> None:
    model = parse(text, ir_version=ir_version, opset=opset, domains=', "com.microsoft" : 1')
    before = ir.fingerprint(model.graph)
    run_pipeline(model, f"check-aliasing{{share={pairs}}}")
    assert ir.fingerprint(model.graph) == before


def refused(text: str, pairs: str = "past=present", **how: int) -> str:
    with pytest.raises(VerificationFailed) as caught:
        check(text, pairs, **how)
    return caught.value.message


def test_cache_read_after_its_update_may_share_a_buffer() -> None:
    check(CACHE.format(data="past", read="present"))


def test_cache_whose_old_state_may_be_read_after_its_update_is_refused() -> None:
    why = refused(CACHE.format(data="past", read="past"))
    assert "Transpose" in why and "may run after ScatterND" in why and "'past'" in why


def test_readers_that_the_output_needs() -> None:
    check("g (float[N] past) => (float[N] present) { a = Exp(past) b = Neg(past) present = Add(a, b) }")
    why = refused(
        """g (float[N] past) => (float[N] present, float[N] y)
        { a = Exp(past) present = Neg(a) y = Cos(past) }"""
    )
    assert "Cos" in why


@pytest.mark.parametrize(
    ("node", "safe"),
    [
        ("Add(past, x)", True),
        ("Mul(x, past)", True),
        ("Add(past, past)", True),
        ("Where(c, past, x)", True),
        ("Identity(past)", True),
        ("Softmax(past)", False),
        ("CumSum(past, axis)", False),
        ("Gelu(past)", False),
        ("Transpose<perm = [1, 0]>(past)", False),
        ("ScatterND(past, at, x)", True),
        ("ScatterND(x, at, past)", False),
        ("ScatterND(past, at, past)", False),
    ],
)
def test_operators_that_compute_in_place(node: str, safe: bool) -> None:
    text = f"""g (float[3,3] past, float[3,3] x, bool[3,3] c, int64[3,1] at) => (float[3,3] present)
    <int64 axis = {{0}}> {{ present = {node} }}"""
    if safe:
        check(text, opset=20)
    else:
        assert "while it writes" in refused(text, opset=20)


def test_views_are_the_same_memory() -> None:
    check(
        "g (float[4] past) => (float[4] present) <int64[1] s = {4}> { v = Reshape(past, s) present = Exp(v) }"
    )
    text = """g (float[2,3] past, int64[2] s) => (float[2,3] present, float[1,2,3] y)
    <int64[1] axes = {0}> { v = Unsqueeze(past, axes) y = Cos(v) present = Exp(past) }"""
    why = refused(text)
    assert "Unsqueeze" in why or "Cos" in why
    text = """g (float[2,3] past) => (float[2,3] present, float[1,2,3] y) <int64[1] axes = {0}> {
        v = Unsqueeze(past, axes) e = ReduceSum<keepdims = 0>(v) present = Mul(past, e) y = Cos(v) }"""
    assert "Cos" in refused(text)


def test_broadcast_operands_and_shapes_that_are_only_read() -> None:
    why = refused(
        "g (float[1,3] past, float[1,1] x) => (float[1,3] present) { a = Shape(past) present = Exp(x) }"
    )
    assert "the input is f32[1, 3], the output f32[1, 1]" in why
    check("g (float[N] past) => (float[N] present, int64[1] n) { present = Exp(past) n = Shape(past) }")


@pytest.mark.parametrize("inside", ["past", "v"])
def test_reads_in_bodies(inside: str) -> None:
    text = f"""g (float[N] past, bool c) => (float[N] present, float[N] y) {{
        v = Identity(past)
        present = Exp(past)
        y = If (c) <
            then_branch = t () => (float[N] a) {{ a = If (c) <
                then_branch = t2 () => (float[N] d) {{ d = Neg({inside}) }},
                else_branch = e2 () => (float[N] f) {{ f = Abs(present) }}
            > }},
            else_branch = e () => (float[N] b) {{ b = Abs(present) }}
        >
    }}"""
    # regardless of the reads in its branches, the If depends on the written value
    assert "If" in refused(text) or "Identity" in refused(text)
    check(text.replace(f"Neg({inside})", "Neg(present)").replace("v = Identity(past)", "v = Shape(past)"))


def test_an_if_whose_branches_read_before_they_write() -> None:
    text = """g (float[N] past, bool c, int64 zero) => (float[N] present) {{
        present = If (c) < then_branch = t () => (float[N] a) {{ {then} }},
                           else_branch = e () => (float[N] b) {{ b = Exp(past) }} >
    }}"""
    check(text.format(then="a = Neg(past)"))
    check(text.format(then="s = ReduceSum(past) r = CumSum(past, zero) a = Add(s, r)"))
    why = refused(text.format(then="a = CumSum<reverse = 1>(past, zero)"))
    assert "in t of If" in why and "while it writes" in why
    why = refused(text.format(then="v = Unsqueeze(past, zero) a = Neg(past) n = CumSum(v, zero)"))
    assert "may run after Neg" in why


def test_inputs_that_are_returned() -> None:
    check("g (float[N] past) => (float[N] past) { x = Exp(past) }", "past=past")
    text = "g (float[N] past, float[N] other) => (float[N] other, float[N] y) { y = Exp(past) }"
    assert "at any time" in refused(text, "past=other")
    text = "g (float[N] past) => (float[N] past, float[N] present) { present = Exp(past) }"
    assert "also an output itself" in refused(text)


def test_types_and_sizes_that_differ() -> None:
    assert "dtype" in refused("g (float[N] past) => (double[N] present) { present = Cast<to = 11>(past) }")
    text = "g (float[N,2] past, float[1,2] x) => (float[M,2] present) { present = Concat<axis = 0>(past, x) }"
    assert "f32[N, 2], the output f32[N + 1, 2]; only a cache of fixed size can" in refused(text)
    check("g (float[N,2] past, float[M,2] x) => (float[M,2] present) { present = Exp(x) }")
    assert "the output f32[2]" in refused(
        "g (float[1,2] past) => (float[2] present) { present = Squeeze(past) }"
    )


def test_grouped_query_attention_appends_in_place() -> None:
    text = """g (float[1,1,8] q, float[1,1,8] k, float[1,1,8] v, float[1,2,16,4] past, float[1,2,16,4] past_v,
        int32[1,1] n, int32 total) => (float[1,1,8] y, float[1,2,16,4] present, float[1,2,16,4] present_v) {
        y, present, present_v = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2>
            (q, k, v, past, past_v, n, total)
    }"""
    check(text, "past=present+past_v=present_v")
    assert "while it writes" in refused(text, "past=present_v")


def test_invalid_pairs_are_refused() -> None:
    text = (
        "g (float[N] past, float[N] b) => (float[N] present, float[N] y) { present = Exp(past) y = Neg(b) }"
    )
    check(text, "past=present+b=y")
    for pairs in ("past=nowhere", "passed=present", "past=present+past=y", "past=present+b=present"):
        with pytest.raises(UsageError):
            check(text, pairs)
    for wrong in ("past", "past=", "=present", "a=b=c"):
        with pytest.raises(UsageError, match="past=present"):
            parse_pair(wrong)


def test_sharing_is_checked_before_and_after_optimizing() -> None:
    safe, unsafe = (parse(CACHE.format(data="past", read=read), opset=18) for read in ("present", "past"))
    pairs = [("past", "present")]
    _, report = graphopt.optimize(safe, share_buffers=pairs, pipeline="dce")
    assert [record.text for record in report.passes] == ["dce", "check-aliasing"]
    with pytest.raises(VerificationFailed, match="must not share"):
        graphopt.optimize(unsafe, share_buffers=pairs)


#: y is computed before present because of a constant condition.
CHOICE = """g (float[4] past) => (float[4] present, float[4] y) <int64 zero = {0}, bool yes = {1}> {
    y = CumSum(past, zero) chosen = Where(yes, past, y) present = Neg(chosen)
}"""


def test_a_rewrite_that_makes_sharing_unsafe_is_dropped() -> None:
    _, plain = graphopt.optimize(parse(CHOICE))
    assert plain.optimized.nodes == 2
    _, report = graphopt.optimize(parse(CHOICE), share_buffers=[("past", "present")])
    assert len(report.dropped) == 1 and "must not share a buffer" in report.dropped[0].reason
    assert report.optimized.nodes == 3 and report.verdict is not None and report.verdict.ok


def test_reproducers_keep_the_pairs(tmp_path: Path) -> None:
    from graphopt.debug.checks import CheckOptions
    from graphopt.inputs.feeds import InputOptions
    from graphopt.numerics import Numerics
    from graphopt.ort.devices import CPU
    from graphopt.rewrite.rewrite_filter import RewriteLimit

    options = Options(share_buffers=(("past", "present"),))
    check = CheckOptions("numerics", Numerics.EXACT, InputOptions(), CPU)
    case = Case("optimize", "", ("dce",), options, RewriteLimit(), check)
    assert Case.from_dict(case.to_dict(), tmp_path).options.share_buffers == options.share_buffers


def test_reduction_keeps_shared_buffers() -> None:
    from graphopt.debug.checks import CheckOptions
    from graphopt.debug.reduce_model import StillFails, reduce
    from graphopt.debug.reproducer import helper
    from graphopt.debug.trial_run import Trial
    from graphopt.passes.pipelines import make_pipeline
    from graphopt.rewrite.rewrite_filter import RewriteLimit

    model = parse(CHOICE)
    attempt = Trial(model, make_pipeline("O2,check-aliasing"), Options(share_buffers=(("past", "present"),)))
    with helper() as child:
        small = reduce(model, StillFails(attempt, CheckOptions("valid"), RewriteLimit(), child)).model
    assert {"present", "y"} == {value.name for value in small.graph.outputs} and len(small.graph) == 3


#: Two caches of fixed size, each written at position ``at``.
_CACHES = """g (float[4,2] past_0_key, float[4,2] past_0_value, int64[1,1] at, float[1,2] q)
    => (float[4,2] present_0_key, float[4,2] present_0_value) {
        present_0_key = ScatterND(past_0_key, at, q)
        present_0_value = ScatterND(past_0_value, at, q)
    }"""


def test_patterns_name_all_pairs_of_a_cache() -> None:
    check(_CACHES, "past_*=present_*")
    why = refused(
        _CACHES.replace("present_0_value) {", "present_0_value, float[4,2] y) { y = Cos(past_0_value)"),
        "past_*=present_*",
    )
    assert "'past_0_value' and output 'present_0_value'" in why


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ("past=present", "past*=present* names all pairs"),
        ("cache_*=present_*", "no input matches 'cache_*'"),
        ("past_*=present", "as many *"),
        ("past_*=new_*", "no output is called 'new_0_key'"),
    ],
)
def test_patterns_that_name_no_pairs(pairs: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        run_pipeline(parse(_CACHES), "check-aliasing", Options(share_buffers=(parse_pair(pairs),)))
    assert words in f"{caught.value.message} {caught.value.hint}"
