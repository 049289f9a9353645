"""Operators that rearrange dims: Reshape and other views, Transpose, DepthToSpace and SpaceToDepth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import (
    NodeFacts,
    known_length,
    never_one,
    normalize_axis,
    shape_rule,
)
from graphopt.analysis.shape_inference.value_facts import Contents, Fact, ShapeTuple
from graphopt.analysis.symbolic import (
    Dim,
    at_least,
    divide_exactly,
    floordiv,
    known_nonzero,
    or_else,
    product,
    zero_with,
)


@shape_rule("Reshape")
def reshape(node: NodeFacts) -> Fact:
    """An entry of 0 copies a dim unless ``allowzero``; -1 is inferred from the number of elements."""
    target: Contents | None
    if node.version < 5:
        target = node.attr_ints("shape")
    else:
        target = node.named_contents(1)
        if target is None:
            length = known_length(node.shape(1))
            return Fact(node.dtype(0), None if length is None else node.fresh_shape(length))
    if target is None:
        return Fact(node.dtype(0))
    shape = reshaped(node, node.shape(0), target, allow_zero=bool(node.attr_int("allowzero", 0)))
    return Fact(node.dtype(0), shape, _preserved_contents(node, shape))


def _preserved_contents(node: NodeFacts, shape: ShapeTuple) -> Contents | None:
    return node.contents(0) if ir.all_ints(shape) is not None else None


def reshaped(
    node: NodeFacts, source: ShapeTuple | None, target: Sequence[Dim], *, allow_zero: bool
) -> ShapeTuple:
    """The shape of ``source`` after a Reshape."""
    dims: list[Dim | None] = []
    for index, entry in enumerate(target):
        if isinstance(entry, int):
            if entry > 0 or (entry == 0 and allow_zero):
                dims.append(entry)
            else:
                dims.append(source[index] if entry == 0 and source is not None else None)
        elif not at_least(entry, 0):
            dims.append(None)  # the entry may be -1
        elif allow_zero or not _may_copy_other(index, source, target):
            dims.append(entry)
        else:
            dims.append(None if source is None else or_else(entry, source[index]))
    unknown = [index for index, dim in enumerate(dims) if dim is None]
    if len(unknown) == 1 and source is not None:
        # The number of elements is constant. The other dims, which must be nonzero beside a -1, therefore
        # determine the unknown dim.
        known = [dim for dim in dims if dim is not None]
        if target[unknown[0]] == -1 or all(known_nonzero(dim) for dim in known):
            dims[unknown[0]] = _quotient(source, known)
    return tuple(node.fresh() if dim is None else dim for dim in dims)


def _may_copy_other(index: int, source: ShapeTuple | None, target: Sequence[Dim]) -> bool:
    """Whether the symbolic entry at ``index`` may be 0 and therefore copy a nonzero size."""
    entry = target[index]
    if known_nonzero(entry):
        return False
    if source is None:
        return True
    if index >= len(source) or zero_with(source[index], entry):
        return False  # either there is no dim to copy, and the run fails, or the copied dim is 0
    if not any(zero_with(dim, entry) for dim in source):
        return True
    # Then the input is empty, so the run is valid only if another dim of the result is 0.
    return any(
        place != index and _result_may_be_zero(other, place, source) for place, other in enumerate(target)
    )


def _result_may_be_zero(entry: Dim, place: int, source: ShapeTuple) -> bool:
    """Whether the dim for ``entry`` can be 0: inferred for a -1, or copied from a dim of 0."""
    if entry == -1:
        return True
    if known_nonzero(entry):
        return False
    return place < len(source) and not known_nonzero(source[place])


def _quotient(source: ShapeTuple, known: Sequence[Dim]) -> Dim | None:
    """The number of elements of ``source`` divided by the ``known`` dims, which can't be 0."""
    left = list(source)
    divisors: list[Dim] = []
    for dim in known:
        if dim in left:
            left.remove(dim)
        else:
            divisors.append(dim)
    total, divisor = product(left), product(divisors)
    if divisor == 0:
        return None
    exact = divide_exactly(total, divisor)
    return floordiv(total, divisor) if exact is None else exact


