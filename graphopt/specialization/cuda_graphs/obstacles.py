"""The reasons why the runs of a model can't be captured in a CUDA graph.

onnxruntime requires that a model has no control flow, computes tensors of fixed shapes at fixed addresses,
and has nodes on the CPU for the computation of shapes only; otherwise it refuses the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphopt import ir
from graphopt.analysis.data_dependent_shapes import values_with_data_dependent_shapes
from graphopt.context import context_for
from graphopt.device_hints.bf16 import HasKernel
from graphopt.ir.signature import Signature
from graphopt.ops.traits import CONTROL_FLOW, is_random
from graphopt.ort.devices import Device
from graphopt.ort.target import Target
from graphopt.util.ort_array_conversion import LOW_TYPES


def obstacles(model: ir.Model, device: Device, has_kernel: HasKernel | None = None) -> Iterator[str]:
    """The reasons why runs of ``model`` on ``device`` can't be captured, in words; the first suffices.

    Args:
        model: the model.
        device: the device.
        has_kernel: whether the provider of the device has a kernel; by default that of the installed
            onnxruntime.
    """
    if not device.capabilities.captures_graphs:
        yield f"the device is the {device}, and CUDA graphs are for NVIDIA GPUs"
        return
    yield from _control_flow(model)
    yield from _other_types(Signature.of(model))
    yield from _random_numbers(model)
    yield from _data_dependent_shapes(model)
    yield from _missing_kernels(model, has_kernel or Target(device).has_kernel)


def _control_flow(model: ir.Model) -> Iterator[str]:
    for graph in ir.graphs_of(model):
        for node in graph:
            if node.op_type in CONTROL_FLOW and node.domain == "":
                yield f"{node.op_type} {node.name or node.outputs[0].name!r} is control flow"
                return


def _random_numbers(model: ir.Model) -> Iterator[str]:
    """The first operator that draws random numbers: replays would repeat the seed of the capture."""
    for graph in ir.graphs_of(model):
        for node in graph:
            if is_random(node) and node.op_type != "BatchNormalization":
                yield f"{node.op_type} {node.name or node.outputs[0].name!r} draws random numbers"
                return


def _other_types(signature: Signature) -> Iterator[str]:
    for side, ports in (("input", signature.inputs), ("output", signature.outputs)):
        for port in ports:
            if port.kind != "tensor" or port.type == "tensor(string)":
                yield f"the {side} {port.name!r} is no tensor of numbers"
            elif port.type in LOW_TYPES:
                yield f"the {side} {port.name!r} has the element type {port.element}, which numpy lacks"


def _data_dependent_shapes(model: ir.Model) -> Iterator[str]:
    facts = context_for(model).facts
    found = next(iter(values_with_data_dependent_shapes(model, facts, bodies=True)), None)
    if found is not None:
        value = found[0]
        node = value.producer()
        made = "" if node is None else f", the result of {node.op_type},"
        yield f"the shape of {value.name!r}{made} depends on data"


def _missing_kernels(model: ir.Model, has_kernel: HasKernel) -> Iterator[str]:
    """The first operator that runs on the CPU: the copies of its operands can't be captured."""
    cx = context_for(model)
    functions = {(key[0], key[1]) for key in model.functions}
    for graph in ir.graphs_of(model):
        for node in graph:
            version = cx.edit.scopes.version(node)
            if (node.domain, node.op_type) in functions or node.op_type == "Constant":
                continue
            if all((value.dtype or cx.facts.dtype(value)) == ir.DataType.INT64 for value in node.outputs):
                continue  # probably the computation of a shape, which may run on the CPU
            first = node.inputs[0] if node.inputs else None
            dtype = None if first is None else first.dtype or cx.facts.dtype(first)
            element = None if dtype is None else dtype.name.lower()
            if has_kernel(node.op_type, node.domain, version, element) or _is_expanded(node, version):
                continue
            has_others = element is not None and has_kernel(node.op_type, node.domain, version, None)
            types = f" for {element}" if has_others else ""
            yield f"{node.op_type} {node.name or node.outputs[0].name!r} has no kernel on the device{types}"
            return


def _is_expanded(node: ir.Node, version: int) -> bool:
    """Whether onnxruntime replaces an operator without a kernel by its definition as a function."""
    schema = ir.operator_schema(node.domain, node.op_type, version)
    found: Any = schema  # the annotations of onnx lack some attributes
    return found is not None and bool(found.has_function or found.has_context_dependent_function)
