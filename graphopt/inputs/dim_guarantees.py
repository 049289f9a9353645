"""The user's guarantees about dynamic dims: sizes (``--dim``), ranges and relations.

A dim is named by its symbol, or by an input and an axis, ``x@0``, which also works for dims without symbols.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping

from graphopt import ir
from graphopt.errors import UsageError, unknown
from graphopt.inputs.dim_bindings import derived_sizes
from graphopt.util.dim_expressions import canonical_sum, is_expression, names_within, with_name_replaced
from graphopt.util.parse_values import Range, check_range, check_size, natural_or_none


def fix_dims(model: ir.Model, sizes: Mapping[str, int], *, strict: bool = True) -> None:
    """Replace dims of these names by ``sizes`` in all declarations of ``model``.

    Dims that are expressions over fixed ones, such as ``past + seq``, are also fixed; expressions over fixed
    and dynamic dims contain the sizes: for a ``seq`` of 1, ``past + seq`` is declared as ``past + 1``.

    Raises:
        UsageError: ``strict``, and no input has a dim of that name; a dim already has another size; or a size
            is less than 1.
    """
    fixed: dict[str, int] = {}
    places: dict[tuple[str, int], int] = {}
    for name, size in sizes.items():
        check_size(name, size)
        try:
            symbol, place = _resolved(model, name, size)
        except UsageError:
            if strict:
                raise
            continue
        if symbol is not None:
            if fixed.setdefault(symbol, size) != size:
                raise UsageError(f"dim {symbol!r} is given two sizes")
        elif place is not None:
            places[place] = size
    names = [name for value in model.graph.inputs for name in _names(value) if name is not None]
    fixed |= derived_sizes(names, fixed)
    for value in model.graph.inputs:
        for axis in range(0 if value.shape is None else len(value.shape)):
            if (value.name or "", axis) in places:
                ir.declare_dim(value, axis, places[value.name or "", axis])
    for value in ir.declared_values(model):
        for axis, symbol in enumerate(_names(value)):
            if symbol in fixed:
                ir.declare_dim(value, axis, fixed[symbol])
            elif symbol is not None and (new := _with_sizes(symbol, fixed, names)) != symbol:
                ir.declare_dim(value, axis, new)


def _with_sizes(dim: str, sizes: Mapping[str, int], names: Container[str]) -> str:
    """``dim`` with ``sizes`` substituted for their names, if it is an expression over ``names``."""
    if not is_expression(dim, names):
        return dim
    for name in names_within(dim):
        if name in sizes:
            dim = with_name_replaced(dim, name, str(sizes[name]))
    return dim


def relate_dims(
    model: ir.Model,
    relations: Mapping[str, str],
    *,
    sizes: Mapping[str, int] | None = None,
    strict: bool = True,
) -> None:
    """Replace dims by expressions over other dims, such as ``past + seq``, in all declarations of ``model``.

    Args:
        sizes: sizes that may already be fixed in ``model``; expressions may contain the names of these dims.

    Raises:
        UsageError: an expression is malformed, or contains the dim itself or a name that is no dim of an
            input; or ``strict``, and no input has a dim of that name.
    """
    sizes = sizes or {}
    for name, text in relations.items():
        try:
            symbol, place = _resolved(model, name, None)
        except UsageError:
            if strict:
                raise
            continue
        right = canonical_sum(text)
        if right is None or not names_within(right):
            hint = "write names of dims and numbers with + - *, such as total=past+seq"
            raise UsageError(f"can't read the size {text!r} of dim {name!r}", hint=hint)
        known = [other for value in model.graph.inputs for other in _names(value) if other is not None]
        for other in names_within(right):
            if other not in known and other in sizes:
                right = with_name_replaced(right, other, str(sizes[other]))
            elif other not in known:
                raise unknown("dynamic dim", other, list(dict.fromkeys(known)))
            if other == symbol:
                raise UsageError(
                    f"dim {name!r} is defined by itself", hint="an expression of other dims defines it"
                )
        for value in ir.declared_values(model):
            for axis, declared in enumerate(_names(value)):
                if place == (value.name, axis):
                    ir.declare_dim(value, axis, right)
                elif symbol is not None and declared is not None:
                    new = with_name_replaced(declared, symbol, right)
                    if new != declared:
                        ir.declare_dim(value, axis, new)


def resolve_ranges(model: ir.Model, ranges: Mapping[str, Range], *, strict: bool = True) -> dict[str, Range]:
    """``ranges``, with the names of dims that shape facts and generated inputs use.

    Raises:
        UsageError: a range is empty, or contradicts another range of the same dim; or ``strict``, and no
            input has a dim of that name, or its fixed size is outside the range.
    """
    found: dict[str, Range] = {}
    for name, (first, last) in ranges.items():
        check_range(name, (first, last))
        try:
            symbol, place = _resolved(model, name, None, (first, last))
        except UsageError:
            if strict:
                raise
            continue
        if symbol is None and place is not None:
            symbol = ir.unnamed_dim(*place)
        if symbol is None:
            continue
        found[symbol] = _intersection(symbol, (first, last), found.get(symbol, (0, None)))
    return found


def _intersection(name: str, one: Range, other: Range) -> Range:
    """The sizes in both ranges of dim ``name``; raises UsageError if there are none."""
    first = max(one[0], other[0])
    ends = [last for _, last in (one, other) if last is not None]
    last = min(ends) if ends else None
    if last is not None and first > last:
        raise UsageError(f"the ranges given for dim {name!r} contradict each other")
    return first, last


def apply_dim_guarantees(
    model: ir.Model, sizes: Mapping[str, int], ranges: Mapping[str, Range]
) -> dict[str, Range]:
    """Fix ``sizes`` in ``model``, in place; returns ``ranges`` as :func:`resolve_ranges` does.

    The names of ranges contain the sizes as the declarations do: ``past + 1`` for ``past + seq``.

    Raises:
        UsageError: as for :func:`fix_dims` and :func:`resolve_ranges`; or a size is not within the range of
            the same dim.
    """
    found = resolve_ranges(model, ranges)
    places = [
        (value, axis, symbol or ir.unnamed_dim(value.name, axis))
        for value in model.graph.inputs
        for axis, symbol in enumerate(_names(value))
    ]
    fix_dims(model, sizes)
    for value, axis, name in places:
        size = (value.shape or ())[axis]
        if name not in found or not isinstance(size, int) or size < 1:
            continue
        first, last = found[name]
        if not first <= size <= (math.inf if last is None else last):
            text = f"{first}:{'' if last is None else last}"
            raise UsageError(f"dim {name!r} is fixed to {size}, which its range {text} rules out")
    names = {name: _names(value)[axis] or name for value, axis, name in places}
    renamed: dict[str, Range] = {}
    for name, limits in found.items():
        new = names[name]
        renamed[new] = _intersection(new, limits, renamed.get(new, (0, None)))
    return renamed


def describe_range(name: str, found: Range) -> str:
    """A range as text: ``1 ≤ seq ≤ 512``."""
    first, last = found
    return f"{first} ≤ {name}" + ("" if last is None else f" ≤ {last}")


def _resolved(
    model: ir.Model, name: str, size: int | None, within: Range = (0, None)
) -> tuple[str | None, tuple[str, int] | None]:
    """The symbol of ``name``, or its input and axis if there is no symbol; neither for a fixed dim."""
    symbols = dict.fromkeys(
        symbol for value in model.graph.inputs for symbol in _names(value) if symbol is not None
    )
    if name in symbols:
        return name, None
    owner, at, axis_text = name.rpartition("@")
    value = next((value for value in model.graph.inputs if value.name == owner), None) if at else None
    axis = natural_or_none(axis_text)
    if value is None or value.shape is None or axis is None or axis >= len(value.shape):
        places = [*symbols, *_unnamed(model)]
        raise unknown("dynamic dim", name, places)
    dim = value.shape[axis]
    if isinstance(dim, int) and dim > 0:
        last = math.inf if within[1] is None else within[1]
        if (size is not None and dim != size) or not within[0] <= dim <= last:
            raise UsageError(f"dim {axis} of input {owner!r} is fixed to {dim}")
        return None, None
    symbol = _names(value)[axis]
    return (symbol, None) if symbol is not None else (None, (owner, axis))


def _names(value: ir.Value) -> list[str | None]:
    """The symbol of each dim of ``value``, if it is dynamic and has one."""
    if value.shape is None:
        return []
    return [
        None if isinstance(dim, int) or dim.value in ir.ANONYMOUS_DIMS else dim.value for dim in value.shape
    ]


def _unnamed(model: ir.Model) -> Iterator[str]:
    for value in model.graph.inputs:
        for axis, (symbol, dim) in enumerate(zip(_names(value), value.shape or (), strict=True)):
            if symbol is None and not (isinstance(dim, int) and dim > 0):
                yield ir.unnamed_dim(value.name, axis)
