"""Kernels as a shared library: printed as C, compiled for several CPU levels, linked, kept in the store.

The same kernels and compiler make the same bytes. A library holds whatever kernels a model needs, because
onnxruntime takes no two libraries of one domain in a session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import resources
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from graphopt import publish
from graphopt.errors import RuntimeFailure, unwritable
from graphopt.fusion.backends.c.compiler import Compiler, find_compiler, is_x86
from graphopt.util.store import Store, key_of

if TYPE_CHECKING:
    from graphopt.fusion.loops.ir import Kernel

#: How much is done, from 0 to 1, and what is done.
Advance = Callable[[float | None, str], None]

_KIND, _FORM = "kernels", 1
_LIBRARY = "kernels.so"
_RUNTIME = ("runtime.c", "runtime.h", "abi.h", "levels.h")
#: Kernels of one unit: a few, so that several cores have something to do, but many share the vector math.
_UNIT = 8
#: Seconds that one call of a compiler may take.
_PATIENCE = 300.0
#: How shared libraries begin, on Linux and on macOS.
_MAGIC = (b"\x7fELF", b"\xcf\xfa\xed\xfe")


def build(
    kernels: Sequence[Kernel],
    store: Store,
    *,
    compiler: str | None = None,
    progress: Advance | None = None,
) -> Path:
    """The library of ``kernels``, taken from ``store`` or made.

    Args:
        kernels: one or more, of different names.
        store: where it is kept; a library there that was damaged is made anew.
        compiler: the command of a C compiler; by default ``$CC``, gcc, clang or ziglang.
        progress: is told how much is done.

    Raises:
        NoCompiler: there is no C compiler.
        RuntimeFailure: the compiler fails.
        ResourceLimit: it takes too long, or the store can't be written.
    """
    return build_sources(_sources(kernels), len(kernels), store, compiler, progress)


def find(kernels: Sequence[Kernel], store: Store, *, compiler: str | None = None) -> Path | None:
    """The library of ``kernels`` if it is in ``store``; arguments and errors are those of :func:`build`."""
    key = Plan(tuple(_sources(kernels)), len(kernels), find_compiler(compiler), levels()).key()
    if all(entry.key != key for entry in store.entries(_KIND)):
        return None
    return build(kernels, store, compiler=compiler)


def _sources(kernels: Sequence[Kernel]) -> list[str]:
    """The units that ``kernels`` are printed as."""
    from graphopt.fusion.backends.c import source

    return [source(kernels[start : start + _UNIT]) for start in range(0, len(kernels), _UNIT)]


def build_sources(
    sources: Sequence[str],
    count: int,
    store: Store,
    compiler: str | None = None,
    progress: Advance | None = None,
) -> Path:
    """The library of units given as text, which hold ``count`` kernels; all else as for :func:`build`."""
    if count < 1:
        raise ValueError("a library has at least one kernel")
    found = find_compiler(compiler)
    plan = Plan(tuple(sources), count, found, levels())
    key = plan.key()
    return store.folder(_KIND, key, lambda folder: _fill(folder, plan, progress)) / _LIBRARY


def levels() -> tuple[int, ...]:
    """The CPU levels that libraries for this machine hold."""
    return (2, 3, 4) if is_x86() else (0,)


class Plan:
    """What a library is made of, and how.

    Args:
        sources: the units.
        count: how many kernels are in them.
        compiler: the compiler.
        levels: CPU levels.
        more: more arguments of the compiler, also where it links.
    """

    def __init__(
        self,
        sources: tuple[str, ...],
        count: int,
        compiler: Compiler,
        levels: tuple[int, ...],
        more: tuple[str, ...] = (),
    ) -> None:
        self.compiler = compiler
        self._levels, self._count, self._more = levels, count, more
        package = resources.files(__package__) / "runtime"
        self._files = {name: package.joinpath(name).read_text(encoding="utf-8") for name in _RUNTIME}
        self._files["library.h"] = self._list(len(sources))
        self._files |= {f"unit{unit}.c": text for unit, text in enumerate(sources)}

    def key(self) -> str:
        """Tells it from every other plan."""
        made_by = (self.compiler.version, self.compiler.kind, *self.compiler.command[1:])
        calls = [word for call in (*self._compilations(), self._linking("")) for word in call]
        texts = [part for item in self._files.items() for part in item]
        return key_of(_FORM, *made_by, *calls, *texts)

    def make(self, folder: Path, target: Path, progress: Advance | None = None) -> None:
        """Write the library to ``target``, with temporary files in ``folder``."""
        try:
            for name, text in self._files.items():
                (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise unwritable(folder, error) from error
        calls = self._compilations()
        workers = min(len(calls), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
        tell = progress or (lambda done, text: None)
        tell(0.0, f"compiling with {self.compiler.name}")
        stop = Event()
        with ThreadPoolExecutor(workers) as pool:
            tasks = [pool.submit(self.compiler.run, call, folder, _PATIENCE, stop) for call in calls]
            try:
                for done, task in enumerate(as_completed(tasks), 1):
                    task.result()
                    tell(done / (len(calls) + 1), f"compiled {done} of {len(calls)} units")
            finally:
                stop.set()  # nobody waits for the others where one fails, or the user has enough
                for task in tasks:
                    task.cancel()
        self.compiler.run(self._linking(str(target)), folder, _PATIENCE)
        tell(1.0, "linked")

    def _units(self) -> list[tuple[int, int]]:
        count = sum(name.startswith("unit") for name in self._files)
        return [(level, unit) for level in self._levels for unit in range(count)]

    def _list(self, units: int) -> str:
        pairs = " ".join(f"each({level}, {unit})" for level in self._levels for unit in range(units))
        places = " ".join(f"each({place})" for place in range(self._count))
        return f"#define GO_UNITS(each) {pairs}\n#define GO_PLACES(each) {places}\n"

    def _compilations(self) -> list[list[str]]:
        """Arguments of a call each; the folder is the current one, so that no path gets into the result."""
        asked = [*self.compiler.compile(), *self._more, "-c"]
        calls = [[*asked, *self.compiler.level(0), "runtime.c", "-o", "runtime.o"]]
        for level, unit in self._units():
            names = [f"-DGO_LEVEL={level}", f"-DGO_UNIT={unit}", f"unit{unit}.c", "-o", f"v{level}u{unit}.o"]
            calls.append([*asked, *self.compiler.level(level), *names])
        return calls

    def _linking(self, target: str) -> list[str]:
        objects = ["runtime.o", *(f"v{level}u{unit}.o" for level, unit in self._units())]
        return [*self.compiler.link(), *self._more, *objects, *self.compiler.libraries(), "-o", target]


def _fill(folder: Path, plan: Plan, progress: Advance | None) -> None:
    library = folder / _LIBRARY
    with publish.ScratchFolder() as temporary:
        plan.make(temporary, library.absolute(), progress)
    if not library.is_file() or not library.read_bytes()[:4].startswith(_MAGIC):
        raise RuntimeFailure(f"the C compiler {plan.compiler.name} wrote no library")
