"""The verifier accepts correct models, finds wrong ones, and reports skipped comparisons."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from graphopt import ir
from graphopt.errors import InvalidModel, RuntimeFailure, UsageError
from graphopt.inputs.feeds import InputOptions
from graphopt.numerics import Numerics
from graphopt.ort.crash_risks import crash_risk
from graphopt.process.child import ProcessCrashed
from graphopt.verification import random_outputs
from graphopt.verification.case import Case
from graphopt.verification.numeric_traits import Randomness, numeric_traits_of, randomness_of
from graphopt.verification.random_outputs import share_random_outputs
from graphopt.verification.runners import Runners
from graphopt.verification.verdict import ORIGINAL_FAILS, Row, Skipped, Verdict
from graphopt.verification.verifier import Verifier, verify
from tests.ort.build import data, parse, parse_proto


def comparison(original, candidate, numerics=Numerics.REASSOCIATES, *, header=None, **settings):
    header = header or {}
    settings.setdefault("empty", False)
    return verify(data(original, **header), data(candidate, **header), numerics=numerics, **settings)


def both(before, after):
    """Two graphs over float x and y of shape [B, 4]."""
    head = "g (float[B, 4] x, float[B, 4] y) => (float[B, 4] z) "
    return head + before, head + after


# Correct models -----------------------------------------------------------------------------------


def test_the_same_model():
    model = "g (float[B, S] x) => (float[B, S] y) { a = Exp(x) y = Mul(a, x) }"
    verdict = comparison(model, model, Numerics.EXACT)
    assert verdict.ok and verdict.unverifiable is None and not verdict.failures
    assert re.fullmatch(
        r"bit-identical in \d+ comparisons of 3 shapes and 7 kinds of values",
        verdict.summary(),
    )
    assert {row.level for row in verdict.rows} == {"off", "default"}
    assert {row.binding for row in verdict.rows} == {"B=1 S=1", "B=2 S=3", "B=3 S=16"}
    assert verdict.seconds > 0


def test_models_may_be_objects_bytes_or_paths(tmp_path):
    text = "g (float[2] x) => (float[2] y) { y = Neg(x) }"
    path = tmp_path / "model.onnx"
    path.write_bytes(data(text))
    for original in (parse(text), data(text), path, str(path)):
        assert verify(original, parse(text)).ok
        assert verify(parse(text), original).ok


def test_reassociation_counts_as_rounding():
    before, after = both(
        "{ a = Mul(x, y) b = Mul(a, x) z = Mul(b, y) }", "{ a = Mul(x, x) b = Mul(y, y) z = Mul(a, b) }"
    )
    verdict = comparison(before, after)
    assert verdict.ok, verdict.summary()
    assert verdict.delta > 0


def test_one_original_many_candidates():
    model = "g (float[B] x) => (float[B] y) <float two = {2}, float three = {3}> { y = Mul(x, two) }"
    with Verifier(data(model), empty=False) as verifier:
        assert verifier.verify(data(model)).ok
        assert not verifier.verify(data(model.replace("x, two", "x, three"))).ok
        assert verifier.verify(data(model.replace("Mul(x, two)", "Add(x, x)"))).ok


def test_the_largest_difference_is_named():
    def model(first, second):
        return (
            "g (float[B] x) => (float[B] y, float[B] z) "
            f"<float a = {{{first}}}, float b = {{{second}}}> {{ y = Add(x, a) z = Add(x, b) }}"
        )

    for candidate, output in (((1.5, 9), "z"), ((9, 1.5), "y")):
        verdict = comparison(model(1, 1), model(*candidate))
        assert verdict.summary().startswith(f"output '{output}': "), verdict.summary()
        largest = max(row.delta for row in verdict.failures if row.distribution == "normal")
        assert f"by up to {largest:.3g}" in verdict.summary() and largest > 7


# Wrong models ---------------------------------------------------------------------------------

ONES = "<float[4] s = {1, 1, 1, 1}>"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{ z = Add(x, y) }", "{ z = Sub(x, y) }"),
        ("{ z = Identity(x) }", "{ z = Relu(x) }"),
        ("{ z = Abs(x) }", "{ z = Identity(x) }"),
        ("<float a = {2.0}> { z = Mul(x, a) }", "<float a = {2.001}> { z = Mul(x, a) }"),
        ("{ z = Softmax <axis = 1> (x) }", "{ z = Softmax <axis = 0> (x) }"),
        (
            f"{ONES} {{ z = LayerNormalization <epsilon = 1e-5> (x, s) }}",
            f"{ONES} {{ z = LayerNormalization <epsilon = 1e-2> (x, s) }}",
        ),
        ("{ z = Max(x, y) }", "{ g = Greater(x, y) z = Where(g, x, y) }"),  # NaN
        ("{ a = Sub(x, x) z = Add(a, y) }", "{ z = Identity(y) }"),  # inf - inf
        ("<float a = {0}> { b = Mul(x, a) z = Add(b, y) }", "{ z = Identity(y) }"),  # inf * 0
        ("{ a = Exp(x) z = Log(a) }", "{ z = Identity(x) }"),  # overflow
        ("{ a = Mul(x, x) z = Sqrt(a) }", "{ z = Identity(x) }"),
    ],
)
def test_faults_are_found(before, after):
    verdict = comparison(*both(before, after), Numerics.EXACT)
    assert not verdict.ok
    assert verdict.failures[0].output == "z"
    assert verdict.summary().startswith("output 'z': ")


@pytest.mark.parametrize(
    ("before", "after", "passes_from"),
    [
        ("<float a = {0}> { z = Add(x, a) }", "{ z = Identity(x) }", "REASSOCIATES"),  # -0.0 + 0.0
        (
            "<float a = {0}> { z = Mul(x, a) }",
            "<float a = {0}> { s = Shape(x) z = Expand(a, s) }",
            "APPROXIMATES",
        ),
        ("{ a = Exp(x) b = Log(a) z = Identity(b) }", "{ z = Identity(x) }", "REASSOCIATES"),
        ("<float a = {1.0}> { z = Mul(x, a) }", "<float a = {1.0005}> { z = Mul(x, a) }", "APPROXIMATES"),
        (
            "<float a = {3.0}> { z = Div(x, a) }",
            "<float a = {0.33333334}> { z = Mul(x, a) }",
            "EXACT",
        ),
    ],
)
def test_numerics_class_sets_the_tolerance(before, after, passes_from):
    for numerics in Numerics:
        assert comparison(*both(before, after), numerics).ok == (numerics >= Numerics[passes_from]), numerics


def test_small_tensors_are_compared_at_their_own_scale():
    head = "g (float[2, 512] x) => (float[2, 512] y) <float a = {1.01}> "
    before, after = "{ y = Softmax <axis = 1> (x) }", "{ s = Softmax <axis = 1> (x) y = Mul(s, a) }"
    assert not comparison(head + before, head + after).ok


def test_a_frozen_dimension_is_found():
    before = "g (float[B, 6] x) => (float[B, 2, 3] y) <int64[3] s = {-1, 2, 3}> { y = Reshape(x, s) }"
    verdict = comparison(before, before.replace("{-1, 2, 3}", "{1, 2, 3}"))
    assert not verdict.ok
    assert {row.binding for row in verdict.failures} == {"B=2", "B=3"}
    assert "cannot be reshaped" in verdict.summary()


def test_an_empty_dimension_is_found():
    before = "g (float[B, 6] x) => (float[B, 6] y) { y = Identity(x) }"
    verdict = comparison(before, before, empty=True)
    assert verdict.ok
    assert "B=0" in {row.binding for row in verdict.rows}
    wrong = (
        "g (float[B, 6] x) => (float[B, 6] y) <int64 zero = {0}> "
        "{ first = Gather <axis = 0> (x, zero) z = Sub(first, first) y = Add(x, z) }"
    )
    verdict = comparison(before, wrong, empty=True)
    assert {row.binding for row in verdict.failures if row.distribution == "normal"} == {"B=0"}


def test_crash_on_empty_inputs_is_skipped():
    w, r = ", ".join(["0.1"] * 18), ", ".join(["0.2"] * 27)
    model = (
        f"g (float[T, B, 2] x) => (y, h) <float[1, 9, 2] w = {{{w}}}, float[1, 9, 3] r = {{{r}}}> "
        "{ y, h = GRU <hidden_size = 3> (x, w, r) }"
    )
    verdict = comparison(model, model, empty=True)
    assert verdict.ok, verdict.summary()
    assert any("T=0" in skipped.what and skipped.cause == "the original fails" for skipped in verdict.skipped)


LEAST = -(2**63)


def test_a_candidate_that_kills_the_process():
    before = "g (int64[N] x) => (int64[N] y) { y = Identity(x) }"
    after = (
        f"g (int64[N] x) => (int64[N] y) <int64 least = {{{LEAST}}}, int64 one = {{-1}}> "
        "{ a = Div(least, one) b = Sub(a, a) y = Add(x, b) }"
    )
    assert crash_risk(parse(before)) is None
    assert crash_risk(parse(after)) is not None
    verdict = comparison(before, after)
    assert not verdict.ok
    assert "crashed (SIGFPE)" in verdict.summary()


def test_an_original_that_divides_integers_runs_in_a_child():
    model = (
        f"g (int64[N, 16] y) => (z) <int64 least = {{{LEAST}}}> "
        "{ s = Sub(y, y) a = Add(s, y) b = Mod(a, a) c = Add(a, b) z = Div(least, c) }"
    )
    verdict = comparison(model, model)
    assert any(
        "negative inputs" in skipped.what and "SIGFPE" in skipped.detail for skipped in verdict.skipped
    ), verdict


def test_each_model_has_one_process(monkeypatch):
    started = []
    start = Runners._start
    monkeypatch.setattr(Runners, "_start", lambda runners: started.append(start(runners)) or started[-1])
    right, wrong = both("{ z = Add(x, y) }", "{ z = Sub(x, y) }")
    with Verifier(parse(right)) as verifier:
        assert verifier.verify(parse(right)).ok
        assert not verifier.verify(parse(wrong)).ok
        # the original, two candidates, and the original with other roundings
        assert [child.alive for child in started] == [True, False, False, False]
    assert not started[0].alive


def test_an_original_that_crashes_while_loading_is_an_error():
    model = 'g (float x) => (float[N, M] y) { y = Einsum<equation = "->ij">(x) }'
    with pytest.raises(ProcessCrashed, match="loading the model without optimizations"):
        comparison(model, model)


def test_wrong_types_and_shapes():
    before = "g (float[B] x) => (y) { y = Shape(x) }"
    assert not comparison(before, "g (float[B] x) => (y) { s = Shape(x) y = Cast <to = 6> (s) }").ok
    after = "g (float[B] x) => (y) <int64[2] k = {1, 1}> { s = Shape(x) y = Reshape(s, k) }"
    verdict = comparison(before, after)
    assert "shape [1] became [1, 1]" in verdict.summary()


def test_integers_must_be_equal():
    before = "g (float[B, 8] x) => (int64[B, 1] i) { i = ArgMax <axis = 1> (x) }"
    assert not comparison(before, before.replace("ArgMax", "ArgMin")).ok


# Excused differences --------------------------------------------------------------------------


def test_a_selection_that_depends_on_rounding_is_no_fault():
    """Which of two equal sums is largest depends on rounding: with zeros all are equal."""
    head = "g (float[B, 4] x, float[4, 6] w) => (int64[B, 1] i) "
    before = "{ m = MatMul(x, w) a = Sub(m, m) i = ArgMax <axis = 1> (a) }"
    after = (
        "{ n = Neg(w) m = MatMul(x, w) k = MatMul(x, n) a = Add(m, k) t = Transpose <perm = [0, 1]> (x) "
        "e = Mul(t, t) r = ReduceSum <keepdims = 1> (e) i = ArgMax <axis = 1> (a) }"
    )
    assert comparison(head + before, head + after).ok


def test_noise_of_the_default_session_is_allowed():
    """The candidate may deviate from the original's default session as far as that deviates from itself."""
    from graphopt.verification.candidate_comparison import CandidateComparison
    from graphopt.verification.numeric_traits import NumericTraits

    class Fixed:
        def __init__(self, off, default):
            self.outputs = {"off": [off], "default": [default]}

        def run(self, level, feeds):
            return self.outputs[level]

    def rows(default, noise):
        off = np.zeros(3, np.float32)
        case = Case("", "normal", {}, [off], [off + np.float32(noise)], [[noise]])
        candidate = Fixed(off, off + np.float32(default))
        return CandidateComparison(["y"], candidate, Numerics.EXACT, [NumericTraits()], [0.0], None).rows(
            [case]
        )

    assert [row.ok for row in rows(default=0.1, noise=0.05)] == [True, True]
    assert [row.ok for row in rows(default=0.1, noise=0.0)] == [True, False]


