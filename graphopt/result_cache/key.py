"""The key of a result: a digest of everything that can change the result, as named parts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from graphopt.optimize_options import OPTIONS, OptimizeOptions
from graphopt.result_cache.installed_code import check_passes, code_parts
from graphopt.result_cache.machine import machine_parts
from graphopt.result_cache.not_cached import NotCached
from graphopt.settings import Settings, declarations
from graphopt.util.disk_store import file_digest, key_of
from graphopt.util.lazy_dataclass import dataclass

#: Options whose text can name modules with passes.
_NAME_MODULES = ("pipeline", "pre_passes", "post_passes")
#: Packages whose dataclasses are values of options; other objects, such as passes, also consist of code.
_VALUES = ("graphopt.inputs.", "graphopt.ort.")
#: Version of the format of entries.
_FORMAT = "1"


@dataclass(frozen=True)
class Key:
    """The key of a result.

    Attributes:
        parts: the parts by name: digests of contents, and values of options and settings as JSON.
    """

    parts: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """The key in hex digits."""
        return key_of(json.dumps(self.parts, sort_keys=True))

    def is_current(self) -> bool:
        """Whether the code is still the same, so that code imported since belongs to the key."""
        try:
            return code_parts().items() <= self.parts.items()
        except NotCached:
            return False


def result_key(model: Mapping[str, str], form: str, settings: Settings, options: OptimizeOptions) -> Key:
    """The key of the result of ``optimize``.

    Args:
        model: digests of the model's files, by role.
        form: the form of the result, such as the suffix of its file.
        settings: the current settings.
        options: the options that are not settings.

    Raises:
        NotCached: the result depends on an option that has no part in keys, or on passes of the caller.
    """
    settled: Mapping[str, Any] = settings.complete_options(options)
    check_passes(*(str(settled[name]) for name in _NAME_MODULES))
    return Key(
        {
            "format": _FORMAT,
            **model,
            "form": form,
            **_option_parts(settled),
            **_setting_parts(settings),
            **code_parts(),
            **machine_parts(settings, settled["device"]),
        }
    )


def _option_parts(settled: Mapping[str, Any]) -> dict[str, str]:
    parts = {}
    for name, opt in OPTIONS.items():
        value = settled[name]
        if opt.cache == "bypass" and value not in (None, (), False):
            raise NotCached(f"the option {opt.flag or name} is given")
        if opt.cache == "key":
            parts[f"option {name}"] = _as_text(value, name)
    return parts


def _setting_parts(settings: Settings) -> dict[str, str]:
    parts = {}
    for name, opt in declarations().items():
        value = getattr(settings, name)
        if opt.cache == "bypass" and value:
            raise NotCached(f"the setting {name.replace('_', '-')} is given")
        if opt.cache == "key" and name not in OPTIONS:
            parts[f"setting {name}"] = _as_text(value, name)
    return parts


def _as_text(value: Any, name: str) -> str:
    return json.dumps(_plain(value, name), ensure_ascii=False)


def _plain(value: Any, name: str) -> Any:
    """``value`` as JSON; files and arrays are replaced by digests of their contents.

    Raises:
        NotCached: ``value`` contains an object that can't be compared by its contents.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        try:
            return file_digest(value) if value.is_file() else str(value)
        except OSError as error:
            raise NotCached(f"the file {value} can't be read") from error
    if isinstance(value, Mapping):
        return {str(key): _plain(one, name) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, name) for one in value]
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith(_VALUES):
        return {one.name: _plain(getattr(value, one.name), name) for one in dataclasses.fields(value)}
    if hasattr(value, "tobytes") and not getattr(value.dtype, "hasobject", True):
        return [str(value.dtype), list(value.shape), key_of(value.tobytes())]
    raise NotCached(f"{name} contains an object")
