"""Operators that reduce along axes.

onnxruntime (1.31, CPU) returns an empty input unchanged instead of reducing it. The rules do not reproduce
this defect.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, known_length, normalize_axis, shape_rule
from graphopt.analysis.shape_inference.value_facts import Contents, Fact, representable
from graphopt.analysis.symbolic import Dim, bounds, dim_max, dim_min, product
from graphopt.ops import traits

_AXES_INPUT_SINCE = {"ReduceSum": 13}  # opset version; 18 for other operators


@shape_rule(*traits.REDUCTIONS)
def reduce_(node: NodeFacts) -> Fact:
    """Axes are an attribute or an input. The default is all axes, or none if ``noop_with_empty_axes``."""
    dtype, shape = node.dtype(0), node.shape(0)
    keep = node.attr_int("keepdims", 1) == 1
    as_input = node.version >= _AXES_INPUT_SINCE.get(node.ir.op_type, 18)
    axes: tuple[int, ...] | None
    if not as_input:
        axes = node.attr_ints("axes") or ()
    else:
        axes = node.static_contents(1) if node.has(1) else ()
    if axes is None:
        return Fact(dtype, _some_axes(node, keep))
    if not axes and as_input and node.attr_int("noop_with_empty_axes", 0):
        return node.like(0)
    if shape is None:
        return Fact(dtype, () if not axes and not keep else None)
    gone = {normalize_axis(axis, len(shape)) for axis in axes} if axes else set(range(len(shape)))
    if keep:
        result = tuple(1 if index in gone else dim for index, dim in enumerate(shape))
    else:
        result = tuple(dim for index, dim in enumerate(shape) if index not in gone)
    fact = Fact(dtype, result)
    contents = node.contents(0)
    if contents and len(gone) == len(shape):
        fact.contents = _contents(node.ir.op_type, contents, dtype)
    return fact


def _some_axes(node: NodeFacts, keep: bool) -> tuple[Dim, ...] | None:
    """The shape if the reduced axes are unknown."""
    shape = node.shape(0)
    if shape is None:
        return None
    if keep:
        return tuple(1 if dim == 1 else node.fresh(hi=max(bounds(dim)[1], 1)) for dim in shape)
    return node.fresh_shape(len(shape) - 1) if known_length(node.shape(1)) == 1 else None


_FOLDS: dict[str, Callable[[Contents], Dim]] = {
    "ReduceProd": product,
    "ReduceSum": lambda contents: reduce(lambda a, b: a + b, contents),
    "ReduceMax": lambda contents: dim_max(*contents),
    "ReduceMin": lambda contents: dim_min(*contents),
}


def _contents(op_type: str, contents: Contents, dtype: ir.DataType | None) -> Contents | None:
    fold = _FOLDS.get(op_type)
    if fold is None or dtype is None:
        return None
    result = fold(contents)
    return (result,) if representable(result, dtype) else None


@shape_rule("ArgMax", "ArgMin")
def arg_reduce(node: NodeFacts) -> Fact:
    """One axis is reduced to the index of an element."""
    shape = node.shape(0)
    if shape is None:
        return Fact(ir.DataType.INT64)
    axis = node.axis(len(shape), 0)
    kept = (1,) if node.attr_int("keepdims", 1) else ()
    return Fact(ir.DataType.INT64, shape[:axis] + kept + shape[axis + 1 :])