def test_random_outputs_are_compared_by_type_and_shape():
    model = "g (float[B, 8] x) => (r, y) { r = RandomNormalLike(x) y = Neg(x) }"
    assert comparison(model, model).ok
    verdict = comparison(model, model.replace("Neg", "Abs"))
    assert [row.output for row in verdict.failures][:1] == ["y"]
    assert not comparison(model, model.replace("RandomNormalLike(x)", "Cast <to = 11> (x)")).ok


def test_random_outputs_must_stay_random():
    model = "g (float[B, 8] x) => (r) { r = RandomNormalLike(x) }"
    verdict = comparison(model, "g (float[B, 8] x) => (r) { r = Exp(x) }")
    assert "random outputs became constant" in verdict.summary()


def test_batch_statistics_may_converge():
    header = {"opset": 15}
    numbers = "float[4] s = {1, 1, 1, 1}, float[4] v = {0.1, 0.2, 0.3, 0.4}"
    training = "y, m, n = BatchNormalization <training_mode = 1> (x, s, s, s, v)"
    model = f"g (float[N, 4, 2, 2] x) => (float[4] z) <{numbers}> {{ {training} z = Floor(n) }}"
    assert comparison(model, model, header=header).ok


def test_unwritten_outputs_are_ignored_in_all_cases():
    def case(*places):
        zero = [np.zeros(1, np.float32)] * 2
        return Case("fixed", "normal", {}, zero, None, [[0.0]] * 2, frozenset(places))

    cases = [case(), case(1), case()]
    share_random_outputs(cases, Randomness(varies=False, draws=False, indices=frozenset(), drawn=frozenset()))
    assert [case.random for case in cases] == [frozenset([1])] * 3


