"""Small models, and their gradients by finite differences in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from benchmarks.gradients import count_lossy
from graphopt import ir
from graphopt.autodiff.joint_graph import Joint, differentiate
from graphopt.ort import session
from tests.model_testing import parse


def run(model: ir.Model, feeds: Mapping[str, Any], optimizations: Any = "default") -> dict[str, Any]:
    """The outputs of ``model`` by name."""
    running = session.create(ir.to_bytes(model), optimizations=optimizations, threads=1)
    names = [output.name or "" for output in model.graph.outputs]
    return dict(zip(names, session.run(running, dict(feeds)), strict=True))


#: Step size of differences and their relative accuracy, by element type. In float32, only nearly linear
#: functions can be compared.
_STEPS = {"float64": (1e-6, 1e-6), "float32": (1e-2, 1e-3)}
#: Coefficients by offset in steps of the central difference of fourth order, whose steps need not be short.
STENCIL = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}


def check(
    text: str,
    feeds: Mapping[str, np.ndarray],
    *,
    opset: int = 18,
    wrt: Sequence[str] | None = None,
    tolerance: float | None = None,
    twice: bool = False,
) -> ir.Model:
    """Compare all gradients of a model with central differences; returns the joint graph.

    All elements of inputs of floating-point numbers are moved, in one random direction for each input.

    Args:
        wrt: the inputs to differentiate by, if not all.
        tolerance: by default a value for the precision.
        twice: do the same with the joint graph, for second derivatives.
    """
    model = parse(text, opset=opset)
    varied = list(feeds if wrt is None else wrt)
    real = [item.name or "" for item in model.graph.outputs if _is_real(item)]
    joint, feeds = _compared(model, feeds, real, varied, tolerance)
    if twice:
        _compared(joint.model, feeds, list(joint.gradients.values()), list(feeds), tolerance)
    return joint.model


def _is_real(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.name.lower() in ("double", "float")


def _compared(
    model: ir.Model,
    feeds: Mapping[str, np.ndarray],
    real: list[str],
    varied: list[str],
    tolerance: float | None,
) -> tuple[Joint, dict[str, np.ndarray]]:
    """The joint graph, whose gradients are correct, and its inputs."""
    random = np.random.default_rng(1)
    varied = [name for name in varied if feeds[name].dtype.name in _STEPS]
    joint = differentiate(model, real, varied)
    assert _lossy(joint.model) <= _lossy(model), "a scatter loses terms"
    plain = run(model, feeds)
    given = {name: random.standard_normal(plain[name].shape) for name in real}
    cotangents = {
        joint.cotangents[name]: np.asarray(value, plain[name].dtype) for name, value in given.items()
    }
    for optimizations in ("off", "default"):
        found = run(joint.model, {**feeds, **cotangents}, optimizations)
        for name in varied:
            gradient, x = found[joint.gradients[name]], feeds[name]
            assert gradient.shape == x.shape, name
            step, exact = _STEPS[x.dtype.name]
            direction = np.asarray(random.standard_normal(x.shape))
            truth = 0.0
            for steps, weight in STENCIL.items():
                moved = run(model, {**feeds, name: np.asarray(x + steps * step * direction, x.dtype)})
                truth += weight / step * sum(np.sum(given[y] * moved[y].astype(float)) for y in real)
            allowed = exact if tolerance is None else tolerance
            assert np.isclose(np.sum(gradient * direction), truth, rtol=allowed, atol=allowed), name
    return joint, {**feeds, **cotangents}


def _lossy(model: ir.Model) -> int:
    return count_lossy(onnx.load_from_string(ir.to_bytes(model)))
