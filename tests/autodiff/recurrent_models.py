"""LSTM, GRU and RNN for tests: inputs, and gradients held to differences in single precision, which is what
onnxruntime runs them in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from graphopt import ir
from graphopt.autodiff.joint import COTANGENT, Joint, differentiate
from graphopt.runtime import session
from tests.autodiff.models import run

STEPS, BATCH, INPUTS, H = 4, 3, 2, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
#: Weights of differences at so many steps of a length: of fourth order, so that it need not be short.
LENGTH, STENCIL = 0.01, {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}


def feeds(op: str, given: str, directions: int = 1) -> dict[str, np.ndarray]:
    random, g = np.random.default_rng(0), GATES[op] * H
    shapes = {
        "x": (STEPS, BATCH, INPUTS), "w": (directions, g, INPUTS), "r": (directions, g, H), "b": (directions, 2 * g),
        "h0": (directions, BATCH, H), "c0": (directions, BATCH, H), "p": (directions, 3 * H),
    }  # fmt: skip
    found = {
        name: np.asarray(0.7 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
        if name in given.split()
    }
    return found | ({"lens": np.array([4, 1, 2], np.int32)} if "lens" in given else {})


def check(model: ir.Model, point: Mapping[str, np.ndarray], outputs: Iterable[str] = ()) -> Joint:
    """Compare gradients of ``outputs``, or of all, with differences along a random direction."""
    random = np.random.default_rng(1)
    varied = [name for name, value in point.items() if value.dtype == np.float32]
    real = list(outputs) or [item.name or "" for item in model.graph.outputs]
    joint = differentiate(model, real, varied)
    given = {
        name: np.asarray(random.standard_normal(value.shape))
        for name, value in run(model, point).items()
        if name in real
    }

    running = session.create(ir.to_bytes(model), threads=1)

    def weighed(values: Mapping[str, np.ndarray]) -> float:
        found = session.run(running, dict(values), real)
        return sum(float(np.sum(given[name] * value)) for name, value in zip(real, found, strict=True))

    directions, truths = {}, {}
    for name in varied:
        directions[name] = np.asarray(random.standard_normal(point[name].shape)).astype(np.float32)
        moves = {steps: np.float32(steps * LENGTH) * directions[name] for steps in STENCIL}
        differences = [
            STENCIL[steps] * weighed({**point, name: point[name] + move}) for steps, move in moves.items()
        ]
        truths[name] = sum(differences) / LENGTH
    cotangents = {COTANGENT + name: value.astype(np.float32) for name, value in given.items()}
    for optimizations in ("off", "default"):
        gradients = run(joint.model, {**point, **cotangents}, optimizations)
        for name in varied:
            gradient = gradients[joint.gradients[name]]
            assert gradient.shape == point[name].shape, name
            found = float(np.sum(gradient * directions[name]))
            assert np.isclose(found, truths[name], rtol=2e-3, atol=2e-3), name
    return joint
