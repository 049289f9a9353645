"""Prediction of the placement of a model on a device and the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt import ir
from graphopt.context import Context, Options, context_for
from graphopt.ort.devices import CPU, Device
from graphopt.ort.recorded_kernels import Kernel, recorded
from graphopt.ort.target import Target
from graphopt.placement.copies import copies_in
from graphopt.placement.duplicate_dequantizers import duplicate_dequantizers
from graphopt.placement.inline_functions import inline_functions
from graphopt.placement.kernel_lookup import call_of, find_kernel
from graphopt.placement.partition import PartitionedGraph, partition
from graphopt.placement.prediction import Copy, NodePlacement, Prediction
from graphopt.placement.value_types import types_of

_CUDA = Device("cuda")


def predict(model: ir.Model, device: Device = _CUDA) -> Prediction:
    """Predict the providers of the nodes of ``model`` on ``device``, and the copies between memories.

    It predicts a session without onnxruntime's optimizations, which may remove nodes.

    Args:
        model: the model; it is not changed.
        device: a device with its own memory.
    """
    model = ir.clone(model)
    cx = context_for(model, Options(device=device))
    targets = cx.target, Target(CPU)

    def has_kernel(node: ir.Node) -> bool:
        call = call_of(node, cx.version(node), types_of(node, cx))
        return any(isinstance(find_kernel(target, call), Kernel) for target in targets)

    inline_functions(cx, has_kernel)
    duplicate_dequantizers(cx)
    nodes: list[NodePlacement] = []
    copies: list[Copy] = []
    for graph in ir.with_bodies(model.graph):
        found = partition(graph, cx)
        nodes += _placements(found)
        copies += _copies(graph, found, cx)
    return Prediction(recorded().version, tuple(nodes), tuple(copies))


def _placements(found: PartitionedGraph) -> Iterator[NodePlacement]:
    for node in found.nodes:
        cause, reason, remedy = found.reasons.get(node, (None, None, None))
        yield NodePlacement(
            ir.label(node), node.op_type, node.domain, cause, reason, remedy, tuple(ir.origins(node))
        )


def _copies(graph: ir.Graph, found: PartitionedGraph, cx: Context) -> Iterator[Copy]:
    captured = ir.captures(graph) if graph is not cx.model.graph else ()
    return copies_in(found.nodes, found.kernels, found.inputs, captured)
