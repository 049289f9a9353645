"""Prediction of the placement of a model on a device and the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt import ir
from graphopt.context import Context, Options, context_for
from graphopt.ort.devices import CPU, Device
from graphopt.ort.recorded_kernels import Kernel, recorded
from graphopt.ort.target import Target
from graphopt.placement.copies import copies_in
from graphopt.placement.cpu_preference import GraphView, preferred_on_cpu
from graphopt.placement.duplicate_dequantizers import duplicate_dequantizers
from graphopt.placement.inline_functions import inline_functions
from graphopt.placement.kernel_lookup import Missing, call_of, find_kernel
from graphopt.placement.prediction import Cause, Copy, NodePlacement, Prediction
from graphopt.placement.refusals import is_forced, refusal
from graphopt.placement.value_types import types_of
from graphopt.util.lazy_dataclass import dataclass

_CUDA = Device("cuda")


def predict(model: ir.Model, device: Device = _CUDA) -> Prediction:
    """The providers of the nodes of ``model`` in a session on ``device``, and the copies between memories.

    The prediction is that of a session without onnxruntime's optimizations, which may remove nodes.

    Args:
        model: the model; it is not changed.
        device: a device with its own memory.
    """
    model = ir.clone(model)
    cx = context_for(model, Options(device=device))
    partition = _Partition(cx, Target(device), Target(CPU))
    inline_functions(cx, partition.has_kernel)
    duplicate_dequantizers(cx)
    nodes: list[NodePlacement] = []
    copies: list[Copy] = []
    for graph in ir.with_bodies(model.graph):
        placed = partition.place(graph)
        nodes += placed.nodes
        copies += placed.copies
    return Prediction(recorded().version, tuple(nodes), tuple(copies))


@dataclass(frozen=True)
class _Placed:
    nodes: list[NodePlacement]
    copies: list[Copy]


class _Partition:
    """Partitions the graphs of one model."""

    def __init__(self, cx: Context, target: Target, host: Target) -> None:
        self.cx = cx
        self.target = target
        self.host = host

    def has_kernel(self, node: ir.Node) -> bool:
        """Whether the device or the CPU has a kernel for ``node``."""
        call = call_of(node, self.cx.version(node), types_of(node, self.cx))
        return any(isinstance(find_kernel(one, call), Kernel) for one in (self.target, self.host))

    def place(self, graph: ir.Graph) -> _Placed:
        """The placement of the nodes of ``graph``, without those of its bodies."""
        nodes = [node for node in graph if node.op_type != "Constant" or node.domain]
        types: dict[ir.Value, str] = {}
        reasons: dict[ir.Node, tuple[Cause, str, str | None]] = {}
        kernels: dict[ir.Node, Kernel] = {}
        for node in nodes:
            own = types_of(node, self.cx)
            types.update(own)
            call = call_of(node, self.cx.version(node), own)
            found = find_kernel(self.target, call)
            if isinstance(found, Missing):
                reasons[node] = found.cause, found.reason, found.remedy
            elif (why := refusal(node)) is not None:
                reasons[node] = Cause.ATTRIBUTES, why, None
            else:
                kernels[node] = found
        inputs = {value: None for value in graph.inputs if not value.is_initializer()}
        forced = frozenset(node for node in kernels if is_forced(node))
        for node in preferred_on_cpu(GraphView(tuple(nodes), kernels, forced, inputs, types)):
            del kernels[node]
            reasons[node] = Cause.SIZES, "it only computes with sizes, which are in host memory", None
        captured = ir.captures(graph) if graph is not self.cx.model.graph else ()
        return _Placed(
            list(self._placements(nodes, reasons)), list(copies_in(nodes, kernels, inputs, captured))
        )

    def _placements(
        self, nodes: list[ir.Node], reasons: dict[ir.Node, tuple[Cause, str, str | None]]
    ) -> Iterator[NodePlacement]:
        for node in nodes:
            cause, reason, remedy = reasons.get(node, (None, None, None))
            yield NodePlacement(
                ir.label(node), node.op_type, node.domain, cause, reason, remedy, tuple(ir.origins(node))
            )
