"""Compare asserted value profiles with shape facts: contradicted, implied, or neither."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.value_facts import CONTENTS_LIMIT, INTEGER_RANGES, Contents
from graphopt.analysis.symbolic import Dim, bounds
from graphopt.context import Context
from graphopt.ir.signature import notation, text_of_type
from graphopt.profile import ValueProfile


def conflict(profile: ValueProfile, value: ir.Value, cx: Context) -> str | None:
    """The contradiction between ``profile`` and the facts about ``value``; ``None`` without one."""
    type_, shape, contents = cx.facts.type(value), cx.shape(value), _contents(value, cx)
    if type_ is not None and profile.type and text_of_type(type_) != profile.type:
        return (
            f"its type is {notation(text_of_type(type_), shape)}, not {notation(profile.type, profile.shape)}"
        )
    if shape is not None and profile.shape is not None:
        if len(shape) != len(profile.shape):
            return f"its rank is {len(shape)}, not {len(profile.shape)}"
        for axis, (known, dim) in enumerate(zip(shape, profile.shape, strict=True)):
            if isinstance(dim, int) and not _may_be(known, dim):
                return f"its dim {axis} is {known}, not {dim}"
    if contents is not None and profile.ints is not None and not _all_may_be(contents, profile.ints):
        return f"it holds {', '.join(map(str, contents))}, not {', '.join(map(str, profile.ints))}"
    return None


def is_implied(profile: ValueProfile, value: ir.Value, cx: Context, given: ir.Value | None = None) -> bool:
    """Whether the facts about ``value`` imply ``profile``.

    Args:
        given: the output of a guard that asserts ``profile`` of ``value``; its dims define the symbols.
    """
    type_, shape = cx.facts.type(value), cx.shape(value)
    if profile.type and (type_ is None or text_of_type(type_) != profile.type):
        return False
    if profile.ints is not None and _contents(value, cx) != profile.ints:
        return False
    if profile.shape is None:
        return True
    if shape is None or len(shape) != len(profile.shape):
        return False
    meant = None if given is None else cx.shape(given)
    for axis, (known, dim) in enumerate(zip(shape, profile.shape, strict=True)):
        if isinstance(dim, int):
            if known != dim:
                return False
        elif dim not in ir.ANONYMOUS_DIMS and (
            # a known size does not bind the symbol, which other guards share
            isinstance(known, int) or meant is None or not cx.facts.dim_equal(known, meant[axis])
        ):
            return False
    return True


def _may_be(known: Dim, size: int) -> bool:
    least, most = bounds(known)
    return least <= size <= most


def _all_may_be(known: Contents, profiled: tuple[int, ...]) -> bool:
    return len(known) == len(profiled) and all(map(_may_be, known, profiled))


def _contents(value: ir.Value, cx: Context) -> Contents | None:
    """The known, perhaps symbolic, elements of a small integer tensor; a constant may have any rank."""
    tensor = ir.constant_of(value)
    if tensor is None or tensor.dtype not in INTEGER_RANGES or tensor.size > CONTENTS_LIMIT:
        return cx.known_ints(value)
    ir.read(value)
    return tuple(np.ravel(tensor.numpy()).tolist())
