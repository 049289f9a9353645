"""The output of a command: one object, printed as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt import publish
from graphopt.diagnostics.record import Record
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Block, human_bytes

if TYPE_CHECKING:
    from graphopt.cli.output.console import Console


@dataclass(frozen=True)
class Output:
    """The output of a command.

    Attributes:
        data: the value for ``--json``.
        text: lines and tables; a generator runs only if they are printed.
        files: sizes in bytes of the written files, which JSON and text list. If there are files, they are the
            result, and ``-q`` omits the text. ``None`` for a command that writes no model.
        status: the exit status.
        notes: lines on stderr below the text, which ``-q`` omits.
        record: the hints and counters of the command, if it shows them: hints are notes, and both are JSON.
        is_verbose: whether counters are notes, too.
        report_file: the file that receives the value for ``--json``, if one is requested.
    """

    data: Any
    text: Iterable[Block] = ()
    files: Mapping[str, int] | None = None
    status: int = 0
    notes: Sequence[str] = ()
    record: Record | None = None
    is_verbose: bool = False
    report_file: Path | None = None

    def to_dict(self) -> Any:
        """The value for ``--json``."""
        data = self.data if self.files is None else {**self.data, "files": self.files}
        if self.record is None:
            return data
        hints = [hint.to_dict() for hint in self.record.hints]
        return {**data, "hints": hints, "counters": self.record.counters}

    def blocks(self) -> Iterator[Block]:
        """The lines and tables, with a line for each file."""
        yield from self.text
        for path, size in (self.files or {}).items():
            yield f"  wrote     {path}   {human_bytes(size)}"

    def json(self) -> str:
        """The value for ``--json``, as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, default=str)

    def show(self, console: Console) -> None:
        """Write the report, and print the text, or the JSON value.

        An interrupt while the JSON value is written is deferred: a part of the value is no JSON, and the
        report contains the whole value. If the reader exits, the write ends with a BrokenPipeError.
        """
        value = self.json() if console.as_json or self.report_file is not None else ""
        with publish.deferred_interrupts() if console.as_json else nullcontext():
            if self.report_file is not None:
                publish.write(self.report_file, value + "\n")
            if console.as_json:
                console.write(value)
        if not console.as_json and (self.files is None or not console.quiet):
            console.print(*self.blocks())
        hints = [] if self.record is None else self.record.hints
        for note in (*self.notes, *(line for hint in hints for line in hint.lines())):
            console.note(note)
        line = None if self.record is None or not self.is_verbose else self.record.counter_line()
        if line is not None:
            console.note(line)
