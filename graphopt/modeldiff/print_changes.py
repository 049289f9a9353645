"""Changes as text: one line each, at most :data:`WIDTH` columns wide except in the full form."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from graphopt import ir
from graphopt.ir.print_values import attribute_text
from graphopt.ir.printer import Operand, typed
from graphopt.modeldiff.changes import Change
from graphopt.modeldiff.snapshot import Line, Path
from graphopt.util.text_tables import escaped, text_width

#: Columns of a printed line.
WIDTH = 160
_HEADING_WIDTH = 100
#: Column of the rule's name, unless the line is longer.
_NOTE_COLUMN = 66
#: Maximum columns of a line that lists constants or unread nodes, without the rule.
_LIST_WIDTH = 110
#: Maximum number of consecutive nodes, shown as context, that only read another value.
_CONTEXT = 3
#: Minimum average number of changes listed below each heading of a scope.
_LINES_A_SCOPE = 8
#: The opset assumed for nodes without a recorded version, to find the definitions of their operators.
_NEWEST = 99
_INDENT = "  "


class Printed(NamedTuple):
    """A line to show.

    Attributes:
        mark: ``+``, ``-``, ``~`` or a space; ``@`` for a scope, ``─`` for a heading.
        note: the rule or pass that made the change.
    """

    mark: str
    text: str
    note: str = ""

    def __str__(self) -> str:
        if self.mark in "@─":
            return self.text
        body = f"{self.mark} {self.text}"
        if not self.note:
            return body.rstrip()
        return f"{body}{' ' * max(2, _NOTE_COLUMN - text_width(body))}{self.note}"


def printed(line: Line, width: int | None = None) -> str:
    """The text of ``line`` in a printed model, without whole names.

    Args:
        width: the maximum columns; operands, attributes and types that exceed it are omitted.
    """
    indent = _INDENT * line.depth
    if line.kind != "node":
        results = ", ".join(typed(*result) for result in line.results)
        return _truncated(escaped(f"{indent}{results}{line.operator}"), width)
    operands = [operand.text for operand in line.operands]
    attributes = [f"{name}={text}" for name, text in line.attributes]
    arguments = [*operands, *attributes]
    comment = line.comment
    return _node(line, indent, arguments, dict.fromkeys(range(min(1, len(arguments)))), comment, width)


def full(line: Line) -> str:
    """``line`` in full, with the whole names of shortened ones."""
    hidden = [
        name for name in dict.fromkeys(line.names) if name and f"%{name}" not in (r[0] for r in line.results)
    ]
    if line.kind != "node":
        hidden = [name for name in hidden if not line.results[0][0].endswith(f"%{name}")]
    text = printed(line).removesuffix(line.comment)
    quoted = " ".join(json.dumps(name, ensure_ascii=False)[1:-1] for name in hidden)
    return f"{text}  # {quoted}" if quoted else text


def _changed_line(change: Change, width: int | None) -> str:
    """A line that both states of the model have, with ``old → new`` for each difference."""
    old, new = change.old, change.new
    assert old is not None and new is not None
    indent = _INDENT * new.depth
    if new.kind != "node":
        name = new.results[0][0] if new.results else ""
        return _truncated(escaped(f"{indent}{name}{old.operator} → {new.operator.strip()}"), width)
    arguments: list[str] = []
    kept: dict[int, None] = {}
    pairs = list(change.pairs)
    for place in range(max(len(old.operands), len(new.operands))):
        after = new.operands[place] if place < len(new.operands) else None
        before = old.operands[place] if place < len(old.operands) else None
        if (before, after) in pairs:
            kept[len(arguments)] = None
            arguments.append(f"{_text(before)} → {_text(after)}")
        else:
            arguments.append(_text(after))
    was, now = dict(old.attributes), dict(new.attributes)
    skipped = False
    for name in sorted(was | now):
        if was.get(name) == now.get(name) or (width is not None and _is_default(new, name, was, now)):
            skipped = skipped or width is not None
            arguments += [] if width is not None else [f"{name}={now[name]}"]
        else:
            kept[len(arguments)] = None
            arguments.append(f"{name}={was.get(name, 'none')} → {now.get(name, 'none')}")
    if skipped:
        arguments.append("…")
    shown = replace(new, results=_renamed(old, new)) if change.is_renamed else new
    return _node(shown, indent, arguments, kept, "", width)


def _renamed(old: Line, new: Line) -> tuple[tuple[str, str | None], ...]:
    if len(old.results) != len(new.results):
        return new.results
    names = zip(old.results, new.results, strict=True)
    return tuple((now if now == was else f"{was} → {now}", type_) for (was, _), (now, type_) in names)


def _is_default(line: Line, name: str, was: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether an attribute is the operator's default on one side, and missing on the other."""
    if line.node is None or (name in was) == (name in now):
        return False
    schema = ir.operator_schema(line.node.domain, line.node.op_type, line.node.version or _NEWEST)
    known = schema.attributes.get(name) if schema is not None else None
    if known is None or not known.default_value.type:
        return False
    text = attribute_text(ir.deserialize_attribute(known.default_value))
    return text == was.get(name, now.get(name))


def _text(operand: Operand | None) -> str:
    return "none" if operand is None else operand.text


def _node(
    line: Line, indent: str, arguments: Sequence[str], kept: dict[int, None], comment: str, width: int | None
) -> str:
    """The line of a node; if it is too wide, types and some arguments that are not ``kept`` are omitted."""
    results = ", ".join(typed(*result) for result in line.results)
    text = escaped(f"{indent}{results} = {line.operator}({', '.join(arguments)}){comment}")
    if width is None or text_width(text) <= width:
        return text
    dropped = [place for place in range(len(arguments)) if place not in kept]
    while dropped:
        dropped.pop()
        rest = [argument for place, argument in enumerate(arguments) if place in kept or place in dropped]
        shown = escaped(f"{indent}{results} = {line.operator}({', '.join([*rest, '…'])})")
        if text_width(shown) <= width:
            return shown
    untyped = ", ".join(name for name, _ in line.results[:4]) + (", …" if len(line.results) > 4 else "")
    few = ", ".join([*(arguments[place] for place in list(kept)[:3]), "…"])
    return _truncated(escaped(f"{indent}{untyped} = {line.operator}({few})"), width)


def _truncated(text: str, width: int | None) -> str:
    if width is None or text_width(text) <= width:
        return text
    while text_width(text) > width - 1:
        text = text[:-1]
    return text + "…"


def heading(*parts: str) -> Printed:
    """A heading of 100 columns, or more for long text."""
    text = f"── {' ─ '.join(part for part in parts if part)} "
    return Printed("─", text + "─" * max(2, _HEADING_WIDTH - text_width(text)))


def print_changes(changes: Sequence[Change], *, is_full: bool = False) -> Iterator[Printed]:
    """The lines of ``changes``, below the functions, bodies and modules that contain them.

    Args:
        is_full: print all operands, attributes and types, names of any length, and all nodes that read
            another value. Each constant, and each node that became unread, is on a separate line.
    """
    shown = list(changes) if is_full else _without_context(changes)
    depth = _scope_depth(shown)
    whole = {(change.mark, change.line.path) for change in shown if change.line.kind == "begin"}
    if not is_full:  # indentation shows the end of a body, and its readers show the outputs
        shown = [
            change
            for change in shown
            if change.line.kind not in ("end", "output") or (change.mark, change.line.path) not in whole
        ]
    current: tuple[Path, Path] = ((), ())
    for alike, group in itertools.groupby(shown, lambda change: None if is_full else _alike(change)):
        together = list(group)
        for index, change in enumerate(together):
            line = change.line
            path = line.path
            while path and (change.mark, path) in whole:
                path = path[:-1]
            modules = line.scope[:depth] or current[1]
            if (path, modules) != current:
                current = path, modules
                yield Printed("@", f"  @ {_scope(path, modules)}")
            if alike is None or (len(together) == 1 and not change.is_moved):
                yield from _lines(change, is_full)
            elif index == 0:
                word = "moved here: " if change.is_moved else "constant "
                items = [item.line.name if change.is_moved else _constant(item) for item in together]
                yield from _listed(change.mark, items, f"{_INDENT * line.depth}{word}", _note(change))


def _alike(change: Change) -> tuple[object, ...] | None:
    """A key that is equal for constants or moved nodes listed together; ``None`` for all other lines."""
    line = change.line
    if change.is_moved:
        return change.by, line.path
    is_constant = line.kind == "constant" or (line.kind == "node" and line.operator == "Constant")
    if not is_constant or change.mark not in "+-" or change.unread_lines:
        return None
    return change.mark, change.by, line.path


