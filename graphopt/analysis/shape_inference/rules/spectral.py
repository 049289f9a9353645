"""Fourier transforms. onnx's own inference takes lengths that it does not know for those of the input."""

from __future__ import annotations

from graphopt.analysis.shape_inference.facts import Fact
from graphopt.analysis.shape_inference.node import NodeFacts, normalize_axis, shape_rule
from graphopt.analysis.symbolic import Dim, floordiv


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


@shape_rule("STFT")
def stft(given: NodeFacts) -> Fact:
    """(batch, frames, bins, 2), with as many bins as a frame has samples, or half of it and one."""
    shape, dtype = given.shape(0), given.dtype(0)
    batch, length = shape[:2] if shape is not None and len(shape) == 3 else (given.fresh(), given.fresh())
    window = given.shape(2)
    samples: Dim = window[0] if window else length if not given.has(2) else given.fresh()
    if given.has(3):
        samples = (given.named_contents(3) or (given.fresh(),))[0]
    step = given.static_contents(1)
    frames = floordiv(length - samples, step[0]) + 1 if step else given.fresh()
    bins = floordiv(samples, 2) + 1 if given.attr_int("onesided", 1) else samples
    return Fact(dtype, (batch, frames, bins, 2))
