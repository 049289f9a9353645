"""The operands of ``benchmarks.unknown_integers``."""

from __future__ import annotations

import numpy as np

from benchmarks.unknown_integers import Found, count, table
from tests.model_testing import parse


def test_operands_that_depend_on_contents_are_unknown() -> None:
    model = parse("""g (float[N] x) => (float[A] y, float[B] z, int64[1, K] found)
        <int64[1] axis = {0}, int64[1] first = {0}, float[1] half = {0.5}> {
        found = NonZero(x)
        size = Shape(x)
        y = Slice(x, first, size, axis)
        flag = Greater(x, half)
        number = Cast <to = 7>(flag)
        total = ReduceSum(number, axis)
        z = Slice(x, first, total, axis)
    }""")
    found = count("m", model, {"x": np.array([0, 1, 2], np.float32)})
    assert found.unknown == {"Slice of Slice(z)": 1}
    assert "| m | " in table([found, Found("other", 3, {})]) and "other" not in table([found])
    assert f"2 models, {found.operands + 3} operands, 1 unknown." in table([found, Found("other", 3, {})])
