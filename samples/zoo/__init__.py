"""Small realistic models, built from fixed seeds, for samples, tests and benchmarks.

`SAMPLES` maps a name to its Sample: the builder, and recipes for meaningful inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx

from zoo.classifier import classifier
from zoo.control_flow import control_flow
from zoo.functions import functions
from zoo.quantized import quantized
from zoo.transformer import transformer
from zoo.vision import cnn

Recipe = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """A model and its inputs.

    `inputs` names for each input its dtype and how its values are drawn; each of `shape_sets` gives every
    input a shape, and values of its own where that matters. `benchmarks/inputs.py` makes arrays of them.
    """

    build: Callable[..., onnx.ModelProto]
    inputs: dict[str, Recipe]
    shape_sets: list[dict[str, Any]]

    @property
    def about(self) -> str:
        """The first line of its builder's docstring."""
        return (self.build.__doc__ or "").splitlines()[0]

    def manifest_entry(self, name: str) -> dict[str, Any]:
        """The entry of this model in the manifest of the written models."""
        return {
            "id": name,
            "file": f"{name}.onnx",
            "inputs": self.inputs,
            "shape_sets": self.shape_sets,
        }


def _draw(dtype: str, kind: str, **parameters: Any) -> Recipe:
    return {"dtype": dtype, "gen": {"kind": kind, **parameters}}


SAMPLES: dict[str, Sample] = {
    "transformer": Sample(
        transformer,
        {
            "input_ids": _draw("int64", "randint", low=0, high=100),
            "attention_mask": _draw("int64", "choice", values=[0, 1]),
        },
        [{"input_ids": [b, s], "attention_mask": [b, s]} for b, s in [(1, 16), (2, 7), (3, 1)]],
    ),
    "cnn": Sample(cnn, {"image": _draw("float32", "normal")}, [{"image": [b, 3, 32, 32]} for b in (1, 3)]),
    "control_flow": Sample(
        control_flow,
        {"x": _draw("float32", "normal"), "n": _draw("int64", "randint", low=0, high=6)},
        [
            {"x": [b, 8], "n": {"shape": [], "gen": {"kind": "const", "value": n}}}
            for b, n in [(1, 3), (5, 1), (2, 0)]
        ],
    ),
    "quantized": Sample(
        quantized, {"image": _draw("float32", "normal")}, [{"image": [b, 3, 16, 16]} for b in (1, 3)]
    ),
    "classifier": Sample(
        classifier,
        {"features": _draw("float32", "uniform", low=0, high=8)},
        [{"features": [b, 4]} for b in (1, 7)],
    ),
    "functions": Sample(
        functions, {"x": _draw("float32", "normal")}, [{"x": [b, s, 16]} for b, s in [(1, 4), (2, 3)]]
    ),
}
