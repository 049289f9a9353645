"""onnxruntime's products and look-ups of quantized weights: gradients of operands, scales and biases."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import decomposition


@decomposition("com.microsoft::MatMulNBits")
def matmul_n_bits(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition: MatMul with the dequantized weights."""
    bits, block = int(node.attribute("bits", 4)), int(node.attribute("block_size"))
    rows, columns = int(node.attribute("N")), int(node.attribute("K"))
    node.refuse_inputs({4: "its weights are reordered in groups"})
    if node.attribute("weight_prepacked", 0):
        raise node.refusal("its weights are prepacked for a device")
    blocks = -(-columns // block)
    scales = op.Reshape(node.input(2), [rows, blocks, 1])
    whole = op.Reshape(_unpacked(op, node.input(1), bits, scales), [rows, blocks, block])
    packed = node.optional(3)
    zeros = _zeros(op, packed and op.Reshape(packed, [rows, -1]), bits, blocks, scales)
    weights = op.Reshape(op.Mul(op.Sub(whole, zeros), scales), [rows, blocks * block])
    if blocks * block > columns:
        weights = op.Slice(weights, [0], [columns], [1])
    y = op.MatMul(node.x, op.Transpose(weights, perm=[1, 0]))
    return y if node.optional(5) is None else op.Add(y, node.input(5))


def _zeros(op: GraphBuilder, packed: ir.Value | None, bits: int, blocks: int, like: ir.Value) -> Any:
    """The zero points [N, blocks, 1], from [N, …] in the type of the scales, or packed like the weights."""
    if packed is None:
        return float(1 << (bits - 1))
    if op.dtype(packed) != ir.DataType.UINT8:
        return op.Unsqueeze(op.cast_like(packed, like), [2])
    whole = op.Reshape(_unpacked(op, packed, bits, like), [0, -1])
    return op.Unsqueeze(op.Slice(whole, [0], [blocks], [1]), [2])


def _unpacked(op: GraphBuilder, packed: ir.Value, bits: int, like: ir.Value) -> ir.Value:
    """Bytes […, n] unpacked to […, n, 8 / bits], lowest bits first, in the type of ``like``."""
    whole = op.cast_like(packed, like)
    if bits == 8:
        return whole
    positions = np.array([1 << position for position in range(0, 8, bits)]).astype(op.dtype(like).numpy())
    parts = op.Floor(op.Div(op.Unsqueeze(whole, [-1]), op.constant(positions)))
    return op.Mod(parts, float(1 << bits), fmod=1)


@decomposition("com.microsoft::GatherBlockQuantized")
def gather_block_quantized(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition: Gather of the dequantized rows."""
    bits, block = int(node.attribute("bits", 4)), int(node.attribute("block_size", 128))
    data, scales = node.x, node.input(2)
    blocks = op.dim(scales, 1)
    if op.dtype(data) != ir.DataType.UINT8 or node.rank(data) != 2 or not isinstance(blocks, int):
        raise node.refusal("its data is not uint8, of rank 2 and with a known number of blocks")
    if node.attribute("gather_axis", 0) != 0 or node.attribute("quantize_axis", 1) not in (1, -1):
        raise node.refusal("it does not gather rows quantized along axis 1")
    indices = op.Reshape(node.input(1), [-1])
    scale = op.Unsqueeze(op.Gather(scales, indices, axis=0), [2])
    rows = op.Gather(data, indices, axis=0)
    whole = op.Reshape(_unpacked(op, rows, bits, scale), [-1, blocks, block])
    packed = node.optional(3)
    zeros = _zeros(op, packed and op.Gather(packed, indices, axis=0), bits, blocks, scale)
    return op.reshape(op.Mul(op.Sub(whole, zeros), scale), op.shape_of(node.y))


@decomposition("com.microsoft::MatMulIntegerToFloat")
def matmul_integer_to_float(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition: MatMulInteger times both scales, plus the bias; integers have no gradient."""
    a, b, scale, other, zero, other_zero, bias = (node.optional(index) for index in range(7))
    return _scaled(op, [a, b, zero, other_zero], op.Mul(scale, other), bias)


@decomposition("com.microsoft::DynamicQuantizeMatMul")
def dynamic_quantize_matmul(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition: MatMulInteger times both scales, one computed from x, plus the bias."""
    b, other, other_zero, bias = (node.optional(index) for index in range(1, 5))
    a, scale, zero = op.DynamicQuantizeLinear(node.x, outputs=3)
    return _scaled(op, [a, b, zero, other_zero], op.Mul(scale, other), bias)


def _scaled(op: GraphBuilder, inputs: Any, scale: ir.Value, bias: ir.Value | None) -> ir.Value:
    y = op.Mul(op.cast_like(op.MatMulInteger(*inputs), scale), scale)
    return y if bias is None else op.Add(y, bias)
