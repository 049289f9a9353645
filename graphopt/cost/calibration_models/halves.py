"""Subjects in float16, derived from those in float32. On CUDA, float16 attention has separate kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from graphopt.cost.calibration_models.competing_models import CompetingModels, Subject

if TYPE_CHECKING:
    import onnx

#: Suffix of the names of initializers that remain in float32, such as the scale and bias of GroupNorm.
KEPT = "_f32"


def in_half(subjects: Sequence[Subject]) -> tuple[Subject, ...]:
    """``subjects`` with float16 instead of float32, except in initializers named ``…_f32``."""
    return tuple(
        replace(subject, dtype="float16", make=partial(_converted, subject))
        for subject in subjects
        if subject.dtype == "float"
    )


def _converted(subject: Subject, **sizes: int) -> CompetingModels:
    found = subject.make(**sizes)
    models = {name: _half(model) for name, model in found.models.items()}
    feeds = {name: _narrowed(array) for name, array in found.feeds.items()}
    return CompetingModels(models, feeds, found.choices)


def _half(data: bytes) -> bytes:
    """The model with inputs, outputs and initializers in float16."""
    import onnx

    model = onnx.load_model_from_string(data)
    graph = model.graph
    for port in (*graph.input, *graph.output):
        _redeclare(port.type.tensor_type)
    for tensor in graph.initializer:
        if tensor.name.endswith(KEPT):
            continue
        array = _narrowed(onnx.numpy_helper.to_array(tensor))
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model.SerializeToString()


def _redeclare(declared: onnx.TypeProto.Tensor) -> None:
    import onnx

    if declared.elem_type == onnx.TensorProto.FLOAT:
        declared.elem_type = onnx.TensorProto.FLOAT16


def _narrowed(array: np.ndarray) -> np.ndarray:
    """``array`` in float16 if it is float32; values out of range saturate."""
    if array.dtype != np.float32:
        return array
    limit = np.finfo(np.float16).max
    return np.clip(array, -limit, limit).astype(np.float16)