def test_small_random_outputs_are_random_in_all_cases():
    def case(size, *places):
        zeros = [np.zeros(size, np.float32)] * 2
        return Case("fixed", "normal", {}, zeros, None, [[0.0]] * 2, frozenset(places))

    cases = [case(1), case(1, 1), case(1000)]
    share_random_outputs(cases, Randomness(varies=True, draws=True, indices=frozenset(), drawn=frozenset()))
    assert [case.random for case in cases] == [frozenset([1]), frozenset([1]), frozenset()]
    share_random_outputs(
        cases, Randomness(varies=True, draws=True, indices=frozenset([0]), drawn=frozenset([0]))
    )
    assert [case.random for case in cases] == [frozenset([0, 1]), frozenset([0, 1]), frozenset()]


def test_batch_statistics_beside_random_numbers_may_converge():
    numbers = "float[4] s = {1, 1, 1, 1}, float r = {0.5}, bool t = {1}, int64 n = {3}, bool c = {1}"
    model = parse(
        f"g (float[N, 4] x) => (float[4] v, float[N, 4] d, float[4] w, float[N, 4] l) <{numbers}> {{"
        " y, m, v = BatchNormalization <training_mode = 1> (x, s, s, s, s) w = Floor(v) d = Dropout(x, r, t)"
        " l = Loop(n, c, x) <body = b (int64 i, bool ci, float[N, 4] u) => (bool co, float[N, 4] o)"
        " { co = Identity(ci) o = Dropout(u, r, t) }> }"
    )
    randomness = randomness_of(model)
    assert (randomness.draws, randomness.drawn) == (True, frozenset([1, 3]))
    outputs = [np.zeros(1, np.float32)] * 4
    case = Case("fixed", "normal", {}, outputs, None, [[0.0]] * 4, varying=frozenset([0, 1, 2]))
    share_random_outputs([case], randomness)
    assert case.varying == {1}


def test_a_dropout_of_a_single_element_is_equal_to_itself():
    ratio = "float r = {0.8}, bool t = {1}"
    model = f"g (float[N, M] x) => (float[N, M] y) <{ratio}> {{ y, m = Dropout(x, r, t) }}"
    assert all(comparison(model, model, header={"opset": 13}).ok for _ in range(5))


@pytest.mark.parametrize("again", range(3))
def test_the_random_number_of_a_node_depends_on_its_place(again):
    # the seed of onnxruntime's generator contains the index of the node
    head = "g (float[N] x) => (float[N] z, float[1] y) <float[1] c = {6}, bool t = {1}> "
    before = head + "{ a = Neg(x) b = Neg(a) d = Abs(b) e = Abs(d) z = Relu(e) y, m = Dropout(c, , t) }"
    after = head + "{ z = Abs(x) y, m = Dropout(c, , t) }"
    assert comparison(before, after, header={"opset": 13}).ok
    kept = after.replace("Dropout(c, , t)", "Dropout(c)")
    assert not comparison(after, kept, header={"opset": 13}).ok


def test_outputs_that_depend_on_random_numbers():
    def found(node, outputs="y"):
        text = f"g (float[N] x, float r, bool t) => (float[N] {outputs}) <bool on = {{1}}, float no = {{0}}>"
        return [output.random for output in numeric_traits_of(parse(f"{text} {{ {node} }}"))]

    assert found("y = RandomNormalLike(x)") == [True]
    assert found("y, m = Dropout(x, , on)") == [True]
    assert found("y, m = Dropout(x, no, on)") == found("y, m = Dropout(x, r, t)") == [False]
    assert found("d = RandomNormalLike(x) s = Shape(d) y = Expand(r, s)") == [False]
    assert found("d = RandomNormalLike(x) y = Add(d, x)") == [True]


def test_the_sign_of_a_zero_divisor_counts_as_rounding():
    before = "{ n = Neg(x) r = Reciprocal(n) z = Max(r, y) }"
    after = "{ o = Constant<value = float {0.0}>() n = Sub(o, x) r = Reciprocal(n) z = Max(r, y) }"
    assert comparison(*both(before, after)).ok
    assert not comparison(*both(before, after), Numerics.EXACT).ok
    assert not comparison(*both(before, after.replace("Sub", "Add"))).ok


def test_a_maximum_of_signed_zeros_depends_on_the_kernel():
    before = "{ n = Neg(x) z = Max(n, n) }"
    after = "{ o = Constant<value = float {0.0}>() n = Sub(o, x) z = Max(n, n) }"
    assert comparison(*both(before, after), Numerics.EXACT).ok
    assert not comparison(*both(before.replace("Max", "Add"), after.replace("Max", "Add")), Numerics.EXACT).ok


def test_half_precision_may_be_rounded_at_any_step():
    head = "g (float16[B, 1] x, float16[B, 1] y) => (float16[B, 1] z) "
    before = "{ a = Add(x, y) t = Transpose<perm = [0, 1]>(a) u = Mul(t, y) z = Sub(u, x) }"
    after = "{ a = Add(x, y) u = Mul(a, y) z = Sub(u, x) }"
    assert comparison(head + before, head + after, Numerics.EXACT).ok
    assert not comparison(head + before, head + after.replace("Sub", "Add"), Numerics.EXACT).ok


