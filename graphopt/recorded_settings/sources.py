"""Settings and options with the sources of their values, and the differences between two of them."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, NamedTuple

from graphopt import config
from graphopt.errors import UsageError
from graphopt.optimize_options import OPTIONS, OptimizeOptions
from graphopt.recorded_settings import artifacts, plain_values
from graphopt.recorded_settings.record import OPTIMIZE, SettingsRecord
from graphopt.settings import Settings, declarations
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.missing_files import no_such_file

#: The source of a value that no source sets.
DEFAULT = "default"
#: Names of the defaults and of the current settings, which replace paths.
DEFAULTS, CURRENT = "defaults", "current"
#: The user name and the password in a URL.
_CREDENTIALS = re.compile(r"(?<=://)[^/@]+(?=@)")


class Item(NamedTuple):
    """A setting or option.

    Attributes:
        value: its value as plain data.
        default: its default as plain data.
        source: the source of its value.
    """

    value: Any
    default: Any
    source: str


class Difference(NamedTuple):
    """A setting or option whose values differ, as plain data; ``None`` without a value."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class SourcedSettings:
    """Settings and options with the sources of their values.

    Attributes:
        name: the name of the file or artifact.
        items: settings, and the options that have values, by name.
        record: the record of an artifact, if it has one.
        is_artifact: whether only values are known that can change results.
    """

    name: str
    items: Mapping[str, Item]
    record: SettingsRecord | None = None
    is_artifact: bool = field(default=False)

    def differences(self, other: SourcedSettings) -> list[Difference]:
        """The settings and options that differ, by name; of artifacts, only recorded ones are compared."""
        names = sorted({*self.items, *other.items})
        if self.is_artifact or other.is_artifact:
            roles = {name: opt.record for name, opt in {**declarations(), **OPTIONS}.items()}
            names = [name for name in names if roles.get(name, "value") in ("value", "contents")]
        pairs = [Difference(name, _value(self, name), _value(other, name)) for name in names]
        return [pair for pair in pairs if pair.a != pair.b]


def _value(settings: SourcedSettings, name: str) -> Any:
    return settings.items[name].value if name in settings.items else None


def current(
    settings: Settings, options: OptimizeOptions, origins: Mapping[str, str], name: str = CURRENT
) -> SourcedSettings:
    """``settings`` and ``options`` with the sources ``origins`` by name."""
    items, given = {}, SettingsRecord.of(settings, options)
    defaults = config.defaults()
    for item in fields(Settings):
        value, default = getattr(settings, item.name), getattr(defaults, item.name)
        plain = given.values.get(item.name, _shown(value, settings))
        source = origins.get(item.name, DEFAULT if value == default else "environment")
        items[item.name] = Item(plain, _shown(default, settings), source)
    for key, value in given.values.items():
        if key not in items:
            items[key] = Item(value, None, origins.get(key, "command line"))
    return SourcedSettings(name, items)


def _shown(value: Any, settings: Settings) -> Any:
    """A setting as plain data: paths as text, and URLs without credentials."""
    if isinstance(value, tuple):
        return [_shown(part, settings) for part in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return _CREDENTIALS.sub("***", value) if isinstance(value, str) else plain_values.plain(value, settings)


def of_record(name: str, record: SettingsRecord | None) -> SourcedSettings:
    """The settings and options of an artifact; without a record, the defaults."""
    found = record or SettingsRecord()
    defaults = current(Settings(), {}, {}).items
    recorded = [key for key, opt in declarations().items() if opt.record in ("value", "contents")]
    items = {
        key: Item(found.values.get(key, defaults[key].default), defaults[key].default, _source(key, found))
        for key in recorded
    }
    items |= {key: Item(value, None, "recorded") for key, value in found.values.items() if key not in items}
    if found.operation != OPTIMIZE:
        items["operation"] = Item(found.operation, None, "recorded")
    items |= {
        f"{found.operation}.{key}": Item(value, None, "recorded") for key, value in found.arguments.items()
    }
    return SourcedSettings(name, items, record, is_artifact=True)


def _source(name: str, record: SettingsRecord) -> str:
    return "recorded" if name in record.values else DEFAULT


def from_path(path: Path) -> SourcedSettings:
    """The settings of a settings file, or the record of an artifact, with defaults for others.

    Raises:
        UsageError: the path does not exist or has no settings, a key is unknown, or a value does not fit.
        InvalidModel: an artifact or its record is damaged.
    """
    if not path.exists():
        raise no_such_file(path)
    file = artifacts.file_in(path) if path.is_dir() else path
    if not artifacts.is_settings_file(file):
        return of_record(str(path), artifacts.record_in(file))
    origins = config.in_file(file)
    settings = config.load({}, file=origins)
    return current(settings, {}, {name: source for name, (source, _) in origins.items()}, str(path))


class Applied(NamedTuple):
    """Settings to apply, with their sources, and the record that they originate from, if any."""

    origins: config.Origins
    record: SettingsRecord | None


def applied(path: Path, given: Container[str] = ()) -> Applied:
    """The settings of a settings file, or of the record of an artifact, for a new run.

    Args:
        path: the settings file or artifact.
        given: names of settings that other sources set, whose values the record need not contain.

    Raises:
        UsageError: the path does not exist, an artifact has no record, or a record lacks the contents of a
            value; or as for :func:`from_path`.
        InvalidModel: an artifact or its record is damaged.
    """
    if not path.exists():
        raise no_such_file(path)
    file = artifacts.file_in(path) if path.is_dir() else path
    if artifacts.is_settings_file(file):
        return Applied(config.in_file(file), None)
    record = artifacts.record_in(file)
    if record is None:
        raise UsageError(
            f"{path} has no record of settings",
            hint="results of default settings have none: leave the file out",
        )
    settings = record.settings(str(path), given)
    names = [name for name in record.values if name in declarations() and name not in given]
    return Applied({name: (f"{name} in {path}", getattr(settings, name)) for name in names}, record)


def resolved(settings: Settings | str | os.PathLike[str] | None) -> tuple[Settings, SettingsRecord | None]:
    """The settings that an argument ``settings`` of a function describes, and the record of an artifact.

    Args:
        settings: settings; the path of a settings file or artifact, whose values environment variables
            override; or ``None`` for the current settings.

    Raises:
        UsageError, InvalidModel: as for :func:`applied`.
    """
    if settings is None:
        return config.current(), None
    if isinstance(settings, Settings):
        return settings, None
    found = applied(Path(settings), config.origins(file=False))
    return config.load(file=found.origins), found.record
