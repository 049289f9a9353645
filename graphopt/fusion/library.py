"""Which library goes with a model: kernels are made again from its groups, whatever lies beside it.

A model that names a library would run code when it is opened; so a model holds what its kernels are made of
(:mod:`graphopt.fusion.groups`), and the library comes from the store, or is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.config import Settings
from graphopt.errors import GraphoptError, InvalidModel, NoCompiler
from graphopt.ops import dialects
from graphopt.ort.devices import CPU, Device
from graphopt.ort.session_options import SessionChoice
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.util.store import Store
from graphopt.util.tables import counted

if TYPE_CHECKING:
    from graphopt.fusion.backends.c.build import Advance
    from graphopt.fusion.groups import Group


@dataclass(frozen=True)
class Libraries:
    """What goes with a model.

    Attributes:
        paths: libraries for its sessions (:attr:`graphopt.ort.session_options.SessionChoice.libraries`).
        kernels: names of the kernels in them.
        remarks: why others are missing, a sentence each; onnxruntime runs the nodes of these groups.
        cpu_level: the level of x86-64 whose kernels run; by default the highest that the CPU has.
    """

    paths: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    cpu_level: int | None = None

    @property
    def choice(self) -> SessionChoice:
        """What sessions need."""
        return (
            SessionChoice(libraries=self.paths, cpu_level=self.cpu_level) if self.paths else SessionChoice()
        )


def libraries_for(
    model: ir.Model,
    settings: Settings,
    device: Device = CPU,
    progress: Advance | None = None,
) -> Libraries:
    """The libraries that go with ``model`` on ``device``, from the store or built.

    What can't be built is told, and is no error: the model runs without.

    Args:
        settings: where the store is, which compiler builds, and for which CPU level.
        progress: is told how much is done.
    """
    if device.kind != "cpu" or not any(key[0] == dialects.NATIVE_DOMAIN for key in model.functions):
        return Libraries()
    from graphopt.fusion.groups import groups_of

    try:
        groups = groups_of(model)
    except InvalidModel as error:
        return Libraries(remarks=(f"kernels were not built: {error.message}",))
    remarks = [_unfit(groups)] if any(group.kernel is None for group in groups) else []
    kernels = [group.kernel for group in groups if group.kernel is not None]
    if not kernels:
        return Libraries(remarks=tuple(remarks))
    from graphopt.fusion.backends.c.build import build

    try:
        path = build(kernels, Store(settings.cache_dir), compiler=settings.compiler, progress=progress)
    except GraphoptError as error:
        why = f"{error.message} ({error.hint})" if error.hint else error.message
        told = f"{counted(len(kernels), 'kernel')} not built, onnxruntime runs the nodes: {why}"
        return Libraries(remarks=(*remarks, told))
    names = tuple(kernel.name for kernel in kernels)
    return Libraries((str(path),), names, tuple(remarks), settings.cpu_level)


@dataclass(frozen=True)
class Toolchain:
    """Builds the native kernels of models.

    Attributes:
        settings: the compiler, the CPU level and the folder of the store.
        device: where models run.
        watchers: observers of its progress.
    """

    settings: Settings
    device: Device = CPU
    watchers: tuple[PassInstrumentation, ...] = ()

    def libraries(self, model: ir.Model) -> Libraries:
        """The libraries for ``model`` (:func:`libraries_for`)."""
        return libraries_for(model, self.settings, self.device, self._report)

    def paths(self, model: ir.Model) -> tuple[str, ...]:
        """The paths of the libraries for ``model``."""
        return self.libraries(model).paths

    @cached_property
    def compiler(self) -> str:
        """The compiler and its CPU level, as text; ``none`` if there is no compiler."""
        from graphopt.fusion.backends.c.compiler import find_compiler

        try:
            found = find_compiler(self.settings.compiler)
        except NoCompiler:
            return "none"
        return f"{found.kind} {found.version}, level {self.settings.cpu_level}"

    def _report(self, done: float | None, text: str) -> None:
        for watcher in self.watchers:
            watcher.entered(f"kernels: {text}", done)


def _unfit(groups: Sequence[Group]) -> str:
    """Which groups have no kernel, and why the first has none."""
    unfit = [group for group in groups if group.kernel is None]
    more = f", and {len(unfit) - 1} more" if len(unfit) > 1 else ""
    return f"no kernel for {unfit[0].name}{more}: {unfit[0].reason}"
