"""Settings with their sources, and their differences, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from graphopt.errors import InvalidModel
from graphopt.recorded_settings.record import OPTIMIZE, SettingsRecord
from graphopt.recorded_settings.sources import DEFAULT, Difference, SourcedSettings
from graphopt.util.text_tables import Block, Line, Table, counted

#: The reason for the lack of a record.
NO_RECORD = (
    "no settings are recorded: it was written with default settings, without a record, or by another program"
)


def readable_record(entry: str | None) -> SettingsRecord | None:
    """The record in a metadata entry; ``None`` without a readable one."""
    try:
        return None if entry is None else SettingsRecord.parse(entry)
    except InvalidModel:
        return None


def summary_of(record: SettingsRecord) -> str:
    """The contents of ``record`` in one line."""
    values = {**record.values, **record.arguments}
    items = ", ".join(f"{key(name)} = {text(value)}" for name, value in values.items())
    operation = "" if record.operation == OPTIMIZE else f"{record.operation}: "
    return f"{operation}{items or 'defaults'} (graphopt {record.version})"


def as_dict(found: SourcedSettings) -> dict[str, Any]:
    """For JSON."""
    record = found.record
    return {
        "name": found.name,
        "version": None if record is None else record.version,
        "operation": None if record is None else record.operation,
        "settings": {name: item._asdict() for name, item in found.items.items()},
    }


def shown(found: SourcedSettings, *, origin: bool, verbose: int) -> Iterator[Block]:
    """The settings and options; of a result, only the recorded ones unless ``verbose``."""
    if found.is_artifact and found.record is None:
        yield f"  {found.name}: {NO_RECORD}"
        return
    if found.record is not None:
        yield Line(f"  {found.name}: {found.record.operation}, graphopt {found.record.version}", "title")
    rows = {
        name: item
        for name, item in found.items.items()
        if not found.is_artifact or verbose or item.source != DEFAULT
    }
    columns = ["setting", "value", "default", *(["origin"] if origin else [])]
    table = Table(columns, "<" * len(columns))
    for name, item in rows.items():
        table.add(key(name), text(item.value), text(item.default), *([item.source] if origin else []))
    if rows:
        yield table
    if found.is_artifact and len(rows) < len(found.items):
        others = counted(len(found.items) - len(rows), "other setting has", "other settings have")
        yield f"  {others} the default (-v lists them)"


def differences(a: SourcedSettings, b: SourcedSettings, pairs: Sequence[Difference]) -> Iterator[Block]:
    """The settings that differ."""
    for found in (a, b):
        if found.is_artifact and found.record is None:
            yield f"  {found.name}: {NO_RECORD}"
    if not pairs:
        yield "  no differences"
        return
    table = Table(["setting", a.name, b.name], "<<<")
    for pair in pairs:
        table.add(key(pair.name), text(pair.a), text(pair.b))
    yield table


def key(name: str) -> str:
    """The name of a setting or option as users write it."""
    return name.replace("_", "-")


def text(value: Any) -> str:
    """A plain value as users write it."""
    if value is None or value in ([], {}, ""):
        return "none"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