# Other kinds of values ------------------------------------------------------------------------


def test_sequences_maps_and_strings():
    header = {"domains": ', "ai.onnx.ml" : 3'}
    model = (
        "g (float[B, 2] x, string[B] s) => (seq(map(string, float)) m, string[B] t, seq(float) q) {"
        ' m = ai.onnx.ml.ZipMap <classlabels_strings = ["a", "b"]> (x)'
        " t = Identity(s) q = SplitToSequence(x) }"
    )
    assert comparison(model, model, header=header).ok
    assert not comparison(model, model.replace('["a", "b"]', '["b", "a"]'), header=header).ok
    assert not comparison(
        model, model.replace("q = SplitToSequence(x)", "q = SequenceConstruct(x)"), header=header
    ).ok
    upper = model.replace("t = Identity(s)", 't = StringNormalizer <case_change_action = "UPPER"> (s)')
    assert not comparison(model, upper, header=header).ok


@pytest.mark.parametrize("type_", ["float16", "bfloat16", "float8e4m3fn"])
def test_low_floats(type_):
    head = f"g ({type_}[B, 4] x) => ({type_}[B, 4] y) <float a = {{2}}, float b = {{3}}> "
    code = onnx.TensorProto.DataType.Value(type_.upper())
    body = f"{{ c = Cast <to = 1> (x) m = Mul(c, a) y = Cast <to = {code}> (m) }}"
    header = {"ir_version": 10, "opset": 21}
    assert comparison(head + body, head + body, header=header).ok
    assert not comparison(head + body, head + body.replace("c, a", "c, b"), header=header).ok


def test_sequence_and_optional_inputs():
    model = (
        "g (seq(float[N]) s, optional(float[N]) o) => (y, z) "
        "{ y = SequenceLength(s) z = OptionalHasElement(o) }"
    )
    verdict = comparison(model, model, header={"opset": 18})
    assert verdict.ok and verdict.unverifiable is None


# The interface --------------------------------------------------------------------------------


def test_a_changed_interface():
    before = "g (float[B] x, float[B] unused) => (float[B] y) { y = Neg(x) }"
    verdict = comparison(before, "g (float[B] x) => (float[B] y) { y = Neg(x) }")
    assert not verdict.ok
    assert verdict.summary() == "the interface changed: input 'unused' is gone"
    frozen = before.replace("float[B] x", "float[7] x")
    assert comparison(before, frozen).signature == ("input 'x': dimension 0 was dynamic (B), now fixed to 7",)
    assert comparison(before.replace("[B]", "[7]"), before.replace("[B]", "[7]")).ok
    verdict = verify(
        data(before), data(frozen), signature=False, empty=False, options=InputOptions({"x": (7,)})
    )
    assert verdict.ok


def test_a_wrong_declaration_may_be_corrected():
    before = parse_proto("g (float[2, 3] x) => (float[6] y) <int64[2] s = {3, 2}> { y = Reshape(x, s) }")
    after = parse_proto("g (float[2, 3] x) => (float[3, 2] y) <int64[2] s = {3, 2}> { y = Reshape(x, s) }")
    verdict = verify(before.SerializeToString(), after.SerializeToString())
    if verdict.unverifiable is None:  # onnxruntime rejects such a model, or warns
        assert verdict.signature == ()


def test_overridable_initializers_are_overridden():
    before = "g (float[2] x, float[2] w) => (y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    folded = "g (float[2] x, float[2] w) => (y) <float[2] w = {1, 2}, float[2] v = {1, 2}> { y = Add(x, v) }"
    verdict = comparison(before, folded)
    assert {row.distribution for row in verdict.failures} == {"overridden"}


# Impossible comparisons ---------------------------------------------------------------------------


def test_an_original_that_does_not_run():
    model = "g (float[2] x) => (y) { y = custom.Thing(x) }"
    header = {"domains": ', "custom" : 1'}
    verdict = comparison(model, model, header=header)
    assert verdict.ok and verdict.rows == ()
    assert verdict.unverifiable.startswith("the original does not run (onnxruntime can't load the model: ")
    assert verdict.summary().startswith("not verified: the original does not run")


def test_an_original_that_loads_but_never_runs():
    original = "g (float[2, 3] x) => (y) { s = Shape(x) t = Add(s, s) y = Reshape(x, t) }"
    verdict = comparison(original, original)
    assert verdict.ok and "cannot be reshaped" in verdict.unverifiable
    broken = "g (float[2, 3] x) => (y) { s = Shape(x) t = Cast <to = 1> (s) y = Reshape(x, t) }"
    assert not comparison(original, broken).ok


def test_inputs_that_can_not_be_generated():
    model = "g (sparse_tensor(float[3]) x, float[3] z) => (float[3] y) { y = Neg(z) }"
    verdict = comparison(model, model)
    assert "can't be fed" in verdict.unverifiable


def test_distributions_that_the_original_refuses_are_reported():
    numbers = ", ".join(["1"] * 40)
    model = (
        f"g (float[N] x) => (y) <float[40] t = {{{numbers}}}> "
        "{ a = Abs(x) i = Cast <to = 7> (a) j = Mul(i, i) y = Gather(t, j) }"
    )
    verdict = comparison(model, model)
    assert verdict.ok and verdict.unverifiable is None
    assert any(skipped.what.startswith("large inputs at N=") for skipped in verdict.skipped)
    assert "large" not in {row.distribution for row in verdict.rows}


def test_bits_are_required_without_optimizations():
    graph = "g (float[64] x) => (float[64] y) <float k = {0.1}, float r = {10.0}> "
    original, candidate = data(graph + "{ y = Div(x, r) }"), data(graph + "{ y = Mul(x, k) }")
    with Verifier(original, empty=False) as verifier:
        assert verifier.verify(candidate, numerics=Numerics.EXACT).ok
        verdict = verifier.verify(candidate, numerics=Numerics.EXACT, bits=True)
        assert verifier.verify(original, numerics=Numerics.EXACT, bits=True).ok
    assert {(row.level, row.reason) for row in verdict.failures} == {("off", "not the same bits")}


