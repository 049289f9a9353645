"""Guards: what they give is what they read, and as they assert."""

from __future__ import annotations

from functools import cache

from graphopt import ir
from graphopt.analysis.shape_inference.facts import (
    ABSENT,
    UNKNOWN,
    Fact,
    ShapeTuple,
    element_count,
    tracks_contents,
)
from graphopt.analysis.shape_inference.node import NodeFacts, shape_rule
from graphopt.analysis.symbolic import Dim
from graphopt.ir.signature import text_of_type
from graphopt.ops import dialects
from graphopt.profile import Seen
from graphopt.profile.annotations import asserted


@shape_rule(dialects.GUARD, domain=dialects.GUARD_DOMAIN)
def guard(given: NodeFacts) -> Fact:
    """Type, sizes and contents of the input where they are known, and as asserted where not."""
    known, seen = given.fact(0), asserted(given.node)
    if known is ABSENT:
        return UNKNOWN
    if seen is None or known.container is not None or (known.type is None and not _is_tensor(seen)):
        return known
    dtype = known.dtype or _dtypes().get(seen.type)
    shape = _shape(given, known.shape, seen)
    contents = known.contents
    if seen.ints is not None and tracks_contents(dtype, shape) and element_count(shape) == len(seen.ints):
        contents = ir.all_ints(contents) or seen.ints
    return Fact(dtype, shape, contents)


def _is_tensor(seen: Seen) -> bool:
    return seen.shape is not None or seen.type in _dtypes()


@cache
def _dtypes() -> dict[str, ir.DataType]:
    """Element types by the text of a tensor's type."""
    return {text_of_type(ir.TensorType(dtype)): dtype for dtype in ir.DataType if dtype.value}


def _shape(given: NodeFacts, known: ShapeTuple | None, seen: Seen) -> ShapeTuple | None:
    if seen.shape is None or (known is not None and len(known) != len(seen.shape)):
        return known  # of other rank, nothing passes
    sizes = [None] * len(seen.shape) if known is None else known
    return tuple(_size(given, size, dim) for size, dim in zip(sizes, seen.shape, strict=True))


def _size(given: NodeFacts, known: Dim | None, asserted: int | str) -> Dim:
    if isinstance(known, int):
        return known
    if isinstance(asserted, int):
        return asserted
    if asserted in ir.ANONYMOUS_DIMS:
        return given.fresh() if known is None else known
    return given.inference.world.guarded(asserted)
