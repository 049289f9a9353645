"""decompose replaces the requested operators, and no others."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.context import Options
from graphopt.errors import UsageError
from graphopt.numerics import Numerics
from graphopt.ort.devices import Device
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry
from graphopt.rewrite import Builder, Match, Outcome, Reassociates, rule
from graphopt.transforms.scalar.decompose import DEFAULTS, Decompose, decompositions
from tests.model_testing import ops, parse, run_pipeline

AFFINE = "<float[4] w = {1.0, -2.0, 0.5, 3.0}, float[4] b = {0.0, 1.0, -1.0, 2.0}>"

CASES = {
    "Softsign": "g (float[N,4] x) => (float[N,4] y) { y = Softsign(x) }",
    "ThresholdedRelu": "g (float[N,4] x) => (float[N,4] y) { y = ThresholdedRelu<alpha = 0.25>(x) }",
    "Celu": "g (float[N,4] x) => (float[N,4] y) { y = Celu<alpha = 2.5>(x) }",
    "HardSigmoid": "g (float[N,4] x) => (float[N,4] y) { y = HardSigmoid(x) }",
    "HardSwish": "g (float[N,4] x) => (float[N,4] y) { y = HardSwish(x) }",
    "LayerNormalization": f"g (float[N,M,4] x) => (float[N,M,4] y) {AFFINE} {{ y = LayerNormalization(x, w, b) }}",
    "ReduceLogSumExp": """g (float[N,40,5] x) => (float[N,40] y) <int64[1] a = {-1}> {
        y = ReduceLogSumExp<keepdims = 0>(x, a)
    }""",
    "Shrink": "g (float[N,4] x) => (float[N,4] y) { y = Shrink<lambd = 0.25, bias = 0.5>(x) }",
    "GroupNormalization": f"""g (float[N,4,3,5] x) => (float[N,4,3,5] y) {AFFINE} {{
        y = GroupNormalization<num_groups = 2, epsilon = 0.001>(x, w, b)
    }}""",
}


def test_every_decomposition_has_a_case_and_is_documented() -> None:
    assert sorted(CASES) == sorted(decompositions())
    assert all(op_type in (Decompose.__doc__ or "") for op_type in decompositions())


@pytest.mark.parametrize("op_type", sorted(CASES))
def test_named_operators_are_decomposed_correctly(op_type: str) -> None:
    model = parse(CASES[op_type], opset=21, ir_version=10)
    run_pipeline(model, f"decompose{{ops={op_type}}}")
    assert op_type not in ops(model)
    verdict = graphopt.verify(parse(CASES[op_type], opset=21, ir_version=10), model)
    assert verdict.ok, verdict


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("op_type", sorted(CASES))
def test_the_fuser_determines_the_operators_that_are_decomposed_by_default(
    op_type: str, kernels: bool
) -> None:
    model = parse(CASES[op_type].replace("[N,", "[64,"), opset=21, ir_version=10)
    run_pipeline(model, "decompose", Options(kernels=kernels))
    assert (op_type not in ops(model)) == (op_type in DEFAULTS["native" if kernels else "builtin"])


@pytest.mark.parametrize(("elements", "stays"), [("4", True), ("4095", True), ("4096", False), ("N", True)])
def test_few_elements_are_not_decomposed_by_default(elements: str, stays: bool) -> None:
    text = f"""g (float[1,{elements}] x) => (float[1,1] y) <int64[1] a = {{1}}> {{
        y = ReduceLogSumExp(x, a)
    }}"""
    model = parse(text, opset=21, ir_version=10)
    run_pipeline(model, "decompose")
    assert (ops(model) == ["ReduceLogSumExp"]) == stays


@pytest.mark.parametrize("op_type", CASES)
def test_operators_with_a_kernel_on_the_cpu_only_are_decomposed_for_other_devices(op_type: str) -> None:
    model = parse(CASES[op_type], opset=21, ir_version=10)
    run_pipeline(model, "decompose", Options(device=Device("cuda")))
    assert (op_type in ops(model)) == (op_type != "Celu")


@rule(lambda op, x: op.Mish(x), numerics=Reassociates, pass_="decompose")
def decompose_mish(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Mish(x) → x * Tanh(Softplus(x))."""
    return op.Mul(x, op.Tanh(op.Softplus(x)))


