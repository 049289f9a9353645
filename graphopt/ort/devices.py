"""Devices that run models: parsing of ``--device``, and a silent probe of CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from graphopt import config
from graphopt.config import Settings
from graphopt.errors import RuntimeFailure, unknown
from graphopt.util.cuda_options import parse_cuda_options
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from types import ModuleType

#: ``y = Identity(x)``, float32, opset 17, IR version 8: a minimal model for probing a provider.
_IDENTITY_MODEL = (
    b'\x08\x08:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)


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
        index: its number among the devices of its kind.
        options: options of its provider for all sessions, with values as onnxruntime expects them
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
        """This device with further ``options`` of its provider, which its own override; the CPU has none.

        Raises:
            UsageError: an option is unknown, or has an invalid value.
        """
        if self.capabilities.is_host or not options:
            return self
        return replace(self, options=tuple((parse_cuda_options(options) | dict(self.options)).items()))

    @property
    def exact(self) -> Device:
        """This device without TF32, for comparisons: TF32 hides faults."""
        return replace(self, options=tuple(pair for pair in self.options if pair[0] != TF32))

    @property
    def timed(self) -> Device:
        """This device with onnxruntime's own default of TF32 unless an option sets it, for timing."""
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


@dataclass(frozen=True)
class CudaStatus:
    """Whether CUDA can be used, and the reason if not, in one sentence."""

    available: bool
    reason: str


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
    status = probe_cuda(wanted.index)
    if status.available:
        return wanted, None
    if device is not None and not allow_fallback:
        raise RuntimeFailure(
            f"CUDA can't be used: {status.reason}",
            hint="--device auto runs on the CPU, and so does --allow-fallback; graphopt doctor has details",
        )
    return CPU, f"CUDA can't be used ({status.reason}); running on the CPU"


def choose_device(
    device: str | Device | None = None, settings: Settings | None = None
) -> tuple[Device, str | None]:
    """The device named by ``device``, otherwise by ``settings``, and a note as for :func:`choose`.

    The device has the options of the CUDA provider of ``settings``; those of an object override them.

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


@cache
def probe_cuda(index: int = 0) -> CudaStatus:
    """Determine, once per process, whether onnxruntime can run on CUDA device ``index``, printing nothing.

    Cheap checks with clear reasons (build, driver, libraries) precede a trial session, because onnxruntime
    reports failures on stdout and silently falls back to the CPU.
    """
    import onnxruntime

    reason = (
        _missing_build(onnxruntime)
        or _unfit_driver(onnxruntime, index)
        or _missing_libraries(onnxruntime)
        or _failing_session(onnxruntime, index)
    )
    return CudaStatus(reason is None, reason or "CUDA can be used")


@contextlib.contextmanager
def quiet(onnxruntime: ModuleType) -> Iterator[None]:
    """Silence onnxruntime's default logger and the output of its Python code."""
    with unlogged(onnxruntime), contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def unlogged(onnxruntime: ModuleType) -> Iterator[None]:
    """Silence onnxruntime's default logger, which reports failed allocations, for example."""
    onnxruntime.set_default_logger_severity(4)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(2)


def _missing_build(onnxruntime: ModuleType) -> str | None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        return None
    reason = f"this onnxruntime ({onnxruntime.__version__}) is built without CUDA"
    if all(_is_installed(name) for name in ("onnxruntime", "onnxruntime-gpu")):
        reason += "; onnxruntime overwrites onnxruntime-gpu: uninstall both, then install onnxruntime-gpu"
    return reason


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _unfit_driver(onnxruntime: ModuleType, index: int) -> str | None:
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return f"no NVIDIA driver ({library} not found)"
    count, version = ctypes.c_int(), ctypes.c_int()
    if code := driver.cuInit(0):
        return f"the NVIDIA driver can't start (cuInit returned {code})"
    if driver.cuDeviceGetCount(ctypes.byref(count)) or driver.cuDriverGetVersion(ctypes.byref(version)):
        return "the NVIDIA driver does not answer"
    if not count.value:
        return "the NVIDIA driver reports no GPU"
    if index >= count.value:
        return f"there is no cuda:{index}, the NVIDIA driver reports {count.value} GPU(s)"
    needed = _cuda_major(onnxruntime)
    major, minor = version.value // 1000, version.value % 1000 // 10
    if major < needed:
        return f"the driver supports CUDA {major}.{minor}, this onnxruntime needs {needed}"
    return None


def _cuda_major(onnxruntime: ModuleType) -> int:
    return int(str(getattr(onnxruntime, "cuda_version", "") or "0").split(".")[0])


def _missing_libraries(onnxruntime: ModuleType) -> str | None:
    """onnxruntime's CUDA libraries that can't be loaded, except cuDNN, which is loaded on demand."""
    with quiet(onnxruntime):
        onnxruntime.preload_dlls()
    if not sys.platform.startswith("linux"):
        return None
    major = _cuda_major(onnxruntime)
    wanted = (f"libcudart.so.{major}", f"libcublasLt.so.{major}", f"libcublas.so.{major}", "libcurand.so.10")
    missing = [name for name in wanted if not _loads(name)]
    if not missing:
        return None
    package = f"onnxruntime-gpu[cuda,cudnn]=={onnxruntime.__version__}"
    return f"missing {', '.join(missing)} (pip install '{package}' installs it)"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _failing_session(onnxruntime: ModuleType, index: int) -> str | None:
    with quiet(onnxruntime):
        try:
            session = onnxruntime.InferenceSession(
                _IDENTITY_MODEL, providers=Device("cuda", index).providers(), enable_fallback=0
            )
        except Exception as error:  # onnxruntime's errors have no common base class
            return "it does not start: " + str(error).split("CUDA failure")[-1].split(" ; ")[0].strip()
    if "CUDAExecutionProvider" in session.get_providers():
        return None
    return "onnxruntime fell back to the CPU"
