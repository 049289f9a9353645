"""Compiles kernels against a stub of the runtime, and runs them on numpy arrays."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from graphopt.fusion.backends import c as backend
from graphopt.fusion.backends.c.source_file import source
from graphopt.fusion.loops.interpreter import TYPES
from graphopt.fusion.template_kernel import NativeKernel

FLAGS = [
    "-std=gnu11",
    "-O3",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Wfloat-conversion",
    "-Werror",
    "-Wno-tautological-compare",
]


@cache
def compiler() -> str | None:
    """A C compiler, or None."""
    return next((path for name in ("gcc", "clang", "cc") if (path := shutil.which(name))), None)


@cache
def levels() -> tuple[int, ...]:
    """The CPU levels of this machine; 0 is the baseline."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return (0,)
    found = [0]
    for level, needed in (
        (2, {"sse4_2"}),
        (3, {"avx2", "fma", "f16c", "bmi2"}),
        (4, {"avx512bw", "avx512vl", "avx512dq"}),
    ):
        if needed <= flags:
            found.append(level)
    return tuple(found)


class Unit:
    """Compiled kernels."""

    def __init__(
        self, kernels: Sequence[NativeKernel], folder: Path, level: int = 0, flags: Sequence[str] = ()
    ) -> None:
        self.kernels = list(kernels)
        text = folder / "kernels.c"
        text.write_text(source(kernels), encoding="utf-8")
        target = folder / f"kernels_{level}.so"
        build(text, target, level, flags)
        self.library = ctypes.CDLL(str(target))
        for name in ("new", "data", "dims"):
            getattr(self.library, f"stub_{name}").restype = ctypes.c_void_p
        self.library.stub_message.restype = ctypes.c_char_p
        self.library.stub_chunks.restype = ctypes.c_int64

    def run(
        self, index: int, inputs: Sequence[np.ndarray], in_place: bool = False, constant: bool = False
    ) -> list[np.ndarray]:
        """The outputs of kernel ``index``; RuntimeError with its message if it fails.

        Args:
            constant: whether inputs are constant, so that templates pack them.
        """
        kernel, lib = self.kernels[index], self.library
        call = ctypes.c_void_p(lib.stub_new())
        try:
            for number, array in enumerate(inputs):
                array = np.ascontiguousarray(array).reshape(array.shape)
                dims = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
                lib.stub_input(
                    call,
                    number,
                    array.ndim,
                    dims,
                    ctypes.c_void_p(array.ctypes.data),
                    ctypes.c_int64(array.nbytes),
                )
            if constant:
                lib.stub_constant(call)
            shared = {output: input_ for input_, output in kernel.in_place} if in_place else {}
            for number, port in enumerate(kernel.outputs):
                lib.stub_output(call, number, port.element.bytes, shared.get(number, -1))
            if lib.stub_run(call, index):
                raise RuntimeError(lib.stub_message(call).decode())
            self.chunks = lib.stub_chunks(call)
            outputs = []
            for number, port in enumerate(kernel.outputs):
                rank = lib.stub_rank(call, number)
                dims_ = (ctypes.c_int64 * max(rank, 1)).from_address(lib.stub_dims(call, number))
                empty = np.empty(tuple(dims_[:rank]), TYPES[port.element])
                ctypes.memmove(empty.ctypes.data, lib.stub_data(call, number), empty.nbytes)
                outputs.append(empty)
        finally:
            fine = lib.stub_free(call)
        assert fine, "memory beside a tensor was written"
        return outputs


def build(text: Path, target: Path, level: int, flags: Sequence[str] = ()) -> None:
    """Compiles ``text`` and the stub for a level."""
    found = compiler()
    assert found is not None
    headers = Path(backend.__file__).parent / "runtime"
    stub = Path(__file__).with_name("stub.c")
    march = [f"-march=x86-64-v{level}"] if level else []
    command = [found, *FLAGS, *march, f"-DGO_LEVEL={level}", f"-I{headers}", *flags]
    command += [str(text), str(stub), "-o", str(target)]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[:4000]
