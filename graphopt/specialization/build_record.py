"""The origin of a specialized model: its original's file, and its device."""

from __future__ import annotations

from graphopt.ort.devices import CPU, Device
from graphopt.util.lazy_dataclass import dataclass


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
class BuildRecord:
    """The origin of a specialized model.

    Attributes:
        device: the device that the models are optimized for.
        original: the file of the original; ``None`` for a model in memory.
    """

    device: Device = CPU
    original: OriginalFile | None = None
