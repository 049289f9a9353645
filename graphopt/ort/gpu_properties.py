"""Properties of NVIDIA GPUs, from the driver."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from graphopt.ort.devices import Device, MatrixUnits
from graphopt.util.lazy_dataclass import dataclass

#: Attributes of ``cuDeviceGetAttribute`` (cuda.h).
_MAJOR, _MINOR = 75, 76
_NAME_BYTES = 256
#: The compute capability from which tensor cores multiply matrices of a type (CUDA C++ Programming Guide).
_TENSOR_CORES_SINCE = {
    "float16": (7, 0),
    "int8": (7, 2),
    "uint8": (7, 2),
    "float": (8, 0),
    "bfloat16": (8, 0),
}


@dataclass(frozen=True)
class GpuProperties:
    """A GPU.

    Attributes:
        name: its name.
        capability: its compute capability, such as (9, 0).
    """

    name: str
    capability: tuple[int, int]

    @property
    def has_tf32(self) -> bool:
        """Whether its tensor cores compute float32 products in TF32."""
        return self.capability >= _TENSOR_CORES_SINCE["float"]

    @property
    def has_bf16(self) -> bool:
        """Whether it computes in bfloat16."""
        return self.capability >= _TENSOR_CORES_SINCE["bfloat16"]

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.capability[0]}.{self.capability[1]})"


@cache
def gpu_properties(device: Device) -> GpuProperties | None:
    """The properties of ``device``; ``None`` if it is no GPU, or the driver does not describe it."""
    if device.kind != "cuda":
        return None
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    return properties_from(driver, device.index)


def matrix_units(device: Device, gpu: GpuProperties | None) -> MatrixUnits | None:
    """The units of ``device`` for products of matrices, for the types that ``gpu`` supports.

    Args:
        gpu: the properties of the device; ``None`` if they are not known, such as for a target device that is
            not present, which counts as one that supports all types.
    """
    units = device.capabilities.matrix_units
    if units is None or gpu is None:
        return units
    multiples = {
        dtype: number
        for dtype, number in units.multiples.items()
        if gpu.capability >= _TENSOR_CORES_SINCE[dtype]
    }
    return replace(units, multiples=multiples) if multiples else None


def properties_from(driver: Any, index: int) -> GpuProperties | None:
    """The properties of GPU ``index``, by the functions of the library ``driver``."""
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    calls: tuple[Callable[[], int], ...] = (
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGet(ctypes.byref(handle), index),
        lambda: driver.cuDeviceGetName(name, _NAME_BYTES, handle),
        lambda: driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle),
        lambda: driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle),
    )
    if any(call() for call in calls):  # each returns 0 on success
        return None
    return GpuProperties(name.value.decode(errors="replace"), (major.value, minor.value))
