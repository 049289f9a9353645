"""Writes graphs like exporters: a Constant node for each constant, and names with the path of the module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Dims = Sequence[int | str | None]


class GraphWriter:
    """Collects one graph (or body, or function); values are represented by their names.

    Nodes are called `/scope/Op`, `/scope/Op_1`, … and their outputs `/scope/Op_output_0`, as PyTorch's
    TorchScript exporter does. Weights come from a generator with a fixed seed, so that a model's bytes
    are the same on every run.
    """

    def __init__(self, name: str, *, seed: int = 0, counts: Counter[str] | None = None) -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)
        self._scopes: list[str] = []
        self._counts: Counter[str] = Counter() if counts is None else counts

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Nodes written inside belong to the module `name`."""
        self._scopes.append(name)
        yield
        self._scopes.pop()

    def input(self, name: str, dtype: int, shape: Dims) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: int, shape: Dims) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def weight(self, name: str, value: ArrayLike) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def normal(self, *shape: int, std: float = 0.2) -> np.ndarray:
        """A random float32 array."""
        return (self.random.standard_normal(shape) * std).astype(np.float32)

    def ops(
        self,
        op_type: str,
        *inputs: str,
        results: Sequence[str | None],
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """A node and its outputs; the writer chooses the name for each None in `results`.

        An empty name among the inputs leaves an optional input out.
        """
        name = self._unique(op_type)
        outputs = [result or f"{name}_output_{i}" for i, result in enumerate(results)]
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name, domain=domain, **attributes))
        return outputs

    def op(self, op_type: str, *inputs: str, result: str | None = None, **attributes: Any) -> str:
        """A node with one output, called `result` if that is given."""
        return self.ops(op_type, *inputs, results=[result], **attributes)[0]

    def constant(self, value: ArrayLike, dtype: Any = None) -> str:
        """A Constant node: Python ints become int64, floats float32."""
        array = np.asarray(value)
        if dtype is None:
            dtype = {"i": np.int64, "f": np.float32}.get(array.dtype.kind, array.dtype)
        return self.op("Constant", value=numpy_helper.from_array(array.astype(dtype)))

    def dim(self, value: str, axis: int) -> str:
        """The size of an axis as a scalar: Shape, Constant, Gather."""
        return self.op("Gather", self.op("Shape", value), self.constant(axis), axis=0)

    def shape(self, *dims: str | int) -> str:
        """A shape from scalars and numbers: an Unsqueeze or a Constant each, then Concat."""
        parts = [
            self.constant([d]) if isinstance(d, int) else self.op("Unsqueeze", d, self.constant([0]))
            for d in dims
        ]
        return self.op("Concat", *parts, axis=0)

    def body(self, name: str) -> GraphWriter:
        """A writer for the body of an If or Loop; it may read this graph's values by name."""
        writer = GraphWriter(name, counts=self._counts)
        writer._scopes = [*self._scopes, name]
        return writer

    def graph(self) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.initializers)

    def model(
        self, *, opset: int, ir_version: int, producer: str = "samples", ml_opset: int | None = None
    ) -> onnx.ModelProto:
        opsets = [helper.make_opsetid("", opset)]
        if ml_opset is not None:
            opsets.append(helper.make_opsetid("ai.onnx.ml", ml_opset))
        return helper.make_model(
            self.graph(), opset_imports=opsets, ir_version=ir_version, producer_name=producer
        )

    def _unique(self, op_type: str) -> str:
        name = "/" + "/".join([*self._scopes, op_type])
        self._counts[name] += 1
        return name if self._counts[name] == 1 else f"{name}_{self._counts[name] - 1}"
