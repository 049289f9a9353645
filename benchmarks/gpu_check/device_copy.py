"""A copy in the memory of a device, as the measure of its bandwidth."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu_check.section import NotApplicable
from graphopt.ort.devices import Device


def copier(device: Device, nbytes: int) -> Callable[[int], None]:
    """A function that copies ``nbytes`` on the device the given number of times, and waits for the copies.

    On CUDA the copies are those of the driver, cuMemcpyDtoDAsync, between two values of onnxruntime.

    Raises:
        NotApplicable: the driver can't be used.
    """
    source = np.ones(nbytes, np.uint8)
    if device.capabilities.is_host:
        target = np.zeros(nbytes, np.uint8)

        def copy(times: int) -> None:
            for _ in range(times):
                np.copyto(target, source)

        return copy
    return _on_cuda(device, source)


def _on_cuda(device: Device, source: np.ndarray) -> Callable[[int], None]:
    import onnxruntime

    values = [onnxruntime.OrtValue.ortvalue_from_numpy(source, device.kind, device.index) for _ in range(2)]
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _check(driver.cuInit(0), "cuInit")
    _check(driver.cuDeviceGet(ctypes.byref(handle), device.index), "cuDeviceGet")
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "cuDevicePrimaryCtxRetain")
    _check(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    target, origin = (ctypes.c_uint64(value.data_ptr()) for value in values)
    size = ctypes.c_size_t(source.nbytes)

    def copy(times: int, _kept: Any = values) -> None:
        for _ in range(times):
            _check(driver.cuMemcpyDtoDAsync_v2(target, origin, size, None), "cuMemcpyDtoDAsync")
        _check(driver.cuCtxSynchronize(), "cuCtxSynchronize")

    return copy


def _check(status: int, name: str) -> None:
    if status:
        raise NotApplicable(f"{name} failed with CUDA error {status}")
