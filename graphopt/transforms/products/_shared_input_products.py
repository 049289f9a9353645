"""Products of one input with several constants, merged into one wider product.

A *member* is a MatMul, Gemm or Conv whose other operand is a constant without other readers, perhaps with
a subsequent Add of a constant. Members with equal keys can be merged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import product
from graphopt.context import Context, Dim
from graphopt.rewrite.replacement_builder import Builder
from graphopt.rewrite.traced_array import TracedArray, concatenate, tensor_to_compute, trace
from graphopt.rules.building_blocks.quantizers import is_quantizer
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Member:
    """One of the products.

    Attributes:
        node: the MatMul, Gemm or Conv.
        key: equal for members that share the input and all properties of the result except its width.
        shared_index: the index of the shared input.
        weight: the constant.
        axis: the axis along which weights are concatenated.
        out_axis: the axis along which the result is split.
        width: the size of the result along that axis.
        bias: one number per element of that axis, added by the node or by ``adder``.
        adder: the subsequent Add, if any.
    """

    node: ir.Node
    key: Hashable
    shared_index: int
    weight: ir.Value
    axis: int
    out_axis: int
    width: int
    bias: ir.Value | None = None
    adder: ir.Node | None = None

    @property
    def shared(self) -> ir.Value:
        """The shared input."""
        value = self.node.inputs[self.shared_index]
        assert value is not None
        return value

    @property
    def output(self) -> ir.Value:
        """The result, bias included."""
        return (self.adder or self.node).outputs[0]


def members_of(node: ir.Node, cx: Context) -> Iterator[Member]:
    """``node`` as a member, if it is a product with a constant without other readers."""
    reader = _READERS.get(node.op_type)
    if reader is None or node.domain or is_quantized(node):
        return
    member = reader(node, cx)
    if member is not None and member.width > 0:
        yield member


def is_quantized(node: ir.Node) -> bool:
    """Whether onnxruntime might run ``node`` on integers."""
    return any(
        value is not None and is_quantizer(value.producer(), "DequantizeLinear") for value in node.inputs
    ) or any(is_quantizer(user, "QuantizeLinear") for user in ir.readers(node.outputs[0]))


def _own(value: ir.Value | None, cx: Context) -> tuple[int, ...] | None:
    """The shape of ``value``, if it is a removable constant with one use and without shared storage.

    Below IR version 4, initializers are also inputs, and inputs are not removable.
    """
    if value is None or value.is_graph_output() or value.is_graph_input() or len(value.uses()) != 1:
        return None
    graph = next(iter(value.uses())).node.graph
    tensor = None if graph is None else tensor_to_compute(value, graph, cx)
    return None if tensor is None or cx.is_tied(value) else tuple(tensor.shape.numpy())


def _matmul(node: ir.Node, cx: Context) -> Member | None:
    """x @ w or w @ x, where w is a matrix, perhaps plus b."""
    for side in (1, 0):
        shared, weight = node.inputs[1 - side], node.inputs[side]
        shape = _own(weight, cx)
        rank = None if shared is None else cx.rank(shared)
        if shared is None or weight is None or shape is None or len(shape) != 2 or not rank:
            continue
        if side == 0 and rank < 2:
            continue  # a vector, which has no columns
        out_axis = rank - 1 if side == 1 else rank - 2
        key = ("MatMul", side, shape[1 - side])
        member = Member(node, key, 1 - side, weight, side, out_axis, shape[side])
        return _with_adder(member, cx) if side == 1 else member
    return None


def _with_adder(member: Member, cx: Context) -> Member:
    """``member`` with the Add of a constant per column, if that is its only reader."""
    output = member.node.outputs[0]
    users = list(ir.readers(output))
    if len(users) != 1 or output.is_graph_output():
        return member
    (adder,) = users
    if adder.op_type != "Add" or adder.domain or adder.graph is not member.node.graph:
        return member
    bias = adder.inputs[1] if adder.inputs[0] is output else adder.inputs[0]
    if bias is None or _own(bias, cx) != (member.width,):
        return member
    if any(is_quantizer(user, "QuantizeLinear") for user in ir.readers(adder.outputs[0])):
        return member
    return replace(member, key=(member.key, "bias"), bias=bias, adder=adder)


def _gemm(node: ir.Node, cx: Context) -> Member | None:
    """alpha · x @ w + beta · b, perhaps transposed, with one b for all rows."""
    weight = node.inputs[1]
    shape = _own(weight, cx)
    if weight is None or shape is None or len(shape) != 2:
        return None
    transposed = node.attributes.get("transB")
    if transposed is not None and transposed.is_ref():
        return None
    axis = 0 if transposed is not None and transposed.as_int() else 1
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and not _is_row(_own(bias, cx), shape[axis]):
        return None
    key = ("Gemm", _attributes(node), shape[1 - axis], bias is not None)
    return Member(node, key, 0, weight, axis, 1, shape[axis], bias)


def _is_row(shape: tuple[int, ...] | None, width: int) -> bool:
    return shape in ((width,), (1, width))


def _conv(node: ir.Node, cx: Context) -> Member | None:
    """A convolution without groups; kernel size, strides and pads are part of the key."""
    weight = node.inputs[1]
    shape = _own(weight, cx)
    group = node.attributes.get("group")
    if weight is None or shape is None or len(shape) < 3:
        return None
    if group is not None and (group.is_ref() or group.as_int() != 1):
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and _own(bias, cx) != (shape[0],):
        return None
    key = ("Conv", _attributes(node), shape[1:], bias is not None)
    return Member(node, key, 0, weight, 0, 1, shape[0], bias)


def _attributes(node: ir.Node) -> Hashable:
    return tuple(sorted((name, ir.attribute_key(attribute)) for name, attribute in node.attributes.items()))


_READERS: dict[str, Callable[[ir.Node, Context], Member | None]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
}


def rows_of(member: Member, cx: Context) -> Dim | None:
    """The number of vectors multiplied with the weight: rows, or pixels of a convolution's result."""
    shape = cx.shape(member.output)
    return None if shape is None else product(shape[: member.out_axis] + shape[member.out_axis + 1 :])


