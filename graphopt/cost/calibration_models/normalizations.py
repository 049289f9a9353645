"""Normalizations and activations of rows of 512 elements."""

from __future__ import annotations

import numpy as np

from graphopt.cost.calibration_models.competing_models import (
    UNFUSED,
    CompetingModels,
    Subject,
    competing_models,
    random,
)
from graphopt.cost.cost_model import Axis
from graphopt.ort.session_options import SessionChoice

_WIDTH = 512
_WEIGHTS = {
    "gain": random(1, _WIDTH),
    "bias": random(2, _WIDTH),
    "little": np.float32(1e-5),
    "two": np.float32(2),
    "last": np.array([-1]),
}
_RMS = """square = Pow({x}, two) mean = ReduceMean(square, last) safe = Add(mean, little) root = Sqrt(safe)
    normal = Div({x}, root) {y} = Mul(normal, gain)"""
_EPSILON = "epsilon = 1e-5"


def _skip_norm(rows: int) -> CompetingModels:
    """onnxruntime fuses the unfused nodes itself, unless that optimizer is disabled."""
    texts = {
        UNFUSED: f"y:2 s:2 | s = Add(x, skip) y = LayerNormalization<{_EPSILON}>(s, gain, bias)",
        "SkipLayerNormalization": f"""y:2 s:2 | y, , , s = com.microsoft.SkipLayerNormalization<{_EPSILON}>(
            x, skip, gain, bias)""",
    }
    choices = {UNFUSED: SessionChoice(disabled=("SkipLayerNormFusion",))}
    return competing_models(texts, _two(rows), _WEIGHTS, choices)


def _skip_rms_norm(rows: int) -> CompetingModels:
    texts = {
        UNFUSED: f"y:2 s:2 | s = Add(x, skip) y = RMSNormalization<{_EPSILON}>(s, gain)",
        "SkipSimplifiedLayerNormalization": f"""y:2 s:2 |
            y, , , s = com.microsoft.SkipSimplifiedLayerNormalization<{_EPSILON}>(x, skip, gain)""",
    }
    return competing_models(texts, _two(rows), _WEIGHTS)


def _rms_norm(rows: int) -> CompetingModels:
    texts = {
        UNFUSED: f"y:2 | {_RMS.format(x='x', y='y')}",
        "RMSNormalization": f"y:2 | y = RMSNormalization<{_EPSILON}>(x, gain)",
        "SimplifiedLayerNormalization": f"y:2 | y = SimplifiedLayerNormalization<{_EPSILON}>(x, gain)",
    }
    return competing_models(texts, {"x": random(0, rows, _WIDTH)}, _WEIGHTS)


def _layer_norm(rows: int) -> CompetingModels:
    texts = {
        UNFUSED: f"""y:2 | middle = ReduceMean(x, last) d = Sub(x, middle) {_RMS.format(x="d", y="scaled")}
            y = Add(scaled, bias)""",
        "LayerNormalization": f"y:2 | y = LayerNormalization<{_EPSILON}>(x, gain, bias)",
    }
    return competing_models(texts, {"x": random(0, rows, _WIDTH)}, _WEIGHTS)


def _group_norm(pixels: int) -> CompetingModels:
    """GroupNormalization of 8 groups of 64 channels; the unfused model uses InstanceNormalization."""
    weights = {
        "gain": random(1, 64),
        "bias": random(2, 64),
        "ones": np.ones(8, np.float32),
        "zeros": np.zeros(8, np.float32),
        "groups": np.array([0, 8, -1]),
        "whole": np.array([1, 64, -1]),
        "gain3": random(1, 64, 1),
        "bias3": random(2, 64, 1),
    }
    texts = {
        UNFUSED: f"""y:3 | g = Reshape(x, groups) n = InstanceNormalization<{_EPSILON}>(g, ones, zeros)
            r = Reshape(n, whole) s = Mul(r, gain3) y = Add(s, bias3)""",
        "GroupNormalization": f"y:3 | y = GroupNormalization<{_EPSILON}, num_groups = 8>(x, gain, bias)",
    }
    return competing_models(texts, {"x": random(0, 1, 64, pixels)}, weights)


def _gelu(rows: int) -> CompetingModels:
    weights = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    texts = {
        UNFUSED: "y:2 | d = Div(x, root) e = Erf(d) a = Add(e, one) b = Mul(x, a) y = Mul(b, half)",
        "Gelu": "y:2 | y = Gelu(x)",
    }
    return competing_models(texts, {"x": random(0, rows, _WIDTH)}, weights)


def _tanh_gelu(rows: int) -> CompetingModels:
    weights = {
        "three": np.float32(3),
        "c": np.float32(0.044715),
        "r": np.float32((2 / np.pi) ** 0.5),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    texts = {
        UNFUSED: """y:2 | p = Pow(x, three) q = Mul(p, c) s = Add(x, q) t = Mul(s, r) h = Tanh(t)
            a = Add(h, one) b = Mul(x, half) y = Mul(b, a)""",
        "Gelu": 'y:2 | y = Gelu<approximate = "tanh">(x)',
        "FastGelu": "y:2 | y = com.microsoft.FastGelu(x)",
    }
    return competing_models(texts, {"x": random(0, rows, _WIDTH)}, weights)


def _quick_gelu(rows: int) -> CompetingModels:
    texts = {
        UNFUSED: "y:2 | s = Mul(x, factor) g = Sigmoid(s) y = Mul(x, g)",
        "QuickGelu": "y:2 | y = com.microsoft.QuickGelu<alpha = 1.702>(x)",
    }
    return competing_models(texts, {"x": random(0, rows, _WIDTH)}, {"factor": np.float32(1.702)})


def _two(rows: int) -> dict[str, np.ndarray]:
    return {"x": random(0, rows, _WIDTH), "skip": random(3, rows, _WIDTH)}


_ROWS = Axis("rows", (1, 32, 512), 128)
SUBJECTS = (
    Subject("layer norm", "", (_ROWS,), _layer_norm),
    Subject("RMS norm", "", (_ROWS,), _rms_norm),
    Subject("skip + layer norm", "", (_ROWS,), _skip_norm),
    Subject("skip + RMS norm", "", (_ROWS,), _skip_rms_norm),
    Subject("group norm", "", (Axis("pixels", (64, 1024, 16384), 1024),), _group_norm),
    Subject("GELU", "", (_ROWS,), _gelu),
    Subject("GELU", "tanh", (_ROWS,), _tanh_gelu),
    Subject("GELU", "quick", (_ROWS,), _quick_gelu),
)
