"""Properties of QuantizeLinear and DequantizeLinear, in all domains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.ops import traits
from graphopt.rewrite import Builder, Match
from graphopt.rules.building_blocks.axes import axis_of, perm_of
from graphopt.rules.building_blocks.operands import operand
from graphopt.rules.building_blocks.shape_equality import has_one_element, same_shape

#: The domains of QuantizeLinear and DequantizeLinear.
DOMAINS = ("", ir.MICROSOFT)

BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
WORDS = (ir.DataType.INT16, ir.DataType.UINT16)
_SMALL = (ir.DataType.INT2, ir.DataType.UINT2, ir.DataType.INT4, ir.DataType.UINT4)
#: By float type: integer types whose numbers, multiplied and then divided by a scale, have an error below
#: 1/2.
_EXACT_IN = {ir.DataType.FLOAT: (*_SMALL, *BYTES, *WORDS), ir.DataType.FLOAT16: (*_SMALL, *BYTES)}
#: Bounds of scales beyond which differences from the zero point may overflow or become denormal.
_SCALES = {np.dtype(np.float32): (2.0**-100, 2.0**100), np.dtype(np.float16): (2.0**-13, 2.0**7)}


def is_quantizer(node: ir.Node | None, *kinds: str) -> bool:
    """Whether ``node`` is one of ``kinds``: QuantizeLinear, DequantizeLinear."""
    return node is not None and node.domain in DOMAINS and node.op_type in kinds


def dequantized(m: Match, value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear in the root's graph that produces ``value``."""
    node = None if value is None else value.producer()
    made_here = node is not None and node.graph is m.graph and is_quantizer(node, "DequantizeLinear")
    return node if made_here else None


def dequantized_constant(m: Match, value: ir.Value) -> ir.Node | None:
    """The DequantizeLinear of constants that produces ``value``, which has no other readers."""
    node = dequantized(m, value)
    if node is None or not m.only_use(value):
        return None
    constant = all(x is None or ir.constant_of(x) is not None for x in node.inputs)
    return node if constant and (is_per_tensor(m, node) or quantized_axis(m, node) is not None) else None


def transposed_constant(op: Builder, m: Match, node: ir.Node, perm: Sequence[int]) -> ir.Value:
    """The result of :func:`dequantized_constant` transposed, with leading axes of size 1 for broadcasting."""

    def transposed(value: ir.Value | None) -> ir.Value:
        array = m.constant(value)
        assert array is not None and value is not None
        full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
        return op.constant(np.ascontiguousarray(full.transpose(perm)), value.name)

    data, *rest = node.inputs
    changed: dict[str, int] = {}
    if not is_per_tensor(m, node):
        axis = quantized_axis(m, node)
        assert axis is not None and data is not None
        changed = {"axis": perm.index(axis + len(perm) - (m.rank(data) or 0))}
        if m.attribute(node, "block_size"):
            rest = [None if value is None else transposed(value) for value in rest]
    return op.like(node, [transposed(data), *rest], **changed)


def stays_paired(m: Match, integers: ir.Value, *results: ir.Value) -> bool:
    """Whether the pairs around ``integers`` and ``results`` should be kept because they are int8.

    On x86, onnxruntime fuses most operators between DequantizeLinear and QuantizeLinear for uint8 only. It
    converts int8 to uint8 only if the DequantizeLinear directly follows its QuantizeLinear.
    """
    if m.dtype(integers) != ir.DataType.INT8 or ir.constant_of(integers) is not None:
        return False
    return is_quantizer(integers.producer(), "QuantizeLinear") or any(
        is_quantizer(user, "DequantizeLinear") for result in results for user in ir.readers(result)
    )


def completes_unit(m: Match, value: ir.Value) -> bool:
    """Whether onnxruntime might run a reader of ``value`` on integers if a DequantizeLinear produced it.

    The rounding would then differ from that of the model; a rewrite must not cause such a difference.
    """
    for user in ir.readers(value):
        others = [other for other in user.inputs if other is not None and other is not value]
        if all(dequantized(m, other) is not None for other in others) and (
            (user.op_type == "MatMul" and not user.domain)
            or any(_is_quantized(output) for output in user.outputs)
        ):
            return True
    return False


