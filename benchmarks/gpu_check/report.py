"""The files of the results: each row is appended to one, and the tables are written to the other, at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_check.rows import FAULTS, Row, table
from benchmarks.gpu_check.section import Section
from graphopt import publish

RESULTS, TABLES = "results.jsonl", "results.md"


@dataclass
class Report:
    """The results so far.

    Attributes:
        folder: the folder of the files.
        sections: the sections, in order.
        machine: a line about the device and the versions.
        rows: the results.
        seconds: the time of each section that ran, by name.
    """

    folder: Path
    sections: Sequence[Section]
    machine: Mapping[str, str]
    rows: list[Row] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / RESULTS).write_text(json.dumps({"machine": self.machine}) + "\n", encoding="utf-8")
        self._write_tables()

    def add(self, row: Row) -> None:
        """Append a result to both files."""
        self.rows.append(row)
        with open(self.folder / RESULTS, "a", encoding="utf-8") as stream:
            stream.write(row.json() + "\n")
        self._write_tables()

    def finish(self, section: Section, seconds: float) -> None:
        """Note the time of a section."""
        self.seconds[section.name] = round(seconds, 1)
        self._write_tables()

    @property
    def has_faults(self) -> bool:
        """Whether a result is wrong or missing because of an error."""
        return any(row.status in FAULTS for row in self.rows)

    def missing(self, items: Sequence[str]) -> list[str]:
        """The names in ``items`` that no result has, unless a section failed before it listed its items."""
        found = {row.item for row in self.rows}
        return [] if self.has_faults else [name for name in items if name not in found]

    def text(self) -> str:
        """The tables as Markdown."""
        return "\n\n".join(self._blocks())

    def _blocks(self) -> Iterator[str]:
        yield self.summary()
        for section in self.sections:
            rows = [row for row in self.rows if row.section == section.name]
            if rows:
                yield f"**{section.title}**\n\n{table(section.columns, rows)}"
        yield ", ".join(f"{key} {value}" for key, value in self.machine.items()) + "."

    def summary(self) -> str:
        """One row for each section: numbers of results by status, and seconds."""
        lines = ["| section | ok | wrong | failed | skipped | late | seconds |", "| --- |" + " ---: |" * 6]
        for section in self.sections:
            found = [row.status for row in self.rows if row.section == section.name]
            counts = " | ".join(
                str(found.count(status)) for status in ("ok", "wrong", "failed", "skipped", "late")
            )
            lines.append(f"| {section.name} | {counts} | {self.seconds.get(section.name, '–')} |")
        return "\n".join(lines)

    def _write_tables(self) -> None:
        publish.write(self.folder / TABLES, self.text() + "\n")
