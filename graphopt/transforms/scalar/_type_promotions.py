"""Promotions of nodes to types for which the device has a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.ops.exact_conversions import INTEGERS, holds
from graphopt.ort.operator_schemas import Schema
from graphopt.ort.recorded_kernels import Kernel
from graphopt.placement.kernel_lookup import Call, call_of
from graphopt.placement.partition import PartitionedGraph, partition
from graphopt.placement.prediction import Cause
from graphopt.placement.refusals import refusal
from graphopt.placement.value_types import types_of

_T = ir.DataType

#: Operators that only move, select or compare elements, with the type parameters of these elements.
_OPERATORS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Where", "Pad", "Tile", "GatherND", "DepthToSpace", "SpaceToDepth"), ("T",)),
    **dict.fromkeys(("Max", "Min", "Clip", "ArgMax", "ArgMin"), ("T",)),
    **dict.fromkeys(("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"), ("T",)),
    "OneHot": ("T1", "T2", "T3"),
}
#: Types of the promoted operands, cheapest first.
_WIDER = (_T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE)
#: Operators with narrow and wide types that onnxruntime (1.31) computes wrongly on the CPU, the fallback of
#: sessions: Clip of int64 compares numbers from 2³¹ on as if they were negative.
_MISCOMPUTED = frozenset({("Clip", _T.UINT32, _T.INT64)})


def profitable_promotions(graph: ir.Graph, cx: Context) -> dict[ir.Node, dict[str, _T]]:
    """The wider types, by type parameter, of the nodes of ``graph`` whose promotion avoids copies."""
    candidates: dict[ir.Node, dict[str, _T]] = {}
    found = partition(graph, cx)
    for node, (cause, _, _) in found.reasons.items():
        if cause is Cause.NO_TYPE and (promotion := _promotion(node, cx)) is not None:
            candidates[node] = promotion
    return {node: candidates[node] for node in _profitable(candidates, found)}


def promote(node: ir.Node, promotion: Mapping[str, _T], cx: Context) -> list[ir.Node]:
    """Replace ``node`` by a node of the wider types, between casts; returns the new nodes."""
    call = call_of(node, cx.version(node), types_of(node, cx))
    schema = call.schema
    assert schema is not None
    before: list[ir.Node] = []
    inputs: list[ir.Value | None] = []
    for index, value in enumerate(node.inputs):
        wide = promotion.get(schema.input_type(index))
        inputs.append(value if value is None or wide is None else _wide(value, wide, node, before, cx))
    new = cx.edit.make_node(
        node.op_type, inputs, node.attributes.values(), outputs=len(node.outputs), name=ir.label(node)
    )
    made = [*before, new]
    for index, (old, output) in enumerate(zip(node.outputs, new.outputs, strict=True)):
        if promotion.get(schema.output_type(index)) is not None:
            dtype = cx.dtype(old)
            assert dtype is not None
            made.append(cx.edit.make_node("Cast", [output], {"to": dtype}, name=f"{ir.label(node)}_cast"))
    cx.edit.insert_before(node, made)
    casts = iter(made[len(before) + 1 :])
    for index, (old, output) in enumerate(zip(node.outputs, new.outputs, strict=True)):
        is_cast = promotion.get(schema.output_type(index)) is not None
        cx.edit.replace(old, next(casts).outputs[0] if is_cast else output)
    cx.edit.remove(node)
    return made


def _promotion(node: ir.Node, cx: Context) -> dict[str, _T] | None:
    """The wider types, by type parameter, with which the device has a kernel for ``node``."""
    if node.domain or node.op_type not in _OPERATORS or refusal(node) is not None:
        return None
    call = call_of(node, cx.version(node), types_of(node, cx))
    schema = call.schema
    if schema is None:
        return None
    found = [
        promotion
        for kernel in cx.target.kernels(node.op_type, "")
        if kernel.since <= schema.since <= kernel.until
        and (promotion := _to_types_of(kernel, schema, call)) is not None
    ]
    return min(
        found, key=lambda one: (len(one), *(_WIDER.index(dtype) for dtype in one.values())), default=None
    )


def _to_types_of(kernel: Kernel, schema: Schema, call: Call) -> dict[str, _T] | None:
    """The promotions that ``kernel`` requires; ``None`` if it can't run ``call``."""
    promotion: dict[str, _T] = {}
    for parameter, accepted in kernel.types:
        type = schema.bound(parameter, call.inputs, call.outputs)
        if type is None or type in accepted:
            continue
        narrow = next((one for one in (*INTEGERS, _T.BOOL) if type == _name(one)), None)
        wide = [
            one
            for one in _WIDER
            if narrow and _name(one) in accepted and holds(one, narrow)
            if (call.op_type, narrow, one) not in _MISCOMPUTED
        ]
        if parameter not in _OPERATORS[call.op_type] or not wide:
            return None
        promotion[parameter] = wide[0]
    return promotion


