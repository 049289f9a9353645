"""decompose replaces the requested operators, and no others."""

from __future__ import annotations

import pytest

import graphopt
from graphopt import ir
from graphopt.context import Options
from graphopt.errors import UsageError
from graphopt.numerics import Numerics
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry
from graphopt.transforms.scalar.decompose import Decompose, decompositions
from tests.model_testing import ops, parse, run_pipeline

AFFINE = "<float[4] w = {1.0, -2.0, 0.5, 3.0}, float[4] b = {0.0, 1.0, -1.0, 2.0}>"

CASES = {
    "Softsign": "g (float[N,4] x) => (float[N,4] y) { y = Softsign(x) }",
    "ThresholdedRelu": "g (float[N,4] x) => (float[N,4] y) { y = ThresholdedRelu<alpha = 0.25>(x) }",
    "Celu": "g (float[N,4] x) => (float[N,4] y) { y = Celu<alpha = 2.5>(x) }",
    "HardSigmoid": "g (float[N,4] x) => (float[N,4] y) { y = HardSigmoid(x) }",
    "HardSwish": "g (float[N,4] x) => (float[N,4] y) { y = HardSwish(x) }",
    "LayerNormalization": f"g (float[N,M,4] x) => (float[N,M,4] y) {AFFINE} {{ y = LayerNormalization(x, w, b) }}",
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


@pytest.mark.parametrize("op_type", sorted(CASES))
def test_no_operators_are_decomposed_by_default(op_type: str) -> None:
    model = parse(CASES[op_type], opset=21, ir_version=10)
    run_pipeline(model, "decompose")
    assert ops(model) == [op_type]


@pytest.mark.parametrize(
    ("op_type", "text"),
    [
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


def test_exact_numerics_apply_exact_rewrites_only() -> None:
    text = "g (float[N] x) => (float[N] y) { t = Softsign(x) y = ThresholdedRelu(t) }"
    model: ir.Model = parse(text)
    run_pipeline(model, "decompose{ops=Softsign+ThresholdedRelu}", Options(numerics=Numerics.EXACT))
    assert ops(model) == ["Softsign", "Greater", "Where"]
    assert graphopt.verify(parse(text), model, bits=True).ok


def test_an_unknown_operator_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="HardSwish"):
        Pipeline.parse("decompose{ops=HardSwich}", registry())