def join(members: Sequence[Member], cx: Context, owner: str) -> None:
    """Replace ``members``, which have equal keys, by one product and a Split."""
    first = members[0]
    action = cx.begin_rewrite(owner, first.node)
    if action is None:
        return
    op = Builder(cx, first.node)
    graph = first.node.graph
    assert graph is not None
    weight = op.constant(
        joined([member.weight for member in members], first.axis, graph, cx), first.weight.name
    )
    operands = (
        [first.shared, weight] if first.axis or first.node.op_type != "MatMul" else [weight, first.shared]
    )
    bias = None
    if first.bias is not None:
        parts = [member.bias for member in members if member.bias is not None]
        bias = op.constant(joined(parts, -1, graph, cx, flat=True), first.bias.name)
    if bias is not None and first.adder is None:
        operands.append(bias)
    wide = op.like(first.node, operands)
    if bias is not None and first.adder is not None:
        wide = op.Add(wide, bias)
    outputs = _split(op, wide, [member.width for member in members], first, cx)
    made = op.commit()
    sources = [node for member in members for node in (member.node, member.adder) if node is not None]
    cx.edit.note_origin(made, sources, owner)
    for member, output in zip(members, outputs, strict=True):
        cx.edit.replace(member.output, output)
        if member.adder is not None:
            cx.edit.remove(member.adder)
        cx.edit.remove(member.node)
    drop([value for member in members for value in (member.weight, member.bias) if value is not None], cx)
    cx.end_rewrite(action, first.node, made)


def drop(constants: Iterable[ir.Value], cx: Context) -> None:
    """Remove unused constants."""
    for value in constants:
        producer = value.producer()
        if producer is not None:
            cx.edit.remove(producer)
        else:
            cx.edit.remove_initializer(value)


def joined(
    values: Sequence[ir.Value], axis: int, graph: ir.Graph, cx: Context, *, flat: bool = False
) -> TracedArray:
    """Constants joined along ``axis``, for a constant of ``graph``; with ``flat``, all elements of each."""
    arrays = [array for value in values if (array := trace(value, graph, cx)) is not None]
    return concatenate([array.reshape(-1) if flat else array for array in arrays], axis)


def _split(op: Builder, wide: ir.Value, widths: Sequence[int], first: Member, cx: Context) -> Any:
    if cx.version(first.node) >= 13:
        return op.Split(wide, np.array(widths, np.int64), outputs=len(widths), axis=first.out_axis)
    return op.Split(wide, outputs=len(widths), axis=first.out_axis, split=list(widths))