def test_the_summary_counts_skipped_and_excused_comparisons():
    rows = (
        Row("N=1", "normal", "off", 0.5, "y", True, "ill-conditioned"),
        Row("N=1", "zero", "off", 0.25, "y", True),
    )
    skipped = (
        Skipped("large inputs at N=1", "time"),
        Skipped("special inputs at N=1", "time"),
        Skipped("normal inputs at N=0", ORIGINAL_FAILS),
    )
    verdict = Verdict(rows, skipped=skipped)
    assert verdict.delta == 0.25
    assert verdict.summary() == (
        "equal within 2.5e-01 in 2 comparisons of 1 shape and 2 kinds of values; "
        "1 within rounding error; 2 skipped for time (-v)"
    )


@pytest.mark.parametrize(
    ("off", "default", "text"),
    [
        (True, True, "bit-identical in 2 comparisons of 1 shape and 1 kind of values"),
        (True, False, "equal within 1.2e-01 in 2 {scope}, bit-identical with optimizations off"),
        (False, True, "equal within 1.2e-01 in 2 {scope}"),
    ],
)
def test_the_summary_states_the_bits_of_sessions_without_optimizations(off: bool, default: bool, text: str):
    rows = tuple(
        Row("N=1", "normal", level, 0.0 if same else 0.125, "y", True, identical=same)
        for level, same in (("off", off), ("default", default))
    )
    assert Verdict(rows).summary() == text.format(scope="comparisons of 1 shape and 1 kind of values")
    alone = Verdict(rows[1:]).summary()
    assert "optimizations off" not in alone, "nothing was compared without them"


def test_the_time_limit_applies_to_further_distributions_only():
    model = "g (float[B, 4] x) => (y) { y = Neg(x) }"
    verdict = comparison(model, model, seconds=0)
    assert {row.distribution for row in verdict.rows} == {"normal"}
    assert len(verdict.rows) == 6
    assert any(skipped.cause == "time" for skipped in verdict.skipped)


# Given inputs ---------------------------------------------------------------------------------


def test_given_shapes_and_files(tmp_path):
    before = "g (float[B, S] x) => (y) <int64[2] s = {0, -1}, float[1] k = {5}> { y = Identity(x) }"
    wrong = (
        "g (float[B, S] x) => (y) <float k = {5}> { g = Greater(x, k) c = Cast <to = 1> (g) y = Sub(x, c) }"
    )
    np.save(tmp_path / "x.npy", np.full((2, 3), 4.0, np.float32))
    options = InputOptions.parse(files=[f"x:{tmp_path}/x.npy"])
    verdict = comparison(before, wrong, options=options)
    assert verdict.ok and {row.binding for row in verdict.rows} == {"B=2 S=3"}
    np.save(tmp_path / "x.npy", np.full((2, 3), 6.0, np.float32))
    assert not comparison(before, wrong, options=options).ok
    verdict = comparison(before, before, options=InputOptions.parse(["x:7,9"]))
    assert {row.binding for row in verdict.rows} == {"B=7 S=9"}


def test_options_that_do_not_fit():
    model = "g (float[2] x) => (y) { y = Neg(x) }"
    with pytest.raises(UsageError, match="no input is called 'w'"):
        comparison(model, model, options=InputOptions.parse(["w:2"]))


def test_invalid_models_are_errors():
    with pytest.raises(InvalidModel, match="not an ONNX model"):
        verify(b"junk", b"junk")


def test_the_same_seed_gives_the_same_rows():
    model = "g (float[B, 4] x, float[4, 4] w) => (y) { y = MatMul(x, w) }"
    other = (
        "g (float[B, 4] x, float[4, 4] w) => (y) "
        "{ a = Add(x, x) b = MatMul(a, w) d = MatMul(x, w) y = Sub(b, d) }"
    )
    assert comparison(model, other).rows == comparison(model, other).rows


def test_original_that_may_diverge_is_verified_on_terminating_inputs() -> None:
    text = """g (float[2] x, bool c) => (float[2] y)
    <int64 n = {1000000000}, bool go = {1}, float[2] a = {1.0, 2.0}, float[1] k = {1.0}> {
        y = If (c) <
            then_branch = t () => (float[2] p) {
                b = Loop (n, go, a) <
                    body = body (int64 i, bool q, float[2] v) => (bool r, float[2] w) {
                        r = Identity(q) w = Mul(v, k)
                    }
                >
                p = Add(x, b)
            },
            else_branch = e () => (float[2] o) { o = Identity(x) }
        >
    }"""
    model = parse(text)
    verdict = verify(model, model)
    assert verdict.ok
    assert verdict.rows


def test_the_specification_decides_about_wrong_shapes_for_size_0() -> None:
    """Its ReduceMean over a negative axis of an empty tensor ignores keepdims=0."""
    original = parse(
        "g (float[n, 3, h, w] x) => (float[n, p] y) { y = ReduceMean<axes = [2, -3], keepdims = 0>(x) }",
        opset=13,
    )
    candidate = parse(
        "g (float[n, 3, h, w] x) => (float[n, p] y) { y = ReduceMean<axes = [1, 2], keepdims = 0>(x) }",
        opset=13,
    )
    verdict = verify(original, candidate)
    assert verdict.ok, verdict.rows


def test_a_sigmoid_may_differ_by_the_spacing_of_floats_below_1() -> None:
    original = parse("g (float[4] x) => (float[4] y) <float[1] c = {20.0}> { a = Sub(x, c) y = Sigmoid(a) }")

    def shifted(by: str) -> ir.Model:
        return parse(
            f"""g (float[4] x) => (float[4] y) <float[1] c = {{20.0}}, float[1] d = {{{by}}}, float[1] z = {{0.0}}> {{
                a = Sub(x, c) b = Sigmoid(a) e = Add(b, d) f = Identity(e) h = Identity(f) y = Add(h, z)
            }}"""
        )

    assert verify(original, shifted("3e-8"), numerics=Numerics.REASSOCIATES).ok
    assert not verify(original, shifted("3e-6"), numerics=Numerics.REASSOCIATES).ok


def test_indices_of_non_finite_maxima_are_not_compared() -> None:
    """Softmax makes a whole row NaN, so its argmax is 0; other orders of evaluation may find another."""
    before, after = (
        f"g (float[B, 5] x) => (int64[B, 1] y, bool[B, 5] n) {{ s = Softmax(x) y = ArgMax<axis = 1>({source}) n = IsNaN({nan}) }}"
        for source, nan in (("s", "x"), ("x", "x"))
    )
    assert comparison(before, after).ok
    assert not comparison(before, after, Numerics.EXACT).ok
    wrong = before.replace("ArgMax", "ArgMin")
    assert not comparison(before, wrong).ok


