"""Outputs of random graphs in double precision, by onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tests.fusion.templates.recurrences import Case
from tests.fuzz.products.product_graph import FLOAT, Array


@dataclass(frozen=True)
class ExactOutputs:
    """The outputs of a model of floats, whose constants and inputs have these values, computed in doubles.

    Attributes:
        text: the model.
    """

    text: bytes
    feeds: Mapping[str, Array]

    def output(self, place: int, shape: tuple[int, ...]) -> Array | None:
        """An output of ``shape``; ``None`` if the reference evaluator lacks an operator, or its type.

        The reference evaluator of onnx 1.23 concatenates the results of a Loop instead of stacking them.
        """
        return None if self._all is None else np.asarray(self._all[place]).reshape(shape)

    @cached_property
    def _all(self) -> Sequence[Array] | None:
        model = onnx.ModelProto.FromString(self.text)
        _widen(model.graph)
        feeds = {name: _wide(array) for name, array in self.feeds.items()}
        try:
            with np.errstate(all="ignore"):
                found: list[Array] = ReferenceEvaluator(model, new_ops=[LSTM, GRU, RNN]).run(None, feeds)
        except Exception:  # operators of com.microsoft, and those without doubles
            return None
        return found


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype == FLOAT else array


def _widen(graph: onnx.GraphProto) -> None:
    """Replace floats by doubles: constants, declared types, and casts."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for weight in graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(_wide(numpy_helper.to_array(weight)), weight.name))
    for node in graph.node:
        for item in node.attribute:
            if item.HasField("g"):
                _widen(item.g)
            elif item.HasField("t"):
                item.t.CopyFrom(numpy_helper.from_array(_wide(numpy_helper.to_array(item.t))))
            elif node.op_type == "Cast" and item.name == "to" and item.i == TensorProto.FLOAT:
                item.i = TensorProto.DOUBLE


class _Recurrence(OpRun):
    """A recurrent operator with the parameters of onnxruntime, which onnx's has in part."""

    op_domain = ""

    def _run(self, *inputs: Array | None, **_: Any) -> tuple[Array, ...]:
        names = ("X", "W", "R", "B", "lens", "h", "c", "P")
        tensors = {name: each for name, each in zip(names, inputs, strict=False) if each is not None}
        attributes = {item.name: helper.get_attribute_value(item) for item in self.onnx_node.attribute}
        attributes = {name: _decoded(value) for name, value in attributes.items()}
        hidden, direction = attributes.pop("hidden_size"), attributes.pop("direction", "forward")
        case = Case(
            self.onnx_node.op_type,
            (*tensors["X"].shape, hidden),
            direction,
            given=tuple(name for name in tensors if name not in names[:3]),
            attributes=attributes,
        )
        return tuple(case.expected(tensors)[: len(self.onnx_node.output)])


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return [_decoded(each) for each in value] if isinstance(value, list) else value


class LSTM(_Recurrence):
    """LSTM."""


class GRU(_Recurrence):
    """GRU."""


class RNN(_Recurrence):
    """RNN."""
