"""The kernel of a group that is still part of a graph, and the inputs of the kernel."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.backend import backend_for
from graphopt.fusion.group_functions import lower_nodes
from graphopt.fusion.group_signature import Signature
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.operator_table import find
from graphopt.fusion.template_kernel import NativeKernel
from graphopt.fusion.template_table import has_template
from graphopt.partitioning.propose_groups import Partition


def lower_partition(group: Partition, cx: Context) -> tuple[Signature, NativeKernel]:
    """The kernel of ``group``, not yet named; raises CantFuse if ``group`` has no kernel."""
    inputs = kernel_inputs(group)
    signature = Signature.of(inputs, group.outputs, cx)
    imports = cx.edit.scopes.imports(group.graph)
    kernel = lower_nodes(group.nodes, inputs, group.outputs, imports, signature, "group")
    backend = backend_for(cx.options.device)
    reason = None if backend is None else backend.features.unsupported_part(kernel)
    if reason is not None:
        raise CantFuse(reason)
    return signature, kernel


def kernel_inputs(group: Partition) -> list[ir.Value]:
    """The inputs of a group's kernel, without scalar constants and sizes, which the kernel contains.

    Constants that the anchor of a template reads are inputs, because templates pack them.
    """
    return [value for value in group.inputs if not is_inside(value, group)]


def is_inside(value: ir.Value, group: Partition) -> bool:
    """Whether ``value``, which a group reads, becomes part of the group."""
    tensor = ir.constant_of(value)
    if tensor is None:
        return False
    uses = [(reader, index) for reader, index in value.uses() if reader in group.nodes]
    if any(has_template(reader) for reader, _ in uses):
        return False
    return tensor.size == 1 or all(_is_size(reader, index) for reader, index in uses)


def _is_size(node: ir.Node, index: int) -> bool:
    """Whether an input of ``node`` consists of sizes or axes instead of data."""
    operator = find(node)
    return operator is not None and operator.data is not None and index >= operator.data
