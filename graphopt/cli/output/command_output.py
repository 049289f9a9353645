"""The output of a command: one object, printed as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    """

    data: Any
    text: Iterable[Block] = ()
    files: Mapping[str, int] | None = None
    status: int = 0
    notes: Sequence[str] = ()
    record: Record | None = None
    is_verbose: bool = False

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
        """Print the text, or the JSON value."""
        if console.as_json:
            console.write(self.json())
        elif self.files is None or not console.quiet:
            console.print(*self.blocks())
        hints = [] if self.record is None else self.record.hints
        for note in (*self.notes, *(line for hint in hints for line in hint.lines())):
            console.note(note)
        line = None if self.record is None or not self.is_verbose else self.record.counter_line()
        if line is not None:
            console.note(line)
