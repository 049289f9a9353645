"""One call of the command line, and the context that its command receives."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt import config
from graphopt.cli.output.console import Console
from graphopt.diagnostics.record import Record
from graphopt.errors import UsageError
from graphopt.optimize_options import OptimizeOptions
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.compiler import Compiler
    from graphopt.recorded_settings import SettingsRecord


#: The state of the files at a path, as :func:`_state` returns it.
_State = tuple[tuple[str, int, int], ...]


@dataclass
class Invocation:
    """One call of the command line.

    Attributes:
        environ: the environment variables; by default those of the process.
        debug: whether tracebacks are printed.
        arguments: the arguments of the command line.
        reproducer: the folder with everything needed to repeat the call, if there is one.
        error: the message of its failure, if it failed.
        written: the files of models that it wrote.
        names: names for messages, by path, for files that the user did not name, such as standard input.
        stdin: the temporary copy of the model read from standard input, if there is one.
        before: seconds between the start of the process and ``begin``.
        begin: the start of the call, as :func:`time.perf_counter` returns it.
        color: force colours on or off; ``None``: colours on terminals only.
        outputs: the paths that options name for output, with the states of their files before the call.
    """

    environ: Mapping[str, str] | None = None
    debug: bool = False
    arguments: tuple[str, ...] = ()
    reproducer: Path | None = None
    error: str | None = None
    written: list[Path] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    stdin: Path | None = None
    before: float = 0.0
    begin: float = field(default_factory=time.perf_counter)
    color: bool | None = None
    outputs: dict[Path, _State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.color is None:
            self.color = config.color_setting(self.environ)

    @property
    def seconds(self) -> float:
        """Seconds since the process began, or since ``begin`` if the system does not report the former."""
        return self.before + time.perf_counter() - self.begin

    def wrote(self, files: Sequence[Path]) -> dict[str, int]:
        """Record files as written; returns their sizes in bytes, without files removed by another process."""
        self.written += files
        sizes = {}
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                sizes[str(file)] = file.stat().st_size
        return sizes

    def name_of(self, path: Path) -> str:
        """The name of the file ``path`` for the user."""
        return self.names.get(str(path), str(path))

    def watch(self, paths: Iterable[Path]) -> None:
        """Record the state of ``paths``, which may be written to, and list them before those so far."""
        self.outputs = {path: _state(path) for path in paths if path not in self.outputs} | self.outputs

    def changed(self) -> list[Path]:
        """The paths of :meth:`watch` that were written so far.

        Files beside these, such as the data file of a model, are not listed. An interrupt may arrive after
        they are published, and before the command has their names.
        """
        states = [(path, before, _state(path)) for path, before in self.outputs.items()]
        return [path for path, before, now in states if (now and now != before) or path in self.written]

    @property
    def as_json(self) -> bool:
        """Whether JSON is requested; determined before the options are parsed."""
        return "--json" in self.arguments

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command line."""
        return ("graphopt", *self.arguments)


def _state(path: Path) -> _State:
    """Name, modification time (ns) and number of a file, or of each file in a folder; empty if there is none.

    Temporary files and subfolders change the times of a folder, so that these do not count. The times have
    the resolution of the system's clock, some milliseconds; a replacement of a file changes its number.
    """
    try:
        if not path.is_dir():
            return (_file_state("", path.stat()),)
        with os.scandir(path) as entries:
            return tuple(sorted(_file_state(one.name, one.stat()) for one in entries if one.is_file()))
    except OSError:
        return ()


def _file_state(name: str, found: os.stat_result) -> tuple[str, int, int]:
    return name, found.st_mtime_ns, found.st_ino


@dataclass(frozen=True)
class Sources:
    """The sources of the settings of one command.

    Attributes:
        environ: the environment variables; by default those of the process.
        assignments: the values of ``--set``.
        file: whether a settings file is searched; or the values that ``--config`` reads, with their sources.
        given: the values of options that are settings; ``None`` if not given.
        config_file: the file that ``--config`` names.
        record: the record of settings in that file, if it is a result.
    """

    environ: Mapping[str, str] | None = None
    assignments: tuple[str, ...] = ()
    file: bool | config.Origins = True
    given: Mapping[str, Any] = field(default_factory=dict)
    config_file: Path | None = None
    record: SettingsRecord | None = None

    def origins(self) -> config.Origins:
        """The source and the value of each setting that a source other than an option sets."""
        return config.origins(self.environ, assignments=self.assignments, file=self.file)

    def sets(self, name: str) -> bool:
        """Whether an option or another source sets the setting ``name``, even to its default."""
        return self.given.get(name) is not None or name in self.origins()


@dataclass
class Run:
    """The context of one command.

    Attributes:
        settings: the current settings.
        console: its output.
        verbose: number of ``-v`` options.
        invocation: the call of the command line.
        save_repro: the folder for its reproducer.
        settings_fault: the reason why the settings could not be read; the defaults apply then.
        options: the given options of ``optimize`` that are not settings.
        record: its hints and counters so far.
        recorded: the options among them that ``--config`` reads.
        sources: the sources of ``settings``.
        cuda_flag: the first flag on the command line for an option of the CUDA provider.
    """

    settings: config.Settings
    console: Console
    verbose: int = 0
    invocation: Invocation = field(default_factory=Invocation)
    save_repro: Path | None = None
    settings_fault: UsageError | None = None
    options: OptimizeOptions = field(default_factory=OptimizeOptions)
    record: Record = field(default_factory=Record)
    recorded: OptimizeOptions = field(default_factory=OptimizeOptions)
    sources: Sources = field(default_factory=Sources)
    cuda_flag: str | None = None

    def save(self, model: ir.Model, path: Path, **options: Any) -> dict[str, int]:
        """Write a model; returns the sizes in bytes of its files."""
        from graphopt import ir

        files = ir.save(model, path, weights=self.settings.weights, **options)
        return self.invocation.wrote(files)

    @cached_property
    def compiler(self) -> Compiler:
        """The compiler with the given options."""
        from graphopt.compiler import Compiler

        return Compiler(self.settings, **self.options)
