"""dump: the model between passes, or the changes of each pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from graphopt import ir, publish
from graphopt.context import Action, Context
from graphopt.errors import unwritable
from graphopt.instrument.dump_formats import SUFFIXES, Format
from graphopt.instrument.dump_text import Stage, diffs, summary
from graphopt.instrument.graphviz import to_dot
from graphopt.instrument.inferred_type_text import known_types
from graphopt.modeldiff.change_causes import attribute
from graphopt.modeldiff.changes import Change, by_key, difference
from graphopt.modeldiff.print_changes import Printed, full, heading, print_changes, printed
from graphopt.modeldiff.snapshot import Ident, Line, Snapshot
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pass_records import PassRecord
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted


@dataclass(frozen=True)
class DumpOptions:
    """Content and format of a dump.

    Attributes:
        format: text, ONNX models, or Graphviz graphs.
        changed: only passes with changes and, in text, only the changed lines.
        diff: removed, added and changed lines (text only).
        full: lines and names without shortening.
        filter: only lines that match, in their text or in the names of the node and its values (text only).
    """

    format: Format = "text"
    changed: bool = False
    diff: bool = False
    full: bool = False
    filter: re.Pattern[str] | None = None

    def admits(self, line: Line) -> bool:
        """Whether the filter matches ``line``."""
        return self.filter is None or bool(self.filter.search(full(line)))

    def filtered(self, changes: list[Change]) -> Iterator[Change]:
        """The ``changes`` that the filter matches."""
        for change in changes:
            unread = [line for line in change.unread_lines if self.admits(line)]
            if any(self.admits(line) for line in (change.old, change.new) if line is not None):
                yield replace(change, unread_lines=unread)
            else:
                yield from (Change("-", line, None, change.by, unread=True) for line in unread)


class Dump(PassInstrumentation):
    """Dumps after each pass.

    Args:
        show: receives each line, unless a folder is given.
        folder: destination of one file per pass, ``NNN-after-PASS.*``, created on demand; ``.onnx`` files can
            be loaded again. ``000-input.*`` is the model before the first pass.
    """

    def __init__(
        self,
        options: DumpOptions | None = None,
        show: Callable[[Printed], None] = print,
        folder: Path | None = None,
    ) -> None:
        self.options = options or DumpOptions()
        self._show = show
        self._folder = folder
        #: The last snapshot, and the editor's epoch that it describes.
        self._before: Snapshot | None = None
        self._epoch = -1
        self._replaced: dict[ir.Value, ir.Value] = {}
        self._rewritten: dict[ir.Node, str] = {}
        self._listens = False
        self._nodes = 0
        self._records: list[PassRecord] = []
        #: The changes of each pass, for diffs.
        self.stages: list[Stage] = []
        #: Number of files written, and of lines shown or written, without headings.
        self.files, self.lines = 0, 0

    def model(self, model: ir.Model, cx: Context) -> None:
        """Dump ``model`` unchanged, under the name ``model``."""
        self._dump_model("model", None, model, cx)

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Create a snapshot of the model, unless the last one is still valid."""
        if not self._listens:
            cx.edit.listeners.append(self)
            self._listens = True
            self._nodes = ir.count_nodes(model.graph)
            if not self.options.changed:
                self._dump_model("000-input", heading("input", counted(self._nodes, "node")), model, cx)
        if self._compares and self._epoch != cx.edit.epoch:
            self._before, self._epoch = self._snapshot(model, cx), cx.edit.epoch
        self._replaced.clear()
        self._rewritten.clear()

    def after_pass(self, pass_: Pass, record: PassRecord, model: ir.Model, cx: Context) -> None:
        """Dump the model, or its changes."""
        self._records.append(record)
        stage = Stage(record, self._nodes)
        self._nodes = record.nodes
        if self.options.changed and not record.changes:
            return
        name = f"{record.index:03}-after-{record.name}"
        if self._before is None:
            self._dump_model(name, stage.heading(0), model, cx)
            return
        if record.changes:
            before, self._before, self._epoch = self._before, self._snapshot(model, cx), cx.edit.epoch
            self._compare(stage, before, self._before)
        self.stages.append(stage)
        if self._folder is not None:
            suffix = "diff" if self.options.diff else "txt"
            self._write(f"{name}.{suffix}", [str(line) for line in self._lines_of(stage, is_full=True)])

    def finish(self) -> None:
        """Show a summary, and the changes of each pass."""
        if not self._compares or self._folder is not None:
            return
        if self.options.diff:
            options = self.options
            lines = list(diffs(self.stages, self._records, is_full=options.full, all_=not options.changed))
            self.lines += sum(line.mark in "+-~ " for line in lines)
            if not self.lines and self.options.filter is not None:
                return
            lines = [*summary(self.stages, self._records), *lines]
        else:
            lines = []
            for stage in self.stages:
                shown = self._lines_of(stage, is_full=self.options.full)
                self.lines += len(shown)
                lines += [stage.heading(0), *shown] if shown else []
        for line in lines:
            self._show(line)

    def rewrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        """Record the owner of the rewrite."""
        self._rewritten[root] = action.owner

    def replaced(self, old: ir.Value, new: ir.Value) -> None:
        """The uses of ``old`` were replaced by ``new``."""
        self._replaced[old] = new

    # Comparing ----------------------------------------------------------------------------

    @property
    def _compares(self) -> bool:
        return self.options.format == "text" and (self.options.changed or self.options.diff)

    def _snapshot(self, model: ir.Model, cx: Context) -> Snapshot:
        return Snapshot(model, known_types(cx), earlier=self._before)

    def _compare(self, stage: Stage, before: Snapshot, after: Snapshot) -> None:
        final: dict[Ident, Ident] = {}
        for old, new in reversed(self._replaced.items()):  # reversed, to follow chains of replacements
            here, there = before.idents.get(old), after.idents.get(new)
            if here is not None and there is None:
                there = final.get(before.idents.get(new, here))
            if here is not None and there is not None:
                final[here] = there
        replaced = {
            old: after.shown[new] for old, new in final.items() if after.shown[new] != before.shown[old]
        }
        changes = difference(before, after, by_key(before, after, replaced))
        changes = attribute(changes, before, self._rewritten, stage.record.name)
        stage.changes = list(self.options.filtered(changes))
        removed = [ident for ident in before.inlined if ident not in after.shown]
        inlined = after.inlined
        pooled = [ident for ident in removed if inlined.get(final.get(ident, ident)) == before.inlined[ident]]
        stage.pooled = len(pooled), len(dict.fromkeys(final[ident] for ident in pooled))
        stage.unread = len(removed) - len(pooled)

    def _lines_of(self, stage: Stage, *, is_full: bool) -> list[Printed]:
        if self.options.diff:
            return list(print_changes(stage.changes, is_full=is_full))
        changed = [change for change in stage.changes if change.new is not None and change.mark != " "]
        lines = print_changes([Change("+", None, change.new) for change in changed], is_full=is_full)
        return [line._replace(mark=" ") if line.mark == "+" else line for line in lines]

    # Writing ------------------------------------------------------------------------------

    def _dump_model(self, name: str, title: Printed | None, model: ir.Model, cx: Context) -> None:
        """Dump all of ``model``."""
        if self.options.format == "onnx":
            ir.save(model, self._new_file(f"{name}.onnx"))
            return
        lines = list(self._whole(model, cx))
        if self._folder is not None:
            self._write(f"{name}{SUFFIXES[self.options.format][0]}", lines)
            return
        self.lines += len(lines)
        if title is not None and (lines or self.options.filter is None):
            self._show(title)
        for line in lines:
            self._show(Printed("@", line))

    def _whole(self, model: ir.Model, cx: Context) -> Iterator[str]:
        if self.options.format == "dot":
            yield from to_dot(model, known_types(cx)).splitlines()
        elif self.options.filter is None:
            is_full = self.options.full or self._folder is not None
            yield from ir.print_model(model, types=known_types(cx), full=is_full).splitlines()
        else:
            lines = self._snapshot(model, cx).lines.values()
            show = full if self.options.full or self._folder is not None else printed
            yield from (show(line) for line in lines if self.options.admits(line))

    def _new_file(self, name: str) -> Path:
        assert self._folder is not None, "ONNX models are written to files"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self._folder, error) from error
        self.files += 1
        return self._folder / name

    def _write(self, name: str, lines: list[str]) -> None:
        publish.write(self._new_file(name), "".join(f"{line}\n" for line in lines))
        self.lines += len(lines)
