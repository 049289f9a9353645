"""Devices that run models: their capabilities and provider options, and parsing of ``--device``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from graphopt import config
from graphopt.config import Settings
from graphopt.errors import RuntimeFailure, unknown
from graphopt.ort.cuda_probe import CudaStatus, probe_cuda
from graphopt.util.cuda_options import parse_cuda_options
from graphopt.util.lazy_dataclass import dataclass

#: The option of the CUDA provider that permits TF32.
TF32 = "use_tf32"
#: The forms of a device's name.
_DEVICES = ("auto", "cpu", "cuda", "cuda:N")


@dataclass(frozen=True)
class MatrixUnits:
    """Units that multiply small matrices at once, such as tensor cores.

    Attributes:
        multiples: by element type, a number of elements. Products are fast if the rows of matrices in memory
            are multiples of it; 16 bytes on NVIDIA's GPUs (Matrix Multiplication Background User's Guide).
        intensities: by element type, the operations per moved byte above which products are compute-bound.
        slowdown: the time of a compute-bound product with other rows, relative to aligned rows.
        launch_bytes: the bytes that the device moves in the time that one more node costs.
        padded_types: element types for which onnxruntime has a kernel of Pad on the device; Slice has all.
    """

    multiples: Mapping[str, int]
    intensities: Mapping[str, float]
    slowdown: float
    launch_bytes: int
    padded_types: frozenset[str]


#: Tensor cores of compute capability 8.0 and newer. Intensities are those of an A100, the lowest of these
#: GPUs: 312 (TF32: 156, int8: 624) tera-operations and 2.0 TB per second. The slowdown and the time of a node
#: (4 microseconds) are estimates. Types are those of onnxruntime's docs/OperatorKernels.md.
TENSOR_CORES = MatrixUnits(
    {"float16": 8, "bfloat16": 8, "float": 4, "int8": 16, "uint8": 16},
    {"float16": 156.0, "bfloat16": 156.0, "float": 78.0, "int8": 312.0, "uint8": 312.0},
    slowdown=2.0,
    launch_bytes=8 << 20,
    padded_types=frozenset({"float16", "float", "double"}),
)


@dataclass(frozen=True)
class Capabilities:
    """Properties of a kind of device; other modules read them instead of its name.

    Attributes:
        provider: onnxruntime's execution provider.
        is_host: whether the device computes on threads of the process and in its memory: both can be limited
            and tuned, and tensors need no transfer. Sessions of other devices may fall back to the host.
        forkable: whether forked processes can use the device, so that child processes start quickly.
        loads_libraries: whether sessions run kernels of custom operator libraries on the device.
        all_operators: whether the device has kernels for all operators, including the ones that only the host
            has in onnxruntime (FusedGemm, MatMulIntegerToFloat).
        tf32: whether the device may round factors of float32 products to TF32.
        matrix_units: units that multiply small matrices at once; ``None`` if the device has none.
        captures_graphs: whether the kernels of a run can be captured in a CUDA graph.
    """

    provider: str
    is_host: bool
    forkable: bool
    loads_libraries: bool
    all_operators: bool
    tf32: bool
    matrix_units: MatrixUnits | None = None
    captures_graphs: bool = False


_CAPABILITIES = {
    "cpu": Capabilities("CPUExecutionProvider", True, True, True, True, tf32=False),
    "cuda": Capabilities(
        "CUDAExecutionProvider",
        False,
        False,
        True,
        False,
        tf32=True,
        matrix_units=TENSOR_CORES,
        captures_graphs=True,
    ),
}

#: onnxruntime's execution provider, by kind of device.
PROVIDERS = {kind: found.provider for kind, found in _CAPABILITIES.items()}


@dataclass(frozen=True)
class Device:
    """A device on which onnxruntime runs a model.

    Attributes:
        kind: the kind of device.
        index: its index among the devices of its kind.
        options: options of its provider for all sessions, with values in the notation of onnxruntime
            (:func:`graphopt.util.cuda_options.parse_cuda_options`); empty for the CPU.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    index: int = 0
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if self.kind == "cpu":
            return "CPU"
        return f"CUDA:{self.index}" if self.index else "CUDA"

    @property
    def capabilities(self) -> Capabilities:
        """Properties of this kind of device."""
        return _CAPABILITIES[self.kind]

    def having(self, options: Iterable[str] | Mapping[str, object]) -> Device:
        """This device with additional ``options`` of its provider, unless set already; the CPU has none.

        Raises:
            UsageError: an option is unknown, or has an invalid value.
        """
        if self.capabilities.is_host or not options:
            return self
        return replace(self, options=tuple((parse_cuda_options(options) | dict(self.options)).items()))

    @property
    def exact(self) -> Device:
        """This device without TF32, for comparisons, because TF32 hides faults."""
        return replace(self, options=tuple(pair for pair in self.options if pair[0] != TF32))

    @property
    def timed(self) -> Device:
        """This device with onnxruntime's default for TF32 unless an option sets it, for timing."""
        return self.having({TF32: 1}) if self.capabilities.tf32 else self

    @property
    def has_tf32(self) -> bool:
        """Whether sessions round the factors of float32 products to TF32, if the hardware supports it."""
        return self.provider_options().get(TF32) == "1"

    def provider_options(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The options of the provider, except the index of the device; empty for the CPU.

        TF32 is off unless an option enables it, unlike in onnxruntime.

        Args:
            more: options of one session, which override those of the device.
        """
        if self.capabilities.is_host:
            return {}
        return ({TF32: "0"} if self.capabilities.tf32 else {}) | dict(self.options) | dict(more or {})

    def providers(self, options: Mapping[str, str] | None = None) -> list[Any]:
        """onnxruntime's providers for this device, in order of preference.

        All sessions receive their provider options here.

        Args:
            options: options of one session, which override those of the device.
        """
        provider = self.capabilities.provider
        if self.capabilities.is_host:
            return [provider]
        own = {"device_id": str(self.index)} | self.provider_options(options)
        return [(provider, own), CPU.capabilities.provider]


CPU = Device()


def parse_device(text: str) -> Device | None:
    """Parse ``auto`` (``None``), ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        UsageError: anything else.
    """
    word = text.strip().lower()
    if word == "auto":
        return None
    if word == "cpu":
        return CPU
    match = re.fullmatch(r"cuda(?::([0-9]{1,9}))?", word)
    if match is None:
        raise unknown("device", text, _DEVICES)
    return Device("cuda", int(match[1] or 0))


def choose(text: str, *, allow_fallback: bool = False) -> tuple[Device, str | None]:
    """The device for ``--device text``, and a one-line note if it falls back to the CPU.

    ``auto`` chooses CUDA if it works, otherwise the CPU.

    Raises:
        UsageError: ``text`` names no device.
        RuntimeFailure: CUDA was requested, can't be used, and ``allow_fallback`` is false.
    """
    device = parse_device(text)
    if device == CPU:
        return CPU, None
    wanted = device or Device("cuda")
    status: CudaStatus = probe_cuda(wanted.index)
    if status.available:
        return wanted, None
    if device is not None and not allow_fallback:
        on_cpu = "--device auto runs on the CPU, and so does --allow-fallback; graphopt doctor has details"
        hint = f"{status.remedy}; {on_cpu}" if status.remedy else on_cpu
        raise RuntimeFailure(f"CUDA can't be used: {status.reason}", hint=hint)
    return CPU, f"CUDA can't be used ({status.reason}); running on the CPU"


def choose_device(
    device: str | Device | None = None, settings: Settings | None = None
) -> tuple[Device, str | None]:
    """The device named by ``device``, otherwise by ``settings``, and a note as for :func:`choose`.

    The device has the options of the CUDA provider in ``settings``; options of a ``Device`` override them.

    Raises:
        UsageError: ``device`` names no device.
        RuntimeFailure: the device can't be used, and falling back to the CPU is not allowed.
    """
    settings = settings or config.current()
    found, note = (
        (device, None)
        if isinstance(device, Device)
        else choose(device or settings.device, allow_fallback=settings.allow_fallback)
    )
    return found.having(settings.cuda_options), note


def target_device(device: str | Device | None, *, probe: bool = True) -> Device | None:
    """The device for which models are optimized: the named device, present or not, or the available one.

    Args:
        device: an object, or its name.
        probe: look for a device if none is named; otherwise the result is ``None``.
    """
    if device is None or isinstance(device, Device):
        return device
    return parse_device(device) or (choose(device)[0] if probe else None)