@shape_rule("Flatten")
def flatten(node: NodeFacts) -> Fact:
    """[product of the dims before ``axis``, product of the dims from ``axis`` on]."""
    shape = node.shape(0)
    if shape is None:
        return Fact(node.dtype(0), node.fresh_shape(2))
    axis = node.attr_int("axis", 1)
    if axis < 0:
        axis += len(shape)
    result = (product(shape[:axis]), product(shape[axis:]))
    return Fact(node.dtype(0), result, _preserved_contents(node, result))


def _axes(node: NodeFacts, since: int) -> tuple[bool, tuple[int, ...] | None]:
    """Whether the node specifies axes, and their values. The axes are an input from opset ``since`` on."""
    if node.version < since:
        axes = node.attr_ints("axes")
        return axes is not None, axes
    return node.has(1), node.static_contents(1)


@shape_rule("Squeeze")
def squeeze(node: NodeFacts) -> Fact:
    """Without axes, all dims of size 1 are removed, so that one unknown dim makes the rank unknown."""
    shape = node.shape(0)
    given_axes, axes = _axes(node, 13)
    if shape is None:
        return Fact(node.dtype(0))
    if given_axes and axes is None:
        count = known_length(node.shape(1))
        rank = None if count is None else len(shape) - count
        return Fact(node.dtype(0), None if rank is None else node.fresh_shape(rank))
    if axes:
        gone = {normalize_axis(axis, len(shape)) for axis in axes}
    elif all(dim == 1 or never_one(dim) for dim in shape):
        gone = {index for index, dim in enumerate(shape) if dim == 1}
    else:
        return Fact(node.dtype(0))
    result = tuple(dim for index, dim in enumerate(shape) if index not in gone)
    return Fact(node.dtype(0), result, _preserved_contents(node, result))


@shape_rule("Unsqueeze")
def unsqueeze(node: NodeFacts) -> Fact:
    """The axes are positions in the result."""
    shape = node.shape(0)
    _, axes = _axes(node, 13)
    if shape is None:
        return Fact(node.dtype(0))
    if axes is None:
        count = known_length(node.shape(1))
        return Fact(node.dtype(0), None if count is None else node.fresh_shape(len(shape) + count))
    rank = len(shape) + len(axes)
    new = {normalize_axis(axis, rank) for axis in axes}
    rest = iter(shape)
    result = tuple(1 if index in new else next(rest) for index in range(len(shape) + len(new)))
    return Fact(node.dtype(0), result, _preserved_contents(node, result))


@shape_rule("Transpose")
def transpose(node: NodeFacts) -> Fact:
    """By default the dims are reversed."""
    shape = node.shape(0)
    perm = node.attr_ints("perm")
    if shape is None:
        return Fact(node.dtype(0), None if perm is None else node.fresh_shape(len(perm)))
    if perm is None:
        perm = tuple(range(len(shape) - 1, -1, -1))
    result = Fact(node.dtype(0), tuple(shape[axis] for axis in perm))
    contents = node.contents(0)
    if contents is not None:
        result.contents = tuple(as_array(contents, shape).transpose(perm).reshape(-1).tolist())
    return result


def as_array(contents: Contents, shape: ShapeTuple) -> np.ndarray:
    """Contents as a numpy array of objects."""
    array = np.empty(len(contents), dtype=object)
    array[:] = contents
    return array.reshape(ir.all_ints(shape) or ())


@shape_rule("DepthToSpace")
def depth_to_space(node: NodeFacts) -> Fact:
    """[N, C/b², H·b, W·b]."""
    return _blocks(node, lambda n, c, h, w, b: (n, floordiv(c, b * b), h * b, w * b))


@shape_rule("SpaceToDepth")
def space_to_depth(node: NodeFacts) -> Fact:
    """[N, C·b², H/b, W/b]."""
    return _blocks(node, lambda n, c, h, w, b: (n, c * (b * b), floordiv(h, b), floordiv(w, b)))


def _blocks(node: NodeFacts, moved: Callable[[Dim, Dim, Dim, Dim, int], ShapeTuple]) -> Fact:
    """The result of ``moved(n, c, h, w, b)``, where blocks of b × b pixels become channels or the reverse."""
    shape = node.shape(0)
    if shape is None or len(shape) != 4:
        return Fact(node.dtype(0), node.fresh_shape(4))
    return Fact(node.dtype(0), moved(*shape, node.attr_int("blocksize", 1)))
