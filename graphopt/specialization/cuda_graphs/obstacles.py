"""The reasons why the runs of a model can't be captured in a CUDA graph.

onnxruntime requires that a model has no control flow, computes tensors of fixed shapes at fixed addresses,
and copies no tensor between the CPU and the device. Copies depend on its optimizations. Therefore they are
detected by the creation of a session, and :func:`copy_in` explains a failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphopt import ir
from graphopt.analysis.data_dependent_shapes import values_with_data_dependent_shapes
from graphopt.context import context_for
from graphopt.ir.signature import Signature
from graphopt.ops.traits import CONTROL_FLOW, is_random
from graphopt.ort.devices import Device
from graphopt.placement import Cause, Copy, NodePlacement, predict
from graphopt.util.ort_array_conversion import LOW_TYPES


def obstacles(model: ir.Model, device: Device) -> Iterator[str]:
    """The reasons why runs of ``model`` on ``device`` can't be captured."""
    if not device.capabilities.captures_graphs:
        yield f"the device is the {device}, and CUDA graphs are for NVIDIA GPUs"
        return
    yield from _control_flow(model)
    yield from _other_types(Signature.of(model))
    yield from _random_numbers(model)
    yield from _data_dependent_shapes(model)


def copy_in(model: ir.Model, device: Device) -> str | None:
    """Describe a predicted copy between the CPU and ``device``, and the node on the CPU that causes it.

    The prediction is that of a session without optimizations. ``None`` if no copy is predicted.
    """
    found = predict(model, device)
    on_cpu = {node.node: node for node in found.on_cpu}
    causes = [(copy, _node_on_cpu(copy, on_cpu)) for copy in found.copies]
    if not causes:
        return None
    # optimizations often remove nodes that only compute with sizes
    copy, node = min(causes, key=lambda cause: cause[1] is None or cause[1].cause is Cause.SIZES)
    if node is None:
        return f"{copy.tensor!r} is read on the CPU and on the GPU"
    return f"{node.op_type} {node.node!r} runs on the CPU ({node.reason}), and {copy.tensor!r} is copied"


def _node_on_cpu(copy: Copy, on_cpu: Mapping[str, NodePlacement]) -> NodePlacement | None:
    """The node on the CPU that writes or reads the tensor of ``copy``."""
    names = copy.readers if copy.to_host else (copy.producer or "",)
    return next((on_cpu[name] for name in names if name in on_cpu), None)


def _control_flow(model: ir.Model) -> Iterator[str]:
    for graph in ir.graphs_of(model):
        for node in graph:
            if node.op_type in CONTROL_FLOW and node.domain == "":
                yield f"{node.op_type} {node.name or node.outputs[0].name!r} is control flow"
                return


def _random_numbers(model: ir.Model) -> Iterator[str]:
    """The first operator that draws random numbers, because replays repeat the seed of the capture."""
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
