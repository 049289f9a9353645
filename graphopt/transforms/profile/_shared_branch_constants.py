"""Constants that both branches of an If contain: store them once, in the graph of the If."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt import ir
from graphopt.context import Context

#: Minimum size of a shared constant, in bytes.
_SMALL = 256


def share_branch_constants(branches: Sequence[ir.Graph], around: ir.Graph, cx: Context) -> None:
    """Move constants that both ``branches``, or bodies in them, contain to the graph ``around``."""
    first, second = (_by_storage(branch) for branch in branches)
    for storage, values in first.items():
        others = second.get(storage, [])
        tensor = ir.constant_of(values[0])
        if not others or tensor is None or not cx.edit.supports_constant(around, tensor.dtype):
            continue
        shared = cx.edit.constant(around, tensor, values[0].name or "weight")
        for value in (*values, *others):
            _replace(value, shared, cx)


def _by_storage(branch: ir.Graph) -> dict[tuple[object, ...], list[ir.Value]]:
    found: dict[tuple[object, ...], list[ir.Value]] = {}
    for value in _constants(branch):
        tensor = ir.constant_of(value)
        if tensor is not None and tensor.nbytes >= _SMALL and not value.is_graph_output():
            found.setdefault(ir.storage_of(tensor), []).append(value)
    return found


def _constants(branch: ir.Graph) -> Iterator[ir.Value]:
    for graph in ir.with_bodies(branch):
        yield from ir.constants_in(graph)


def _replace(value: ir.Value, shared: ir.Value, cx: Context) -> None:
    producer = value.producer()
    cx.edit.replace(value, shared)
    if producer is not None:
        cx.edit.remove(producer)
    elif value.is_initializer():
        cx.edit.remove_initializer(value)
