"""Lower profiling nodes to outputs of the models that profiled runs execute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.context import Context, context_for
from graphopt.ir.signature import text_of_type
from graphopt.model_arguments import copy
from graphopt.ops import graphopt_operators
from graphopt.profile import ValueProfile
from graphopt.specialization.export_body_values import export_body_value
from graphopt.transforms.autodiff.lower_grad_of import LowerGradOf
from graphopt.transforms.profile._profiling_nodes import remove_profiling_nodes
from graphopt.transforms.scalar.dce import DeadCodeElimination
from graphopt.util.lazy_dataclass import dataclass

#: Maximum number of watched values of one model; more values require further models and runs.
CHUNK = 1024
_NAME = "instrument"


@dataclass(frozen=True)
class Probe:
    """The meaning of one additional output.

    Attributes:
        value: the name of the watched value.
        type: its type, in onnxruntime's notation.
        is_zero: whether the output indicates a zero value, instead of the shape of the value.
        optional: whether the value is in a body; the first element of the output is 0 if the body did not
            run.
    """

    value: str
    type: str
    is_zero: bool
    optional: bool


@dataclass(frozen=True)
class Observed:
    """The observations of one run.

    Attributes:
        values: profiles of watched values, without those of bodies that did not run.
        zeros: whether watched gradients were zero.
    """

    values: Mapping[str, ValueProfile]
    zeros: Mapping[str, bool]


@dataclass(frozen=True)
class InstrumentedModel:
    """A model whose outputs describe watched values.

    If several models observe a part of the values each, only the first also has the original outputs.

    Attributes:
        model: the model, without profiling nodes.
        probes: the meanings of the additional outputs, by name.
    """

    model: ir.Model
    probes: Mapping[str, Probe]

    def observed(self, outputs: Mapping[str, Any]) -> Observed:
        """The observations in the ``outputs`` of a run."""
        values, zeros = {}, {}
        for name, probe in self.probes.items():
            numbers = [int(number) for number in outputs[name]]
            if probe.optional and not numbers[0]:
                continue
            numbers = numbers[probe.optional :]
            if probe.is_zero:
                zeros[probe.value] = bool(numbers[0])
            else:
                values[probe.value] = ValueProfile(probe.type, tuple(numbers))
        return Observed(values, zeros)


def lower_profiling_nodes(model: ir.Model, chunk: int = CHUNK) -> list[InstrumentedModel]:
    """Models that observe the watched values of ``model``, at most ``chunk`` each; there is at least one.

    A value contributes its shape, a vector of integers, so that no tensor lives longer than in the original.
    A value in a body contributes the shape of the last trip. Inputs of the model need no output. Gradient
    regions are lowered.
    """
    count = len(list(_sites(model)))
    starts = range(0, max(count, 1), chunk)
    return [_lowered(model, range(start, min(start + chunk, count))) for start in starts]


def _sites(model: ir.Model) -> Iterator[tuple[ir.Graph, ir.Node]]:
    """Profiling nodes of intermediate values, with their graphs."""
    for graph in ir.with_bodies(model.graph):
        for node in graph:
            if not graphopt_operators.is_profiling_node(node) or node.inputs[0] is None:
                continue
            is_input = graph is model.graph and _without_profiling_nodes(node.inputs[0]).is_graph_input()
            if node.op_type != graphopt_operators.PROFILE or not is_input:
                yield graph, node


def _without_profiling_nodes(value: ir.Value) -> ir.Value:
    """``value`` without the profiling nodes before it."""
    node = value.producer()
    while node is not None and graphopt_operators.is_profiling_node(node) and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _lowered(model: ir.Model, numbers: range) -> InstrumentedModel:
    """A copy of ``model`` with outputs for its profiling nodes of these ``numbers``."""
    lowered, is_first = copy(model), numbers.start == 0
    probes: dict[str, Probe] = {}
    with context_for(lowered) as cx:
        sites = list(_sites(lowered))
        records = [_record(*sites[number], cx) for number in numbers]
        if not is_first:
            cx.edit.set_outputs(lowered.graph, [])
        for record, probe in records:
            cx.edit.add_output(lowered.graph, record)
            probes[record.name or ""] = probe
        remove_profiling_nodes(
            lowered,
            cx,
            _NAME,
            graphopt_operators.PROFILE,
            graphopt_operators.PROFILE_ZERO,
            graphopt_operators.COUNTER,
        )
        LowerGradOf().run(lowered, cx)
        if not is_first:
            DeadCodeElimination().run(lowered, cx)
    return InstrumentedModel(lowered, probes)


def _record(graph: ir.Graph, node: ir.Node, cx: Context) -> tuple[ir.Value, Probe]:
    """A vector in the main graph that describes the value that ``node`` watches."""
    edit, value, name = cx.edit, node.inputs[0], graphopt_operators.watched_name(node)
    assert value is not None
    rank, type_ = cx.rank(value), cx.facts.type(value) or value.type
    is_zero, optional = node.op_type == graphopt_operators.PROFILE_ZERO, graph is not cx.model.graph
    append = _Append(edit, graph, name)
    vector, width = (append.zero(value, cx), 1) if is_zero else (append("Shape", value), rank)
    if optional:
        one = edit.constant(graph, np.array([1]), "executed")
        vector = append("Concat", one, vector, axis=0)
        width = None if width is None else width + 1
    vector.type, vector.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([width])
    text = "" if type_ is None else text_of_type(type_)
    return export_body_value(edit, vector, graph, width), Probe(name, text, is_zero, optional)


@dataclass(frozen=True)
class _Append:
    """Appends nodes to ``graph``; returns their outputs."""

    edit: ir.Editor
    graph: ir.Graph
    name: str

    def __call__(self, op_type: str, *operands: ir.Value, **attributes: int) -> ir.Value:
        node = self.edit.make_node(op_type, operands, attributes, name=f"{self.name}_{op_type.lower()}")
        self.edit.append(self.graph, node)
        return node.outputs[0]

    def zero(self, value: ir.Value, cx: Context) -> ir.Value:
        """A vector of one number: 1 if all elements of ``value`` are zero, otherwise 0."""
        number = value
        if cx.dtype(value) is not ir.DataType.DOUBLE:  # runtimes compute few operators on smaller types
            number = self("Cast", value, to=ir.DataType.FLOAT.value)
        total = self("ReduceSum", self("Abs", number), keepdims=0)
        flag = self("Not", self("Cast", total, to=ir.DataType.BOOL.value))
        one = self.edit.constant(self.graph, np.array([1]), "one_element")
        return self("Reshape", self("Cast", flag, to=ir.DataType.INT64.value), one)
