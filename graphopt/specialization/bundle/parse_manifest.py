"""Parse manifests of format version 3. Every entry is required and checked, because it is untrusted input."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from graphopt.errors import InvalidModel
from graphopt.recorded_settings import SettingsRecord
from graphopt.specialization.build_record import OriginalFile
from graphopt.specialization.bundle.checked_json import (
    Entries,
    check_sums,
    signature_of,
    sums_of,
    variants_of,
)
from graphopt.specialization.bundle.manifest import (
    BundleTarget,
    KernelFile,
    Manifest,
    Operators,
)
from graphopt.specialization.bundle.names import MANIFEST, MARK
from graphopt.util.file_sums import CHECKSUM, checksum

_KEYS = (
    MARK,
    "versions",
    "model",
    "inputs",
    "outputs",
    "general",
    "variants",
    "weights",
    "session_options",
    "native",
    "kernels",
    "target",
    "operators",
    "settings",
    "files",
    CHECKSUM,
)
#: File names: one component of a path, on any system.
_NAME = re.compile(r"[^/\\:\0]+")
_LEVELS = (None, 2, 3, 4)


def parse_manifest(data: dict[str, Any]) -> Manifest:
    """Parse the result of :meth:`Manifest.to_dict`, whose version is known to be 3.

    Raises:
        InvalidModel: ``data`` is malformed, or does not match its checksum.
    """
    entries = Entries(data, "manifest")
    entries.only(*_KEYS, optional=("original",))
    if entries.text(CHECKSUM) != checksum(data):
        raise InvalidModel(
            "the manifest is damaged: its checksum does not match", hint="copy the bundle again completely"
        )
    general = entries.entries("general")
    general.only("file", "nodes")
    found = Manifest(
        entries.text("model"),
        variants_of(entries),
        signature_of(entries),
        general.count("nodes"),
        general.text("file"),
        entries.nullable_text("weights"),
        sums_of(entries),
        entries.nullable_text("session_options"),
        entries.texts_by_name("versions"),
        entries.texts("native"),
        tuple(map(_kernel_file, entries.items("kernels"))),
        _target(entries.entries("target")),
        _operators(entries.entries("operators")),
        _original(entries.entries("original")) if "original" in data else None,
        entries.mapping("settings"),
    )
    if found.settings:
        SettingsRecord.from_dict(dict(found.settings))
    if any(name not in found.models for name in found.native):
        raise entries.error("native kernels of an unknown variant")
    _check_variants(entries)
    _check_names(found, entries)
    return found


def is_file_name(name: str) -> bool:
    """Whether ``name`` is one component of a path on any system, and names a file in the folder itself."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def _check_variants(entries: Entries) -> None:
    """Check the entries of variants about which records are lenient."""
    for data in entries.items("variants"):
        variant = Entries(data, f"variant {data['name']!r}")
        variant.only("name", "runs", "nodes", "guard", "file", optional=("session_options",))
        variant.count("runs"), variant.count("nodes"), variant.text("file")
        variant.optional_text("session_options")


def _check_names(found: Manifest, entries: Entries) -> None:
    """Check that file names are single components with one use each, and that ``files`` lists them all."""
    used = [*found.models.values(), *([] if found.weights is None else [found.weights])]
    used += [library.file for library in found.kernels]
    for name in (*used, *found.sums):
        if not is_file_name(name) or name == MANIFEST:
            raise InvalidModel(f"file outside of the bundle: {name!r}")
    twice = next((name for name, count in Counter(used).items() if count > 1), None)
    if twice is not None:
        raise entries.error(f"the file {twice!r} has two uses")
    check_sums(used, found.sums, entries)
    idle = next((name for name in found.sums if name not in used), None)
    if idle is not None:
        raise entries.error(f"the file {idle!r} has no use")


def _kernel_file(data: Any) -> KernelFile:
    entries = Entries(data, "entry of kernels")
    entries.only("file", "device", "machine", "cpu_level")
    return KernelFile(
        entries.text("file"), entries.text("device"), entries.text("machine"), _cpu_level(entries)
    )


def _target(entries: Entries) -> BundleTarget:
    entries.only("device", "provider", "system", "machine", "cpu_level", "onnxruntime")
    return BundleTarget(
        entries.text("device"),
        entries.text("provider"),
        entries.text("onnxruntime"),
        entries.nullable_text("system"),
        entries.nullable_text("machine"),
        _cpu_level(entries),
    )


def _cpu_level(entries: Entries) -> int | None:
    level = entries.data["cpu_level"]
    if level not in _LEVELS or isinstance(level, (bool, float)):
        raise entries.error("cpu_level must be 2, 3, 4 or null")
    return level


def _operators(entries: Entries) -> Operators:
    entries.only("opsets", "libraries")
    opsets = entries.entries("opsets")
    return Operators({domain: opsets.count(domain) for domain in opsets.data}, entries.texts("libraries"))


def _original(entries: Entries) -> OriginalFile:
    entries.only("file", "sha256", "producer")
    return OriginalFile(entries.text("file"), entries.sha256("sha256"), entries.text("producer"))
