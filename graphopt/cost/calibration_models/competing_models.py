"""Small models that compute the same with and without fused operators, from text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.cost.cost_model import Axis
from graphopt.ort.session_options import SessionChoice
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import onnx

#: The name of the nodes that are replaced.
UNFUSED = "unfused"
_HEADER = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>'


@dataclass(frozen=True)
class CompetingModels:
    """Models that compute the same.

    Attributes:
        models: serialized models by operator; the first is :data:`UNFUSED`.
        choices: session options of some models.
    """

    models: dict[str, bytes]
    feeds: dict[str, np.ndarray]
    choices: dict[str, SessionChoice] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """One kind of nodes that fused operators can replace.

    Attributes:
        name: name in reports.
        case: the case of its grids.
        make: builds the models for given sizes.
        dtype: the element type of its grids.
    """

    name: str
    case: str
    axes: tuple[Axis, ...]
    make: Callable[..., CompetingModels]
    dtype: str = "float"

    def __str__(self) -> str:
        name = self.name if self.dtype == "float" else f"{self.name} of {self.dtype}"
        return f"{name}, {self.case}" if self.case else name


def competing_models(
    texts: Mapping[str, str],
    feeds: dict[str, np.ndarray],
    weights: Mapping[str, Any] | None = None,
    choices: dict[str, SessionChoice] | None = None,
) -> CompetingModels:
    """Models from the text of their bodies, with the ``weights`` that they use as initializers."""
    models = {name: _model(text, feeds, weights or {}) for name, text in texts.items()}
    return CompetingModels(models, feeds, choices or {})


def _model(text: str, feeds: Mapping[str, np.ndarray], weights: Mapping[str, Any]) -> bytes:
    import onnx.parser

    types = {"float32": "float", "int64": "int64", "int32": "int32"}
    inputs = ", ".join(
        f"{types[str(array.dtype)]}[{','.join(map(str, array.shape))}] {name}"
        for name, array in feeds.items()
        if name in text
    )
    outputs, _, body = text.partition("|")
    results = ", ".join(f"float[{','.join('?' * rank)}] {name}" for name, rank in _outputs(outputs))
    model: onnx.ModelProto = onnx.parser.parse_model(f"{_HEADER} g ({inputs}) => ({results}) {{ {body} }}")
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name)
        for name, array in weights.items()
        if name in used
    )
    return model.SerializeToString()


def _outputs(text: str) -> Iterator[tuple[str, int]]:
    """Names and ranks of outputs, from text such as ``y:3 z:4``."""
    for item in text.split():
        name, _, rank = item.partition(":")
        yield name, int(rank)


def random(seed: int, *shape: int) -> Any:
    """Normally distributed f32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)
