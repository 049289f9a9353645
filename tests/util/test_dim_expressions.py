"""Expressions over names of dims."""

from __future__ import annotations

import pytest

from graphopt.util.dim_expressions import canonical_sum, expression, is_expression
from tests.model_testing import ops, parse, run_pipeline


@pytest.mark.parametrize(("text", "size"), [("N + 1", 8), ("N*2.0", 14), ("N/2", 3), ("(N - 1)*N", 42)])
def test_sizes_of_expressions(text: str, size: int) -> None:
    assert is_expression(text, ["N"])
    assert expression(text, {"N": 7}) == size


@pytest.mark.parametrize(
    "text",
    [
        "N*0.5",
        "N/0.5",
        "N*1e400",
        "N*True",
        "+".join(["N"] * 5000),
        "-" * 5000 + "N",
        "(" * 300 + "N+1" + ")" * 300,
    ],
    ids=["half", "divisor", "infinite", "bool", "long", "signs", "deep"],
)
def test_other_names_are_opaque(text: str) -> None:
    assert not is_expression(text, ["N"])
    assert canonical_sum(text) is None
    with pytest.raises(KeyError):
        expression(text, {"N": 7})


def test_a_dim_with_a_fraction_is_not_folded() -> None:
    model = parse(
        'g (float["N*0.5", 3] x, float[N] y) => (int64[2] s, float[N] z) { s = Shape(x) z = Neg(y) }'
    )
    run_pipeline(model, "O2")
    assert ops(model) == ["Shape", "Neg"]
