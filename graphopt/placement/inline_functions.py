"""Inlining before partitioning: functions of the model, and operators without a kernel that are functions."""

from __future__ import annotations

from collections.abc import Callable

from graphopt import ir
from graphopt.context import Context


def inline_functions(cx: Context, has_kernel: Callable[[ir.Node], bool]) -> None:
    """Inline the functions of the model, then functions of the standard without a kernel on any provider.

    A call that can't be inlined remains.

    Args:
        cx: the context of the model, which is changed.
        has_kernel: whether a provider has a kernel for a node.
    """
    pending = [node for graph in ir.with_bodies(cx.model.graph) for node in graph]
    pending.reverse()
    while pending:
        node = pending.pop()
        if node.op_identifier() in cx.model.functions:
            made = [] if ir.inline_obstacle(cx.edit, node) else ir.inline_call(cx.edit, node)
        elif has_kernel(node):
            continue
        else:
            made = _expand(node, cx)
        pending.extend(inner for new in reversed(made) for inner in reversed(_with_nested(new)))


def _with_nested(node: ir.Node) -> list[ir.Node]:
    return [node, *(inner for body in ir.bodies(node) for inner in ir.walk_nodes(body))]


def _expand(node: ir.Node, cx: Context) -> list[ir.Node]:
    """Replace ``node`` by the function that the standard defines for it, if there is one.

    The function may import an older opset. Its nodes are nodes of the model's opset here, because onnx-ir has
    one opset per graph; kernels of both versions rarely differ.
    """
    kinds = [None if value is None else _kind(value, cx) for value in node.inputs]
    if any(value is not None and kind is None for value, kind in zip(node.inputs, kinds, strict=True)):
        return []
    standard = ir.standard_function(node, cx.version(node), kinds)
    if standard is None:
        return []
    function = standard.function
    omitted = [None] * (len(function.inputs) - len(node.inputs))
    copier = ir.Cloner(
        dict(zip(function.inputs, (*node.inputs, *omitted), strict=True)),
        {**dict.fromkeys(function.attributes), **node.attributes},
        value_name=cx.edit.fresh_name,
        node_name=cx.edit.fresh_node_name,
        declarations=False,
        origin=lambda _: ir.origins(node),
    )
    made = copier.nodes(function.graph)
    cx.edit.insert_before(node, made)
    for index, formal in zip(standard.outputs, function.outputs, strict=True):
        result = copier.value(formal)
        if index < len(node.outputs) and result is not None:
            cx.edit.replace(node.outputs[index], result)
    cx.edit.remove(node)
    return made


def _kind(value: ir.Value, cx: Context) -> ir.TensorKind | None:
    dtype = cx.facts.dtype(value) or value.dtype
    if dtype is None:
        return None
    shape = cx.facts.shape(value)
    dims = None if shape is None else [dim if isinstance(dim, int) else None for dim in shape]
    return ir.TensorKind(dtype, dims)
