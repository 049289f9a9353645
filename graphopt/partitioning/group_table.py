"""The table of the groups of a model, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from graphopt.util.text_tables import Block, Table, counted, human_bytes

if TYPE_CHECKING:
    from graphopt.analysis.symbolic import Dim
    from graphopt.partitioning.group_report import Group, Partitioned, Port

#: Number of groups shown unless all are requested, and of operators of each.
_GROUPS, _OPS = 20, 5
#: Maximum length of a printed symbolic expression, in characters.
_EXPRESSION = 24


def group_blocks(found: Partitioned, *, everything: bool = False) -> Iterator[Block]:
    """The table of groups, the names of inlined functions, and the number of grouped nodes.

    Args:
        everything: list all groups.
    """
    saves = any(group.saved is not None for group in found.groups)
    more = (["saved"], ">") if saves else ([], "")
    heads = ["group", "where", "nodes", "operators", "in", "out", "bytes in", "bytes out", *more[0]]
    table = Table(heads, "<<><>>>>" + more[1])
    shown = found.groups if everything else found.groups[:_GROUPS]
    for group in shown:
        ends = [group.inputs, group.outputs]
        saved = [_size(group.saved)] if saves else []
        sizes = (*map(len, ends), *map(_bytes, ends), *saved)
        table.add(group.name, group.where, len(group.nodes), _ops(group), *sizes)
    if found.groups:
        yield table
    if len(shown) < len(found.groups):
        yield f"  and {counted(len(found.groups) - len(shown), 'group')} more (-v lists all)"
    if found.inlined:
        yield f"  inlined   {', '.join(found.inlined)}, because there are no groups otherwise"
    inside = sum(reason.group is not None for reason in found.reasons)
    yield f"  {counted(len(found.groups), 'group')} with {inside:,} of {counted(len(found.reasons), 'node')}"


def _ops(group: Group) -> str:
    ops = [f"{op} × {count}" if count > 1 else op for op, count in group.ops.items()]
    return ", ".join(ops[:_OPS]) + (" …" if len(ops) > _OPS else "")


def _bytes(ports: Sequence[Port]) -> str:
    """The total size of ``ports``, where known."""
    total: Dim = 0
    for port in ports:
        if port.bytes is None:
            return "?"
        total = total + port.bytes
    return _size(total)


def _size(size: Dim | None) -> str:
    """A size in bytes, which may be a symbolic expression."""
    if isinstance(size, int):
        return human_bytes(size)
    return "?" if size is None or len(text := str(size)) > _EXPRESSION else text
