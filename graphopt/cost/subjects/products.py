"""MatMuls of one input, and the pass that makes one of them."""

from __future__ import annotations

import numpy as np

from graphopt.cost.subjects.contest import UNFUSED, Contest, Subject, contest, random
from graphopt.cost.table import Axis


def _shared_input(count: int, width: int, rows: int) -> Contest:
    """``count`` MatMuls of [rows, width] with [width, width]."""
    parts = {f"w{index}": random(index, width, width) for index in range(count)}
    names = [f"y{index}" for index in range(count)]
    results = " ".join(f"{name}:2" for name in names)
    weights = parts | {"all": np.concatenate(list(parts.values()), axis=1), "sizes": np.full(count, width)}
    apart = " ".join(f"{name} = MatMul(x, w{index})" for index, name in enumerate(names))
    texts = {
        UNFUSED: f"{results} | {apart}",
        "batch-mm": f"{results} | wide = MatMul(x, all) {', '.join(names)} = Split<axis = 1>(wide, sizes)",
    }
    return contest(texts, {"x": random(9, rows, width)}, weights)


def _sum_of_products(count: int, width: int, rows: int) -> Contest:
    """The sum of ``count`` MatMuls of [rows, width], parts of one tensor, with [width, width]."""
    parts = {f"w{index}": random(index, width, width) for index in range(count)}
    inputs = {f"x{index}": random(index + 9, rows, width) for index in range(count)}
    weights = parts | {"all": np.concatenate(list(parts.values()), axis=0)}
    nodes = ["s0 = MatMul(x0, w0)"]
    for index in range(1, count):
        nodes.append(f"p{index} = MatMul(x{index}, w{index}) s{index} = Add(s{index - 1}, p{index})")
    texts = {
        UNFUSED: f"s{count - 1}:2 | {' '.join(nodes)}",
        "batch-mm": f"y:2 | wide = Concat<axis = 1>({', '.join(inputs)}) y = MatMul(wide, all)",
    }
    return contest(texts, inputs, weights)


_AXES = (Axis("count", (2, 4), 3), Axis("width", (64, 256, 1024), 256), Axis("rows", (1, 16, 256), 128))
SUBJECTS = (
    Subject("MatMuls of one input", "shared input", _AXES, _shared_input),
    Subject("sum of MatMuls", "sum", _AXES, _sum_of_products),
)
