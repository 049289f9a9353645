"""The origin of a specialized model: its original's file, its device, and the options that produced it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphopt.ort.devices import CPU, Device


@dataclass(frozen=True)
class OriginalFile:
    """The file of an original model.

    Attributes:
        file: its name, without its folder.
        sha256: the SHA-256 of the file, without external data.
        producer: name and version of the exporter; may be empty.
    """

    file: str
    sha256: str
    producer: str = ""


@dataclass(frozen=True)
class Provenance:
    """The origin of a specialized model.

    Attributes:
        device: the device that the models are optimized for.
        original: the file of the original; ``None`` for a model in memory.
        settings: the settings and options that differ from their defaults, as JSON.
    """

    device: Device = CPU
    original: OriginalFile | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
