"""Sizes and checksums of files, and of the JSON objects that list them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphopt.util.disk_store import file_digest
from graphopt.util.lazy_dataclass import dataclass

#: The key of a JSON object with the checksum of its other entries.
CHECKSUM = "checksum"


@dataclass(frozen=True)
class FileSum:
    """The checksum of a file.

    Attributes:
        sha256: the SHA-256, as hex digits.
        bytes: the size in bytes; ``None`` if unknown.
    """

    sha256: str
    bytes: int | None = None

    @classmethod
    def of(cls, file: Path) -> FileSum:
        """The checksum of ``file``; raises OSError."""
        return cls(file_digest(file), file.stat().st_size)


def checksum(data: Mapping[str, Any]) -> str:
    """The SHA-256 of all entries of ``data`` except the checksum itself, as canonical JSON."""
    rest = {key: value for key, value in data.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
