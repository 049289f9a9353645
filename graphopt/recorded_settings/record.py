"""The record: settings and options that differ from their defaults and can change results."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import field, fields, replace
from typing import Any, Unpack, cast

from graphopt.cost.select_table import AUTO, is_automatic
from graphopt.errors import InvalidModel, UsageError, nearest_names
from graphopt.optimize_options import OPTIONS, OptimizeOptions
from graphopt.ort.installation import version_of
from graphopt.recorded_settings import plain_values
from graphopt.settings import Settings, declarations, typed_setting
from graphopt.util.argument_checks import checked
from graphopt.util.lazy_dataclass import dataclass

#: The metadata entry of a model, outside of the namespace ``graphopt.``, which saving strips.
KEY = "graphopt:settings"
#: The operation that ``graphopt optimize`` performs, which records do not name.
OPTIMIZE = "optimize"


@dataclass(frozen=True)
class SettingsRecord:
    """The settings and options that produced an artifact.

    Attributes:
        values: plain values of settings and options of ``optimize`` by name, sorted: those that differ from
            their defaults and can change results.
        version: the version of graphopt that wrote the artifact.
        operation: the name of the operation.
        arguments: plain values of its own arguments that differ from their defaults.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    version: str = version_of("graphopt")
    operation: str = OPTIMIZE
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        settings: Settings,
        options: OptimizeOptions,
        operation: str = OPTIMIZE,
        arguments: Mapping[str, Any] | None = None,
    ) -> SettingsRecord:
        """The record of an operation.

        Args:
            settings: the settings that apply.
            options: the given options of ``optimize``.
            operation: the name of the operation.
            arguments: its own arguments that differ from their defaults.
        """
        if settings.costs != AUTO and is_automatic(settings):
            settings = replace(settings, costs=AUTO)
        settled = cast(Mapping[str, Any], settings.complete_options(options))
        defaults = {item.name: item.default for item in fields(Settings)}
        found = {}
        for name, opt in {**declarations(), **OPTIONS}.items():
            if opt.record in ("omitted", "private"):
                continue
            value = settled[name] if name in OPTIONS else getattr(settings, name)
            default = opt.default if name in OPTIONS else defaults[name]
            if not value and not default:  # of options without a value, such as None and ()
                continue
            data = plain_values.plain(value, settings, reads=opt.record == "contents")
            if name == "pipeline" and isinstance(data, list) and all(isinstance(one, str) for one in data):
                data = ",".join(data)
            if data != plain_values.plain(default, settings) and not (name == "inputs" and data == {}):
                found[name] = data
        given = {
            name: plain_values.plain(value, settings)
            for name, value in sorted((arguments or {}).items())
            if value is not None
        }
        return cls(dict(sorted(found.items())), version_of("graphopt"), operation, given)

    @property
    def is_empty(self) -> bool:
        """Whether all values are defaults; such a record is not written to models."""
        return not self.values and not self.arguments

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        own = {"operation": self.operation, "arguments": dict(self.arguments)}
        return {
            "version": self.version,
            "settings": dict(self.values),
            **({} if self.operation == OPTIMIZE and not self.arguments else own),
        }

    def to_json(self) -> str:
        """Canonical text: sorted keys, without spaces."""
        return json.dumps(self.to_dict(), ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> SettingsRecord:
        """Parse the result of :meth:`to_json`.

        Raises:
            InvalidModel: ``text`` is no record.
        """
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InvalidModel("the record of settings is damaged: it is not JSON") from error

    @classmethod
    def from_dict(cls, data: Any) -> SettingsRecord:
        """Parse the result of :meth:`to_dict`.

        Raises:
            InvalidModel: ``data`` is no record.
        """
        found = data if isinstance(data, dict) else {}
        values, version = found.get("settings"), found.get("version")
        operation, arguments = found.get("operation", OPTIMIZE), found.get("arguments", {})
        if not (isinstance(values, dict) and isinstance(arguments, dict)):
            raise InvalidModel("the record of settings is damaged: it has no settings")
        if not (isinstance(version, str) and isinstance(operation, str)):
            raise InvalidModel("the record of settings is damaged: it has no version")
        return cls(values, version, operation, arguments)

    def settings(self, where: str, given: Container[str] = ()) -> Settings:
        """The recorded settings, with defaults for others.

        Args:
            where: the artifact, for messages.
            given: names of settings that the caller gives, whose values need not be contained.

        Raises:
            UsageError: a setting is unknown, its value does not fit, or it is not contained in the record.
        """
        self._check_names(where)
        own = {
            name: value for name, value in self.values.items() if name in declarations() and name not in given
        }
        for name, value in own.items():
            _check_contained(name, value, where)
        return Settings(**dict(typed_setting(name, value, where) for name, value in own.items()))

    def options(self, where: str, settings: Settings, given: Mapping[str, Any]) -> OptimizeOptions:
        """The recorded options of ``optimize`` that are not settings, unless they are ``given``.

        Args:
            where: the artifact, for messages.
            settings: the settings that apply.
            given: the options that the caller gives.

        Raises:
            UsageError: an option is unknown, its value does not fit, or it is not contained in the record.
        """
        self._check_names(where)
        found: dict[str, Any] = {}
        for name, value in self.values.items():
            if name in declarations() or given.get(name) is not None:
                continue
            _check_contained(name, value, where)
            try:
                found |= _checked(**{name: plain_values.restored(name, value, settings)})
            except (TypeError, ValueError, UsageError) as error:
                raise UsageError(f"{where}: {_text(value)} is not a value for {name!r}") from error
        return cast(OptimizeOptions, found)

    def _check_names(self, where: str) -> None:
        known = {
            name for name, opt in {**declarations(), **OPTIONS}.items() if opt.record in ("value", "contents")
        }
        for name in self.values:
            if name not in known:
                nearest = nearest_names(name, sorted(known))[:3]
                raise UsageError(
                    f"{where} records {name!r}, which is no setting of graphopt {version_of('graphopt')};"
                    f" version {self.version} wrote it",
                    hint=f"nearest: {', '.join(nearest)}" if nearest else None,
                )


def _check_contained(name: str, value: Any, where: str) -> None:
    """Check that a record contains a value, rather than a digest of a file or the name of an object."""
    if (omitted := next(plain_values.omissions(value), None)) is not None:
        shown = OPTIONS[name].flag.partition("/")[0] if name in OPTIONS else ""
        hint = f"give {shown or name.replace('_', '-')} again"
        raise UsageError(f"{where}: {name.replace('_', '-')} was {omitted}, which is not recorded", hint=hint)


@checked
def _checked(**options: Unpack[OptimizeOptions]) -> OptimizeOptions:
    """``options``, whose types are checked."""
    return options


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
