"""Fourier transforms. onnx's own inference holds lengths that it does not know for those of the input."""

from __future__ import annotations

from graphopt.analysis.dims import Dim, floordiv
from graphopt.analysis.facts import Fact
from graphopt.analysis.node_facts import NodeFacts, normalize_axis, shape_rule


@shape_rule("DFT")
def dft(given: NodeFacts) -> Fact:
    """The axis gets the length of the transform, or half of it and one, and the last axis the parts."""
    shape, dtype = given.shape(0), given.dtype(0)
    if shape is None:
        return Fact(dtype)
    onesided, inverse = bool(given.attr_int("onesided", 0)), bool(given.attr_int("inverse", 0))
    dims: list[Dim] = [*shape[:-1], 1 if onesided and inverse else 2]
    axis: int | None = given.attr_int("axis", 1) if given.version < 20 else -2
    if given.version >= 20 and given.has(2):
        known = given.static_contents(2)
        axis = known[0] if known else None
    if axis is None:
        return Fact(dtype, (*(given.fresh() for _ in dims[:-1]), dims[-1]))
    place = normalize_axis(axis, len(shape))
    if given.has(1):
        points = (given.named_contents(1) or (given.fresh(),))[0]
    else:
        points = 2 * (shape[place] - 1) if onesided and inverse else shape[place]
    dims[place] = floordiv(points, 2) + 1 if onesided and not inverse else points
    return Fact(dtype, tuple(dims))
