"""Activations, softmax and their like, in single and double precision."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.torch_gradients.common import Case

#: Activations for which onnxruntime has kernels in double precision.
_DOUBLE = re.compile("Relu|Sigmoid|Tanh|Softmax|LogSoftmax").match


def cases() -> Iterator[Case]:
    """Each function on numbers from -4 to 4."""
    x = np.random.default_rng(1).uniform(-4, 4, (4, 3, 5))
    for function, torch in _functions().items():
        for dtype, precision in ((np.float32, "float"), (np.float64, "double")):
            if precision == "float" or _DOUBLE(function):
                text = f"m ({precision}[A,B,C] x) => ({precision}[A,B,C] y) {{ y = {function}(x) }}"
                yield Case(f"{function} {precision}", text, {"x": x.astype(dtype)}, torch)


def _functions() -> dict[str, Callable[[Any], Any]]:
    from torch.nn import functional

    functions: dict[str, Callable[[Any], Any]] = {
        "Relu": functional.relu,
        "LeakyRelu<alpha=0.125>": partial(functional.leaky_relu, negative_slope=0.125),
        "Elu<alpha=0.5>": partial(functional.elu, alpha=0.5),
        "Celu<alpha=0.5>": partial(functional.celu, alpha=0.5),
        "Selu": functional.selu,
        "Gelu": functional.gelu,
        'Gelu<approximate="tanh">': partial(functional.gelu, approximate="tanh"),
        "Sigmoid": functional.sigmoid,
        "HardSwish": functional.hardswish,
        "Mish": functional.mish,
        "Softplus": functional.softplus,
        "Softsign": functional.softsign,
        "Tanh": functional.tanh,
        "ThresholdedRelu<alpha=0.5>": partial(functional.threshold, threshold=0.5, value=0.0),
    }
    for axis in (0, 1, -1):
        functions[f"Softmax<axis={axis}>"] = partial(functional.softmax, dim=axis)
        functions[f"LogSoftmax<axis={axis}>"] = partial(functional.log_softmax, dim=axis)
    return functions
