"""Runs device code on the CPU by OpenCL, as PoCL provides it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from graphopt.fusion.backends.cuda.device_printer import device_kernel
from graphopt.fusion.backends.cuda.dialect import Dialect, module_text
from graphopt.fusion.loops.ir import Kernel

#: PoCL keeps compiled kernels there: by default, in the home folder.
_KEPT = TemporaryDirectory(prefix="pocl")


@cache
def missing() -> str | None:
    """The reason why OpenCL is not available; None if it is."""
    os.environ |= {"POCL_CACHE_DIR": _KEPT.name, "PYOPENCL_NO_CACHE": "1"}
    try:
        import pyopencl
    except ImportError:
        return "no OpenCL: pyopencl is not installed"
    try:
        found = [device for platform in pyopencl.get_platforms() for device in platform.get_devices()]
    except pyopencl.Error as error:
        return f"no OpenCL: {error}"
    return None if found else "no OpenCL: no devices (PoCL is Debian's package pocl-opencl-icd)"


class OpenCL:
    """Compiled kernels on the first OpenCL device."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        assert missing() is None
        import pyopencl

        self.cl = pyopencl
        device = next(iter(pyopencl.get_platforms()[0].get_devices()))
        self.context = pyopencl.Context([device])
        self.queue = pyopencl.CommandQueue(self.context)
        text = module_text(Dialect.OPENCL, [device_kernel(kernel).text for kernel in kernels])
        # Most of the time is compilation.
        options = ["-cl-fp32-correctly-rounded-divide-sqrt", "-cl-opt-disable", "-w"]
        self.program = pyopencl.Program(self.context, text).build(options=options)
        self.functions = {item.function_name: item for item in self.program.all_kernels()}

    def buffer(self, data: np.ndarray) -> Any:
        flags = self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.COPY_HOST_PTR
        return self.cl.Buffer(self.context, flags, hostbuf=data)

    def read(self, buffer: Any, size: int) -> np.ndarray:
        data = np.empty(size, np.uint8)
        self.cl.enqueue_copy(self.queue, data, buffer)
        return data

    def launch(self, function: str, blocks: int, threads: int, arguments: Sequence[Any]) -> None:
        self.functions[function](self.queue, (blocks * threads,), (threads,), *arguments)
