"""dump: the model between passes, or what each pass changed of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from graphopt import ir, publish
from graphopt.context import Action, Context
from graphopt.errors import unwritable
from graphopt.instrument.base import Watcher
from graphopt.instrument.dot import to_dot
from graphopt.instrument.snapshot import Change, Line, Snapshot, difference, known_types
from graphopt.passes.base import Pass
from graphopt.passes.pipeline import Record
from graphopt.tables import counted, text_width

Format = Literal["text", "onnx", "dot"]

_SUFFIXES = {"text": "txt", "onnx": "onnx", "dot": "dot"}
#: Nodes that only read another value are context: so many are shown in a row.
_CONTEXT = 3
_NOTE_COLUMN = 66


@dataclass(frozen=True)
class What:
    """What is dumped.

    Attributes:
        format: text, ONNX models, or graphs for Graphviz.
        changed: only passes that changed something, and of text only the lines that they changed.
        diff: text with the lines that went and those that came.
        filter: of text only lines that this matches, in the line or in the node's name.
    """

    format: Format = "text"
    changed: bool = False
    diff: bool = False
    filter: re.Pattern[str] | None = None

    def admits(self, line: Line) -> bool:
        """Whether the filter lets ``line`` pass."""
        if self.filter is None:
            return True
        name = line.node.name if line.node is not None else None
        return bool(self.filter.search(line.text) or (name and self.filter.search(name)))


class Dump(Watcher):
    """Dumps after each pass.

    Args:
        what: what is dumped.
        show: called with each line, where nothing is written to files.
        folder: if given, it is made when needed, and one file a pass goes there, called
            ``NNN-after-PASS.*``; ``.onnx`` files load again. ``000-input.*`` is the model before the
            first pass.
    """

    def __init__(
        self, what: What | None = None, show: Callable[[str], None] = print, folder: Path | None = None
    ) -> None:
        self.what = what or What()
        self._show = show
        self._folder = folder
        self._before: Snapshot | None = None
        self._replaced: dict[ir.Value, ir.Value] = {}
        self._by: dict[str, str] = {}
        self._listens = False
        #: Files that were written, and lines that were shown or written, headings left out.
        self.files, self.lines = 0, 0

    def model(self, model: ir.Model, cx: Context) -> None:
        """Dump ``model`` as it is, under the name ``model``."""
        self._put("model", "", model, self._snapshot(model, cx), cx)

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Keep what the model looks like."""
        if not self._listens:
            cx.edit.listeners.append(self)
            self._listens = True
            if not self.what.changed:
                self._put("000-input", heading_of("000 input"), model, self._snapshot(model, cx), cx)
        self._before = self._snapshot(model, cx)
        self._replaced.clear()
        self._by.clear()

    def after_pass(self, pass_: Pass, record: Record, model: ir.Model, cx: Context) -> None:
        """Dump the model, or what changed."""
        if self.what.changed and not record.changes:
            return
        after = self._snapshot(model, cx)
        self._put(f"{record.index:03}-after-{record.name}", heading(record), model, after, cx)

    def rewrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        """Remember who rewrote the node."""
        self._by[action.node] = action.owner

    def replaced(self, old: ir.Value, new: ir.Value) -> None:
        """Told by the editor: what read ``old`` now reads ``new``."""
        self._replaced[old] = new

    # Writing ------------------------------------------------------------------------------

    def _snapshot(self, model: ir.Model, cx: Context) -> Snapshot | None:
        return Snapshot(model, cx) if self.what.format == "text" else None

    def _put(self, name: str, title: str, model: ir.Model, after: Snapshot | None, cx: Context) -> None:
        if self.what.format == "onnx":
            assert self._folder is not None, "ONNX models go to files"
            self._make(self._folder)
            ir.save(model, self._folder / f"{name}.onnx")
            self.files += 1
            return
        lines = to_dot(model, known_types(cx)).splitlines() if after is None else list(self._text(after))
        self.lines += len(lines)
        if self._folder is not None:
            self.files += 1
            self._make(self._folder)
            is_diff = self.what.diff and self._before is not None
            self._write(self._folder / f"{name}.{'diff' if is_diff else _SUFFIXES[self.what.format]}", lines)
        elif lines or self.what.filter is None:
            for line in [title, *lines] if title else lines:
                self._show(line)

    @staticmethod
    def _make(folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error

    @staticmethod
    def _write(path: Path, lines: list[str]) -> None:
        publish.write(path, "".join(f"{line}\n" for line in lines))

    def _text(self, after: Snapshot) -> Iterator[str]:
        before = self._before
        if before is None or not (self.what.changed or self.what.diff):
            yield from (line.text for line in after.lines.values() if self.what.admits(line))
            return
        renamed = self._renamed(before, after)
        changes = [change for change in difference(before, after, renamed) if self.what.admits(change.line)]
        if self.what.diff:
            yield from _by_scope(self._diff(changes, renamed))
        else:
            new = [change.line for change in changes if change.kind == "+"]
            yield from _by_scope((line.scope, line.text) for line in new)

    def _renamed(self, before: Snapshot, after: Snapshot) -> dict[str, str]:
        """How values that were replaced were shown, and how what is read instead of them is."""
        final: dict[ir.Value, ir.Value] = {}
        for old, new in reversed(self._replaced.items()):  # what stands for it may have been replaced later
            final[old] = final.get(new, new)
        return {
            before.names[old]: after.names[new]
            for old, new in final.items()
            if old in before.names and new in after.names and before.names[old] != after.names[new]
        }

    def _diff(self, changes: list[Change], renamed: dict[str, str]) -> Iterator[tuple[str, str]]:
        """Scope and text of each line of a diff."""
        told: dict[str, None] = {}
        context = 0
        for change in changes:
            line = change.line
            context = context + 1 if change.kind == " " else 0
            if context > _CONTEXT:
                continue
            yield line.scope, f"{change.kind} {line.text}{self._note(change)}"
            if change.kind == "-":
                indent = line.text[: len(line.text) - len(line.text.lstrip())]
                for name in _defined(line):
                    if name in renamed and name not in told:
                        told[name] = None
                        yield line.scope, f"+ {indent}(uses of {name} now read {renamed[name]})"

    def _note(self, change: Change) -> str:
        """Who made the change, in a column of its own."""
        node, by = change.line.node, None
        if node is not None and change.kind == "+":
            by = ir.made_by(node)
        elif node is not None and change.kind == "-":
            by = self._by.get(ir.label(node))
        return "" if by is None else f"{' ' * max(2, _NOTE_COLUMN - text_width(change.line.text))}by {by}"


def heading(record: Record) -> str:
    """``── 003 peephole ─ 38 rewrites ─ compose-transposes ×12, … ──────``."""
    parts = [f"{record.index:03} {record.text}"]
    rewrites = sum(record.rewrites.values())
    if rewrites and record.does:
        parts.append(f"{rewrites:,} {record.does}")
    elif rewrites:
        parts += [counted(rewrites, "rewrite"), record.told()]
    elif record.changes:
        parts.append(counted(sum(record.changes.values()), "change"))
    else:
        parts.append("nothing changed")
    return heading_of(*parts)


def heading_of(*parts: str, width: int = 100) -> str:
    """A line of ``width`` columns, or as long as it takes."""
    text = f"── {' ─ '.join(parts)} "
    return text + "─" * max(2, width - text_width(text))


def _by_scope(lines: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Lines under the names of their modules."""
    current = ""
    for scope, text in lines:
        if scope != current:
            current = scope
            yield f"  @ {scope.replace('/', '.') or '(top level)'}"
        yield text


def _defined(line: Line) -> list[str]:
    """The names that a line defines, with their ``%``."""
    left = line.bare.partition(" = ")[0]
    return [part.strip() for part in left.split(",")]
