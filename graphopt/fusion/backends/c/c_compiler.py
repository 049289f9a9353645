"""C compilers: search, identification, and calls."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Literal

from graphopt import config
from graphopt.errors import FULL, NoCompiler, ResourceLimit, RuntimeFailure
from graphopt.util.lazy_dataclass import dataclass

#: Arguments of all compilations. NaN, infinities and -0.0 are preserved: no ``-ffast-math``. Operations are
#: not contracted (kernels use ``fma`` explicitly), so that all levels round equally.
COMPILE = (
    "-std=gnu11",
    "-O3",
    "-g0",
    "-w",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-ffp-contract=off",
)
#: Timeout of a version query, in seconds.
_VERSION_SECONDS = 60.0
#: Interval of checks for a stop request, in seconds.
_STEP = 0.2

#: Messages of the system about a full disk, which compilers pass on.
_FULL = tuple(os.strerror(number) for number in FULL)

Kind = Literal["gcc", "clang", "zig"]


@dataclass(frozen=True)
class Compiler:
    """A working compiler.

    Attributes:
        command: the command, including arguments by the user.
        kind: the family, which determines the arguments.
        version: the first line of ``--version``.
    """

    command: tuple[str, ...]
    kind: Kind
    version: str

    @property
    def name(self) -> str:
        """The name for messages."""
        return "ziglang" if "ziglang" in self.command else Path(self.command[0]).name

    def level(self, level: int) -> tuple[str, ...]:
        """Arguments for a level of x86-64; 0 for the baseline."""
        if not is_x86():
            return ()
        name = f"x86-64-v{level}" if level else "x86-64"
        return (f"-march={name.replace('-', '_')}" if self.kind == "zig" else f"-march={name}",)

    def compile(self) -> tuple[str, ...]:
        """Arguments of each compilation."""
        return (*COMPILE, "-fno-sanitize=undefined") if self.kind == "zig" else COMPILE

    def link(self) -> tuple[str, ...]:
        """Arguments that link a shared library reproducibly."""
        system = ("-s", "-Wl,--build-id=none") if sys.platform.startswith("linux") else ()
        return ("-shared", "-fPIC", *system)

    def libraries(self) -> tuple[str, ...]:
        """Libraries to link with."""
        return ("-lm", "-pthread", "-ldl") if sys.platform.startswith("linux") else ()

    def run(self, arguments: Sequence[str], folder: Path, seconds: float, stop: Event | None = None) -> None:
        """Run the compiler in ``folder``, which is also its folder for temporary files.

        Args:
            stop: an event that kills the compiler.

        Raises:
            RuntimeFailure: the compiler reports an error.
            ResourceLimit: the compiler exceeds ``seconds`` or is stopped, or the disk is full.
        """
        code, output = _call([*self.command, *arguments], folder, seconds, stop or Event())
        if code and (full := next((text for text in _FULL if text in output), None)):
            raise ResourceLimit(
                f"the C compiler {self.name} can't compile kernels: {full}",
                hint="free some space, or set TMPDIR to a folder on another disk",
            )
        if code is None:
            raise ResourceLimit(
                f"the C compiler {self.name} took more than {seconds:g} s for kernels",
                hint="another compiler: --set compiler=COMMAND",
            )
        if code != 0:
            raise RuntimeFailure(
                f"the C compiler {self.name} ({self.version}) can't compile kernels: {_first_error(output)}",
                hint="another compiler: --set compiler=COMMAND, or the package ziglang",
            )


def is_x86() -> bool:
    """Whether the machine is x86-64."""
    return platform.machine().lower() in ("x86_64", "amd64")


def find_compiler(wanted: str | None = None) -> Compiler:
    """The C compiler: ``wanted``, otherwise ``$CC``, gcc, clang, or the one of the package ziglang.

    Args:
        wanted: a command, possibly with arguments; ``None`` or ``auto`` to search.

    Raises:
        NoCompiler: no compiler was found, or the given one does not run.
    """
    given = None if wanted in (None, "", "auto") else wanted
    source, rest = ("the setting 'compiler'", "set compiler=auto") if given else ("$CC", "unset CC")
    given = given or config.variable("CC")
    if given is not None:
        found = _compiler([given] if shutil.which(given) else _words(given))
        if found is None:
            raise NoCompiler(
                f"the C compiler that {source} names does not run: {given}",
                hint=f"name a working compiler, or {rest} to search for gcc, clang and ziglang",
            )
        return found
    for words in _installed_compilers():
        found = _compiler(words)
        if found is not None:
            return found
    raise NoCompiler(
        "there is no C compiler for native kernels",
        hint="install gcc or clang, or: pip install 'graphopt[native]'",
    )


def _words(command: str) -> list[str]:
    """The words of a command; none if it is malformed."""
    try:
        return shlex.split(command)
    except ValueError:  # unbalanced quotes
        return []


def _installed_compilers() -> Iterator[list[str]]:
    for name in ("gcc", "clang"):
        if shutil.which(name) is not None:
            yield [name]
    if importlib.util.find_spec("ziglang") is not None:
        yield [sys.executable, "-m", "ziglang", "cc"]


def _compiler(words: Sequence[str]) -> Compiler | None:
    if not words:
        return None
    try:
        code, output = _call([*words, "--version"], None, _VERSION_SECONDS, Event())
    except OSError:
        return None
    lines = output.strip().splitlines()
    if code != 0 or not lines:
        return None
    kind: Kind = "gcc"
    if "ziglang" in words or any(Path(word).name == "zig" for word in words):
        kind = "zig"
    elif "clang" in output:
        kind = "clang"
    return Compiler(tuple(words), kind, lines[0].strip())


def _call(words: Sequence[str], folder: Path | None, seconds: float, stop: Event) -> tuple[int | None, str]:
    """The exit status, or ``None`` after a timeout or stop request, and the output."""
    if stop.is_set():
        return None, ""
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=None if folder is None else config.environment(TMPDIR=str(folder)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # kills subprocesses of the compiler with it
    )
    end = time.monotonic() + seconds
    try:
        while not stop.is_set() and time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=min(_STEP, seconds))
                return process.returncode, output.decode(errors="replace")
        return None, ""
    finally:
        if process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _first_error(output: str) -> str:
    """The most informative line of ``output``."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    found = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no output")
    return found if len(found) <= 200 else found[:197] + "..."
