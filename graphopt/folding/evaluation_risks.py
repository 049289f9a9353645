"""Assess the risk of computing a node with constant inputs before it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from graphopt import ir
from graphopt.ops import traits
from graphopt.ort.crash_risks import dtype_of, is_safe_divisor

Constant = Callable[[ir.Value], ir.TensorProtocol | None]
Functions = Mapping[Any, ir.Function]

#: Operators that crash onnxruntime 1.31 on empty tensors.
_CRASH_ON_EMPTY = frozenset({"ConvTranspose", "GRU", "LSTM", "RNN", "STFT"})
#: Operators whose results onnxruntime 1.31 may leave unwritten for empty sums.
_UNWRITTEN = frozenset(
    {"Conv", "ConvInteger", "Einsum", "Gemm", "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul"}
)
#: Indices of inputs whose contents determine the size of the result.
_SIZED_BY = {
    "ConstantOfShape": (0,),
    "Expand": (0, 1),
    "Tile": (0, 1),
    "Range": (0, 1, 2),
    "Pad": (0, 1),
    "OneHot": (0, 1),
    "Resize": (0, 2, 3),
    "Upsample": (0, 1),
}
#: Operators, besides element-wise ones, that move elements or compute shapes.
_PLAIN = frozenset(
    {*traits.MOVES, *traits.SHAPE_ONLY, "ConstantOfShape", "Range", "Cast", "CastLike", "Constant"}
)
_RISKY_INSIDE = _CRASH_ON_EMPTY | _SIZED_BY.keys() | {"Div", "Mod", "Loop"}


class FoldingRisk(NamedTuple):
    """The risk of evaluating an operator.

    ``safe``: evaluate in this process; ``open``: depends on the contents of inputs; ``risky``: evaluate in a
    child process only; ``refused``: do not evaluate.
    """

    kind: Literal["safe", "open", "risky", "refused"]
    reason: str = ""


SAFE, OPEN = FoldingRisk("safe"), FoldingRisk("open")


def is_plain(node: ir.Node) -> bool:
    """Whether ``node``, without known risks, may be computed in graphopt's own process.

    Nearly all foldable nodes are element-wise or move elements. Malformed models may crash onnxruntime's
    kernels or type inference for all other nodes: Einsum, reductions, convolutions, recurrences, vendor
    operators, bodies and calls.
    """
    return traits.is_elementwise(node) or (node.domain == "" and node.op_type in _PLAIN)


def folding_risk(
    node: ir.Node,
    constant: Constant,
    functions: Functions,
    dtypes: dict[ir.Value, ir.DataType | None],
    limit: int,
    filled: Callable[[ir.Value], bool],
) -> FoldingRisk:
    """The risk of computing ``node``.

    Args:
        node: the node.
        constant: returns the contents of a value, if already known.
        functions: the model's functions.
        dtypes: cache of inferred element types, shared by calls.
        limit: largest result in bytes.
        filled: whether a value is provably nonempty.
    """
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return FoldingRisk("refused", "an attribute is a parameter of its function")
    inside = _inside(node, functions)
    if inside is not None:
        if not all(value is None or constant(value) is not None for value in node.inputs):
            return OPEN if inside else SAFE
        return FoldingRisk("risky", "its body may loop or crash") if inside else SAFE
    if node.domain != "":
        return SAFE
    if node.op_type in ("Div", "Mod"):
        return _division(node, constant, dtypes)
    if node.op_type in _CRASH_ON_EMPTY | _UNWRITTEN:
        unknown = [value for value in node.inputs if value is not None and not filled(value)]
        tensors = [constant(value) for value in unknown]
        if any(tensor is None for tensor in tensors):
            return OPEN
        empty = any(tensor is not None and tensor.size == 0 for tensor in tensors)
        if empty and node.op_type in _UNWRITTEN:
            return FoldingRisk("refused", "a sum over nothing may stay unwritten")
        return FoldingRisk("risky", "an input is empty") if empty else SAFE
    if node.op_type in _SIZED_BY:
        return _size(node, constant, limit)
    return SAFE


def _inside(node: ir.Node, functions: Functions) -> bool | None:
    """Whether bodies or the function of ``node`` contain risky nodes; ``None`` if it has neither."""
    graphs = list(ir.bodies(node))
    if functions and (function := functions.get(node.op_identifier())) is not None:
        graphs.append(function.graph)
    if not graphs:
        return None
    if node.op_type == "Loop" and node.domain == "":
        return True
    visited = set(graphs)
    while graphs:
        for nested in ir.walk_nodes(graphs.pop()):
            if nested.domain == "" and nested.op_type in _RISKY_INSIDE:
                return True
            function = functions.get(nested.op_identifier())
            if function is not None and function.graph not in visited:
                visited.add(function.graph)
                graphs.append(function.graph)
    return False


def _division(node: ir.Node, constant: Constant, dtypes: dict[ir.Value, ir.DataType | None]) -> FoldingRisk:
    dividend, divisor = node.inputs
    if dividend is None or divisor is None:
        return SAFE
    known = constant(divisor)
    dtype = known.dtype if known is not None else dtype_of(divisor, dtypes)
    if dtype is not None and not dtype.is_integer():
        return SAFE
    if known is None:
        return OPEN
    if is_safe_divisor(known):
        return SAFE
    numerator = constant(dividend)
    if numerator is None and not (known.numpy() == 0).any():
        return OPEN
    return (
        SAFE
        if is_safe_divisor(known, numerator)
        else FoldingRisk("refused", "it divides by zero, or overflows")
    )


def _size(node: ir.Node, constant: Constant, limit: int) -> FoldingRisk:
    tensors: list[ir.TensorProtocol | None] = []
    for index in _SIZED_BY[node.op_type]:
        value = node.inputs[index] if index < len(node.inputs) else None
        tensor = None if value is None else constant(value)
        if value is not None and tensor is None:
            return OPEN
        tensors.append(tensor)
    elements = _elements(node, tensors)
    if elements is None:
        return SAFE  # malformed: onnxruntime reports the error
    width = (
        8
        if tensors[0] is None or node.op_type in ("ConstantOfShape", "OneHot")
        else tensors[0].dtype.itemsize
    )
    if elements * width > limit:
        return FoldingRisk("refused", f"the result would take {elements * width / 2**20:.0f} MiB")
    return SAFE


def _elements(node: ir.Node, tensors: list[ir.TensorProtocol | None]) -> int | None:
    """The approximate number of elements of the result; ``None`` if the inputs are malformed."""
    arrays = [None if tensor is None else tensor.numpy() for tensor in tensors]
    first = arrays[0]
    if first is None:
        return None
    try:
        match node.op_type:
            case "ConstantOfShape":
                return _product(first)
            case "Expand" | "Tile":
                # an upper bound: Expand's broadcasting computes maxima
                return first.size * _product(arrays[1]) if arrays[1] is not None else None
            case "Range":
                start, limit, delta = (float(array.reshape(())[()]) for array in arrays if array is not None)
                return max(0, math.ceil((limit - start) / delta)) if delta else None
            case "Pad":
                if arrays[1] is None or arrays[1].size < 2 * first.ndim:
                    return first.size
                pads = [int(pad) for pad in arrays[1].reshape(-1)]
                dims = zip(first.shape, pads[: first.ndim], pads[first.ndim :], strict=False)
                return math.prod(max(0, size + before + after) for size, before, after in dims)
            case "OneHot":
                return first.size * int(arrays[1].reshape(-1)[0]) if arrays[1] is not None else None
            case "Resize" | "Upsample":
                if len(arrays) > 2 and arrays[2] is not None and arrays[2].size:
                    return _product(arrays[2])
                scales = arrays[1]
                return int(first.size * np.prod(scales.astype(np.float64))) if scales is not None else None
    except (ValueError, OverflowError):
        return None
    return None


def _product(array: np.ndarray[Any, Any] | None) -> int:
    return 0 if array is None else math.prod(max(0, int(size)) for size in array.reshape(-1))
