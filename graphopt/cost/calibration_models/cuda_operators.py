"""Fused operators of onnxruntime that have kernels on CUDA only."""

from __future__ import annotations

import numpy as np

from graphopt.cost.calibration_models.competing_models import (
    UNFUSED,
    CompetingModels,
    Subject,
    competing_models,
    random,
)
from graphopt.cost.calibration_models.halves import KEPT
from graphopt.cost.cost_model import Axis
from graphopt.ort.session_options import SessionChoice

_CHANNELS, _GROUPS, _HEADS = 64, 8, 8
_EPSILON = "epsilon = 1e-5"


def _group_norm(pixels: int) -> CompetingModels:
    """GroupNorm of channels-first images, between two transpositions: its kernel requires channels last."""
    weights = {
        f"gain{KEPT}": random(1, _CHANNELS),
        f"bias{KEPT}": random(2, _CHANNELS),
        "ones": np.ones(_GROUPS, np.float32),
        "zeros": np.zeros(_GROUPS, np.float32),
        "groups": np.array([0, _GROUPS, -1]),
        "whole": np.array([1, _CHANNELS, pixels, 1]),
        "gain3": random(1, _CHANNELS, 1, 1),
        "bias3": random(2, _CHANNELS, 1, 1),
    }
    texts = {
        UNFUSED: f"""y:4 | g = Reshape(x, groups) n = InstanceNormalization<{_EPSILON}>(g, ones, zeros)
            r = Reshape(n, whole) s = Mul(r, gain3) y = Add(s, bias3)""",
        "GroupNorm": f"""y:4 | t = Transpose<perm = [0, 2, 3, 1]>(x)
            n = com.microsoft.GroupNorm<{_EPSILON}, groups = {_GROUPS}, activation = 0>(
                t, gain{KEPT}, bias{KEPT})
            y = Transpose<perm = [0, 3, 1, 2]>(n)""",
    }
    return competing_models(texts, {"x": random(0, 1, _CHANNELS, pixels, 1)}, weights)


def _bias_softmax(length: int) -> CompetingModels:
    """The softmax of masked scores. onnxruntime's optimizer creates the operator, too."""
    texts = {
        UNFUSED: "y:4 | s = Add(x, mask) y = Softmax<axis = -1>(s)",
        "BiasSoftmax": "y:4 | y = com.microsoft.BiasSoftmax<axis = 3, is_inner_broadcast = 0>(x, mask)",
    }
    feeds = {"x": random(0, 1, _HEADS, length, length), "mask": random(1, 1, 1, length, length)}
    return competing_models(texts, feeds, choices={UNFUSED: SessionChoice(disabled=("BiasSoftmaxFusion",))})


SUBJECTS = (
    Subject("group norm, channels last", "", (Axis("pixels", (64, 1024, 16384), 1024),), _group_norm),
    Subject("mask + softmax", "", (Axis("length", (16, 256, 1024), 256),), _bias_softmax),
)
