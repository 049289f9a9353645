"""A silent probe of CUDA: whether onnxruntime can use a GPU; if not, the reason and the remedy."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

from graphopt.ort.error_text import GPU_MEMORY_HINT, lacks_gpu_memory
from graphopt.ort.silence import quiet
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from types import ModuleType

_PROVIDER = "CUDAExecutionProvider"
#: ``y = Identity(x)``, float32, opset 17, IR version 8: a minimal model for probing a provider.
_IDENTITY_MODEL = (
    b'\x08\x08:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)


@dataclass(frozen=True)
class CudaStatus:
    """Whether CUDA can be used.

    Attributes:
        available: whether CUDA can be used.
        reason: the reason, in one sentence, if it is not available.
        remedy: the next step to make it available, if one is known.
    """

    available: bool
    reason: str
    remedy: str = ""


@cache
def probe_cuda(index: int = 0) -> CudaStatus:
    """Determine, once per process, whether onnxruntime can run on CUDA device ``index``, without output.

    Cheap checks with clear reasons (build, driver, libraries) precede a test session, because onnxruntime
    reports failures on stdout and silently falls back to the CPU.
    """
    import onnxruntime

    found = (
        _missing_build(onnxruntime)
        or _unfit_driver(onnxruntime, index)
        or _missing_libraries(onnxruntime)
        or _failing_session(onnxruntime, index)
    )
    if found is None:
        return CudaStatus(True, "CUDA can be used")
    if not all(_is_installed(name) for name in _WHEELS):
        return found
    reason = f"{found.reason}; {' and '.join(_WHEELS)} are installed and overwrite each other's files"
    remedy = f"pip uninstall -y {' '.join(_WHEELS)}, then pip install onnxruntime-gpu"
    if found.remedy and _missing_build(onnxruntime) is None:
        remedy = f"{remedy}; {found.remedy}"
    return CudaStatus(False, reason, remedy)


#: The distributions that contain the folder of onnxruntime: the last one installed overwrites the other.
_WHEELS = ("onnxruntime", "onnxruntime-gpu")
#: Minimum version of the NVIDIA driver for each major version of CUDA (CUDA Toolkit Release Notes).
_DRIVERS = {11: "450", 12: "525", 13: "580"}
#: The last version of onnxruntime-gpu for each older version of CUDA.
_OLDER_WHEELS = {12: "onnxruntime-gpu<1.27"}


def _missing_build(onnxruntime: ModuleType) -> CudaStatus | None:
    if _PROVIDER in onnxruntime.get_available_providers():
        return None
    return CudaStatus(
        False,
        f"this onnxruntime ({onnxruntime.__version__}) is built without CUDA",
        "pip uninstall -y onnxruntime, then pip install onnxruntime-gpu",
    )


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _unfit_driver(onnxruntime: ModuleType, index: int) -> CudaStatus | None:
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    needed = _cuda_major(onnxruntime)
    version_needed = f"version {_DRIVERS[needed]} or newer" if needed in _DRIVERS else f"for CUDA {needed}"
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        install = f"install the NVIDIA driver, {version_needed}"
        return CudaStatus(False, f"no NVIDIA driver ({library} not found)", install)
    count, version = ctypes.c_int(), ctypes.c_int()
    if code := driver.cuInit(0):
        reason = f"the NVIDIA driver can't be initialized (cuInit returned {code})"
        return CudaStatus(False, reason, "nvidia-smi describes the state of the driver and its GPUs")
    if driver.cuDeviceGetCount(ctypes.byref(count)) or driver.cuDriverGetVersion(ctypes.byref(version)):
        return CudaStatus(False, "the NVIDIA driver can't be queried", "nvidia-smi describes its state")
    if not count.value:
        hidden = "nvidia-smi lists the GPUs, and CUDA_VISIBLE_DEVICES may hide them"
        return CudaStatus(False, "the NVIDIA driver reports no GPU", hidden)
    if index >= count.value:
        last = f"cuda:0 to cuda:{count.value - 1}" if count.value > 1 else "cuda:0"
        reason = f"there is no cuda:{index}, the NVIDIA driver reports {count.value} GPU(s)"
        return CudaStatus(False, reason, f"--device {last}")
    major, minor = version.value // 1000, version.value % 1000 // 10
    if major < needed:
        older = f", or pip install '{_OLDER_WHEELS[major]}'" if major in _OLDER_WHEELS else ""
        return CudaStatus(
            False,
            f"the driver supports CUDA {major}.{minor}, this onnxruntime needs {needed}",
            f"update the NVIDIA driver to {version_needed}{older}",
        )
    return None


def _cuda_major(onnxruntime: ModuleType) -> int:
    return int(str(getattr(onnxruntime, "cuda_version", "") or "0").split(".")[0])


def _missing_libraries(onnxruntime: ModuleType) -> CudaStatus | None:
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
    return CudaStatus(False, f"missing {', '.join(missing)}", f"pip install '{package}'")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _failing_session(onnxruntime: ModuleType, index: int) -> CudaStatus | None:
    providers = [(_PROVIDER, {"device_id": str(index)}), "CPUExecutionProvider"]
    with quiet(onnxruntime):
        try:
            session = onnxruntime.InferenceSession(_IDENTITY_MODEL, providers=providers, enable_fallback=0)
        except Exception as error:  # onnxruntime's errors have no common base class
            if lacks_gpu_memory(str(error)):
                return CudaStatus(False, f"cuda:{index} has no free memory", GPU_MEMORY_HINT)
            reason = str(error).split("CUDA failure")[-1].split(" ; ")[0].strip()
            return CudaStatus(False, f"a session can't be created: {reason}")
    if _PROVIDER in session.get_providers():
        return None
    return CudaStatus(False, "onnxruntime fell back to the CPU")