def _is_quantized(value: ir.Value) -> bool:
    readers = list(ir.readers(value))
    if len(readers) == 1 and readers[0].op_type in ("Relu", "Clip") and not readers[0].domain:
        readers = list(ir.readers(readers[0].outputs[0]))
    return any(is_quantizer(user, "QuantizeLinear") for user in readers)


def is_per_tensor(m: Match, node: ir.Node) -> bool:
    """Whether ``node`` has one scale for all elements."""
    return has_one_element(m, operand(node, 1)) and not m.attribute(node, "block_size")


def zero_point(m: Match, node: ir.Node) -> np.ndarray | None:
    """The zero point of a QuantizeLinear or DequantizeLinear; ``None`` if it is not constant."""
    value = operand(node, 2)
    if value is not None:
        return m.constant(value)
    data = node.inputs[0] if node.op_type == "DequantizeLinear" else node.outputs[0]
    dtype = m.dtype(data)
    return None if dtype is None else np.zeros((), dtype.numpy())


def parameters(m: Match, node: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """The scales (positive floats) and the zero points, of one shape; ``None`` if unknown.

    A single scale is given as a scalar.
    """
    scale, point = m.constant(operand(node, 1)), zero_point(m, node)
    if scale is None or point is None or scale.dtype not in _SCALES:
        return None
    low, high = _SCALES[scale.dtype]
    if not np.all((scale > low) & (scale < high)):
        return None
    if scale.size == 1:
        return scale.reshape(()), point.reshape(()) if point.size == 1 else point
    return scale, np.broadcast_to(point, scale.shape) if point.size == 1 else point


def same_parameters(m: Match, a: ir.Node, b: ir.Node) -> bool:
    """Whether ``a`` and ``b`` have the same known scales and zero points."""
    first, second = parameters(m, a), parameters(m, b)
    if first is None or second is None:
        return False
    return all(
        x.shape == y.shape and x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in zip(first, second, strict=True)
    )


def inversion_obstacle(
    m: Match, dequantize: ir.Node, quantize: ir.Node, between: Sequence[ir.Node] = ()
) -> str | None:
    """The reason why ``quantize`` may not invert ``dequantize``; ``None`` if it inverts every integer.

    Args:
        between: the operators between them that move elements, in order.
    """
    x, y, scale = dequantize.inputs[0], quantize.outputs[0], dequantize.inputs[1]
    if x is None or scale is None or m.dtype(y) is None or m.dtype(y) != m.dtype(x):
        return "not the same type of integers"
    kind = m.dtype(dequantize.outputs[0])
    if kind is None or kind != m.dtype(scale) or m.dtype(x) not in _EXACT_IN.get(kind, ()):
        return "floats may be too coarse for these integers"
    if m.attribute(quantize, "precision"):
        return "quantized in another precision"
    if not same_parameters(m, dequantize, quantize):
        return "not the same constant scale, positive and ordinary, and zero point"
    if is_per_tensor(m, dequantize):
        return None
    blocks = m.attribute(dequantize, "block_size") or 0, m.attribute(quantize, "block_size") or 0
    if blocks[0] != blocks[1] or (blocks[0] and between):
        return "another block size, or blocks that are moved"
    axes = quantized_axis(m, dequantize), quantized_axis(m, quantize)
    for node in between:
        axes = None if axes[0] is None else axis_after(m, node, axes[0]), axes[1]
    return None if axes[0] is not None and axes[0] == axes[1] else "another axis"


def quantized_axis(m: Match, node: ir.Node) -> int | None:
    """The axis of the scales of ``node``, counted from the front."""
    return axis_of(m, node, m.rank(node.inputs[0]), default=1)


def axis_after(m: Match, view: ir.Node, axis: int) -> int | None:
    """The position of ``axis`` after the view or Transpose ``view``; ``None`` if it is split or merged."""
    if view.op_type == "Transpose":
        perm = perm_of(m, view)
        return None if perm is None else perm.index(axis)
    if view.op_type not in traits.RESHAPES or view.inputs[0] is None:
        return None
    source, result = m.shape(view.inputs[0]), m.shape(view.outputs[0])
    if source is None or result is None:
        return None
    expected = symbolic.product(source[:axis]), source[axis]
    for new_axis, dim in enumerate(result):
        if same_shape(m, (symbolic.product(result[:new_axis]), dim), expected):
            return new_axis
    return None
