"""The cause of each change, and the nodes that were removed because they became unread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphopt import ir
from graphopt.modeldiff.changes import Change, idents_read
from graphopt.modeldiff.snapshot import Ident, Key, Line, Snapshot


def attribute(
    changes: list[Change], before: Snapshot, rewritten: Mapping[ir.Node, str], default: str
) -> list[Change]:
    """Record the rule or pass of each change, and group removals of unread nodes under their cause.

    Args:
        rewritten: the rule or pass that rewrote a node.
        default: the pass, for changes without a rule.

    Returns:
        The changes, without removals that are now part of another change.
    """
    by_line: dict[Key, Change] = {}
    for change in changes:
        change.by = _author(change, rewritten, default)
        if change.old is not None and (change.mark != "+"):
            by_line[change.old.key] = change
    readers = _readers(before.lines.values())
    causes: dict[Key, Change] = {}
    for line in reversed(before.lines.values()):  # visits readers before their operands
        removal = by_line.get(line.key)
        if removal is None or not _is_consequence(removal, rewritten):
            continue
        cause = _cause(line, readers, by_line, causes)
        removal.unread = True
        if cause is not None:
            causes[line.key] = cause
            removal.by = cause.by
    kept = []
    for change in changes:
        old = change.old if change.mark == "-" else None
        cause = None if old is None else causes.get(old.key)
        if old is None or cause is None:
            kept.append(change)
        else:
            cause.unread_lines.append(old)
    return kept


def _author(change: Change, rewritten: Mapping[ir.Node, str], default: str) -> str | None:
    old = None if change.old is None or change.old.node is None else rewritten.get(change.old.node)
    if change.mark == "-":
        return old or default
    new = None if change.new is None or change.new.node is None else change.new.node
    if change.mark == " ":
        return None
    if new is None:
        return default
    is_new = change.old is None or change.old.node is not new
    return (ir.created_by(new) if is_new else None) or old or default


def _is_consequence(change: Change, rewritten: Mapping[ir.Node, str]) -> bool:
    """Whether the node was removed, but neither rewritten nor replaced."""
    line = change.old
    if change.mark != "-" or line is None or line.node is None or change.instead or change.redefined:
        return False
    return line.node not in rewritten


def _readers(lines: Iterable[Line]) -> dict[Ident, list[Line]]:
    readers: dict[Ident, list[Line]] = {}
    for line in lines:
        for ident in idents_read(line) if line.kind == "node" else ():
            readers.setdefault(ident, []).append(line)
    return readers


def _cause(
    line: Line,
    readers: Mapping[Ident, list[Line]],
    by_line: Mapping[Key, Change],
    causes: Mapping[Key, Change],
) -> Change | None:
    for ident in line.idents:
        for reader in readers.get(ident, ()):
            found = causes.get(reader.key) or by_line.get(reader.key)
            if found is not None and found.mark != " ":
                return found
    return None
