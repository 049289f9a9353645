"""Changes of the files of bundles, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphopt.util.file_sums import checksum

#: The entries of plans, the manifests of format versions 1 and 2.
_OF_PLANS = ("versions", "model", "inputs", "outputs", "general", "variants", "weights", "session_options")


def edited(folder: Path, change: Callable[[dict[str, Any]], object], *, name: str = "manifest.json") -> Path:
    """The bundle with an edited manifest and, unless ``change`` edits it, a valid checksum."""
    manifest = json.loads((folder / name).read_text())
    before = manifest.get("checksum")
    change(manifest)
    if manifest.get("checksum") == before is not None:
        manifest["checksum"] = checksum(manifest)
    (folder / name).write_text(json.dumps(manifest))
    return folder


def of_version(folder: Path, version: int) -> Path:
    """The bundle with a plan of format version 1 or 2."""
    manifest = json.loads((folder / "manifest.json").read_text())
    plan = {"graphopt_bundle": version} | {key: manifest[key] for key in _OF_PLANS}
    if version == 1:
        plan["digest"] = manifest["files"]["weights.bin"]["sha256"]
    else:
        plan["files"] = manifest["files"]
        plan["checksum"] = checksum(plan)
    (folder / "manifest.json").unlink()
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder
