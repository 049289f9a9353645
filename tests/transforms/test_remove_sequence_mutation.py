"""The pass remove-sequence-mutation."""

from __future__ import annotations

import graphopt
from graphopt import ir
from tests.model_testing import ops, parse, run_pipeline

NUMBERS = "<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 last = {-1}>"


def lowered(text: str, pipeline: str = "lower-sequences,dce", opset: int = 18) -> ir.Model:
    """The model after ``pipeline``, which computes the same bits."""
    original, model = parse(text, opset=opset), parse(text, opset=opset)
    run_pipeline(model, pipeline)
    verdict = graphopt.verify(original, model, bits=True)
    assert verdict.ok, verdict
    _, cx = run_pipeline(model, pipeline)
    assert cx.actions == 0
    return model


def test_mutations_become_one_construction() -> None:
    model = lowered(
        f"""g (float[2] x, float[2] z) => (float[2] y, int64 n) {NUMBERS} {{
            a = SequenceConstruct(x)
            b = SequenceInsert(a, z, zero)
            n = SequenceLength(b)
            y = SequenceAt(b, zero)
        }}""",
        "remove-sequence-mutation",
    )
    assert sorted(ops(model)) == ["SequenceAt", "SequenceConstruct", "SequenceLength"]
