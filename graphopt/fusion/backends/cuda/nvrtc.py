"""Compilation of device code to images by NVRTC, NVIDIA's compiler library for CUDA C++, without a GPU.

It is part of the package ``nvidia-cuda-nvrtc`` and of CUDA toolkits. It needs no driver and no headers.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from graphopt.errors import NoCompiler, RuntimeFailure
from graphopt.util.lazy_dataclass import dataclass

#: Compute capabilities with machine code, as ``10 * major + minor``. Code also runs on GPUs with the same
#: major and a higher minor number.
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
#: Options of all compilations. Products and sums are rounded separately, as in separate operators. Divisions,
#: square roots and denormals follow IEEE 754, NVRTC's default. The log has the registers of each function.
OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")
_INSTALL = "pip install 'graphopt[cuda-kernels]'"
#: Names of the library in the system's search path.
_SYSTEM = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
#: Lines of the log of ptxas.
_FUNCTION = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Target:
    """An architecture of GPUs.

    Attributes:
        number: compute capability, as ``10 * major + minor``.
        ptx: whether the image is PTX, which the driver compiles for this and all later architectures.
    """

    number: int
    ptx: bool = False

    def __str__(self) -> str:
        return f"{'compute' if self.ptx else 'sm'}_{self.number}"


#: The images of a library.
TARGETS = (*map(Target, ARCHITECTURES), Target(ARCHITECTURES[-1], ptx=True))


@dataclass(frozen=True)
class Resources:
    """The resources of a device function: registers, and bytes of local memory and of shared memory."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int


@dataclass(frozen=True)
class Image:
    """Compiled device code.

    Attributes:
        code: a cubin, or PTX with a final zero byte.
        resources: by function; empty for PTX.
    """

    code: bytes
    resources: dict[str, Resources]


class Nvrtc:
    """The loaded library. Its methods are thread-safe.

    Args:
        path: path or name of the library.

    Raises:
        OSError: the library can't be loaded.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def __str__(self) -> str:
        return "NVRTC {}.{}".format(*self.version)

    @property
    def architectures(self) -> tuple[int, ...]:
        """All architectures that it supports."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return tuple(found)

    def compile(self, text: str, target: Target) -> Image:
        """Compile CUDA C++, whose functions are ``extern "C"``.

        Raises:
            RuntimeFailure: the code does not compile.
        """
        program = ctypes.c_void_p()
        source = text.encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source, b"kernels.cu", 0, None, None)
        try:
            options = [option.encode() for option in (f"--gpu-architecture={target}", *OPTIONS)]
            code = self._library.nvrtcCompileProgram(
                program, len(options), (ctypes.c_char_p * len(options))(*options)
            )
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if code:
                raise RuntimeFailure(f"{self} can't compile kernels for {target}: {_first_error(log)}")
            if target.ptx:
                return Image(self._read(program, "PTX"), {})
            return Image(self._read(program, "CUBIN"), resources_of(log))
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, kind: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._call(f"nvrtcGet{kind}", program, buffer)
        return buffer.raw[: size.value]

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            reason = self._library.nvrtcGetErrorString(code).decode()
            raise RuntimeFailure(f"NVRTC fails in {name}: {reason}")


@cache
def find_nvrtc() -> Nvrtc:
    """NVRTC from the newest package ``nvidia-cuda-nvrtc``, or else from the system.

    Raises:
        NoCompiler: it was not found, or does not support all of :data:`ARCHITECTURES`.
    """
    broken, old = "", ""
    for path in (*_packaged(), *_SYSTEM):
        try:
            found = Nvrtc(path)
            missing = sorted({*ARCHITECTURES} - {*found.architectures})
        except (OSError, AttributeError, RuntimeFailure) as error:
            if Path(path).is_absolute():
                broken = broken or f"NVRTC can't be loaded from {path}: {error}"
            continue
        if not missing:
            return found
        old = old or f"{found} does not compile for {', '.join(f'sm_{number}' for number in missing)}"
    reason = old or broken or "NVRTC, which compiles kernels for CUDA, was not found"
    raise NoCompiler(reason, hint=_INSTALL)


def _packaged() -> Iterator[str]:
    """Paths of the library in Python packages, newest first."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    pattern = "*/bin/**/nvrtc64_*.dll" if sys.platform == "win32" else "*/lib/libnvrtc.so.*"
    files = [file for folder in folders for file in folder.glob(pattern) if "alt" not in file.name]
    yield from map(str, sorted(files, key=lambda file: _numbers(file.name), reverse=True))


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", name)]


def resources_of(log: str) -> dict[str, Resources]:
    """The resources of each function in a log of ptxas."""
    found: dict[str, Resources] = {}
    name, stack = "", (0, 0, 0)
    for line in log.splitlines():
        if match := _FUNCTION.search(line):
            name, stack = match[1], (0, 0, 0)
        elif match := _STACK.search(line):
            stack = (int(match[1]), int(match[2]), int(match[3]))
        elif name and (match := _REGISTERS.search(line)):
            shared = _SHARED.search(line)
            found[name] = Resources(int(match[1]), *stack, int(shared[1]) if shared else 0)
    return found


def _first_error(log: str) -> str:
    lines: Sequence[str] = [line.strip() for line in log.splitlines() if line.strip()]
    found = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no output")
    return found if len(found) <= 200 else found[:197] + "..."
