"""The back end for NVIDIA GPUs: CUDA C++, compiled by NVRTC for all architectures, with a host part in C.

Its libraries also contain the CPU kernels. A session runs the kernels of its device.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.fusion.backend import Backend, Features, ProgressCallback
from graphopt.fusion.loops.ir import Kernel
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt.fusion.backends.cuda.host_printer import HostedKernel
    from graphopt.fusion.backends.cuda.schedule import GridSchedule
    from graphopt.fusion.template_kernel import NativeKernel
    from graphopt.util.disk_store import Store


@dataclass(frozen=True)
class CudaBackend:
    """Kernels in CUDA C++, without templates; see :class:`graphopt.fusion.backend.Backend`."""

    name: str = "CUDA"
    device: str = "cuda"

    @property
    def features(self) -> Features:
        return Features()

    def schedule(self, kernel: Kernel) -> Sequence[tuple[GridSchedule, ...]]:
        from graphopt.fusion.backends.cuda.schedule import schedule

        return [schedule(kernel, segment) for segment in kernel.segments]

    def render(self, kernels: Sequence[NativeKernel]) -> str:
        from graphopt.fusion.backends.cuda.dialect import Dialect, module_text
        from graphopt.fusion.backends.cuda.host_printer import host_text

        hosted = hosted_kernels(kernels)
        device = module_text(Dialect.CUDA, [each.device.text for each in hosted])
        return f"{device}\n/* The host part, in C. */\n\n{host_text(hosted)}"

    def build(
        self,
        kernels: Sequence[NativeKernel],
        store: Store,
        *,
        compiler: str | None = None,
        progress: ProgressCallback | None = None,
        levels: Sequence[int] | None = None,
    ) -> Path:
        from graphopt.fusion.backends.cuda.build_library import build

        hosted = hosted_kernels(kernels)
        return build(hosted, store, compiler=compiler, progress=progress, requested=levels)

    def levels(self, requested: Sequence[int] | None = None) -> tuple[int, ...]:
        from graphopt.fusion.backends.c.build_library import levels

        return tuple(level for level in levels(requested) if level)

    def find(
        self, kernels: Sequence[NativeKernel], store: Store, *, compiler: str | None = None
    ) -> Path | None:
        from graphopt.fusion.backends.cuda.build_library import find

        return find(hosted_kernels(kernels), store, compiler=compiler)

    def describe_compiler(self, compiler: str | None = None) -> str:
        from graphopt.fusion.backends.c.c_compiler import find_compiler
        from graphopt.fusion.backends.cuda.nvrtc import find_nvrtc

        found = find_compiler(compiler)
        return f"{find_nvrtc()}, {found.kind} {found.version}"


def hosted_kernels(kernels: Sequence[NativeKernel]) -> list[HostedKernel]:
    """``kernels`` with their device code, one module for each.

    Raises:
        ValueError: a kernel is a template, or its name is not an identifier.
    """
    from graphopt.fusion.backends.cuda.device_printer import device_kernel
    from graphopt.fusion.backends.cuda.dialect import Dialect, module_text
    from graphopt.fusion.backends.cuda.host_printer import HostedKernel

    found = []
    for kernel in kernels:
        if not isinstance(kernel, Kernel):
            raise ValueError(f"the kernel {kernel.name} is a template, which CUDA does not support")
        device = device_kernel(kernel)
        found.append(HostedKernel(kernel, device, module_text(Dialect.CUDA, [device.text])))
    return found


BACKEND: Backend = CudaBackend()

__all__ = ["BACKEND", "CudaBackend", "hosted_kernels"]
