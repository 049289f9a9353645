"""MatMuls and Convs that share an input, sums of MatMuls, and their replacements by the pass batch-mm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt.cost.calibration_models.competing_models import (
    UNFUSED,
    CompetingModels,
    Subject,
    competing_models,
    random,
)
from graphopt.cost.cost_model import Axis


def _shared_input(count: int, width: int, rows: int) -> CompetingModels:
    """``count`` MatMuls of [rows, width] with [width, width]."""
    parts = {f"w{index}": random(index, width, width) for index in range(count)}
    weights = parts | {"all": np.concatenate(list(parts.values()), axis=1), "sizes": np.full(count, width)}
    texts = _apart_or_split([f"MatMul(x, {name})" for name in parts], "joined = MatMul(x, all)", axis=1)
    return competing_models(texts, {"x": random(9, rows, width)}, weights)


def _sum_of_products(count: int, width: int, rows: int) -> CompetingModels:
    """The sum of ``count`` MatMuls of parts of one tensor, [rows, width], by matrices [width, width]."""
    parts = {f"w{index}": random(index, width, width) for index in range(count)}
    inputs = {f"x{index}": random(index + 9, rows, width) for index in range(count)}
    weights = parts | {"all": np.concatenate(list(parts.values()), axis=0)}
    texts = {
        UNFUSED: _sum_of_matmuls(count),
        "batch-mm": f"y:2 | wide = Concat<axis = 1>({', '.join(inputs)}) y = MatMul(wide, all)",
    }
    return competing_models(texts, inputs, weights)


def _computed_sum_of_products(count: int, width: int, rows: int) -> CompetingModels:
    """The sum of ``count`` MatMuls of [rows, width] with [width, width], both computed at run time."""
    inputs = {f"x{index}": random(index + 9, rows, width) for index in range(count)}
    matrices = {f"w{index}": random(index, width, width) for index in range(count)}
    joined = [
        f"wide = Concat<axis = 1>({', '.join(inputs)})",
        f"high = Concat<axis = 0>({', '.join(matrices)})",
        "y = MatMul(wide, high)",
    ]
    texts = {UNFUSED: _sum_of_matmuls(count), "batch-mm": f"y:2 | {' '.join(joined)}"}
    return competing_models(texts, inputs | matrices, {})


def _sum_of_matmuls(count: int) -> str:
    """The text of a model that computes x0·w0 + x1·w1 + … for ``count`` products."""
    nodes = ["s0 = MatMul(x0, w0)"]
    for index in range(1, count):
        nodes.append(f"p{index} = MatMul(x{index}, w{index}) s{index} = Add(s{index - 1}, p{index})")
    return f"s{count - 1}:2 | {' '.join(nodes)}"


def _computed_shared_input(count: int, width: int, rows: int) -> CompetingModels:
    """``count`` MatMuls of [rows, width] with [width, width], all computed at run time."""
    matrices = {f"w{index}": random(index, width, width) for index in range(count)}
    joined = f"all = Concat<axis = 1>({', '.join(matrices)}) joined = MatMul(x, all)"
    texts = _apart_or_split([f"MatMul(x, {name})" for name in matrices], joined, axis=1)
    return competing_models(
        texts, {"x": random(99, rows, width)} | matrices, {"sizes": np.full(count, width)}
    )


def _computed_shared_matrix(count: int, width: int, rows: int) -> CompetingModels:
    """``count`` MatMuls of [rows, width], computed at run time, with one constant [width, width]."""
    inputs = {f"x{index}": random(index, rows, width) for index in range(count)}
    joined = f"all = Concat<axis = 0>({', '.join(inputs)}) joined = MatMul(all, w)"
    texts = _apart_or_split([f"MatMul({name}, w)" for name in inputs], joined, axis=0)
    return competing_models(texts, inputs, {"w": random(99, width, width), "sizes": np.full(count, rows)})


def _apart_or_split(products: Sequence[str], joined: str, *, axis: int) -> dict[str, str]:
    """Texts of the models that compute ``products`` apart, or split ``joined`` into them along ``axis``."""
    names = [f"y{index}" for index in range(len(products))]
    results = " ".join(f"{name}:2" for name in names)
    apart = " ".join(f"{name} = {product}" for name, product in zip(names, products, strict=True))
    split = f"{joined} {', '.join(names)} = Split<axis = {axis}>(joined, sizes)"
    return {UNFUSED: f"{results} | {apart}", "batch-mm": f"{results} | {split}"}


def _convolutions(count: int, channels: int, pixels: int) -> CompetingModels:
    """``count`` 1x1 convolutions of an image of ``pixels`` by ``pixels``, which keep the number of channels.

    Each convolution is followed by another convolution, because onnxruntime keeps its own layout between two
    convolutions.
    """
    parts = {f"w{index}": random(index, channels, channels, 1, 1) for index in range(count)}
    names = [f"y{index}" for index in range(count)]
    results = " ".join(f"{name}:4" for name in names)
    weights = parts | {
        "all": np.concatenate(list(parts.values()), axis=0),
        "sizes": np.full(count, channels),
        "next": random(8, channels, channels, 1, 1),
    }
    first = [f"c{index}" for index in range(count)]
    apart = " ".join(f"{name} = Conv(x, w{index})" for index, name in enumerate(first))
    joined = f"wide = Conv(x, all) {', '.join(first)} = Split<axis = 1>(wide, sizes)"
    behind = " ".join(
        f"r{index} = Relu(c{index}) {name} = Conv(r{index}, next)" for index, name in enumerate(names)
    )
    texts = {UNFUSED: f"{results} | {apart} {behind}", "batch-mm": f"{results} | {joined} {behind}"}
    return competing_models(texts, {"x": random(9, 1, channels, pixels, pixels)}, weights)


_COUNT = Axis("count", (2, 4), 3)
_MANY = Axis("count", (4, 32), 8)
_AXES = (_COUNT, Axis("width", (64, 256, 1024), 256), Axis("rows", (1, 16, 256), 128))
_COMPUTED_AXES = (_MANY, Axis("width", (16, 64, 256), 64), Axis("rows", (1, 16, 256), 16))
SUBJECTS = (
    Subject("MatMuls of one input", "shared input", _AXES, _shared_input),
    Subject("sum of MatMuls", "sum", _AXES, _sum_of_products),
    Subject("sum of MatMuls of computed values", "computed, sum", _COMPUTED_AXES, _computed_sum_of_products),
    Subject(
        "MatMuls of one input by computed values",
        "computed, shared input",
        _COMPUTED_AXES,
        _computed_shared_input,
    ),
    Subject(
        "MatMuls of computed values by one matrix",
        "computed, shared matrix",
        _COMPUTED_AXES,
        _computed_shared_matrix,
    ),
    Subject(
        "Convs of one input",
        "convolutions",
        (_COUNT, Axis("channels", (16, 128), 64), Axis("pixels", (7, 56), 28)),
        _convolutions,
    ),
)
