"""Digests of the code that computes results: graphopt, its plugins, and libraries."""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from graphopt import __version__, _imported
from graphopt.result_cache.not_cached import NotCached

#: Distributions whose versions can change results; several distributions contain onnxruntime.
_LIBRARIES = ("ml_dtypes", "numpy", "onnx", "onnx_ir", "protobuf")
_RUNTIME = "onnxruntime"
_REQUIRED = ("numpy", "onnx", "onnx_ir")
#: The folder of a distribution's metadata: its name and its version.
_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
#: A group of entry points that extends graphopt, and one entry point: its name and its module.
_GROUP = re.compile(r"^\[(graphopt\..+?)\]\s*$([^\[]*)", re.MULTILINE)
_ENTRY = re.compile(r"^\s*([^=#\s][^=]*?)\s*=\s*([\w.]+)", re.MULTILINE)
#: A pass in the text of a pipeline: ``package.module:name``.
_BY_PATH = re.compile(r"([\w.]+)\s*:")
#: Packages with passes whose code is part of all keys, and which read only the model.
_KNOWN = ("graphopt", "onnx_ir")


def check_passes(*texts: str) -> None:
    """Check that pipelines or passes in ``texts`` name no code of the caller.

    Raises:
        NotCached: they do. Such code can read files and environment variables, and print.
    """
    for text in texts:
        for match in _BY_PATH.finditer(text):
            if match[1].partition(".")[0] not in _KNOWN:
                raise NotCached("passes of the caller may depend on anything")


def code_parts() -> dict[str, str]:
    """The parts of keys about code, as the files are now.

    Raises:
        NotCached: a plugin is not found, a library has no metadata, or a file changed after this process had
            imported its code.
    """
    distributions = dict(_distributions())
    versions = {
        name: version
        for name, (version, _) in sorted(distributions.items())
        if name in _LIBRARIES or name.startswith(_RUNTIME)
    }
    missing = [name for name in _REQUIRED if name not in versions]
    if missing or not any(name.startswith(_RUNTIME) for name in versions):
        raise NotCached(f"the version of {missing[0] if missing else _RUNTIME} is unknown")
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "graphopt": f"{__version__} {_module_digest('graphopt')}",
        **versions,
        **dict(_plugins(folder for _, folder in distributions.values())),
    }


def _files_digest(root: Path, is_imported: bool) -> str:
    """A digest of the names and contents of all files below ``root``, or of the file ``root``."""
    states = []
    for path in [root] if root.is_file() else _files(root):
        found = path.stat()
        if is_imported and found.st_mtime_ns > _imported:
            raise NotCached(f"{path} changed after this process had started")
        states.append((path, found.st_size, found.st_mtime_ns))
    return _digest_of(root, tuple(states))


@lru_cache(maxsize=64)
def _digest_of(root: Path, states: tuple[tuple[Path, int, int], ...]) -> str:
    """A digest of files below ``root`` with these sizes and modification times, computed once per process."""
    digest = hashlib.sha256()
    for path, _, _ in states:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def _files(folder: Path, parents: tuple[str, ...] = ()) -> Iterator[Path]:
    """The files below ``folder``, including those in linked folders; ``parents`` are followed already."""
    real = os.path.realpath(folder)
    if real in parents:  # a link to a folder that contains it
        return
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_file():
            yield Path(entry.path)
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _files(Path(entry.path), (*parents, real))


def _distributions() -> Iterator[tuple[str, tuple[str, Path]]]:
    """The normalized name of each installed distribution, with its version and the folder of its metadata.

    The metadata itself is not read: importing and using :mod:`importlib.metadata` would take longer than the
    rest of a hit. If several distributions have a name, the first one on ``sys.path`` is the last one here.
    """
    for folder in reversed(sys.path):
        try:
            with os.scandir(folder or ".") as found:
                names = sorted(entry.name for entry in found)
        except OSError:
            continue
        for name in names:
            if match := _METADATA.fullmatch(name):
                normal = re.sub(r"[-_.]+", "_", match["name"]).lower()
                yield normal, (match["version"], Path(folder or ".", name))


def _plugins(folders: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """A digest of the files of each installed extension of graphopt."""
    for folder in folders:
        try:
            text = (folder / "entry_points.txt").read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        for group in _GROUP.finditer(text):
            for entry in _ENTRY.finditer(group[2]):
                module = entry[2].partition(".")[0]
                yield f"plugin {group[1]} {entry[1]}", f"{entry[2]} {_module_digest(module)}"


def _module_digest(name: str) -> str:
    """A digest of the files of the top-level module ``name``."""
    try:
        return " ".join(_files_digest(root, name in sys.modules) for root in _roots_of(name))
    except (OSError, ValueError) as error:
        raise NotCached(f"the files of the module {name} can't be read") from error


def _roots_of(name: str) -> list[Path]:
    """The folders of the top-level module ``name``, or its file."""
    module = sys.modules.get(name)
    spec = None if module is None else getattr(module, "__spec__", None)
    spec = spec or importlib.machinery.PathFinder.find_spec(name)
    if spec is None or (not spec.submodule_search_locations and not spec.origin):
        raise NotCached(f"the files of the module {name} are not found")
    return [Path(str(root)) for root in spec.submodule_search_locations or [spec.origin]]
