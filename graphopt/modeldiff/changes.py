"""Changes between two snapshots, in the order of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal

from graphopt.ir.printer import Operand
from graphopt.modeldiff.snapshot import Ident, Key, Line, Path, Snapshot, owner_of
from graphopt.util.lazy_dataclass import dataclass

Mark = Literal["-", "+", "~", " "]


@dataclass
class Change:
    """A line that was removed (``-``), added (``+``) or changed (``~``), or reads replaced values.

    Attributes:
        mark: the kind of change; a space for a node that only reads replacements of values.
        old: the line before the change; ``None`` if it was added.
        new: the line after the change; ``None`` if it was removed.
        by: the rule or pass that made the change.
        instead: the printed replacements of removed values.
        redefined: whether another line defines its values now.
        unread: whether it was removed because it became unread.
        unread_lines: further lines that became unread because of this change.
        pairs: the operands of a changed line that differ, old and new.
        is_renamed: whether its values have other names now; a new name counts as a change.
        is_moved: whether it is in another graph now, and otherwise unchanged.
    """

    mark: Mark
    old: Line | None
    new: Line | None
    by: str | None = None
    instead: tuple[str, ...] = ()
    redefined: bool = False
    unread: bool = False
    unread_lines: list[Line] = field(default_factory=list)
    pairs: tuple[tuple[Operand | None, Operand | None], ...] = ()
    is_renamed: bool = False
    is_moved: bool = False

    @property
    def line(self) -> Line:
        """The line to print: the new one, unless it was removed."""
        line = self.new if self.new is not None else self.old
        assert line is not None
        return line


@dataclass(frozen=True)
class Matching:
    """The matching of lines and values of two snapshots.

    Attributes:
        lines: maps keys before the change to keys after it; missing keys were removed.
        values: maps values before the change to values after it, for values with different names.
        replaced: values whose readers read another value, or a constant, after the change.
        operators: maps operators before the change to operators after it, for functions with different names.
        is_one_model: whether both are states of one model, so that another name is a change.
        paths: the paths of bodies after the change.
    """

    lines: Mapping[Key, Key]
    values: Mapping[Ident, Ident] = field(default_factory=dict)
    replaced: Mapping[Ident, Operand] = field(default_factory=dict)
    operators: Mapping[str, str] = field(default_factory=dict)
    is_one_model: bool = False
    paths: Mapping[Path, Path] = field(default_factory=dict)


def by_key(before: Snapshot, after: Snapshot, replaced: Mapping[Ident, Operand] | None = None) -> Matching:
    """Match lines by their keys, and nodes by identity: the snapshots are two states of one model."""
    places = {line.node: line for line in after.lines.values() if line.node is not None}
    lines: dict[Key, Key] = {}
    values: dict[Ident, Ident] = {}
    for line in before.lines.values():
        same = places.get(line.node) if line.node is not None else None
        if same is not None and len(same.idents) == len(line.idents):
            lines[line.key] = same.key
            values |= {old: new for old, new in zip(line.idents, same.idents, strict=True) if old != new}
    partners = dict.fromkeys(lines.values())
    paths: dict[Path, Path] = {}
    for key in before.lines:
        if key[0] not in paths:
            paths[key[0]] = _new_path(key[0], paths, lines)
        twin = (paths[key[0]], *key[1:])
        if key not in lines and twin in after.lines and twin not in partners:
            lines[key] = twin
    return Matching(lines, values, replaced or {}, is_one_model=True, paths=paths)


def _new_path(path: Path, paths: Mapping[Path, Path], lines: Mapping[Key, Key]) -> Path:
    """The new path of the body at ``path``, whose node may have been renamed or moved."""
    if not path or path == (owner_of(path),):
        return path
    holder, _, attribute = path[-1].rpartition(" ")
    around = path[:-1]
    key = lines.get((around, "node", holder))
    if key is None:
        return (*paths.get(around, around), path[-1])
    return (*key[0], f"{key[2]} {attribute}")


def difference(before: Snapshot, after: Snapshot, matching: Matching) -> list[Change]:
    """The changes from ``before`` to ``after``; removed lines precede the lines that replace them."""
    return list(_Difference(before, after, matching))


class _Difference:
    def __init__(self, before: Snapshot, after: Snapshot, matching: Matching) -> None:
        self._before, self._after, self._matching = before, after, matching
        self._partners = {new: old for old, new in matching.lines.items()}
        self._places = {key: place for place, key in enumerate(before.lines)}

    def __iter__(self) -> Iterator[Change]:
        removed = iter([line for key, line in self._before.lines.items() if key not in self._matching.lines])
        pending = next(removed, None)
        added: list[Change] = []
        for key, line in self._after.lines.items():
            partner = self._partners.get(key)
            if partner is None:
                added.append(Change("+", None, line))
                continue
            while pending is not None and self._places[pending.key] < self._places[partner]:
                yield self._removed(pending)
                pending = next(removed, None)
            changes = self._compared(self._before.lines[partner], line)
            yield from (change for change in changes if change.mark == "-")
            yield from added
            added.clear()
            yield from (change for change in changes if change.mark != "-")
        while pending is not None:
            yield self._removed(pending)
            pending = next(removed, None)
        yield from added

    def _removed(self, line: Line) -> Change:
        replaced = self._matching.replaced
        instead = tuple(replaced[ident].text for ident in line.idents if ident in replaced)
        return Change("-", line, None, instead=instead)

    def _compared(self, old: Line, new: Line) -> Sequence[Change]:
        operands = tuple(self._renamed(old, operand) for operand in old.operands)
        is_renamed = self._matching.is_one_model and old.idents != new.idents
        operator = self._matching.operators.get(old.operator, old.operator)
        rest = operator, old.attributes, len(old.idents)
        if old.kind == "input" and not self._matching.is_one_model and _declared(old) != _declared(new):
            return [Change("-", old, None, redefined=True), Change("+", None, new, redefined=True)]
        same_rest = rest == (new.operator, new.attributes, len(new.idents)) and not is_renamed
        if same_rest and _equal(operands, new.operands):
            is_moved = self._matching.paths.get(old.path, new.path) != new.path
            return [Change("~", old, new, is_moved=True)] if is_moved else ()
        substituted = tuple(self._substituted(old, operand) for operand in old.operands)
        if same_rest and _equal(tuple(self._renamed(old, item) for item in substituted), new.operands):
            return [Change(" ", old, new, pairs=_pairs(old.operands, operands, new.operands))]
        if old.kind == "node" and old.operator == new.operator:
            pairs = _pairs(old.operands, operands, new.operands)
            if len(pairs) <= max(3, len(new.operands) // 2):
                return [Change("~", old, new, pairs=pairs, is_renamed=is_renamed)]
        elif old.kind in ("format", "opset", "producer", "begin"):
            return [Change("~", old, new)]
        return [Change("-", old, None, redefined=True), Change("+", None, new, redefined=True)]

    def _renamed(self, line: Line, operand: Operand) -> Operand:
        """The operand of the new line that corresponds to ``operand`` of the old line."""
        if operand.name is None:
            return operand
        owner = owner_of(line.path)
        other = self._matching.values.get((owner, operand.name))
        return operand if other is None else self._after.shown.get(other, Operand("", "\0" + operand.name))

    def _substituted(self, line: Line, operand: Operand) -> Operand:
        if operand.name is None:
            return operand
        return self._matching.replaced.get((owner_of(line.path), operand.name), operand)


def _declared(line: Line) -> tuple[object, ...]:
    """The type of an input, and its name if callers use it."""
    return tuple(type_ for _, type_ in line.results) if line.path else line.results


def idents_read(line: Line) -> list[Ident]:
    """The values that a line reads."""
    owner = owner_of(line.path)
    return [(owner, operand.name) for operand in line.operands if operand.name is not None]


def _equal(some: tuple[Operand, ...], others: tuple[Operand, ...]) -> bool:
    return len(some) == len(others) and all(map(_is_same, some, others))


def _is_same(one: Operand, other: Operand) -> bool:
    return one.name == other.name and (one.name is not None or one.text == other.text)


def _pairs(
    old: tuple[Operand, ...], renamed: tuple[Operand, ...], new: tuple[Operand, ...]
) -> tuple[tuple[Operand | None, Operand | None], ...]:
    """Pairs of different operands by position; ``None`` for a missing operand."""
    pairs: list[tuple[Operand | None, Operand | None]] = []
    for place in range(max(len(old), len(new))):
        before = old[place] if place < len(old) else None
        after = new[place] if place < len(new) else None
        if before is None or after is None or not _is_same(renamed[place], after):
            pairs.append((before, after))
    return tuple(pairs)
