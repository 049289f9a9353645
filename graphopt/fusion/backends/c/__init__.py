"""The back end for CPUs: C with vector extensions, compiled by gcc, clang or zig."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.fusion.backend import Backend, Features, ProgressCallback
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt.fusion.backends.c.schedule import Schedule
    from graphopt.fusion.loops.ir import Kernel
    from graphopt.fusion.template_kernel import NativeKernel
    from graphopt.util.disk_store import Store


@dataclass(frozen=True)
class CBackend:
    """Kernels in C; see :class:`graphopt.fusion.backend.Backend`."""

    name: str = "C"
    device: str = "cpu"

    @property
    def features(self) -> Features:
        from graphopt.fusion.backends.c.template_printer import template_names

        return Features(templates=template_names())

    def schedule(self, kernel: Kernel) -> Sequence[Schedule]:
        from graphopt.fusion.backends.c.schedule import schedule

        return [schedule(kernel, segment) for segment in kernel.segments]

    def render(self, kernels: Sequence[NativeKernel]) -> str:
        from graphopt.fusion.backends.c.source_file import source

        return source(kernels)

    def build(
        self,
        kernels: Sequence[NativeKernel],
        store: Store,
        *,
        compiler: str | None = None,
        progress: ProgressCallback | None = None,
        levels: Sequence[int] | None = None,
    ) -> Path:
        from graphopt.fusion.backends.c.build_library import build
        from graphopt.fusion.backends.c.source_file import sources

        texts, count = sources(kernels), len(kernels)
        return build(texts, count, store, compiler=compiler, progress=progress, requested=levels)

    def levels(self, requested: Sequence[int] | None = None) -> tuple[int, ...]:
        from graphopt.fusion.backends.c.build_library import levels

        return tuple(level for level in levels(requested) if level)

    def find(
        self, kernels: Sequence[NativeKernel], store: Store, *, compiler: str | None = None
    ) -> Path | None:
        from graphopt.fusion.backends.c.build_library import find
        from graphopt.fusion.backends.c.source_file import sources

        return find(sources(kernels), len(kernels), store, compiler=compiler)

    def describe_compiler(self, compiler: str | None = None) -> str:
        from graphopt.fusion.backends.c.c_compiler import find_compiler

        found = find_compiler(compiler)
        return f"{found.kind} {found.version}"


BACKEND: Backend = CBackend()

__all__ = ["BACKEND", "CBackend"]
