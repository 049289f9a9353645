"""Patterns that onnxruntime fuses itself; a rule that simplifies a part would prevent that.

A LayerNorm with a scale of 1 is one kernel for the runtime, but eight kernels without the factor.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.axes import axes_of
from graphopt.rules.building_blocks.operands import producer_of

NORMALIZATION = "onnxruntime fuses it with the normalization before it"
NORMALIZATION_AXIS = "onnxruntime fuses the normalization as long as it is over the last axis"
SKIP_NORM = "onnxruntime would fuse an Add with the normalization after it, which may be slower"
GELU = "onnxruntime fuses it with the GELU before it"
ATTENTION = "it is part of attention, which onnxruntime recognizes in this form"
MASK = "onnxruntime recognizes this form of an attention mask"


def is_normalized(value: ir.Value) -> bool:
    """Whether ``value`` is a quotient by the root of a mean: the core of a LayerNorm or RMSNorm."""
    node = producer_of(value, "Div", "Mul")
    if node is None:
        return False
    inverses = [node] if node.op_type == "Div" else _makers(node, "Div", "Reciprocal")
    roots = [inverse.inputs[-1] for inverse in inverses]
    return any(root is not None and _is_root_of_mean(root) for root in roots)


def is_scaled_norm(value: ir.Value) -> bool:
    """Whether ``value`` is a normalization times a scale, which a bias may follow."""
    node = producer_of(value, "Mul")
    return node is not None and any(x is not None and is_normalized(x) for x in node.inputs)


def is_before_norm(value: ir.Value) -> bool:
    """Whether a LayerNormalization, as one operator or decomposed, reads ``value``."""
    found = [node for node in ir.readers(value) if node.domain == "" and node.inputs[0] is value]
    kinds = {node.op_type for node in found}
    return "LayerNormalization" in kinds or {"ReduceMean", "Sub"} <= kinds


def moves_axis_of_norm(m: Match, node: ir.Node, perm: Sequence[int]) -> bool:
    """Whether ``node`` is the mean of a normalization over the last axis, which ``perm`` moves."""
    data, last = node.inputs[0] if node.inputs else None, len(perm) - 1
    return (
        node.op_type == "ReduceMean"
        and data is not None
        and perm[last] != last
        and is_before_norm(data)
        and axes_of(m, node) == (last,)
    )


def is_gelu_factor(value: ir.Value) -> bool:
    """Whether ``value`` is x * (1 + erf(...)): a GELU without the factor 1/2."""
    node = producer_of(value, "Mul")
    return node is not None and any(_makers(sum_, "Erf", "Tanh") for sum_ in _makers(node, "Add"))


def is_mask_view(value: ir.Value) -> bool:
    """Whether ``value`` is read by ``(1 - cast(value)) * c``, an attention mask."""
    node = ir.only_reader(value)
    for op_type in ("Cast", "Sub", "Mul"):
        if node is None or node.op_type != op_type or node.domain != "":
            return False
        node = ir.only_reader(node.outputs[0]) if op_type != "Mul" else node
    return True


#: Operators between the product of queries and keys and its softmax.
_BESIDE_SCORES = frozenset({"Add", "Cast", "Div", "Dropout", "IsNaN", "Mul", "Reshape", "Sub", "Where"})
_SCORES_DEPTH = 6


def is_in_attention(product: ir.Node) -> bool:
    """Whether the MatMul ``product`` feeds a softmax, or reads the result of one."""
    for value in product.inputs:
        node = producer_of(value)
        for _ in range(_SCORES_DEPTH):
            if node is None or node.op_type not in _BESIDE_SCORES:
                break
            softmax = next((side for side in node.inputs if producer_of(side, "Softmax")), node.inputs[0])
            node = producer_of(softmax)
        if node is not None and node.op_type == "Softmax":
            return True
    node = ir.only_reader(product.outputs[0])
    for _ in range(_SCORES_DEPTH):
        if node is None or node.op_type not in _BESIDE_SCORES or node.domain:
            break
        node = ir.only_reader(node.outputs[0])
    return node is not None and node.op_type == "Softmax"


def _is_root_of_mean(value: ir.Value) -> bool:
    root = producer_of(value, "Sqrt")
    return root is not None and any(_makers(sum_, "ReduceMean") for sum_ in _makers(root, "Add"))


def _makers(node: ir.Node, *op_types: str) -> list[ir.Node]:
    """The producers of ``node``'s operands that are of these operators."""
    found = [producer_of(value, *op_types) for value in node.inputs]
    return [maker for maker in found if maker is not None]