def _constant(change: Change) -> str:
    line = change.line
    contents = line.operator if line.kind == "constant" else f": {dict(line.attributes).get('value', '…')}"
    return f"{line.name.removeprefix('constant ')}{contents}" + "".join(
        f" → {other}" for other in change.instead
    )


def _scope(path: Path, modules: Path) -> str:
    parts = [*path, *([".".join(modules)] if modules else [])]
    return _truncated(escaped(", ".join(parts)) or "(top level)", WIDTH - 4)


def _scope_depth(changes: Sequence[Change]) -> int:
    """The number of levels of modules to name, so that few lines contain names."""
    scopes = [change.line.scope for change in changes if change.line.scope]
    depth = max(map(len, scopes), default=0)
    while depth:
        heads = [scope[:depth] for scope in scopes]
        switches = sum(one != other for one, other in itertools.pairwise(heads))
        if switches * _LINES_A_SCOPE <= len(changes):
            break
        depth -= 1
    return depth


def _without_context(changes: Sequence[Change]) -> list[Change]:
    """Limit the unchanged lines to the first reader of each value, and to a few readers in succession."""
    kept: list[Change] = []
    known: dict[Operand | None, None] = {}
    for change in changes:
        if change.mark == " ":
            news = [after for _, after in change.pairs if after is None or after.name is not None]
            row = [earlier.mark for earlier in kept[-_CONTEXT:]]
            if row == [" "] * _CONTEXT or all(new in known for new in news):
                continue
            known |= dict.fromkeys(news)
        kept.append(change)
    return kept


def _lines(change: Change, is_full: bool) -> Iterator[Printed]:
    note = _note(change)
    width = None if is_full else WIDTH - 2 - (len(note) + 2 if note else 0)
    if change.mark in "~ " and change.old is not None and change.new is not None:
        if is_full:
            yield Printed("-", full(change.old))
            yield Printed("+", full(change.new), note)
        else:
            yield Printed(change.mark, _changed_line(change, width), note)
    else:
        suffix = "" if not change.instead else f"  → {', '.join(change.instead)}"
        room = None if width is None else width - text_width(suffix)
        text = full(change.line) if is_full else printed(change.line, room)
        yield Printed(change.mark, text + suffix, note)
    yield from _unread(change, is_full)


def _note(change: Change, unread: bool = False) -> str:
    if change.by is None:
        return ""
    return f"unread, by {change.by}" if unread or change.unread else f"by {change.by}"


def _unread(change: Change, is_full: bool) -> Iterator[Printed]:
    """The nodes that became unread because of ``change``."""
    lines, note = change.unread_lines, _note(change, unread=True)
    if is_full or len(lines) == 1:
        width = None if is_full else WIDTH - 4 - len(note)
        for line in lines:
            yield Printed("-", full(line) if is_full else printed(line, width), note)
        return
    items = [f"{line.name} = {line.operator}" for line in lines]
    yield from _listed("-", items, _INDENT * lines[0].depth if lines else "", note)


def _listed(mark: str, items: Sequence[str], indent: str, note: str) -> Iterator[Printed]:
    """``items`` in as few lines as possible."""
    row = ""
    for item in items:
        if row and text_width(row) + text_width(item) > _LIST_WIDTH:
            yield Printed(mark, f"{row},", note)
            row = ""
        row = f"{row}, {item}" if row else f"{indent}{item}"
    if row:
        yield Printed(mark, row, note)


def change_dicts(change: Change) -> Iterator[dict[str, Any]]:
    """``change`` for programs, and a change for each line that became unread because of it."""
    kind = {"-": "removed", "+": "added", "~": "changed", " ": "reads-replacement"}[change.mark]
    line = change.line
    yield {
        "kind": kind,
        "line": line.kind,
        "graph": list(line.path),
        "name": (line.names or (line.key[2],))[0],
        "operator": line.operator if line.kind == "node" else None,
        "by": change.by,
        "unread": change.unread,
        "before": None if change.old is None else full(change.old).strip(),
        "after": None if change.new is None else full(change.new).strip(),
        "replaced_by": list(change.instead),
    }
    for item in change.unread_lines:
        yield from change_dicts(Change("-", item, None, change.by, unread=True))
