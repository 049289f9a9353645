"""The records of settings in artifacts: models, bundles, folders of models, reports and reproducers."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphopt import ir
from graphopt.errors import InvalidModel, UsageError
from graphopt.recorded_settings.record import KEY, SettingsRecord

#: The entry of JSON files with a record.
ENTRY = "settings"
#: The file of a bundle with its record.
_MANIFEST = "manifest.json"
#: The files in folders that graphopt writes, in which a record is searched: manifests of bundles, the models
#: of split constants and of gradients, plans of older bundles, and reproducers of rewrites and of commands.
_IN_FOLDERS = (_MANIFEST, "main.onnx", "forward.onnx", "plan.json", "case.json", "graphopt.toml")
_SETTINGS_SUFFIX = ".toml"


def is_settings_file(path: Path) -> bool:
    """Whether the name of ``path`` is that of a settings file, as opposed to an artifact."""
    return path.suffix == _SETTINGS_SUFFIX


def file_in(folder: Path) -> Path:
    """The file in ``folder`` that has its record, or would have it.

    Raises:
        UsageError: ``folder`` is not a folder that graphopt writes.
    """
    found = next((folder / name for name in _IN_FOLDERS if (folder / name).is_file()), None)
    if found is None:
        raise UsageError(
            f"{folder} has no settings",
            hint="name a bundle, a folder of models that graphopt wrote, or a file",
        )
    return found


def record_in(path: Path) -> SettingsRecord | None:
    """The record in the artifact ``path``; ``None`` if it has none.

    Artifacts that were written with defaults only, without a record, or by other programs have none.

    Raises:
        UsageError: the file does not exist, or it is no artifact.
        InvalidModel: the file is damaged, or its record is.
    """
    if path.suffix == ".json" and path.is_file() and (data := _json_object(path)) is not None:
        return _record_of_json(data, path)
    if zipfile.is_zipfile(path):
        return _record_of_json(_json_in_zip(path), path)
    metadata = ir.metadata_of(path)
    if metadata is None:
        ir.load(path)  # reports the reason
        metadata = {}
    return None if KEY not in metadata else _at(path, lambda: SettingsRecord.parse(metadata[KEY]))


def _json_object(path: Path) -> Mapping[str, Any] | None:
    """The contents of a JSON file, unless they are a model.

    Raises:
        InvalidModel: the file is not JSON.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{path} is not JSON, or truncated") from error
    return data if isinstance(data, dict) and "graph" not in data else None


def _json_in_zip(path: Path) -> Mapping[str, Any]:
    """The manifest of a bundle in one file.

    Raises:
        UsageError: the zip file is no bundle.
        InvalidModel: the manifest is not JSON.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read(_MANIFEST))
    except (KeyError, OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} has no settings: it is a zip file without {_MANIFEST}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{path}: {_MANIFEST} is not JSON, or truncated") from error
    return data if isinstance(data, dict) else {}


def _record_of_json(data: Mapping[str, Any], path: Path) -> SettingsRecord | None:
    """The record in a report, plan or case."""
    if isinstance(models := data.get("models"), list):
        found = [_record_of_json(one, path) for one in models if isinstance(one, dict) and "error" not in one]
        if any(one != found[0] for one in found):
            raise UsageError(f"{path} is a report of several models with different settings")
        return found[0] if found else None
    entry = data.get(ENTRY)
    return None if entry in (None, {}) else _at(path, lambda: SettingsRecord.from_dict(entry))


def _at(path: Path, parse: Any) -> SettingsRecord:
    try:
        found: SettingsRecord = parse()
    except InvalidModel as error:
        raise InvalidModel(f"{path}: {error.message}") from error
    return found
