"""Small models, and gradients by finite differences of what onnxruntime computes in double precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.joint import COTANGENT, differentiate
from graphopt.runtime import session
from tests.support import parse


def run(model: ir.Model, feeds: Mapping[str, Any], optimizations: Any = "default") -> dict[str, Any]:
    """The outputs of ``model`` by name."""
    running = session.create(ir.to_bytes(model), optimizations=optimizations, threads=1)
    names = [output.name or "" for output in model.graph.outputs]
    return dict(zip(names, session.run(running, dict(feeds)), strict=True))


def check(
    text: str, feeds: Mapping[str, np.ndarray], *, opset: int = 18, tolerance: float = 1e-6
) -> ir.Model:
    """Compare all gradients of a model in double precision with central differences; returns the joint graph.

    All elements of inputs of floating-point numbers are moved, in one random direction for each input.
    """
    model = parse(text, opset=opset)
    random = np.random.default_rng(1)
    varied = [name for name, value in feeds.items() if value.dtype == np.float64]
    real = [item.name or "" for item in model.graph.outputs if item.dtype == ir.DataType.DOUBLE]
    joint = differentiate(model, real, varied)
    plain = run(model, feeds)
    given = {name: np.asarray(random.standard_normal(plain[name].shape)) for name in real}
    cotangents = {COTANGENT + name: value for name, value in given.items()}
    for optimizations in ("off", "default"):
        found = run(joint.model, {**feeds, **cotangents}, optimizations)
        for name in varied:
            gradient = found[joint.gradients[name]]
            assert gradient.shape == feeds[name].shape, name
            direction, step = np.asarray(random.standard_normal(feeds[name].shape)), 1e-6
            up = run(model, {**feeds, name: np.asarray(feeds[name] + step * direction)})
            down = run(model, {**feeds, name: np.asarray(feeds[name] - step * direction)})
            truth = sum(np.sum(given[y] * (up[y] - down[y])) / (2 * step) for y in real)
            assert np.isclose(np.sum(gradient * direction), truth, rtol=tolerance, atol=tolerance), name
    return joint.model
