"""CUDA C++ of kernels, compiled by NVRTC for tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from graphopt.errors import NoCompiler
from graphopt.fusion.backends.cuda.device_printer import device_kernel
from graphopt.fusion.backends.cuda.dialect import Dialect, module_text
from graphopt.fusion.backends.cuda.nvrtc import Image, Target, find_nvrtc
from graphopt.fusion.loops.ir import Kernel


def missing() -> str | None:
    """The reason why NVRTC is not available; None if it is."""
    try:
        find_nvrtc()
    except NoCompiler as error:
        return f"{error} ({error.hint})"
    return None


#: Marks tests that compile for CUDA.
needs_nvrtc = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def images(kernels: Sequence[Kernel], target: Target) -> Image:
    """The image of a module with ``kernels``."""
    return find_nvrtc().compile(
        module_text(Dialect.CUDA, [device_kernel(each).text for each in kernels]), target
    )
