"""Operators that create tensors without inputs or from shapes."""

from __future__ import annotations

import math

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, known_length, shape_rule
from graphopt.analysis.shape_inference.value_facts import (
    UNKNOWN,
    Fact,
    constant_fact,
    element_count,
    representable,
    tracks_contents,
)
from graphopt.analysis.symbolic import Dim, ceildiv, dim_max, product


@shape_rule("Constant")
def constant(node: NodeFacts) -> Fact:
    """The facts of the tensor. A reference to an attribute is resolved in the current call."""
    tensor = node.scope.constant(node.ir.outputs[0])
    if tensor is not None:
        return constant_fact(tensor)
    for name in node.ir.attributes:
        attribute = node.attr(name)
        if attribute is None:
            return UNKNOWN
        value = attribute.value
        match name:
            case "value" | "sparse_value":
                is_tensor = attribute.type == ir.AttributeType.TENSOR
                return constant_fact(value) if is_tensor else _dense(attribute)
            case "value_int":
                return Fact(ir.DataType.INT64, (), (value,))
            case "value_ints":
                return Fact(ir.DataType.INT64, (len(value),), tuple(value))
            case "value_float" | "value_string":
                return Fact(_SCALARS[name], ())
            case "value_floats" | "value_strings":
                return Fact(_SCALARS[name[:-1]], (len(value),))
    return UNKNOWN


_SCALARS = {"value_float": ir.DataType.FLOAT, "value_string": ir.DataType.STRING}


def _dense(attribute: ir.Attr) -> Fact:
    """The facts of a sparse constant; the output is a dense tensor."""
    carried = ir.opaque_attribute(attribute)
    if carried is None:
        return UNKNOWN
    sparse = carried.sparse_tensor
    return Fact(ir.DataType(sparse.values.data_type), tuple(sparse.dims))


@shape_rule("ConstantOfShape")
def constant_of_shape(node: NodeFacts) -> Fact:
    """The dims are the contents of the input; by default filled with 0.0."""
    attribute = node.attr("value")
    tensor = None if attribute is None else attribute.value
    dtype = ir.DataType.FLOAT if tensor is None else tensor.dtype
    dims = node.named_contents(0)
    if dims is None:
        length = known_length(node.shape(0))
        return Fact(dtype, None if length is None else node.fresh_shape(length))
    result = Fact(dtype, dims)
    if tensor is not None and tracks_contents(dtype, dims):
        result.contents = (int(tensor.numpy().reshape(-1)[0]),) * (element_count(dims) or 0)
    return result


@shape_rule("Range")
def range_(node: NodeFacts) -> Fact:
    """max(ceil((limit - start) / delta), 0) numbers."""
    dtype = node.dtype(0) or node.dtype(1) or node.dtype(2)
    parts = [node.named_contents(index) for index in range(3)]
    if None not in parts:
        start, limit, delta = (part[0] for part in parts if part is not None)
        if isinstance(delta, int) and delta:
            count = dim_max(ceildiv(limit - start, delta), 0)
            result = Fact(dtype, (count,))
            if tracks_contents(dtype, result.shape) and isinstance(count, int):
                result.contents = tuple(start + i * delta for i in range(count))
            return result
    arrays = [node.constant_array(index) for index in range(3)]
    if all(array is not None and array.dtype in (np.float32, np.float64) for array in arrays):
        first, last, step = (array.reshape(())[()] for array in arrays if array is not None)
        if step:
            return Fact(dtype, (max(math.ceil(float(last - first) / float(step)), 0),))
    return Fact(dtype, (node.fresh(),))


@shape_rule("Shape")
def shape(node: NodeFacts) -> Fact:
    """The dims; from opset 15 on, only those from ``start`` to ``end``."""
    dims = node.shape(0)
    if dims is None:
        return Fact(ir.DataType.INT64, (node.fresh(),))
    start = node.attr_int("start", 0)
    end = node.attr_int("end", len(dims))
    part = dims[_clamped(start, len(dims)) : _clamped(end, len(dims))]
    # the dims of a Flatten may exceed int64
    known = all(representable(dim, ir.DataType.INT64) for dim in part)
    return Fact(ir.DataType.INT64, (len(part),), part if known else None)


def _clamped(index: int, rank: int) -> int:
    return min(max(index + rank if index < 0 else index, 0), rank)


@shape_rule("Size")
def size(node: NodeFacts) -> Fact:
    dims = node.shape(0)
    count = node.fresh() if dims is None else product(dims)
    return Fact(ir.DataType.INT64, (), (count,) if representable(count, ir.DataType.INT64) else None)


@shape_rule("RandomNormal", "RandomUniform")
def random(node: NodeFacts) -> Fact:
    dims = node.attr_ints("shape")
    return Fact(ir.DataType(node.attr_int("dtype", 1)), dims)


@shape_rule("Multinomial")
def multinomial(node: NodeFacts) -> Fact:
    """One row of samples for each row of the input."""
    dims = node.shape(0)
    rows: Dim = node.fresh() if dims is None else dims[0]
    return Fact(ir.DataType(node.attr_int("dtype", 6)), (rows, node.attr_int("sample_size", 1)))
