"""Sessions without prepacked weights, whose kernels do not depend on whether an operand is constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphopt.fusion.kernel_library import Libraries
from graphopt.ort.devices import CPU, Device
from graphopt.ort.session_options import SessionChoice

if TYPE_CHECKING:
    from onnxruntime import SessionOptions


class Unpacked(SessionChoice):
    """Session options without prepacked weights."""

    plain = False

    def apply(self, options: SessionOptions, device: Device = CPU) -> None:
        super().apply(options, device)
        options.add_session_config_entry("session.disable_prepacking", "1")


@dataclass(frozen=True)
class UnpackedLibraries(Libraries):
    """No libraries, and sessions without prepacked weights."""

    @property
    def choice(self) -> SessionChoice:
        return Unpacked()
