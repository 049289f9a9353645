"""The calls of native groups in a model, as models of one call with the inputs of a run.

Without a library, onnxruntime inlines the function of a call; with the library, it runs the kernel. So one
model serves both. Weights remain constants, which onnxruntime packs before the first run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import typical_size
from graphopt.context import Context, context_for
from graphopt.inputs import run_once
from graphopt.model_arguments import copy
from graphopt.ops import graphopt_operators
from graphopt.ort.devices import Device
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import human_bytes

#: Maximum number of bytes of all recorded inputs of groups, and of the constants of one call.
_MOST_RECORDED, _MOST_CONSTANTS = 1 << 31, 1 << 28
#: The reason why the calls in bodies and functions are not subjects.
IN_BODY = "it is called in a body, whose values are not recorded"


@dataclass(frozen=True, eq=False)
class CallSubject:
    """Calls of one group with the same sizes, and a model of one of them.

    Attributes:
        group: name of the function.
        calls: labels of the nodes.
        outputs: names of their first outputs, which identify them in the model.
        types: element type, shape and constness of each input, such as ``float32[1,64,56,56]``.
        model: the serialized model.
        feeds: its inputs.
    """

    group: str
    calls: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[str, ...]
    model: bytes = field(repr=False)
    feeds: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class CallSubjects:
    """The subjects of a model, and the reasons why other calls are not subjects, by label of the node."""

    subjects: tuple[CallSubject, ...]
    excluded: dict[str, str] = field(default_factory=dict)


def call_subjects(model: ir.Model, feeds: Mapping[str, Any], device: Device) -> CallSubjects:
    """The calls of native groups in ``model``, with the values that they read in a run on ``feeds``.

    Equal calls are one subject: the same function, sizes and constant inputs. The contents of constants may
    differ.

    Args:
        model: a model with groups; not modified.

    Raises:
        RuntimeFailure: the model does not run on ``feeds``.
    """
    excluded = {
        ir.label(node): IN_BODY
        for graph in ir.graphs_of(model)
        if graph is not model.graph
        for node in graph
        if node.domain == graphopt_operators.NATIVE_DOMAIN
    }
    calls = [node for node in model.graph if node.domain == graphopt_operators.NATIVE_DOMAIN]
    if not calls:
        return CallSubjects((), excluded)
    with context_for(model) as cx:
        recorded = _recorded(calls, cx)
        if recorded is None:
            reason = f"the inputs of all groups exceed {human_bytes(_MOST_RECORDED)}"
            return CallSubjects((), excluded | {ir.label(call): reason for call in calls})
        values = _record(model, recorded, feeds, device, cx)
        found: dict[tuple[str, tuple[str, ...]], list[ir.Node]] = {}
        for call in calls:
            found.setdefault((call.op_type, tuple(_types(call, values))), []).append(call)
        subjects = []
        for (group, types), equal in found.items():
            labels = tuple(map(ir.label, equal))
            outputs = tuple(call.outputs[0].name or "" for call in equal)
            try:
                single = _model(equal[0], model, values, cx)
                subjects.append(CallSubject(group, labels, outputs, types, *single))
            except _TooLarge as reason:
                excluded |= dict.fromkeys(labels, str(reason))
    return CallSubjects(tuple(subjects), excluded)


class _TooLarge(Exception):
    """The constants of a call exceed the limit."""


def _recorded(calls: list[ir.Node], cx: Context) -> list[ir.Value] | None:
    """The computed inputs of ``calls``; ``None`` if they exceed the limit."""
    computed = {
        value: None
        for call in calls
        for value in call.inputs
        if value is not None and value.name and ir.constant_of(value) is None
    }
    sizes = [cx.facts.nbytes(value) for value in computed]
    total = sum(typical_size(size) or 0 for size in sizes if size is not None)
    return list(computed) if total <= _MOST_RECORDED else None


def _record(
    model: ir.Model, recorded: list[ir.Value], feeds: Mapping[str, Any], device: Device, cx: Context
) -> dict[str, Any]:
    """The arrays of the values ``recorded`` in a run on ``feeds``, by name."""
    given = {port.name for port in model.graph.inputs}
    wanted = [value for value in recorded if value.name not in given]
    observed = copy(model)
    by_name = {output.name: output for node in observed.graph for output in node.outputs}
    present = {output.name for output in observed.graph.outputs}
    for value in wanted:
        if value.name not in present:
            output = by_name[value.name]
            output.type = output.type or value.type or ir.TensorType(cx.dtype(value) or ir.DataType.FLOAT)
            observed.graph.outputs.append(output)
    known = {name: feeds[name] for name in feeds if name in given}
    found = run_once.run_once(observed, known, device=device)
    names = [value.name or "" for value in recorded]
    return {name: found[name] if name in found else feeds[name] for name in names}


def _types(call: ir.Node, values: Mapping[str, Any]) -> Iterator[str]:
    for value in call.inputs:
        if value is None or not value.name:
            yield "none"
            continue
        tensor = ir.constant_of(value)
        if tensor is None:
            array = np.asarray(values[value.name])
            yield f"{array.dtype}[{','.join(map(str, array.shape))}]"
        else:
            shape = ",".join(map(str, tensor.shape))
            yield f"constant {tensor.dtype.name.lower()}[{shape}]"


def _model(
    call: ir.Node, model: ir.Model, values: Mapping[str, Any], cx: Context
) -> tuple[bytes, dict[str, Any]]:
    """A model of ``call``, and its feeds."""
    constants = [ir.constant_of(value) for value in call.inputs if value is not None]
    size = sum(tensor.nbytes for tensor in constants if tensor is not None)
    if size > _MOST_CONSTANTS:
        raise _TooLarge(f"its constants have {human_bytes(size)}, more than {human_bytes(_MOST_CONSTANTS)}")

    def declare(value: ir.Value) -> tuple[Any, ir.Shape | None]:
        dtype, shape = cx.dtype(value), cx.shape(value)
        dims = None if shape is None else [dim if isinstance(dim, int) else None for dim in shape]
        kind = value.type if dtype is None else ir.TensorType(dtype)
        return kind, None if dims is None else ir.Shape(dims)

    graph = ir.extract([call], call.outputs, declare=declare)
    graph.opset_imports.update(model.graph.opset_imports)
    key = (call.domain, call.op_type, call.overload)
    function = ir.clone_function(model.functions[key])
    single = ir.Model(graph, ir_version=model.ir_version, functions=[function])
    inputs = {port.name or "": values[port.name or ""] for port in graph.inputs}
    return ir.to_bytes(single), inputs
