"""Values of settings and options as plain data for JSON, without paths, and back.

The plain form is a function of the parts of the key of a result (:mod:`graphopt.result_cache.key`), so that a
stored result has the same record as a new one: of files, it contains digests and no names.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.util.disk_store import file_digest, key_of

if TYPE_CHECKING:
    from graphopt.settings import Settings

#: The keys of objects that replace values left out of records: the digest of a file or array, the
#: import path of an object of the caller, and ``true`` for text with paths.
DIGEST, OBJECT, PATHS = "sha256", "object", "paths"


def plain(value: Any, settings: Settings, *, reads: bool = False) -> Any:
    """``value`` as plain data.

    Args:
        value: the value of a setting or option.
        settings: the settings that apply to the value; its fields that equal these are omitted.
        reads: whether text may name a file, or contain paths.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _text(value) if reads else value
    if isinstance(value, os.PathLike):
        return _digest(Path(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item, settings, reads=reads) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [plain(item, settings, reads=reads) for item in value]
    if hasattr(value, "tobytes"):
        return {DIGEST: key_of(value.tobytes())}
    return _object(value, settings, reads=reads)


def _text(text: str) -> Any:
    """Text that may name a file: a digest of the file; an object that marks an omission; or the text."""
    if Path(text).is_file():
        return _digest(Path(text))
    return {PATHS: True} if "/" in text or "\\" in text else text


def _digest(path: Path) -> Any:
    try:
        return {DIGEST: file_digest(path)}
    except OSError:  # the operation reports the error
        return {PATHS: True}


def _object(value: Any, settings: Settings, *, reads: bool) -> Any:
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ort.devices import Device
    from graphopt.passes.base import Pass
    from graphopt.passes.pipeline import pipeline_text
    from graphopt.passes.pipelines import registry
    from graphopt.tuning.tuner import Tune

    if isinstance(value, Device):
        return str(value).lower()
    if isinstance(value, InputOptions | Tune):
        default = InputOptions(seed=settings.seed) if isinstance(value, InputOptions) else Tune()
        names = [field.name for field in dataclasses.fields(value)]
        changed = [
            name for name in names if name != "fresh" and getattr(value, name) != getattr(default, name)
        ]
        return {name: plain(getattr(value, name), settings, reads=reads) for name in changed}
    if isinstance(value, Pass) and type(value).__module__.startswith("graphopt."):
        return pipeline_text(value, registry())
    kind = value if isinstance(value, type) else getattr(value, "replace", type(value))
    return {OBJECT: f"{kind.__module__}:{kind.__qualname__}"}


def restored(name: str, data: Any, settings: Settings) -> Any:
    """The value of the option ``name`` from its plain form, without further checks.

    Raises:
        TypeError: ``data`` has another structure.
    """
    if name == "inputs":
        from graphopt.inputs.feeds import InputOptions

        found = InputOptions(**{"seed": settings.seed, **_as_tuples(data)})
        if any(type(size) is not int or size < 0 for shape in found.shapes.values() for size in shape):
            raise ValueError("a size is not a natural number")
        return found
    if name == "tune":
        from graphopt.tuning.tuner import Tune

        return Tune(**_as_tuples(data))
    return _as_tuples(data)


def _as_tuples(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _as_tuples(item) for key, item in data.items()}
    return tuple(map(_as_tuples, data)) if isinstance(data, list) else data


def omissions(data: Any) -> Iterator[str]:
    """A description of each object in ``data`` that takes the place of a value."""
    if isinstance(data, Mapping):
        if data.keys() == {DIGEST}:
            yield f"a file with the SHA-256 {str(data[DIGEST])[:12]}…"
        elif data.keys() == {OBJECT}:
            yield f"the object {data[OBJECT]}"
        elif data.keys() == {PATHS}:
            yield "text with paths"
        else:
            for item in data.values():
                yield from omissions(item)
    elif isinstance(data, list | tuple):
        for item in data:
            yield from omissions(item)
