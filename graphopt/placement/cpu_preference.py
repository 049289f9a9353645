"""Nodes with a CUDA kernel that run on the CPU, because they only compute with sizes.

onnxruntime (``GetCpuPreferredNodes``) follows tensors in host memory, such as the output of Shape, from the
kernels that produce them. A reader runs on the CPU as well if each of its inputs is such a tensor, a small
constant or an input of the graph, and its CUDA kernel does not read the tensor from host memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping

from graphopt import ir
from graphopt.ort.recorded_kernels import Kernel
from graphopt.util.lazy_dataclass import dataclass

#: Maximum elements of a constant that may be read on either side.
_SMALL = 100
#: Types with few kernels on the CPU.
_DEVICE_TYPES = frozenset(
    f"tensor({name})"
    for name in ("float16", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")
)


@dataclass(frozen=True)
class GraphView:
    """One graph during partitioning.

    Attributes:
        nodes: the nodes in execution order, without Constant nodes.
        kernels: the device's kernel of each node that has one.
        forced: nodes that stay on the device.
        inputs: the inputs of the graph that no initializer backs.
        types: types in onnxruntime's notation.
    """

    nodes: tuple[ir.Node, ...]
    kernels: Mapping[ir.Node, Kernel]
    forced: Collection[ir.Node]
    inputs: Collection[ir.Value]
    types: Mapping[ir.Value, str]


def preferred_on_cpu(view: GraphView) -> dict[ir.Node, None]:
    """The nodes of ``view`` that return to the CPU."""
    order = {node: index for index, node in enumerate(view.nodes)}
    readers = _readers(view.nodes)
    host: dict[ir.Value | None, None] = {}
    queue: list[int] = []

    def enqueue(value: ir.Value) -> None:
        for reader in readers.get(value, ()):
            heapq.heappush(queue, order[reader])

    for node, kernel in view.kernels.items():
        for index, value in enumerate(node.outputs):
            if value.name and index in kernel.host_outputs:
                host[value] = None
                enqueue(value)
    visited: set[int] = set()
    found: dict[ir.Node, None] = {}
    while queue:
        number = heapq.heappop(queue)
        if number in visited:
            continue
        visited.add(number)
        node = view.nodes[number]
        has_kernel = node in view.kernels
        if has_kernel and (node in view.forced or not _computes_sizes(node, view, host)):
            continue
        if has_kernel:
            found[node] = None
        for value in node.outputs:
            host[value if value.name else None] = None
            if value.name:
                enqueue(value)
    return found


def _computes_sizes(node: ir.Node, view: GraphView, host: Collection[ir.Value | None]) -> bool:
    kernel = view.kernels[node]
    for index, value in enumerate(node.inputs):
        if value is not None and view.types.get(value) in _DEVICE_TYPES:
            return False
        if value is not None and (_is_small_constant(value) or value in view.inputs):
            continue
        if value not in host or index in kernel.host_inputs:
            return False
    return True


def _is_small_constant(value: ir.Value) -> bool:
    tensor = stored_tensor(value)
    return tensor is not None and tensor.size <= _SMALL


def stored_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The contents of ``value`` if it is an initializer or the output of a Constant node."""
    return value.const_value if value.is_initializer() else ir.constant_of(value)


def _readers(nodes: tuple[ir.Node, ...]) -> dict[ir.Value, list[ir.Node]]:
    """The nodes that read a value directly or in their bodies."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(_read(node)):
            found.setdefault(value, []).append(node)
    return found


def _read(node: ir.Node) -> Iterator[ir.Value]:
    yield from (value for value in node.inputs if value is not None)
    if ir.bodies(node):
        yield from ir.captured(node)
