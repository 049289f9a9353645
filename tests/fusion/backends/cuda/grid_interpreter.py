"""Runs device code without a GPU and without OpenCL: the threads of a block are coroutines."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.fusion.backends.cuda.device_printer import device_kernel
from graphopt.fusion.backends.cuda.dialect import header
from graphopt.fusion.backends.cuda.launch import Launch, SizeValue
from graphopt.fusion.loops.ir import Kernel

_FLAGS = ["-O0", "-shared", "-fPIC", "-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]
#: Languages of GCC and Clang: the dialect of the interpreter, and CUDA C++.
_C, _CPP = ["-x", "c", "-std=gnu11"], ["-x", "c++", "-std=gnu++17"]
_EXPORTED = 'extern "C" '


@cache
def compiler() -> str | None:
    """A C compiler, or None."""
    return next((path for name in ("gcc", "clang", "cc") if (path := shutil.which(name))), None)


class GridInterpreter:
    """Compiled kernels; a buffer is an array.

    Args:
        cuda: whether the dialect is CUDA C++, except for the conversions of halves, or else C.
        backward: whether the threads of a block run in descending order.
        shift: bytes by which the addresses of buffers are off from multiples of 16.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        folder: Path,
        *,
        cuda: bool = False,
        backward: bool = False,
        shift: int = 0,
    ) -> None:
        self.backward, self.shift = backward, shift
        text, target = folder / "grid.c", folder / "grid.so"
        text.write_text(grid_source(kernels, cuda), encoding="utf-8")
        found = compiler()
        assert found is not None
        command = [found, *_FLAGS, *(_CPP if cuda else _C), str(text), "-o", str(target), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr[:4000]
        self.library = ctypes.CDLL(str(target))

    def buffer(self, data: np.ndarray) -> np.ndarray:
        space = np.empty(len(data) + 64, np.uint8)
        start = -space.ctypes.data % 16 + self.shift
        buffer = space[start : start + len(data)]
        buffer[:] = data
        return buffer

    def read(self, buffer: np.ndarray, size: int) -> np.ndarray:
        return buffer[:size].copy()

    def launch(self, function: str, blocks: int, threads: int, arguments: Sequence[Any]) -> None:
        numbers = [ctypes.c_int64(int(item)) for item in arguments if not isinstance(item, np.ndarray)]
        rest = iter(numbers)
        addresses = [
            item.ctypes.data if isinstance(item, np.ndarray) else ctypes.addressof(next(rest))
            for item in arguments
        ]
        table = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        failed = self.library.go_run(
            getattr(self.library, f"run_{function}"),
            table,
            ctypes.c_int64(blocks),
            threads,
            int(self.backward),
        )
        assert not failed, f"threads of {function} differ in their barriers"


def grid_source(kernels: Sequence[Kernel], cuda: bool) -> str:
    """The source of ``kernels`` and of functions that call them with arrays of arguments."""
    parts = [_own("coroutines.h")]
    if cuda:
        # Assembler is replaced by the functions of other dialects.
        language = header("cuda.h").partition("GO_FUNCTION f32 go_from_f16")[0]
        parts += [_own("cuda_on_cpu.h"), language, "#define GO_HALVES_BY_BITS\n"]
    else:
        parts.append(_own("grid.h"))
    parts.append(header("common.h"))
    for kernel in kernels:
        found = device_kernel(kernel)
        parts.append(found.text)
        calls = [_call(launch, end, cuda) for launch in found.launches for end in _endings(launch)]
        parts += dict.fromkeys(calls)  # several launches may have one function
    return "\n".join(parts)


def _own(name: str) -> str:
    """The text of a header beside this file."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _endings(launch: Launch) -> tuple[str, ...]:
    return ("_32", "_64") if launch.counts else ("",)


def _call(launch: Launch, suffix: str, cuda: bool) -> str:
    address = "go_address{{arguments[{}]}}" if cuda else "arguments[{}]"
    arguments = ", ".join(
        f"*(i64 *)arguments[{index}]" if isinstance(item, SizeValue) else address.format(index)
        for index, item in enumerate(launch.arguments)
    )
    name = launch.function + suffix
    return f"{_EXPORTED if cuda else ''}void run_{name}(void **arguments) {{ {name}({arguments}); }}\n"
