"""The kernels of a model: those of its groups, or of the groups that it would get."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt import ir, publish
from graphopt.attempt import prepare
from graphopt.config import Settings
from graphopt.context import context_for
from graphopt.errors import NoCompiler, UnsupportedModel, UsageError
from graphopt.fusion.groups import Group, groups_of
from graphopt.fusion.loops.ir import Kernel
from graphopt.models import copy
from graphopt.ops import dialects
from graphopt.ort.session_options import SessionChoice
from graphopt.util.store import Store
from graphopt.util.tables import counted

if TYPE_CHECKING:
    from graphopt.analysis.symbolic import Dim
    from graphopt.fusion.backends.c.build import Advance
    from graphopt.fusion.signature import Tensor


#: What shared libraries are called.
SUFFIXES = (".so", ".dylib", ".dll")
#: What shared libraries begin with, and what ours export.
_MAGIC = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"MZ")
_EXPORTED = (b"graphopt_cpu_level", b"graphopt_set_cpu_level", b"graphopt_kernel")


@dataclass(frozen=True, repr=False)
class Inventory:
    """The kernels of a model.

    Attributes:
        groups: the groups, by name.
        proposed: the model has none; these are what the pipeline ``native`` would make of it.
        settings: where the store is, and which compiler builds.
    """

    groups: tuple[Group, ...]
    proposed: bool
    settings: Settings

    @classmethod
    def of(cls, model: ir.Model, settings: Settings) -> Inventory:
        """That of ``model``, which is left as it is.

        Raises:
            InvalidModel: what it tells of its groups can't be read.
        """
        proposed = not any(key[0] == dialects.NATIVE_DOMAIN for key in model.functions)
        if proposed:
            model = copy(model)
            attempt = prepare(settings, pipeline="native").on(model)
            with context_for(model, attempt.options) as cx:
                attempt.pipeline.run(model, cx)
        return cls(tuple(groups_of(model)), proposed, settings)

    def __repr__(self) -> str:
        groups, kernels = counted(len(self.groups), "group"), counted(len(self.kernels), "kernel")
        return f"<Inventory: {groups}{' proposed' if self.proposed else ''}, {kernels}>"

    @cached_property
    def kernels(self) -> list[Kernel]:
        """Those of the groups that have one."""
        return [group.kernel for group in self.groups if group.kernel is not None]

    def source(self) -> str:
        """The kernels in C."""
        from graphopt.fusion.backends.c import source

        return source(self.kernels)

    @cached_property
    def built(self) -> Path | None:
        """The library in the store, if it is there."""
        from graphopt.fusion.backends.c.build import find

        try:
            store, compiler = Store(self.settings.cache_dir), self.settings.compiler
            return find(self.kernels, store, compiler=compiler) if self.kernels else None
        except NoCompiler:
            return None

    def build(self, path: Path, progress: Advance | None = None) -> None:
        """Write the library to ``path``, atomically.

        Raises:
            UsageError: the model has no groups; or ``path`` can't be written, or has another suffix.
            UnsupportedModel: none of the groups has a kernel.
            NoCompiler: there is no C compiler.
            RuntimeFailure: it fails.
        """
        from graphopt.fusion.backends.c.build import build

        if path.suffix not in SUFFIXES:
            raise UsageError(f"{path} should end in {' or '.join(SUFFIXES)}", hint="it is a shared library")
        if self.proposed:
            raise UsageError(
                "the model has no native groups, so no library goes with it",
                hint="graphopt optimize MODEL -o OUT.onnx --fuser native writes a model with its library",
            )
        if not self.kernels:
            raise UnsupportedModel("the model has no kernels, so there is no library to build")
        store, compiler = Store(self.settings.cache_dir), self.settings.compiler
        with writing_library(build(self.kernels, store, compiler=compiler, progress=progress), path):
            pass


@contextlib.contextmanager
def writing_library(source: Path, target: Path) -> Iterator[None]:
    """Copy the library ``source`` to ``target`` once the block is done, atomically.

    Who has an old library loaded keeps it.

    Raises:
        UsageError: it can't be written; the block is not run then.
        ResourceLimit: the disk is full; likewise.
    """
    if not target.parent.is_dir():
        raise UsageError(
            f"can't write {target}: there is no folder {target.parent}", hint=f"mkdir -p {target.parent}"
        )
    with publish.staged(target, source, executable=True):
        yield


def is_ours(path: Path) -> bool:
    """Whether the file at ``path`` is a library of kernels, by the names in it; it is not loaded."""
    try:
        data = path.read_bytes() if path.is_file() else b""
    except OSError:
        return False
    return data.startswith(_MAGIC) and all(name in data for name in _EXPORTED)


def session_lines(
    model: Path | str, library: Path | str, choice: SessionChoice | None = None
) -> Iterator[str]:
    """Lines of Python that run ``model`` with its ``library`` under the session options ``choice``."""
    choice = (choice or SessionChoice()) | SessionChoice(libraries=(str(library),))
    *options, _ = choice.python()
    yield from options
    disabled = f", disabled_optimizers={list(choice.disabled)!r}" if choice.disabled else ""
    yield f"session = onnxruntime.InferenceSession({str(model)!r}, options{disabled})"


def cpu_level(library: Path) -> int:
    """The CPU level whose kernels a library of ours runs here: 2, 3 or 4 of x86-64, or 0 elsewhere."""
    import ctypes

    return int(ctypes.CDLL(str(library)).graphopt_cpu_level())


def bytes_of(tensors: tuple[Tensor, ...]) -> Dim:
    """What tensors take together; an expression where they have symbols."""
    from graphopt.analysis.symbolic import product

    total: Any = 0
    for tensor in tensors:
        total = total + product(list(tensor.fact.shape or ())) * tensor.element.bytes
    found: Dim = total
    return found
