"""A graph in the making, and an example: a model with inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Example:
    """A model and inputs for it.

    Attributes:
        about: a description.
        model: its dims are symbolic where exporters write dynamic axes.
        feeds: an array for each input.
    """

    about: str
    model: onnx.ModelProto
    feeds: Feeds


@dataclass
class Graph:
    """Nodes, weights, inputs and outputs in the order of addition; weights are random with a fixed seed."""

    opset: int = 18
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def input(self, name: str, dtype: Any, *dims: int | str) -> str:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append(helper.make_tensor_value_info(name, element, dims))
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; returns the name of its first output."""
        return self.op_many(kind, *inputs, outputs=outputs, **attributes)[0]

    def op_many(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """A node; the names of all of its outputs."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        names = [name, *(f"{name}_{index}" for index in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Normal numbers times ``scale``, by default 1 / √(summands of the product)."""
        if scale is None:
            scale = float(1 / np.sqrt(np.prod(shape[1:]) if len(shape) == 4 else shape[0]))
        return self.constant((self.random.standard_normal(shape) * scale).astype(np.float32))

    def near_one(self, *shape: int) -> str:
        """Weights of a normalization: random numbers near 1."""
        return self.constant((1 + self.random.standard_normal(shape) * 0.1).astype(np.float32))

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def constant(self, value: object) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def output(self, value: str, name: str, dtype: Any, dims: Sequence[int | str] | None = None) -> None:
        """``value`` becomes an output, and is called ``name`` from now on."""
        for node in reversed(self.nodes):
            for index, found in enumerate(node.output):
                if found == value:
                    node.output[index] = name
        for node in self.nodes:
            for index, found in enumerate(node.input):
                if found == value:
                    node.input[index] = name
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.outputs.append(helper.make_tensor_value_info(name, element, dims))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "kernels", self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)
