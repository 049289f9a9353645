"""Several sets of shapes for the same inputs."""

from __future__ import annotations

import pytest

from graphopt.errors import UsageError
from graphopt.inputs.shape_sets import parse_shape_sets


@pytest.mark.parametrize(
    ("texts", "grid"),
    [
        ([], [{}]),
        (["x:1,3"], [{"x": (1, 3)}]),
        (["x:1x3"], [{"x": (1, 3)}]),
        (["x:1x3x8x8,8x3x8x8"], [{"x": (1, 3, 8, 8)}, {"x": (8, 3, 8, 8)}]),
        (["x:1,3", "x:8,3"], [{"x": (1, 3)}, {"x": (8, 3)}]),
        (["x:1x3,8x3", "a:b:2x2,4x2"], [{"x": (1, 3), "a:b": (2, 2)}, {"x": (8, 3), "a:b": (4, 2)}]),
        (["x:1x3,8x3", "n:"], [{"x": (1, 3), "n": ()}, {"x": (8, 3), "n": ()}]),
    ],
)
def test_grids(texts: list[str], grid: list[dict[str, tuple[int, ...]]]) -> None:
    assert parse_shape_sets(texts) == grid


def test_different_numbers_of_shapes_are_refused() -> None:
    with pytest.raises(UsageError, match="different numbers of shapes: x 2, y 3"):
        parse_shape_sets(["x:1x3,8x3", "y:1x1,2x1,3x1"])


def test_a_malformed_shape_is_refused() -> None:
    with pytest.raises(UsageError, match="can't read the input shape"):
        parse_shape_sets(["x:1x3,bx3"])
