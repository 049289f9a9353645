"""The library of a model: built from the groups in the model, never loaded from the model's folder.

Opening a model that names a library would run code. Therefore a model contains only the definitions of its
kernels (:mod:`graphopt.fusion.group_functions`), and the library is loaded from the store, or built.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt import ir, publish
from graphopt.config import Settings
from graphopt.diagnostics import record, tracer
from graphopt.errors import GraphoptError, InvalidModel, NoCompiler, UsageError
from graphopt.ops import graphopt_operators
from graphopt.ort.devices import CPU, PROVIDERS, Device
from graphopt.ort.session_options import SessionChoice
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.util.disk_store import Store
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

if TYPE_CHECKING:
    from graphopt.fusion.backend import Backend, ProgressCallback
    from graphopt.fusion.group_functions import Group

#: File name suffixes of shared libraries.
SUFFIXES = (".so", ".dylib", ".dll")
#: Magic numbers of shared libraries, and symbols that libraries of kernels export.
_MAGIC = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"MZ")
_EXPORTED = (b"graphopt_cpu_level", b"graphopt_set_cpu_level", b"graphopt_kernel")


@dataclass(frozen=True)
class Libraries:
    """The libraries of a model.

    Attributes:
        paths: libraries for its sessions (:attr:`graphopt.ort.session_options.SessionChoice.libraries`).
        kernels: names of the kernels in these libraries.
        remarks: reasons for missing kernels, one sentence each; onnxruntime runs the nodes of these groups.
        cpu_level: the level of x86-64 to run kernels for; by default the highest of the CPU.
        failure: the reason why no library was built, such as a missing compiler, and its remedy.
    """

    paths: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    cpu_level: int | None = None
    failure: str | None = None

    @property
    def choice(self) -> SessionChoice:
        """Session options that register the libraries."""
        if not self.paths:
            return SessionChoice()
        return SessionChoice(libraries=self.paths, cpu_level=self.cpu_level)


def libraries_for(
    model: ir.Model, settings: Settings, device: Device = CPU, progress: ProgressCallback | None = None
) -> Libraries:
    """The libraries of ``model`` on ``device``, from the store or built.

    Failed builds are remarks, not errors: the model runs without a library.

    Args:
        settings: location of the store, compiler, and CPU level.
    """
    if not graphopt_operators.has_groups(model):
        return Libraries()
    from graphopt.fusion.backend import backend_for
    from graphopt.fusion.group_functions import groups_of

    backend = backend_for(device)
    if backend is None:
        return Libraries()
    try:
        groups = [without_unsupported_kernel(group, backend) for group in groups_of(model)]
    except InvalidModel as error:
        return Libraries(remarks=(f"kernels were not built: {error.message}",))
    remarks = [_missing(groups)] if any(group.kernel is None for group in groups) else []
    kernels = [group.kernel for group in groups if group.kernel is not None]
    if not kernels:
        return Libraries(remarks=tuple(remarks))
    try:
        store = Store(settings.cache_dir)
        with tracer.span("kernels", end={"library": None}, kernels=len(kernels)) as traced:
            path = backend.build(kernels, store, compiler=settings.compiler, progress=progress)
            record.count("kernels", len(kernels))
            traced.ends_with(library=str(path))
    except GraphoptError as error:
        return Libraries(remarks=(*remarks, _not_built(len(kernels), error)), failure=_cause(error))
    names = tuple(kernel.name for kernel in kernels)
    return Libraries((str(path),), names, tuple(remarks), settings.cpu_level)


@dataclass(frozen=True)
class CommonLibrary:
    """One library with the kernels of several models.

    Attributes:
        path: the library; ``None`` if it could not be built.
        levels: the x86-64 levels of its kernels; empty on other architectures.
        remarks: reasons for missing kernels.
    """

    path: Path | None
    levels: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()


def common_library(
    models: Sequence[ir.Model],
    settings: Settings,
    device: Device,
    levels: Sequence[int] | None = None,
    progress: ProgressCallback | None = None,
) -> CommonLibrary | None:
    """The library of the kernels of all ``models`` on ``device``, from the store or built.

    Equal kernels of several models are in it once. Failed builds are remarks, not errors.

    Args:
        models: the models.
        settings: location of the store, and compiler.
        device: the device of the kernels.
        levels: the x86-64 levels of the kernels; by default all.
        progress: called with the completed share, and the current step.

    Returns:
        ``None`` if no model has native groups, or the device has no back end.
    """
    if not any(map(graphopt_operators.has_groups, models)):
        return None
    from graphopt.fusion.backend import backend_for
    from graphopt.fusion.group_functions import groups_of

    backend = backend_for(device)
    if backend is None:
        return None
    groups: dict[str, Group] = {}
    for model in models:
        for group in groups_of(model):
            groups.setdefault(group.name, without_unsupported_kernel(group, backend))
    kernels = [group.kernel for group in groups.values() if group.kernel is not None]
    remarks = [_missing([*groups.values()])] if len(kernels) < len(groups) else []
    if not kernels:
        return CommonLibrary(None, (), tuple(remarks))
    try:
        store = Store(settings.cache_dir)
        path = backend.build(kernels, store, compiler=settings.compiler, progress=progress, levels=levels)
    except GraphoptError as error:
        return CommonLibrary(None, (), (*remarks, _not_built(len(kernels), error)))
    return CommonLibrary(path, backend.levels(levels), tuple(remarks))


@dataclass(frozen=True)
class Toolchain:
    """Builds the native kernels of models.

    Attributes:
        settings: the compiler, the CPU level and the folder of the store.
        watchers: observers of its progress.
    """

    settings: Settings
    device: Device = CPU
    watchers: tuple[PassInstrumentation, ...] = ()
    _seconds: list[float] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def seconds(self) -> float:
        """The wall seconds of all calls of :meth:`libraries`."""
        return sum(self._seconds)

    def libraries(self, model: ir.Model, only: Container[str] | None = None) -> Libraries:
        """The libraries for ``model`` (:func:`libraries_for`), or for the groups in ``only``."""
        begin = time.monotonic()
        if only is not None:
            model = _with_groups(model, only)
        found = libraries_for(model, self.settings, self.device, self._report)
        self._seconds.append(time.monotonic() - begin)
        return found

    def paths(self, model: ir.Model) -> tuple[str, ...]:
        """The paths of the libraries for ``model``."""
        return self.libraries(model).paths

    @cached_property
    def compiler(self) -> str:
        """The compiler and its CPU level, as text; ``none`` if there is no compiler."""
        from graphopt.fusion.backend import backend_or_host

        try:
            compiler = backend_or_host(self.device).describe_compiler(self.settings.compiler)
        except NoCompiler:
            return "none"
        return f"{compiler}, level {self.settings.cpu_level}"

    def _report(self, done: float | None, text: str) -> None:
        for watcher in self.watchers:
            watcher.entered(f"kernels: {text}", done)


def _with_groups(model: ir.Model, names: Container[str]) -> ir.Model:
    """A copy of ``model`` that lacks the functions of all other groups."""
    found = ir.clone(model)
    for key in list(found.functions):
        if key[0] == graphopt_operators.NATIVE_DOMAIN and key[1] not in names:
            del found.functions[key]
    return found


def without_unsupported_kernel(group: Group, backend: Backend) -> Group:
    """``group``, without its kernel if ``backend`` does not support it."""
    reason = None if group.kernel is None else backend.features.unsupported_part(group.kernel)
    return group if reason is None else replace(group, kernel=None, reason=reason)


def are_missing(remarks: Sequence[str]) -> bool:
    """Whether ``remarks`` state that kernels were not built, so that another run may build them."""
    return any("not built" in remark for remark in remarks)


def _not_built(count: int, error: GraphoptError) -> str:
    """The remark about ``count`` kernels that could not be built."""
    return f"{counted(count, 'kernel')} not built, onnxruntime runs the nodes: {_cause(error)}"


def _cause(error: GraphoptError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _missing(groups: Sequence[Group]) -> str:
    """The groups without kernels, with the reason of the first one."""
    missing = [group for group in groups if group.kernel is None]
    more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"no kernel for {missing[0].name}{more}: {missing[0].reason}"


@contextlib.contextmanager
def writing_library(source: Path, target: Path) -> Iterator[None]:
    """Copy the library ``source`` to ``target`` atomically, after the ``with`` block.

    Processes that have loaded an older library keep it.

    Raises:
        UsageError: ``target`` is not writable; the block does not run.
        ResourceLimit: the disk is full; the block does not run.
    """
    if not target.parent.is_dir():
        raise UsageError(
            f"can't write {target}: there is no folder {target.parent}", hint=f"mkdir -p {target.parent}"
        )
    with publish.staged(target, source, executable=True):
        yield


def is_ours(path: Path) -> bool:
    """Whether ``path`` is a library of kernels, according to its symbols; it is not loaded."""
    try:
        data = path.read_bytes() if path.is_file() else b""
    except OSError:
        return False
    return data.startswith(_MAGIC) and all(name in data for name in _EXPORTED)


def session_lines(
    model: Path | str, library: Path | str, choice: SessionChoice | None = None, kind: str = CPU.kind
) -> Iterator[str]:
    """Python code that runs ``model`` with its ``library`` and the session options ``choice``.

    Args:
        kind: the kind of the device.
    """
    choice = (choice or SessionChoice()) | SessionChoice(libraries=(str(library),))
    *options, _ = choice.python()
    yield from options
    disabled = f", disabled_optimizers={list(choice.disabled)!r}" if choice.disabled else ""
    providers = "" if kind == CPU.kind else f", providers={[PROVIDERS[kind], PROVIDERS[CPU.kind]]!r}"
    yield f"session = onnxruntime.InferenceSession({str(model)!r}, options{providers}{disabled})"


def cpu_level(library: Path) -> int:
    """The CPU level for which ``library`` runs kernels here: 2, 3 or 4 of x86-64, 0 on other machines."""
    import ctypes

    return int(ctypes.CDLL(str(library)).graphopt_cpu_level())