def test_an_argmax_may_equal_that_of_exact_arithmetic() -> None:
    """The exponentials of large numbers are all infinite, and those of small numbers all 1: the first index is returned."""
    before, after = (
        f"g (float[B, 5] x) => (int64[B, 1] y) <float[1] small = {{1e-9}}> {{ e = Exp(x) s = Mul(x, small) f = Exp(s) y = ArgMax<axis = 1>({source}) }}"
        for source in ("e", "x")
    )
    assert comparison(before, after).ok
    assert comparison(before.replace("(e)", "(f)"), after).ok
    assert not comparison(before.replace("(e)", "(f)"), after, Numerics.EXACT).ok
    squashed = before.replace("s = Mul(x, small)", "s = Softmax<axis = 1>(e)").replace("(e) }", "(s) }")
    assert comparison(squashed, after).ok
    assert not comparison(squashed, after.replace("ArgMax", "ArgMin")).ok
    assert not comparison(before, after.replace("ArgMax", "ArgMin")).ok


def test_each_boolean_may_equal_that_of_exact_arithmetic() -> None:
    """The sigmoid of a number below -18 is 0 in onnxruntime; 1 / (1 + exp(-x)) is 0 below -88."""
    before, after, wrong = (
        f"g (float[B, 9] x) => (bool[B, 9] y) <float[9] k = {{0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1}}, float one = {{1}}> {{ z = Mul(x, k) {steps} }}"
        for steps in (
            "s = Sigmoid(z) y = Cast<to = 9>(s)",
            "n = Neg(z) e = Exp(n) p = Add(e, one) s = Reciprocal(p) y = Cast<to = 9>(s)",
            "s = Sigmoid(z) h = Add(s, s) y = Greater(h, one)",
        )
    )
    assert comparison(before, after).ok
    assert not comparison(before, after, Numerics.EXACT).ok
    assert not comparison(before, wrong).ok


def test_a_maximum_of_nan_depends_on_its_position() -> None:
    """onnxruntime's ReduceMax drops a NaN that does not come first."""
    before, after, wrong = (
        f"g (float[2, 3] x) => (float[3] y) <float[2] root = {{0.5, 0.5}}> {{ n = Neg(x) p = Sqrt(n) {steps} }}"
        for steps in (
            "y = ReduceMax<axes = [0], keepdims = 0>(p)",
            "t = Transpose<perm = [1, 0]>(p) y = ReduceMax<axes = [1], keepdims = 0>(t)",
            "a = ReduceMax<axes = [0], keepdims = 0>(p) y = Add(a, a)",
        )
    )
    assert comparison(before, after, header={"opset": 13}).ok
    assert not comparison(before, wrong, header={"opset": 13}).ok


def test_a_pool_keeps_nan_depending_on_its_position() -> None:
    """onnxruntime's MaxPool drops a NaN unless it comes first, and padding comes before it."""
    before, after, wrong = (
        f"g (float[N, 1, 4, 4] x) => (float[N, 1, 4, 4] y) <int64[8] p = {{0, 0, 1, 1, 0, 0, 1, 1}}, float low = {{-inf}}> {{ {steps} }}"
        for steps in (
            "a = Pad(x, p, low) y = MaxPool<kernel_shape = [3, 3]>(a)",
            "y = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)",
            "a = Pad(x, p) y = MaxPool<kernel_shape = [3, 3]>(a)",
        )
    )
    assert comparison(before, after).ok
    assert not comparison(before, wrong).ok


def test_a_nan_that_no_maximum_drops_is_a_fault() -> None:
    """The largest element may be a number, but not its distance from NaN, nor the sum of such distances."""
    text = "g (double[N, 4] x) => (double[N, 4] y) {{ m = ReduceMax<axes = [1]>(x) s = Sub(x, m) {steps} }}"
    before, wrong = (
        text.format(steps=steps)
        for steps in (
            "e = Exp(s) t = ReduceSum<keepdims = 1>(e, l) u = Log(t) y = Sub(s, u)",
            "y = LogSoftmax<axis = 1>(x)",
        )
    )
    before = before.replace("{ m", "{ l = Constant<value_ints = [1]>() m")
    assert comparison(before, before, header={"opset": 13}).ok
    assert not comparison(before, wrong, header={"opset": 13}).ok


def test_empty_sums_may_be_unwritten() -> None:
    before, after = (
        f"g (int8[2, 0] x, int8[0, 3] w) => (int32[2, 3] y) {{ {steps} }}"
        for steps in (
            "y = MatMulInteger(x, w)",
            "b = MatMulInteger(x, w) c = Shape(b) y = ConstantOfShape<value = int32[1] {0}>(c)",
        )
    )
    assert comparison(before, after).ok


def test_halves_may_be_computed_in_either_precision() -> None:
    """-12 + sigmoid(-12) is -12 as a half, and more than that as a float."""
    before, after, wrong = (
        f"g (int8[B, 4] x) => (float16[B, 4] y) {{ h = Cast<to = 10>(x) s = Sigmoid(h) {steps} }}"
        for steps in (
            "a = Add(s, h) y = Ceil(a)",
            "f = Cast<to = 1>(s) g = Cast<to = 1>(h) a = Add(f, g) b = Ceil(a) y = Cast<to = 10>(b)",
            "f = Cast<to = 1>(s) g = Cast<to = 1>(h) a = Add(f, g) b = Floor(a) y = Cast<to = 10>(b)",
        )
    )
    assert comparison(before, after).ok
    assert not comparison(before, wrong).ok


def test_overflowing_halves_may_be_numbers_or_infinities() -> None:
    """onnxruntime computes the difference of a half and of a float that it did not round."""
    before, after, wrong = (
        f"g (float[N, 4] x) => (float16[N, 4] y) {{ h = Cast<to = 10>(x) {steps} }}"
        for steps in (
            "d = Dropout<ratio = 0.5>(h) y = Sub(h, d)",
            "y = Sub(h, h)",
            "y = Add(h, h)",
        )
    )
    header = {"opset": 9}
    assert comparison(before, after, Numerics.EXACT, header=header).ok
    assert not comparison(before, wrong, Numerics.EXACT, header=header).ok


