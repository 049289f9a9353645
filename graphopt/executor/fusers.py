"""Fusers: the optimizers that fuse operators, by name."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.errors import unknown
from graphopt.ort.session import Optimizations


@dataclass(frozen=True)
class Fuser:
    """A fuser: the optimizers that fuse operators.

    Attributes:
        pipeline: the preset of graphopt's passes.
        optimizations: onnxruntime's optimization level.
        post_grad: the pipeline for models that compute gradients; ``None`` to fuse nothing there.
    """

    pipeline: str
    optimizations: Optimizations
    post_grad: str | None = None


#: Fusers by name. ``none``: no fusion; ``ort``: onnxruntime only; ``builtin``: also graphopt, with fused
#: operators of onnxruntime; ``native``: also graphopt's own kernels.
FUSERS = {
    "none": Fuser("O2", "basic"),
    "ort": Fuser("O2", "default"),
    "builtin": Fuser("O3", "default", "post-grad"),
    "native": Fuser("native", "default", "post-grad-native"),
}


def check_fuser(name: str) -> str:
    """``name``, if there is such a fuser; raises UsageError otherwise."""
    if name not in FUSERS:
        raise unknown("fuser", name, FUSERS)
    return name
