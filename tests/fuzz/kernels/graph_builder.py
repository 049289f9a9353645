"""Builder of graphs, node by node, together with their reference computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.kernels.arithmetic import DTYPES, Arithmetic, Array, widened

Dim = int | str
Computation = Callable[..., Any]


@dataclass(frozen=True)
class Value:
    """A value of the graph; symbolic dims are equal if their texts are."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class Step:
    """The computation of a node: a function of the arithmetic and the operands."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    compute: Computation


@dataclass
class Grower:
    """A graph under construction.

    Attributes:
        random: the generator of all choices.
        values: all so far.
        unused: names without readers.
    """

    random: Random
    opset: int = 18
    values: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)

    def input(self, dtype: str, *dims: Dim) -> Value:
        value = Value(f"x{len(self.inputs)}", dtype, dims)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def constant(self, array: Any, dtype: str) -> Value:
        """Add an initializer, which is not among the candidates for operands."""
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array).astype(DTYPES[dtype])
        return Value(name, dtype, np.shape(array))

    def ints(self, *numbers: int) -> Value:
        return self.constant(np.array(numbers, np.int64), "i64")

    def node(
        self,
        kind: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[tuple[str, tuple[Dim, ...]]],
        compute: Computation,
        **attributes: Any,
    ) -> list[Value]:
        """Add a node. ``compute`` receives the arithmetic and the arrays of all inputs that are not omitted."""
        made = [
            Value(f"v{len(self.nodes)}_{index}" if index else f"v{len(self.nodes)}", dtype, dims)
            for index, (dtype, dims) in enumerate(outputs)
        ]
        names = [value.name for value in made]
        reads = ["" if value is None else value.name for value in inputs]
        self.nodes.append(helper.make_node(kind, reads, names, **attributes))
        present = tuple(name for name in reads if name)
        self.steps.append(Step(present, tuple(names), compute))
        for name in present:
            self.read[name] = self.read.get(name, 0) + 1
        self.values += made
        return made

    def op(
        self, kind: str, inputs: Sequence[Value | None], dtype: str, dims: tuple[Dim, ...], compute: Computation,
        **attributes: Any,
    ) -> Value:  # fmt: skip
        """A node with one output."""
        return self.node(kind, inputs, [(dtype, dims)], compute, **attributes)[0]

    def some(self, test: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """One of the values that satisfy ``test``, preferably a recent one without readers."""
        fit = [value for value in self.values if test(value)]
        if not fit:
            return None
        weights = [(8 if value.name not in self.read else 2) + place for place, value in enumerate(fit)]
        return self.random.choices(fit, weights)[0]

    def model(self, outputs: Sequence[Value]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "random",
            [_info(value) for value in self.inputs],
            [_info(value, with_dims=False) for value in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [
            helper.make_opsetid(domain, 1) for domain in sorted({n.domain for n in self.nodes}) if domain
        ]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9 if self.opset < 23 else 11)

    def run(
        self, feeds: Mapping[str, Array], arithmetic: Arithmetic, outputs: Sequence[Value]
    ) -> list[Array]:
        """The outputs of the graph."""
        known = {name: widened(array) for name, array in (*self.weights.items(), *feeds.items())}
        with np.errstate(all="ignore"):
            for step in self.steps:
                found = step.compute(arithmetic, *(known[name] for name in step.inputs))
                results = found if isinstance(found, list) else [found]
                known.update(zip(step.outputs, map(np.asarray, results), strict=True))
        return [known[value.name] for value in outputs]


def _info(value: Value, with_dims: bool = True) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(DTYPES[value.dtype])
    return helper.make_tensor_value_info(value.name, element, value.dims if with_dims else None)


def broadcast(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """The shape of a broadcast result; ``None`` if it is unknown whether the shapes are compatible."""
    rank = max(map(len, shapes))
    found: list[Dim] = []
    for axis in range(-rank, 0):
        dims = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(dims) > 1:
            return None
        found += dims or {1}
    return tuple(found)
