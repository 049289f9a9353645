"""Fusers: the optimizers that fuse operators, by name."""

from __future__ import annotations

from graphopt.errors import unknown
from graphopt.ort.session import Optimizations
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Fuser:
    """A fuser: the optimizers that fuse operators.

    Attributes:
        pipeline: the preset of graphopt's passes.
        optimizations: onnxruntime's optimization level.
        post_grad: the pipeline for models that compute gradients; ``None`` to fuse nothing there.
        plan: the pipeline of specializations by the pipelines of the JIT.
        skip: the passes of ``plan`` to leave out.
    """

    pipeline: str
    optimizations: Optimizations
    post_grad: str | None = None
    plan: str = "plan-optimized-builtin"
    skip: tuple[str, ...] = ()


#: Fusers by name. ``none``: no fusion; ``ort``: onnxruntime only; ``builtin``: also graphopt, with fused
#: operators of onnxruntime; ``native``: also graphopt's own kernels.
FUSERS = {
    "none": Fuser("O2", "basic", skip=("fuse-builtin",)),
    "ort": Fuser("O2", "default", skip=("fuse-builtin",)),
    "builtin": Fuser("O3", "default", "post-grad"),
    "native": Fuser("native", "default", "post-grad-native", "plan-optimized"),
}


def check_fuser(name: str) -> str:
    """``name``, if there is such a fuser; raises UsageError otherwise."""
    if name not in FUSERS:
        raise unknown("fuser", name, FUSERS)
    return name
