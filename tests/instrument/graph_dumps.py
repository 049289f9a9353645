"""Graphs in the output of the log."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx.parser

from graphopt import ir

#: A loss of x and the weight w, with a value whose shape depends on data.
TEXT = """g (float[N, 2] x) => (float loss, int64[2, M] found) <float[2] w = {1, 2}> {
    h = Mul(x, w)
    t = Tanh(h)
    loss = ReduceMean<keepdims = 0>(t)
    found = NonZero(t)
}"""
X = {"x": np.ones((3, 2), np.float32)}


def graphs(text: str) -> list[tuple[str, ir.Model]]:
    """The titles and the models of the dumped graphs in ``text``."""
    lines = re.findall(r"^\[DUMP \w+\.py:\d+\] (.*)$", text, re.MULTILINE)
    return list(_parsed(lines))


def _parsed(lines: list[str]) -> Iterator[tuple[str, ir.Model]]:
    starts = [number for number, line in enumerate(lines) if re.match(r"\w+ graph( \(.*\))?:$", line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        model = ir.from_proto(onnx.parser.parse_model("\n".join(lines[start + 1 : end])))
        ir.validate(model)
        yield lines[start].removesuffix(":"), model


#: The title of the specialization for :data:`X`.
STATIC = "Optimized graph (static, x: f32[3, 2])"
