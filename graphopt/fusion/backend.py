"""Back ends: the interface that compiles kernels for a kind of device, and their registry.

For a new back end, add a package ``graphopt/fusion/backends/NAME`` that binds ``BACKEND`` to an
implementation of :class:`Backend`; it is found by walking the package, and used for devices of its kind.
Passes, verification, the store of libraries and the command line access back ends only through this module.

- ``features`` declares which kernels it supports; onnxruntime runs the nodes of other groups.
- ``schedule`` chooses loops and stages. :func:`graphopt.fusion.loops.collapse.collapse` and
  :func:`graphopt.fusion.loops.reduction_stages.plan_stages` do the part that is independent of the device.
- ``render`` prints kernels. :data:`graphopt.fusion.loops.instructions.OPS` has the expressions of
  instructions, and :mod:`graphopt.fusion.loops.interpreter` the semantics to test against.
- ``build`` compiles kernels to a shared library that registers an operator of the domain
  ``graphopt.native`` per kernel in onnxruntime, and that exports the functions of ``docs/kernels.md``.
- The device must have the capability ``loads_libraries`` (:class:`graphopt.ort.devices.Capabilities`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from graphopt.fusion.loops.ir import Element, Kernel
from graphopt.fusion.template_kernel import NativeKernel, TemplateKernel
from graphopt.ort.devices import CPU, Device
from graphopt.util.disk_store import Store
from graphopt.util.lazy_dataclass import dataclass

#: Reports progress: the completed share, from 0 to 1 or unknown, and the current step.
ProgressCallback = Callable[[float | None, str], None]

_PACKAGE = "graphopt.fusion.backends"


@dataclass(frozen=True)
class Features:
    """Kernels that a back end supports.

    Attributes:
        segments: kernels with several segments, which concatenations need.
        templates: names of templates.
    """

    elements: frozenset[Element] = frozenset(Element)
    reductions: bool = True
    segments: bool = True
    templates: frozenset[str] = frozenset()

    def unsupported_part(self, kernel: NativeKernel) -> str | None:
        """The reason why ``kernel`` is unsupported; ``None`` if it is supported."""
        for port in (*kernel.inputs, *kernel.outputs):
            if port.element not in self.elements:
                return f"the device has no kernels for {port.element.name.lower()}"
        if isinstance(kernel, TemplateKernel):
            known = kernel.template in self.templates
            return None if known else f"the device has no kernels of the template {kernel.template!r}"
        if kernel.reduced and not self.reductions:
            return "the device has no kernels with reductions"
        if len(kernel.segments) > 1 and not self.segments:
            return "the device has no kernels with concatenations"
        return None


class Backend(Protocol):
    """Compiles kernels for one kind of device.

    Attributes:
        name: the language of its sources.
        device: the kind of device (:attr:`graphopt.ort.devices.Device.kind`).
    """

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def features(self) -> Features: ...

    def schedule(self, kernel: Kernel) -> Sequence[Any]:
        """The schedule of each segment, in the back end's own terms."""
        ...

    def render(self, kernels: Sequence[NativeKernel]) -> str:
        """One source file with ``kernels``; equal kernels yield equal text.

        Raises:
            ValueError: the name of a kernel is not an identifier.
        """
        ...

    def build(
        self,
        kernels: Sequence[NativeKernel],
        store: Store,
        *,
        compiler: str | None = None,
        progress: ProgressCallback | None = None,
        levels: Sequence[int] | None = None,
    ) -> Path:
        """The library of ``kernels``, from ``store`` or built.

        Args:
            kernels: at least one.
            store: keeps libraries; damaged libraries are rebuilt.
            compiler: the command of a compiler; by default, the first one found.
            progress: called with the progress.
            levels: the CPU levels of the kernels (:meth:`levels`).

        Raises:
            NoCompiler: no compiler was found.
            RuntimeFailure: the compiler fails.
            ResourceLimit: the compiler exceeds its time limit, or the store is not writable.
        """
        ...

    def levels(self, requested: Sequence[int] | None = None) -> tuple[int, ...]:
        """The CPU levels in libraries for this machine, or the ``requested`` ones of them; may be empty."""
        ...

    def find(
        self, kernels: Sequence[NativeKernel], store: Store, *, compiler: str | None = None
    ) -> Path | None:
        """The library of ``kernels`` if it is in ``store``; arguments and errors like :meth:`build`."""
        ...

    def describe_compiler(self, compiler: str | None = None) -> str:
        """Kind and version of the compiler; raises NoCompiler if none was found."""
        ...


def backend_for(device: Device) -> Backend | None:
    """The back end for ``device``; ``None`` if its kind has none."""
    return discover(_PACKAGE).get(device.kind)


def backend_or_host(device: Device) -> Backend:
    """The back end for ``device``; the one for the CPU if its kind has none."""
    backend = backend_for(device) or backend_for(CPU)
    assert backend is not None, "the CPU has a back end"
    return backend


@cache
def discover(package: str) -> dict[str, Backend]:
    """The back ends in ``package``, by kind of device; if a kind has several, the first by name."""
    found: dict[str, Backend] = {}
    path = importlib.import_module(package).__path__
    for info in sorted(pkgutil.iter_modules(path), key=lambda info: info.name):
        backend = getattr(importlib.import_module(f"{package}.{info.name}"), "BACKEND", None)
        if backend is not None:
            found.setdefault(backend.device, backend)
    return found