def _name(dtype: ir.DataType) -> str:
    return f"tensor({dtype.name.lower()})"


def _profitable(candidates: Mapping[ir.Node, object], found: PartitionedGraph) -> list[ir.Node]:
    """The candidates that exchange tensors with the device or with each other, but not with the CPU."""
    chosen = dict.fromkeys(candidates)
    while True:
        kept = [node for node in chosen if all(_sides(node, chosen, found))]
        if len(kept) == len(chosen):
            break
        chosen = dict.fromkeys(kept)
    return [
        node
        for group in _connected(chosen)
        if any(_meets_device(node, found) for node in group)
        for node in group
    ]


def _sides(node: ir.Node, chosen: Mapping[ir.Node, None], found: PartitionedGraph) -> Iterator[bool]:
    """Whether each operand of ``node`` is available on the device, and whether each reader is there."""
    for value in node.inputs:
        if value is None or ir.constant_of(value) is not None:
            continue
        producer = value.producer()
        yield producer in chosen or _written_on_device(value, found) or value in found.inputs
    for value in node.outputs:
        for reader, index in value.uses():
            yield reader in chosen or _read_on_device(reader, index, found)


def _written_on_device(value: ir.Value, found: PartitionedGraph) -> bool:
    producer = value.producer()
    kernel = None if producer is None else found.kernels.get(producer)
    return kernel is not None and value.index() not in kernel.host_outputs


def _read_on_device(reader: ir.Node, index: int, found: PartitionedGraph) -> bool:
    kernel = found.kernels.get(reader)
    return kernel is not None and index not in kernel.host_inputs


def _meets_device(node: ir.Node, found: PartitionedGraph) -> bool:
    """Whether ``node`` now causes a copy: a node on the device computes an operand or reads its result."""
    return any(value is not None and _written_on_device(value, found) for value in node.inputs) or any(
        _read_on_device(reader, index, found) for value in node.outputs for reader, index in value.uses()
    )


def _connected(nodes: Mapping[ir.Node, None]) -> list[list[ir.Node]]:
    """``nodes`` in groups that exchange tensors, in execution order."""
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in nodes:
        group = [node]
        for value in node.inputs:
            producer = None if value is None else value.producer()
            other = None if producer is None else groups.get(producer)
            if other is not None and other is not group:
                other.extend(group)
                group = other
        groups.update(dict.fromkeys(group, group))
    return list({id(group): group for group in groups.values()}.values())


def _wide(value: ir.Value, dtype: _T, node: ir.Node, before: list[ir.Node], cx: Context) -> ir.Value:
    """``value`` as ``dtype``: a constant, or the result of a Cast that is appended to ``before``."""
    array = cx.constant(value)
    if array is not None and value.name:
        assert node.graph is not None
        wide = np.asarray(array).astype(dtype.numpy())
        return cx.edit.constant(node.graph, wide, f"{value.name}_{dtype.name.lower()}")
    cast = cx.edit.make_node("Cast", [value], {"to": dtype}, name=f"{ir.label(node)}_{dtype.name.lower()}")
    before.append(cast)
    return cast.outputs[0]
