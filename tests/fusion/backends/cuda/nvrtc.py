"""Compiles CUDA C++ by NVRTC, which needs neither a GPU nor a driver."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

#: Options that kernels are compiled with.
OPTIONS = ("--fmad=false", "--std=c++17", "--ptxas-options=-v")


@cache
def _library() -> ctypes.CDLL | None:
    try:
        import nvidia
    except ImportError:
        return None
    found = sorted(file for root in nvidia.__path__ for file in Path(root).glob("*/lib/libnvrtc*.so.*"))
    for file in found:
        if "builtins" in file.name:  # opened by name, from where it already is
            ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL)
    main = next((file for file in found if "builtins" not in file.name), None)
    return None if main is None else ctypes.CDLL(str(main))


def missing() -> str | None:
    """The reason why NVRTC is not available; None if it is."""
    return None if _library() is not None else "no NVRTC: the package nvidia-cuda-nvrtc is not installed"


def compile_cuda(text: str, architecture: str, *more: str) -> tuple[bytes, str]:
    """The machine code for an architecture such as ``sm_90``, and the log."""
    lib = _library()
    assert lib is not None
    program = ctypes.c_void_p()
    assert not lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
    try:
        options = [item.encode() for item in (*OPTIONS, *more, f"--gpu-architecture={architecture}")]
        status = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = _text(lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog, program).decode()
        assert not status, log[:4000]
        kind = "CUBIN" if architecture.startswith("sm_") else "PTX"
        return _text(getattr(lib, f"nvrtcGet{kind}Size"), getattr(lib, f"nvrtcGet{kind}"), program), log
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size: ctypes._NamedFuncPointer, get: ctypes._NamedFuncPointer, program: ctypes.c_void_p) -> bytes:
    count = ctypes.c_size_t()
    assert not size(program, ctypes.byref(count))
    data = ctypes.create_string_buffer(count.value)
    assert not get(program, data)
    return data.raw