def test_overflowing_casts_to_halves_may_be_dropped() -> None:
    """onnxruntime computes the mean of floats, unless a view follows the Cast; the largest floats are infinite halves."""
    before, after, wrong = (
        f"g (float[N, 32] x) => (float16[N, 1] y) <int64[2] same = {{0, 0}}> {{ {steps} }}"
        for steps in (
            "h = Cast<to = 10>(x) r = Reshape(h, same) y = ReduceMean<axes = [1]>(r)",
            "r = Reshape(x, same) h = Cast<to = 10>(r) y = ReduceMean<axes = [1]>(h)",
            "r = Reshape(x, same) h = Cast<to = 10>(r) y = ReduceMax<axes = [1]>(h)",
        )
    )
    assert comparison(before, after, Numerics.EXACT).ok
    assert not comparison(before, wrong, Numerics.EXACT).ok


def test_the_sign_of_an_infinity_may_depend_on_that_of_a_zero() -> None:
    before, after, wrong = (
        f"g (float[B] x) => (float[B] y) <float[1] zero = {{0.0}}> {{ z = Mul(x, zero) {steps} }}"
        for steps in (
            "a = Add(z, zero) y = Reciprocal(a)",
            "y = Reciprocal(z)",
            "a = Exp(z) y = Reciprocal(a)",
        )
    )
    assert comparison(before, after).ok
    assert not comparison(before, after, Numerics.EXACT).ok
    assert not comparison(before, wrong).ok


#: Faults that a lenient verifier would miss: inputs and outputs, initializers, the original's steps, the wrong ones.
_WRONG = {
    "nan is not told": (
        "(float[B] x) => (bool[B] y)",
        "",
        "y = IsNaN(x)",
        "n = IsNaN(x) m = Not(n) y = And(n, m)",
    ),
    "x == x": (
        "(float[B] x) => (bool[B] y)",
        "",
        "y = Equal(x, x)",
        "n = IsNaN(x) m = Not(n) y = Or(n, m)",
    ),
    "a mask turned": (
        "(float[B] x, bool[B] c, float[B] d) => (float[B] y, float[B] q)",
        "float low = {-inf}, float high = {inf}",
        "y = Where(c, low, x) q = Div(x, d)",
        "y = Where(c, high, x) q = Div(x, d)",
    ),
    "a guard against overflow": (
        "(float[B] x) => (float[B] y)",
        "float most = {20}, float one = {1}, float seven = {7}",
        "e = Exp(x) p = Add(e, one) l = Log(p) b = Greater(x, most) y = Where(b, x, l)",
        "e = Exp(x) p = Add(e, one) l = Log(p) b = Greater(x, most) y = Where(b, seven, l)",
    ),
    "a half that overflows": (
        "(float[B] x) => (float[B] y)",
        "float k = {100000}",
        "m = Mul(x, k) h = Cast<to = 10>(m) f = Cast<to = 1>(h) y = Div(f, k)",
        "y = Identity(x)",
    ),
    "a high bound": (
        "(float[B] x) => (float[B] y)",
        "float most = {1000}",
        "y = Min(x, most)",
        "y = Identity(x)",
    ),
    "a low bound": (
        "(float[B] x) => (float[B] y)",
        "float least = {-1000}",
        "y = Max(x, least)",
        "y = Identity(x)",
    ),
    "ties": ("(float[B] x) => (float[B] y)", "float h = {0.5}", "y = Round(x)", "a = Add(x, h) y = Floor(a)"),
    "ties of integers": (
        "(int32[B, 4] x) => (int64[B, 1] y)",
        "int32 two = {2}",
        "a = Mul(x, two) y = ArgMax<axis = 1>(a)",
        "a = Mul(x, two) y = ArgMax<axis = 1, select_last_index = 1>(a)",
    ),
    "ties of what is fed": (
        "(float[B, 4] x) => (int64[B, 1] y)",
        "",
        "a = Neg(x) y = ArgMax<axis = 1>(a)",
        "a = Neg(x) y = ArgMax<axis = 1, select_last_index = 1>(a)",
    ),
    "integers beside what is rounded": (
        "(int64[B, 4] x, float[B, 4] f) => (int64[B, 1] y, float[B, 4] e)",
        "",
        "y = ArgMin<axis = 1>(x) e = Exp(f)",
        "y = ArgMin<axis = 1, select_last_index = 1>(x) e = Exp(f)",
    ),
    "NaN is neither less nor more": (
        "(float[B] x) => (bool[B] y)",
        "float k = {0}",
        "a = Less(x, k) y = Not(a)",
        "y = GreaterOrEqual(x, k)",
    ),
    "NaN that was computed is neither less nor more": (
        "(float[B] x) => (bool[B] y)",
        "float two = {2}, float k = {0.3}",
        "m = Mul(x, two) s = Add(m, k) a = Less(s, k) y = Not(a)",
        "m = Mul(x, two) s = Add(m, k) y = GreaterOrEqual(s, k)",
    ),
    "a factor of a sum that is rounded to halves": (
        "(float16[N, 400] x) => (float16 y)",
        "float one = {1}, float more = {1.01}",
        "a = Cast<to = 1>(x) s = ReduceSum<keepdims = 0>(a) b = Mul(s, one) y = Cast<to = 10>(b)",
        "a = Cast<to = 1>(x) s = ReduceSum<keepdims = 0>(a) b = Mul(s, more) y = Cast<to = 10>(b)",
    ),
    "a little more": (
        "(float[N] x) => (float[N] y)",
        "float one = {1}, float more = {1.0001}",
        "y = Mul(x, one)",
        "y = Mul(x, more)",
    ),
    "integers that floats can't hold": (
        "(int64[N, 4] x) => (int64[N, 4] y)",
        "",
        "y = Identity(x)",
        "a = Cast<to = 1>(x) y = Cast<to = 7>(a)",
    ),
    "integers that fewer bits can't hold": (
        "(int64[N, 4] x) => (int64[N, 4] y)",
        "",
        "y = Identity(x)",
        "a = Cast<to = 6>(x) y = Cast<to = 7>(a)",
    ),
    "integers that overflow": (
        "(int32[N, 4] x) => (int32[N, 4] y)",
        "int32 three = {3}, float third = {3}",
        "y = Mul(x, three)",
        "a = Cast<to = 1>(x) b = Mul(a, third) y = Cast<to = 6>(b)",
    ),
    "a bound below all of a row": (
        "(float[N, 4] x) => (float[N] y)",
        "float low = {-1000000}",
        "a = Max(x, low) y = ReduceMax<axes = [1], keepdims = 0>(a)",
        "y = ReduceMax<axes = [1], keepdims = 0>(x)",
    ),
    "a number like no other": (
        "(float[N, 4] x) => (bool[N, 4] y)",
        "float k = {0.7}",
        "y = Equal(x, k)",
        "e = Equal(x, k) n = Not(e) y = And(e, n)",
    ),
    "a branch for large sums": (
        "(float[N, 4] x) => (float[N, 4] y)",
        "float k = {100}",
        "s = ReduceSum<keepdims = 0>(x) c = Greater(s, k) y = If(c)"
        " <then_branch = t() => (float[N, 4] a) { a = Neg(x) },"
        " else_branch = e() => (float[N, 4] b) { b = Identity(x) }>",
        "y = Identity(x)",
    ),
    "a half beside": (
        "(float[B] x, float16[B] h) => (float[B] y, float16[B] z)",
        "float one = {1}, float more = {1.004}",
        "y = Mul(x, one) z = Neg(h)",
        "y = Mul(x, more) z = Neg(h)",
    ),
}


