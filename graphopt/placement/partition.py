"""The nodes of one graph that run on the device, with their kernels, and the reasons for those on the CPU."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt import ir
from graphopt.context import Context
from graphopt.ort.recorded_kernels import Kernel
from graphopt.placement.cpu_preference import GraphView, preferred_on_cpu
from graphopt.placement.kernel_lookup import Missing, call_of, find_kernel
from graphopt.placement.prediction import Cause
from graphopt.placement.refusals import is_forced, refusal
from graphopt.placement.value_types import types_of
from graphopt.util.lazy_dataclass import dataclass

#: A cause, its explanation, and a remedy.
Reason = tuple[Cause, str, str | None]


@dataclass(frozen=True)
class PartitionedGraph:
    """One graph, without its bodies.

    Attributes:
        nodes: its nodes without Constant nodes, in execution order.
        kernels: the device's kernel of each node on the device.
        reasons: the reason for each node on the CPU.
        inputs: the inputs that no initializer backs.
    """

    nodes: tuple[ir.Node, ...]
    kernels: Mapping[ir.Node, Kernel]
    reasons: Mapping[ir.Node, Reason]
    inputs: Mapping[ir.Value, None]


def partition(graph: ir.Graph, cx: Context) -> PartitionedGraph:
    """Partition ``graph`` between the device of ``cx.target`` and the CPU.

    Calls of functions are on the CPU.
    """
    nodes = tuple(node for node in graph if node.op_type != "Constant" or node.domain)
    types: dict[ir.Value, str] = {}
    reasons: dict[ir.Node, Reason] = {}
    kernels: dict[ir.Node, Kernel] = {}
    for node in nodes:
        own = types_of(node, cx)
        types.update(own)
        found = find_kernel(cx.target, call_of(node, cx.version(node), own))
        if isinstance(found, Missing):
            reasons[node] = found.cause, found.reason, found.remedy
        elif (why := refusal(node)) is not None:
            reasons[node] = Cause.ATTRIBUTES, why, None
        else:
            kernels[node] = found
    inputs = {value: None for value in graph.inputs if not value.is_initializer()}
    forced = frozenset(node for node in kernels if is_forced(node))
    for node in preferred_on_cpu(GraphView(nodes, kernels, forced, inputs, types)):
        del kernels[node]
        reasons[node] = Cause.SIZES, "it only computes with sizes, which are in host memory", None
    return PartitionedGraph(nodes, kernels, reasons, inputs)
