"""Propagation of a Transpose from the result of an operator to its operands: a table by operator.

A Transpose by ``perm`` returns axis ``perm[i]`` of its operand as axis ``i``, so an operation along axis
``a`` is one along ``perm.index(a)`` on transposed operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.ops import traits
from graphopt.rewrite import Builder, Match
from graphopt.rewrite.traced_array import tensor_to_compute
from graphopt.rules.building_blocks import quantizers
from graphopt.rules.building_blocks.axes import axes_of, axis_of, reduce
from graphopt.rules.building_blocks.operands import operand
from graphopt.rules.building_blocks.shape_equality import has_one_element
from graphopt.rules.building_blocks.slices_and_pads import pad, padding_of, slice_, slice_ranges
from graphopt.util.lazy_dataclass import dataclass

#: Maximum size, in elements, of a constant that is transposed although it has other readers.
_SMALL = 1024
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")

Perm = Sequence[int]
Inputs = Sequence[ir.Value | None]


@dataclass(frozen=True)
class Mover:
    """Propagation of a Transpose through the nodes of an operator.

    Attributes:
        lets_pass: whether propagation is possible, for a node whose result has the rank of the permutation.
        data: the operands that must be transposed.
        rebuild: builds the node on transposed operands.
        reduces: whether the operator computes along axes, so that propagation changes the order of
            evaluation.
    """

    lets_pass: Callable[[Match, ir.Node, Perm], bool]
    data: Callable[[Match, ir.Node], list[ir.Value]]
    rebuild: Callable[[Builder, Match, ir.Node, Inputs, Perm], object]
    reduces: bool = False


def mover_of(m: Match, node: ir.Node) -> Mover | None:
    """The propagation of a Transpose through ``node``; ``None`` if it is not possible."""
    if node.domain == "":
        return _MOVERS.get(node.op_type, _ELEMENTWISE)
    return _MICROSOFT_MOVERS.get(node.op_type) if node.domain == ir.MICROSOFT else None


def is_cheap(m: Match, value: ir.Value) -> bool:
    """Whether ``value`` is a constant that may be stored transposed."""
    dequantize = quantizers.dequantized_constant(m, value)
    if dequantize is not None and dequantize.inputs[0] is not None:
        value = dequantize.inputs[0]
    constant = tensor_to_compute(value, m.graph, m.cx)
    return constant is not None and (constant.size <= _SMALL or m.only_use(value))


# Which operands ----------------------------------------------------------------------------------


def _all_operands(m: Match, node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


def _first(m: Match, node: ir.Node) -> list[ir.Value]:
    return _all_operands(m, node)[:1]


def _operands_with_elements(m: Match, node: ir.Node) -> list[ir.Value]:
    """The operands with more than one element."""
    return [value for value in _all_operands(m, node) if not has_one_element(m, value)]


def _two_tensors(m: Match, node: ir.Node) -> list[ir.Value]:
    """The data of an operator on two quantized tensors, each followed by scale and zero point."""
    data = operand(node, 0), operand(node, 3)
    return [value for value in data if value is not None and not has_one_element(m, value)]


def _joined_tensors(m: Match, node: ir.Node) -> list[ir.Value]:
    """The data of a QLinearConcat, which begins with the scale and zero point of the result."""
    return [value for value in node.inputs[2::3] if value is not None]


# Element by element ------------------------------------------------------------------------------


def _is_elementwise(m: Match, node: ir.Node, perm: Perm, data: list[ir.Value]) -> bool:
    return traits.is_elementwise(node) and bool(data) and all(_fits(m, value, perm) for value in data)


def _all_fit(m: Match, node: ir.Node, perm: Perm) -> bool:
    data = _two_tensors(m, node)
    return bool(data) and all(_fits(m, value, perm) for value in data)


def _fits(m: Match, value: ir.Value, perm: Perm) -> bool:
    """Whether ``value`` has the full rank, or is a constant to which axes can be added."""
    rank = m.rank(value)
    return rank is not None and (rank == len(perm) or (rank < len(perm) and is_cheap(m, value)))


def _same(op: Builder, m: Match, node: ir.Node, inputs: Inputs, perm: Perm) -> object:
    return op.like(node, inputs)


# Along one axis ----------------------------------------------------------------------------------


def _has_axis(m: Match, node: ir.Node, perm: Perm) -> bool:
    return _axis(m, node, perm) is not None


def _is_along_one(m: Match, node: ir.Node, perm: Perm) -> bool:
    # before opset 13, these operators flatten the axes before and after their axis
    return m.version >= 13 and _has_axis(m, node, perm)


def _axis(m: Match, node: ir.Node, perm: Perm) -> int | None:
    return axis_of(m, node, len(perm))


def _along_axis(op: Builder, m: Match, node: ir.Node, inputs: Inputs, perm: Perm) -> object:
    axis = _axis(m, node, perm)
    assert axis is not None
    return op.like(node, inputs, axis=perm.index(axis))


# Quantizers --------------------------------------------------------------------------------------


def _quantizes(m: Match, node: ir.Node, perm: Perm) -> bool:
    """Whether ``node`` has one scale per tensor, or one per index of an axis."""
    scale = node.inputs[1]
    by_axis = scale is not None and m.rank(scale) == 1
    return quantizers.is_per_tensor(m, node) or (
        by_axis and axis_of(m, node, len(perm), default=1) is not None
    )


def _quantized(op: Builder, m: Match, node: ir.Node, inputs: Inputs, perm: Perm) -> object:
    rebuild = _same if quantizers.is_per_tensor(m, node) else _along_axis
    return rebuild(op, m, node, inputs, perm)


# Others ------------------------------------------------------------------------------------------


def _pads(m: Match, node: ir.Node, perm: Perm) -> bool:
    return padding_of(m, node) is not None


def _padded(op: Builder, m: Match, node: ir.Node, inputs: Inputs, perm: Perm) -> object:
    padding = padding_of(m, node)
    assert padding is not None
    before, after = ([side[axis] for axis in perm] for side in (padding.before, padding.after))
    return pad(op, m, node, inputs[0], before + after)


def _slices(m: Match, node: ir.Node, perm: Perm) -> bool:
    return slice_ranges(m, node) is not None


def _sliced(op: Builder, m: Match, node: ir.Node, inputs: Inputs, perm: Perm) -> object:
    ranges = slice_ranges(m, node)
    assert ranges is not None and inputs[0] is not None
    moved = [replace(taken, axis=perm.index(taken.axis)) for taken in ranges]
    return slice_(op, m, inputs[0], moved)


def _reduces(m: Match, node: ir.Node, perm: Perm) -> bool:
    return m.attribute(node, "keepdims") == 1 and bool(axes_of(m, node))


def _reduced(op: Builder, m: Match, node: ir.Node, inputs: Inputs, perm: Perm) -> object:
    axes = axes_of(m, node)
    assert axes is not None and inputs[0] is not None
    moved = sorted(perm.index(axis) for axis in axes)
    return reduce(op, m, node.op_type, inputs[0], moved, keepdims=True)


_ELEMENTWISE = Mover(
    lambda m, node, perm: _is_elementwise(m, node, perm, _operands_with_elements(m, node)),
    _operands_with_elements,
    _same,
)
_CLIP = Mover(lambda m, node, perm: _is_elementwise(m, node, perm, _first(m, node)), _first, _same)
_QUANTIZER = Mover(_quantizes, _first, _quantized)
_SOFTMAX = Mover(_is_along_one, _operands_with_elements, _along_axis, reduces=True)

_MOVERS = {
    "Clip": _CLIP,
    "Concat": Mover(_has_axis, _all_operands, _along_axis),
    "Pad": Mover(_pads, _first, _padded),
    "Slice": Mover(_slices, _first, _sliced),
    "Softmax": _SOFTMAX,
    "LogSoftmax": _SOFTMAX,
    **dict.fromkeys(_QUANTIZERS, _QUANTIZER),
    **dict.fromkeys(traits.REDUCTIONS, Mover(_reduces, _first, _reduced, reduces=True)),
}
_MICROSOFT_MOVERS = {
    **dict.fromkeys(_QUANTIZERS, _QUANTIZER),
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid"), Mover(lambda m, node, perm: True, _first, _same)),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), Mover(_all_fit, _two_tensors, _same)),
    "QLinearConcat": Mover(_has_axis, _joined_tensors, _along_axis),
}