@pytest.mark.parametrize("pipeline", ["decompose", "decompose{ops=Celu}"])
def test_decompositions_of_the_caller_are_applied(pipeline: str) -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Mish(x) }", opset=21, ir_version=10)
    result = graphopt.optimize(model, pipeline=pipeline, rules=[decompose_mish], require_verified=True)
    assert ops(result.model) == ["Softplus", "Tanh", "Mul"]


@pytest.mark.parametrize(("pipeline", "kinds"), [("O2", ["GroupNormalization"]), ("O3", None)])
def test_presets_with_fusion_decompose(pipeline: str, kinds: list[str] | None) -> None:
    model = parse(CASES["GroupNormalization"], opset=21, ir_version=10)
    after = graphopt.optimize(model, pipeline=pipeline, device="cpu", require_verified=True).model
    assert ops(after) == kinds if kinds else "GroupNormalization" not in ops(after)


@pytest.mark.parametrize(
    ("op_type", "text"),
    [
        ("ReduceLogSumExp", "g (float[N] x) => (float[1] y) { y = ReduceLogSumExp(x) }"),
        ("ReduceLogSumExp", "g (double[4] x) => (double[1] y) { y = ReduceLogSumExp(x) }"),
        ("ReduceLogSumExp", "g (float[4] x, int64[1] a) => (float[p] y) { y = ReduceLogSumExp(x, a) }"),
        ("Shrink", "g (double[N] x) => (double[N] y) { y = Shrink(x) }"),
        ("Celu", "g (float[N] x) => (float[N] y) { y = Celu<alpha = -1.0>(x) }"),
        ("GroupNormalization", CASES["GroupNormalization"].replace("4,3,5", "4,H,5")),
        ("LayerNormalization", CASES["LayerNormalization"].replace("y = L", "y, mean = L")
         .replace("(float[N,M,4] y)", "(float[N,M,4] y, float[N,M,1] mean)")),
    ],
)  # fmt: skip
def test_operators_with_unknown_parameters_are_not_decomposed(op_type: str, text: str) -> None:
    model = parse(text, opset=21, ir_version=10)
    run_pipeline(model, f"decompose{{ops={op_type}}}")
    assert ops(model) == [op_type]


def test_log_softmax_stays_whole() -> None:
    text = """g (float[4,4096] x) => (float[4,4096] y) <int64[1] a = {1}> {
        n = ReduceLogSumExp(x, a)
        y = Sub(x, n)
    }"""
    model = parse(text, opset=21, ir_version=10)
    run_pipeline(model, "decompose")
    assert ops(model) == ["ReduceLogSumExp", "Sub"]


@pytest.mark.parametrize("number", ["-inf", "inf", "nan", "3e38", "-3e38"])
def test_log_sum_exp_of_extreme_numbers(number: str) -> None:
    text = CASES["ReduceLogSumExp"]
    model = parse(text, opset=21, ir_version=10)
    run_pipeline(model, "decompose{ops=ReduceLogSumExp}")
    x = np.full((2, 40, 5), np.float32(number))
    x[1, :, :2] = 0.5
    expected, found = (
        graphopt.run(each, {"x": x})["y"] for each in (parse(text, opset=21, ir_version=10), model)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_exact_numerics_apply_exact_rewrites_only() -> None:
    text = "g (float[N] x) => (float[N] y) { t = Softsign(x) y = ThresholdedRelu(t) }"
    model: ir.Model = parse(text)
    run_pipeline(model, "decompose{ops=Softsign+ThresholdedRelu}", Options(numerics=Numerics.EXACT))
    assert ops(model) == ["Softsign", "Greater", "Where"]
    assert graphopt.verify(parse(text), model, bits=True).ok


def test_an_unknown_operator_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="HardSwish"):
        Pipeline.parse("decompose{ops=HardSwich}", registry())
