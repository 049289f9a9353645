"""Names of the files of a bundle, and the recognition of bundles among paths."""

from __future__ import annotations

import zipfile
from pathlib import Path

from graphopt.errors import UsageError

#: File name of the manifest, and of the plan, its name in format versions 1 and 2.
MANIFEST, PLAN = "manifest.json", "plan.json"
#: Names of the other files; a variant has its own name as file name.
GENERAL, WEIGHTS = "general.onnx", "weights.bin"
#: Name of the general model among the variants.
GENERAL_NAME = "general"
#: Suffix of bundles that ``graphopt compile`` writes.
SUFFIX = ".gopt"
#: The key of manifests and plans with the format version.
MARK = "graphopt_bundle"
#: First bytes of a zip file with at least one member.
_ZIP = b"PK\x03\x04"


def bundle_at(path: Path) -> Path | None:
    """The folder or the zip file of the bundle at ``path``; ``None`` without a bundle.

    Args:
        path: a folder, a zip file, or a manifest or plan in its folder.
    """
    try:
        if path.is_dir():
            return path if any((path / name).is_file() for name in (MANIFEST, PLAN)) else None
        if not path.is_file():
            return None
        if path.name in (MANIFEST, PLAN):
            return path.parent if f'"{MARK}"'.encode() in path.read_bytes() else None
        return path if _is_archive(path) else None
    except (OSError, ValueError):  # for example a NUL in the path, which a later read reports
        return None


def check_form(target: Path, *, archive: bool) -> None:
    """Check that ``target`` is no bundle in the other form.

    Args:
        archive: whether a zip file, not a folder, is to be written.

    Raises:
        UsageError: ``target`` is a bundle in the other form.
    """
    if target.name and bundle_at(target) is not None and target.is_file() != archive:
        form, option = ("zip file", "--zip") if target.is_file() else ("folder", "--no-zip")
        raise UsageError(
            f"{target} is a bundle in the form of a {form}, and can't be replaced by another form",
            hint=f"{option}, or another path",
        )


def _is_archive(path: Path) -> bool:
    """Whether ``path`` is a zip file with a manifest, or has the suffix of bundles; raises OSError."""
    if path.suffix == SUFFIX:
        return True
    with open(path, "rb") as file:
        if file.read(len(_ZIP)) != _ZIP:
            return False
    try:
        with zipfile.ZipFile(path) as archive:
            return MANIFEST in archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError):
        return False
