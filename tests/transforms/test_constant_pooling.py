"""The pass constant-pooling."""

from __future__ import annotations

from tests.model_testing import parse, run_pipeline


def test_only_equal_contents_of_equal_type_are_merged() -> None:
    model = parse(
        """g (float[2] x, int64[2] i) => (float[2] y, int64[2] j, float[2] z)
        <float[2] p = {1.0, 2.0}, float[2] q = {1.0, 2.0}, float[2] r = {1.0, 3.0}, int64[2] s = {0, 0},
         float[2] t = {0.0, 0.0}> {
            a = Add(x, p)
            b = Mul(a, q)
            c = Mul(b, r)
            y = Add(c, t)
            j = Add(i, s)
            z = Constant<value = float[2] {1.0, 2.0}>()
        }"""
    )
    run_pipeline(model, "constant-pooling")
    assert list(model.graph.initializers) == ["p", "r", "s", "t"]
    assert [value.name for value in model.graph.outputs] == ["y", "j", "z"]