def test_results_behind_a_pole_depend_on_the_sign_of_a_zero() -> None:
    """exp(1 / x) is 0 or infinity, and a sum over one element loses the sign of its zero."""
    before, after, wrong = (
        f"g (float[1, B] x) => (float[1, B] y) <float low = {{-0.0}}, int64[1] axis = {{0}}> {{ m = Mul(x, low) {steps} }}"
        for steps in (
            "s = ReduceSum(m, axis) r = Reciprocal(s) y = Exp(r)",
            "r = Reciprocal(m) y = Exp(r)",
            "r = Reciprocal(x) y = Exp(r)",
        )
    )
    assert comparison(before, after).ok
    assert not comparison(before, after, Numerics.EXACT).ok
    assert not comparison(before, wrong).ok


@pytest.mark.parametrize("name", _WRONG)
def test_faults_that_a_lenient_verifier_would_miss(name: str) -> None:
    ports, initializers, right, wrong = _WRONG[name]
    before, after = (
        f"g {ports} <{initializers}> {{ {steps} }}".replace(" <>", "") for steps in (right, wrong)
    )
    assert comparison(before, before).ok
    assert not comparison(before, after).ok


def test_weights_are_rounded_differently_without_float_inputs() -> None:
    """All that is left of the numbers is their rounding; onnx's evaluator knows no such operator."""
    head = "g (int64[B] i) => (float[B, 2] y) <float[3, 2] w = {0.1, 0.7, 1.3, 2.9, 0.3, 5.1}, float k = {10000000.0}, float a = {0.3333333}, float b = {3.0}> "
    steps = "e = Gather(w, i) s = Mul(e, {}) t = Mul(s, {}) q = com.microsoft.QuickGelu<alpha = 0.0>(t) r = Add(q, q) d = Sub(r, e) y = Mul(d, k)"
    domains = {"domains": ', "com.microsoft" : 1'}
    before, after, wrong = (
        head + "{ " + text + " }"
        for text in (
            steps.format("a", "b"),
            steps.format("b", "a"),
            steps.format("b", "a").replace("r, e)", "r, b)"),
        )
    )
    assert comparison(before, after, header=domains).ok
    assert not comparison(before, wrong, header=domains).ok


_PRODUCTS = (
    "g (float[B, 2] x) => (float[B, 2] y) <float[2, 2] a = {1, 2, 1, -1}, float[2, 2] b = {1, 1, 2, 1},"
    " float[2, 2] ab = {5, 3, -1, 0}, float[2, 2] ba = {2, 1, 3, 3}, float one = {1}>"
)


@pytest.mark.parametrize(
    ("steps", "ok"),
    [
        ("n = MatMul(x, ab) y = Reciprocal(n)", True),
        ("n = MatMul(x, ba) y = Reciprocal(n)", False),
        ("n = MatMul(x, ab) r = Reciprocal(n) i = IsNaN(r) y = Where(i, one, r)", False),
    ],
)
def test_reordered_infinities_are_compared_on_large_numbers(steps: str, ok: bool) -> None:
    """(x a) b is NaN if x (a b) is an infinity; 1 / y then turns the infinity into 0."""
    before = f"{_PRODUCTS} {{ m = MatMul(x, a) n = MatMul(m, b) y = Reciprocal(n) }}"
    after = f"{_PRODUCTS} {{ {steps} }}"
    verdict = comparison(before, after)
    assert verdict.ok is ok, verdict.summary()
    assert not ok or [row for row in verdict.rows if row.excused and row.distribution == "special"]


@pytest.mark.parametrize(
    ("before", "after", "passes_from"),
    [
        ("{ i = Reciprocal(x) z = Mul(i, y) }", "{ z = Div(y, x) }", "APPROXIMATES"),
        ("{ i = Reciprocal(x) z = Div(y, i) }", "{ z = Mul(y, x) }", "EXACT"),
        ("{ s = Sqrt(x) i = Reciprocal(s) z = Mul(i, y) }", "{ s = Sqrt(x) z = Div(y, s) }", "EXACT"),
        ("{ a = Add(x, x) z = Sub(a, x) }", "{ z = Identity(x) }", "REASSOCIATES"),
        (  # inf - inf
            "{ c = Constant<value = float {0.1}>() i = Reciprocal(x) d = Mul(i, c) z = Sub(d, d) }",
            "{ c = Constant<value = float {0.1}>() d = Div(c, x) z = Sub(d, d) }",
            "REASSOCIATES",
        ),
    ],
)
def test_denormals_and_the_largest_numbers(before, after, passes_from):
    """The reciprocal of a denormal is infinite; twice the largest number is, too."""
    for numerics in Numerics:
        verdict = comparison(*both(before, after), numerics)
        assert verdict.ok == (numerics >= Numerics[passes_from]), (numerics, verdict.summary())
        assert {row.distribution for row in verdict.rows} >= {"tiny"}
        assert ("huge" in {row.distribution for row in verdict.rows}) is (numerics is Numerics.EXACT)


def test_an_original_that_fails_in_repeated_runs_is_not_verified(monkeypatch: pytest.MonkeyPatch):
    def fails(case, original, times):
        raise RuntimeFailure("it fails now and then")

    monkeypatch.setattr(random_outputs, "repeat", fails)
    verdict = verify(
        parse("g (float[2] x) => (y) { y = Neg(x) }"), parse("g (float[2] x) => (y) { y = Abs(x) }")
    )
    assert not [row for row in verdict.rows if not row.ok]
    with Verifier(parse("g (float[2] x) => (y) { y = Neg(x) }")) as verifier:
        row = next(row for row in verifier.verify(parse("g (float[2] x) => (y) { y = Neg(x) }")).rows)
        verdict = verifier.verify(parse("g (float[2] x) => (y) { y = Exp(x) }"), like=row)
    assert verdict.rows == ()
    assert verdict.summary() == "not verified: the original fails in repeated runs"
