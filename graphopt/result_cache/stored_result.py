"""The contents of an entry: the model, its report, and the parts of its key.

An entry is a folder of plain files: ``key.json``, ``report.json``, and, unless only a report was requested,
the model and its external data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Block, Line, Table

if TYPE_CHECKING:
    from graphopt.instrument.report import Report

KEY, REPORT, MODEL = "key.json", "report.json", "model"
#: Levels of detail of a report as text.
_LEVELS = (0, 1, 2)


@dataclass(frozen=True)
class StoredReport:
    """The report of an earlier run, as data.

    Attributes:
        data: the report for JSON.
        texts: its lines and tables, for each level of detail, as data.
        warnings: the warnings of the run, each with its hint.
        seconds: wall time of the current run by stage.
        remarks: notes about the current run.
        libraries: empty, because results with native kernels are not stored.
    """

    data: Mapping[str, Any]
    texts: Sequence[Sequence[Any]]
    warnings: Sequence[tuple[str, str]]
    seconds: Mapping[str, float]
    remarks: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON, with the duration and the remarks of the current run."""
        remarks = [*self.data["remarks"], *self.remarks]
        return {**self.data, "remarks": remarks, "seconds": dict(self.seconds)}

    def having(self, *, remarks: Sequence[str] = (), seconds: Mapping[str, float]) -> StoredReport:
        """This report with further remarks and stages."""
        return replace(self, remarks=(*self.remarks, *remarks), seconds={**self.seconds, **seconds})

    def blocks(self, verbose: int = 0, *, warned: bool = False) -> Iterator[Block]:
        """The lines and tables of the report; arguments as for :meth:`graphopt.Report.blocks`."""
        for kind, *content in self.texts[min(verbose, _LEVELS[-1])]:
            yield Table(*content) if kind == "table" else Line(*content)
        yield from (f"  {remark}" for remark in self.remarks)


@dataclass(frozen=True)
class StoredResult:
    """An entry of the cache.

    Attributes:
        key: its key in hex digits.
        folder: the folder with its files.
        level: the level of the cache that it was found in.
    """

    key: str
    folder: Path
    level: Literal["local", "remote"] = "local"

    @cached_property
    def parts(self) -> dict[str, str]:
        """The parts of its key."""
        parts: dict[str, str] = _read(self.folder / KEY)
        return parts

    @cached_property
    def data(self) -> dict[str, Any]:
        """The content of ``report.json``."""
        data: dict[str, Any] = _read(self.folder / REPORT)
        return data

    @property
    def conversions(self) -> list[str]:
        """The warnings about converted inputs of the run that computed the result."""
        conversions: list[str] = self.data["conversions"]
        return conversions

    @property
    def model(self) -> Path | None:
        """The file of the model, if the entry has one."""
        return next(iter(sorted(self.folder.glob(f"{MODEL}.*"), key=lambda file: len(file.name))), None)

    @property
    def has_data_file(self) -> bool:
        """Whether the model has a file of external data."""
        return len([*self.folder.glob(f"{MODEL}.*")]) > 1

    def report(self, seconds: Mapping[str, float]) -> StoredReport:
        """The report, for a run that took ``seconds``, by stage."""
        warnings = [(text, hint) for text, hint in self.data["warnings"]]
        return StoredReport(self.data["report"], self.data["texts"], warnings, seconds)


def write_report(
    folder: Path,
    parts: Mapping[str, str],
    report: Report,
    warnings: Sequence[tuple[str, str]],
    source: str,
    plain: Any = None,
    conversions: Sequence[str] = (),
) -> None:
    """Write the files of an entry other than the model.

    Args:
        folder: the folder of the entry.
        parts: the parts of its key.
        report: the report of the run.
        warnings: the warnings of the run, each with its hint.
        source: the name of the original.
        plain: the report as data from which it can be restored, if required.
        conversions: the warnings about converted inputs.
    """
    texts = [[_as_data(block) for block in report.blocks(level, warned=True)] for level in _LEVELS]
    data = {
        "source": source,
        "report": report.to_dict(),
        "texts": texts,
        "warnings": warnings,
        "plain": plain,
        "conversions": conversions,
    }
    for name, content in ((KEY, parts), (REPORT, data)):
        text = json.dumps(content, ensure_ascii=False, default=str)
        (folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")


def _as_data(block: Block) -> list[Any]:
    if isinstance(block, Table):
        return ["table", list(block.columns), block.align, [list(row) for row in block.rows]]
    return ["line", str(block), block.tone if isinstance(block, Line) else "plain"]


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8", errors="surrogatepass"))
