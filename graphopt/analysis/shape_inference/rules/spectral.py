"""Fourier transforms; onnx's own inference assumes that an unknown length equals that of the input."""

from __future__ import annotations

from graphopt.analysis.shape_inference.node_facts import NodeFacts, normalize_axis, shape_rule
from graphopt.analysis.shape_inference.value_facts import Fact
from graphopt.analysis.symbolic import Dim, floordiv


@shape_rule("DFT")
def dft(node: NodeFacts) -> Fact:
    """The axis has size n, or n / 2 + 1 if one-sided; the last axis has the real and imaginary parts."""
    shape, dtype = node.shape(0), node.dtype(0)
    if shape is None:
        return Fact(dtype)
    onesided, inverse = bool(node.attr_int("onesided", 0)), bool(node.attr_int("inverse", 0))
    dims: list[Dim] = [*shape[:-1], 1 if onesided and inverse else 2]
    axis: int | None = node.attr_int("axis", 1) if node.version < 20 else -2
    if node.version >= 20 and node.has(2):
        known = node.static_contents(2)
        axis = known[0] if known else None
    if axis is None:
        return Fact(dtype, (*(node.fresh() for _ in dims[:-1]), dims[-1]))
    place = normalize_axis(axis, len(shape))
    if node.has(1):
        points = (node.named_contents(1) or (node.fresh(),))[0]
    else:
        points = 2 * (shape[place] - 1) if onesided and inverse else shape[place]
    dims[place] = floordiv(points, 2) + 1 if onesided and not inverse else points
    return Fact(dtype, tuple(dims))


@shape_rule("STFT")
def stft(node: NodeFacts) -> Fact:
    """(batch, frames, bins, 2), with n bins for n samples of a frame, or n / 2 + 1."""
    shape, dtype = node.shape(0), node.dtype(0)
    batch, length = shape[:2] if shape is not None and len(shape) == 3 else (node.fresh(), node.fresh())
    window = node.shape(2)
    samples: Dim = window[0] if window else length if not node.has(2) else node.fresh()
    if node.has(3):
        samples = (node.named_contents(3) or (node.fresh(),))[0]
    step = node.static_contents(1)
    frames = floordiv(length - samples, step[0]) + 1 if step else node.fresh()
    bins = floordiv(samples, 2) + 1 if node.attr_int("onesided", 1) else samples
    return Fact(dtype, (batch, frames, bins, 2))
