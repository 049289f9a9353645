"""Runs device code without a GPU and without OpenCL: compiled as C, with coroutines as the threads of a block."""

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

_FLAGS = ["-std=gnu11", "-O0", "-shared", "-fPIC", "-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing"]


@cache
def compiler() -> str | None:
    """A C compiler, or None."""
    return next((path for name in ("gcc", "clang", "cc") if (path := shutil.which(name))), None)


class GridInterpreter:
    """Compiled kernels; a buffer is an array.

    Args:
        backward: whether the threads of a block run in descending order.
        shift: bytes by which the addresses of buffers are off from multiples of 16.
    """

    def __init__(
        self, kernels: Sequence[Kernel], folder: Path, *, backward: bool = False, shift: int = 0
    ) -> None:
        self.backward, self.shift = backward, shift
        text, target = folder / "grid.c", folder / "grid.so"
        text.write_text(grid_source(kernels), encoding="utf-8")
        found = compiler()
        assert found is not None
        command = [found, *_FLAGS, str(text), "-o", str(target), "-lm"]
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


def grid_source(kernels: Sequence[Kernel]) -> str:
    """The C source of ``kernels`` and of functions that call them with arrays of arguments."""
    parts = [Path(__file__).with_name("grid.h").read_text(encoding="utf-8"), header("common.h")]
    for kernel in kernels:
        found = device_kernel(kernel)
        parts.append(found.text)
        calls = [_call(launch, end) for launch in found.launches for end in _endings(launch)]
        parts += dict.fromkeys(calls)  # several launches may have one function
    return "\n".join(parts)


def _endings(launch: Launch) -> tuple[str, ...]:
    return ("_32", "_64") if launch.counts else ("",)


def _call(launch: Launch, suffix: str) -> str:
    arguments = ", ".join(
        f"*(i64 *)arguments[{index}]" if isinstance(item, SizeValue) else f"arguments[{index}]"
        for index, item in enumerate(launch.arguments)
    )
    name = launch.function + suffix
    return f"void run_{name}(void **arguments) {{ {name}({arguments}); }}\n"
