"""Compile and link C sources to a shared library, for several CPU levels.

Builds are reproducible: equal sources and compilers yield equal bytes. All kernels of a model are in one
library, because a session of onnxruntime accepts only one library per domain.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path

from graphopt import publish
from graphopt.errors import RuntimeFailure, unwritable
from graphopt.fusion.backend import ProgressCallback
from graphopt.fusion.backends.c.c_compiler import Compiler, find_compiler, is_x86
from graphopt.process.stoppable_calls import run_all
from graphopt.util.disk_store import Store, key_of
from graphopt.util.lazy_dataclass import dataclass

_KIND, _FORM = "kernels", 1
_LIBRARY = "kernels.so"
#: The runtime: its compiled files, and all its files.
_COMPILED = ("registration.c", "calls.c", "cpu.c")
_RUNTIME = (*_COMPILED, "runtime.h", "operators.h", "abi.h", "levels.h", "packed.h")
#: Timeout of a compiler call, in seconds.
_TIMEOUT = 300.0
#: Magic numbers of shared libraries on Linux and macOS.
_MAGIC = (b"\x7fELF", b"\xcf\xfa\xed\xfe")


def build(
    sources: Sequence[str],
    count: int,
    store: Store,
    *,
    compiler: str | None = None,
    progress: ProgressCallback | None = None,
    requested: Sequence[int] | None = None,
) -> Path:
    """The library of ``sources``; see :meth:`graphopt.fusion.backend.Backend.build`."""
    if count < 1:
        raise ValueError("a library has at least one kernel")
    return stored(Plan(tuple(sources), count, find_compiler(compiler), levels(requested)), store, progress)


def stored(plan: Plan, store: Store, progress: ProgressCallback | None = None) -> Path:
    """The library of ``plan``, loaded from ``store`` or built; raises the errors of :func:`build`."""
    return store.folder(_KIND, plan.key(), lambda folder: _fill(folder, plan, progress)) / _LIBRARY


def find(sources: Sequence[str], count: int, store: Store, *, compiler: str | None = None) -> Path | None:
    """The library of ``sources`` if it is in ``store``."""
    plan = Plan(tuple(sources), count, find_compiler(compiler), levels())
    return stored(plan, store) if is_stored(plan, store) else None


def is_stored(plan: Plan, store: Store) -> bool:
    """Whether ``store`` has the library of ``plan``."""
    key = plan.key()
    return any(entry.key == key for entry in store.entries(_KIND))


def levels(requested: Sequence[int] | None = None) -> tuple[int, ...]:
    """The CPU levels in libraries for this machine, limited to the ``requested`` ones; 0 without levels."""
    return (
        tuple(level for level in (2, 3, 4) if requested is None or level in requested) if is_x86() else (0,)
    )


@dataclass(frozen=True)
class Provider:
    """Kernels for another execution provider, in the same library as the CPU kernels.

    Attributes:
        name: its ``go_provider`` (``operators.h``).
        count: number of kernels.
        files: files by name; those ending in ``.c`` are compiled.
        lines: further lines of ``library.h``.
    """

    name: str
    count: int
    files: Mapping[str, str | bytes]
    lines: str = ""


class Plan:
    """The files and compiler calls of a library.

    Args:
        more: further arguments for compiling and linking.
        providers: kernels for other execution providers.
    """

    def __init__(
        self,
        sources: tuple[str, ...],
        count: int,
        compiler: Compiler,
        levels: tuple[int, ...],
        more: tuple[str, ...] = (),
        providers: tuple[Provider, ...] = (),
    ) -> None:
        self.compiler = compiler
        self._levels, self._count, self._more = levels, count, more
        self._files: dict[str, str | bytes] = dict(runtime_files())
        self._compiled = list(_COMPILED)
        for provider in providers:
            self._files |= provider.files
            self._compiled += [name for name in provider.files if name.endswith(".c")]
        self._files["library.h"] = self._list(len(sources), providers)
        self._files |= {f"unit{unit}.c": text for unit, text in enumerate(sources)}

    def key(self) -> str:
        """Identifies the library in the store."""
        created_by = (self.compiler.version, self.compiler.kind, *self.compiler.command[1:])
        calls = [word for call in (*self._compilations(), self._linking("")) for word in call]
        texts = [part for item in self._files.items() for part in item]
        return key_of(_FORM, *created_by, *calls, *texts)

    def make(self, folder: Path, target: Path, progress: ProgressCallback | None = None) -> None:
        """Write the library to ``target``, with temporary files in ``folder``."""
        try:
            for name, content in self._files.items():
                (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        except OSError as error:
            raise unwritable(folder, error) from error
        calls = self._compilations()
        workers = min(len(calls), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
        report = progress or (lambda done, text: None)
        report(0.0, f"compiling with {self.compiler.name}")
        compile_ = [partial(self.compiler.run, call, folder, _TIMEOUT) for call in calls]
        run_all(
            compile_,
            workers,
            lambda done: report(done / (len(calls) + 1), f"compiled {done} of {len(calls)} units"),
        )
        run_all([partial(self.compiler.run, self._linking(str(target)), folder, _TIMEOUT)], 1)
        report(1.0, "linked")

    def _units(self) -> list[tuple[int, int]]:
        count = sum(name.startswith("unit") for name in self._files)
        return [(level, unit) for level in self._levels for unit in range(count)]

    def _list(self, units: int, providers: Sequence[Provider]) -> str:
        pairs = " ".join(f"each({level}, {unit})" for level in self._levels for unit in range(units))
        names = " ".join(f"each({name})" for name in ("go_cpu", *(provider.name for provider in providers)))
        count = self._count + sum(provider.count for provider in providers)
        kernels = " ".join(f"each({number})" for number in range(count))
        lines = [
            f"#define GO_PROVIDERS(each) {names}",
            f"#define GO_PLACES(each) {kernels}",
            f"#define GO_UNITS(each) {pairs}",
            f"#define GO_CPU_COUNT {self._count}",
            *(provider.lines for provider in providers),
        ]
        return "\n".join(lines) + "\n"

    def _compilations(self) -> list[list[str]]:
        """Arguments of each compiler call; relative paths, so that libraries contain no absolute paths."""
        common = [*self.compiler.compile(), *self._more, "-c"]
        calls = [[*common, *self.compiler.level(0), name, "-o", _object(name)] for name in self._compiled]
        for level, unit in self._units():
            names = [f"-DGO_LEVEL={level}", f"-DGO_UNIT={unit}", f"unit{unit}.c", "-o", f"v{level}u{unit}.o"]
            calls.append([*common, *self.compiler.level(level), *names])
        return calls

    def _linking(self, target: str) -> list[str]:
        objects = [*map(_object, self._compiled), *(f"v{level}u{unit}.o" for level, unit in self._units())]
        return [*self.compiler.link(), *self._more, *objects, *self.compiler.libraries(), "-o", target]


def _object(name: str) -> str:
    return f"{name.removesuffix('.c')}.o"


@cache
def runtime_files() -> dict[str, str]:
    """The files of the runtime, by name."""
    folder = resources.files(__package__) / "runtime"
    return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in _RUNTIME}


def _fill(folder: Path, plan: Plan, progress: ProgressCallback | None) -> None:
    library = folder / _LIBRARY
    with publish.ScratchFolder() as temporary:
        plan.make(temporary, library.absolute(), progress)
    if not library.is_file() or not library.read_bytes()[:4].startswith(_MAGIC):
        raise RuntimeFailure(f"the C compiler {plan.compiler.name} wrote no library")
