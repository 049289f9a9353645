"""Read the manifest or the plan of a bundle in a folder, and check the files of the folder against it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from graphopt.errors import InvalidModel, UsageError
from graphopt.specialization.bundle.manifest import VERSION, Manifest
from graphopt.specialization.bundle.names import MANIFEST, MARK, PLAN
from graphopt.specialization.bundle.parse_manifest import parse_manifest
from graphopt.specialization.bundle.parse_plan import parse_plan

#: Format versions of plans.
PLAN_VERSIONS = (1, 2)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest in ``folder``, or the plan of an older version, and check that its files exist.

    With a manifest, the folder has no other files, and none is a symbolic link. Contents are not compared.

    Raises:
        UsageError: the folder has neither, or the file can't be read.
        InvalidModel: the manifest is damaged, or files are missing, superfluous or outside of ``folder``.
    """
    path = folder / (MANIFEST if os.path.lexists(folder / MANIFEST) else PLAN)
    try:
        if path.is_symlink():
            raise _linked(folder, path.name)
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidModel(f"{path}: not UTF-8") from error
    except FileNotFoundError as error:
        raise UsageError(f"{folder} is not a bundle: it has no {MANIFEST}") from error
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from error
    try:
        data = json.loads(text, object_pairs_hook=_without_duplicates)
    except InvalidModel as error:
        raise InvalidModel(f"{path}: {error.message}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{path}: not JSON, or truncated") from error
    try:
        found = parse(data)
        if found.own_file != path.name:
            raise InvalidModel(f"a bundle of format version {found.version} has another file name")
    except InvalidModel as error:
        raise InvalidModel(f"{path}: {error.message}", hint=error.hint) from error
    if found.version == VERSION:
        _check_folder(folder, found)
    else:
        _check_files(folder, path, found)
    return found


def parse(data: Any) -> Manifest:
    """Parse the JSON form of a manifest or a plan of any supported version.

    Raises:
        InvalidModel: ``data`` is malformed, or of an unsupported version.
    """
    if not isinstance(data, dict) or MARK not in data:
        raise InvalidModel("not the manifest of a bundle")
    version = data[MARK]
    if type(version) is int and version == VERSION:
        return parse_manifest(data)
    if type(version) is int and version in PLAN_VERSIONS:
        return parse_plan(data)
    supported = ", ".join(map(str, (*PLAN_VERSIONS, VERSION)))
    raise InvalidModel(
        f"unsupported format version {version!r} of a bundle; supported: {supported}",
        hint="a newer graphopt may support it",
    )


def _check_folder(folder: Path, found: Manifest) -> None:
    """Check that the folder contains exactly the files of the manifest, and that they are regular files."""
    try:
        with os.scandir(folder) as listing:
            inside = {entry.name: entry for entry in listing}
    except OSError as error:
        raise InvalidModel(f"can't read {folder}: {error.strerror or error}") from error
    for name in found.files:
        entry = inside.get(name)
        if entry is None:
            raise InvalidModel(f"the bundle {folder} lacks {name}", hint="copy it again completely")
        if entry.is_symlink():
            raise _linked(folder, name)
        if not entry.is_file():
            raise InvalidModel(f"the bundle {folder} is damaged: {name} is not a file")
    other = min((name for name in inside if name not in (MANIFEST, *found.files)), default=None)
    if other is not None:
        raise InvalidModel(
            f"the bundle {folder} contains {other}, which its manifest does not list",
            hint="move it to another folder",
        )


def _linked(folder: Path, name: str) -> InvalidModel:
    return InvalidModel(
        f"the bundle {folder} is damaged: {name} is a symbolic link",
        hint="copy the files that the links name",
    )


def _check_files(folder: Path, path: Path, found: Manifest) -> None:
    """Check the files of a plan, which may be in subfolders."""
    for file in found.files:
        if not _is_inside(file, folder):
            raise InvalidModel(f"{path}: file outside of the bundle: {file!r}")
        if not (folder / file).is_file():
            raise InvalidModel(f"the bundle {folder} lacks {file}")


def _is_inside(file: str, folder: Path) -> bool:
    """Whether ``file`` is a relative path inside ``folder``, also after resolving ``..`` and links."""
    try:
        if not file or Path(file).is_absolute():
            return False
        found = (folder / file).resolve()
    except (OSError, ValueError, RuntimeError):  # a NUL, or a cycle of links
        return False
    return found.is_relative_to(folder.resolve()) and found != folder.resolve()


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidModel("malformed manifest: an entry is repeated")
    return found
