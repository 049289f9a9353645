"""Copies between the memories of the device and of the host in one graph (``transformer_memcpy.cc``).

A tensor has one copy for all of its readers. Copies without a node are not listed: those of
inputs and outputs of the bodies of control-flow operators, and of inputs and outputs of the model that
only one side uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.ort.recorded_kernels import Kernel
from graphopt.placement.prediction import Copy


def copies_in(
    nodes: Sequence[ir.Node],
    kernels: Mapping[ir.Node, Kernel],
    inputs: Collection[ir.Value],
    captured: Collection[ir.Value],
) -> Iterator[Copy]:
    """The copies in one graph.

    Args:
        nodes: its nodes, without Constant nodes.
        kernels: the device's kernel of each node on the device.
        inputs: the inputs of the graph that no initializer backs.
        captured: outer values that the graph reads, for a body.
    """
    read: dict[bool, dict[ir.Value, list[ir.Node]]] = {False: {}, True: {}}  # by whether on the device
    written: dict[bool, dict[ir.Value, ir.Node]] = {False: {}, True: {}}
    for node in nodes:
        kernel = kernels.get(node)
        for index, value in enumerate(node.inputs):
            if value is not None:
                on_device = kernel is not None and index not in kernel.host_inputs
                read[on_device].setdefault(value, []).append(node)
        for index, value in enumerate(node.outputs):
            if value.name:
                written[kernel is not None and index not in kernel.host_outputs][value] = node
    for value in (*inputs, *captured):
        if value in read[True] and value in read[False]:
            found = _copy(value, False, None, read[True][value])
            yield replace(found, host_readers=_names(read[False][value]))
    for on_device in (False, True):
        for value, producer in written[on_device].items():
            if value in read[not on_device]:
                yield _copy(value, on_device, producer, read[not on_device][value])


def _copy(value: ir.Value, to_host: bool, producer: ir.Node | None, readers: Sequence[ir.Node]) -> Copy:
    return Copy(
        value.name or "",
        to_host,
        None if producer is None else ir.label(producer),
        _names(readers),
    )


def _names(nodes: Sequence[ir.Node]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(ir.label, nodes)))
