"""Guards: the output has the facts of the input and of the assertion."""

from __future__ import annotations

from functools import cache

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.value_facts import (
    ABSENT,
    UNKNOWN,
    Fact,
    ShapeTuple,
    element_count,
    tracks_contents,
)
from graphopt.analysis.symbolic import Dim
from graphopt.ir.signature import text_of_type
from graphopt.ops import graphopt_operators
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import assertion_of


@shape_rule(graphopt_operators.GUARD, domain=graphopt_operators.GUARD_DOMAIN)
def guard(node: NodeFacts) -> Fact:
    """The facts of the input, completed by the assertion."""
    known, asserted = node.fact(0), assertion_of(node.ir)
    if known is ABSENT:
        return UNKNOWN
    if asserted is None or known.container is not None or (known.type is None and not _is_tensor(asserted)):
        return known
    dtype = known.dtype or _dtypes().get(asserted.type)
    shape = _shape(node, known.shape, asserted)
    contents = known.contents
    if (
        asserted.ints is not None
        and tracks_contents(dtype, shape)
        and element_count(shape) == len(asserted.ints)
    ):
        contents = ir.all_ints(contents) or asserted.ints
    return Fact(dtype, shape, contents)


def _is_tensor(asserted: ValueProfile) -> bool:
    return asserted.shape is not None or asserted.type in _dtypes()


@cache
def _dtypes() -> dict[str, ir.DataType]:
    """Element types by the onnxruntime notation of a tensor's type."""
    return {text_of_type(ir.TensorType(dtype)): dtype for dtype in ir.DataType if dtype.value}


def _shape(node: NodeFacts, known: ShapeTuple | None, asserted: ValueProfile) -> ShapeTuple | None:
    if asserted.shape is None or (known is not None and len(known) != len(asserted.shape)):
        return known  # an input of another rank deoptimizes the run
    sizes = [None] * len(asserted.shape) if known is None else known
    return tuple(_size(node, size, dim) for size, dim in zip(sizes, asserted.shape, strict=True))


def _size(node: NodeFacts, known: Dim | None, asserted: int | str) -> Dim:
    if isinstance(known, int):
        return known
    if isinstance(asserted, int):
        return asserted
    if asserted in ir.ANONYMOUS_DIMS:
        return node.fresh() if known is None else known
    return node.scope.guard_symbol(asserted)
