"""The compilations of an executor: their numbers, durations and passes, and a log of them as JSON lines."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.errors import UsageError
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pass_records import PassRecord
from graphopt.process.resource_usage import ResourceMeter
from graphopt.profile import Profile
from graphopt.transforms.profile.guard_groups import GuardGroups

#: Number of hexadecimal digits of the digest of a profile.
_DIGITS = 16


@dataclass(eq=False)
class Compilation:
    """One compilation of a plan.

    Attributes:
        id: its number, from 1, among the compilations of the forward and backward models of the executor.
        kind: the kind of the plan.
        cause: the reason for it.
        pipeline: the name or the text of its pipeline.
        guard: the assumptions of the plan, as text.
        profile: the digest of the profile that the plan is specialized for; ``None`` without a profile.
        seconds: its duration, including verification and the creation of the session.
        passes: the passes that ran, with the duration of each in seconds.
        not_guarded: numbers of nodes that are in no guarded group although profiled, by reason.
        outcome: ``ready``; or the reason why it failed, or why it returned the original.
        peak_bytes: growth of the process's resident memory up to the peak; measured only for a log.
    """

    id: int
    kind: str
    cause: str
    pipeline: str
    guard: str = ""
    profile: str | None = None
    seconds: float = 0.0
    passes: list[tuple[str, float]] = field(default_factory=list)
    not_guarded: Counter[str] = field(default_factory=Counter)
    outcome: str = "ready"
    peak_bytes: int = 0

    @property
    def recorder(self) -> PassInstrumentation:
        """The instrument that records the duration of each pass, and nodes that are not guarded."""
        return _Recorder(self)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        passes = [{"pass": name, "seconds": seconds} for name, seconds in self.passes]
        return {**vars(self), "passes": passes}


class _Recorder(PassInstrumentation):
    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._refused: dict[Refusal, None] = {}

    def after_pass(self, pass_: Pass, record: PassRecord, model: ir.Model, cx: Context) -> None:
        self._compilation.passes.append((record.text, record.seconds))

    def refused(self, refusal: Refusal) -> None:
        if refusal.rule == GuardGroups.name and refusal not in self._refused:
            self._refused[refusal] = None
            self._compilation.not_guarded[refusal.reason] += 1


class CompileLog:
    """Numbers compilations, and appends each to a file as a line of JSON. Thread-safe.

    Args:
        path: the file; by default, nothing is written.

    Attributes:
        failure: the reason why a line could not be written; nothing is written afterwards.

    Raises:
        UsageError: the file can't be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path).absolute()
        self._ids = itertools.count(1)
        self.failure: str | None = None
        if self._path is not None:
            try:
                self._append("")
            except OSError as error:
                raise UsageError(f"can't write the compile log {path}: {error.strerror or error}") from error

    @contextlib.contextmanager
    def compilation(
        self, kind: str, cause: str, pipeline: str, *, guard: str = "", profile: Profile | None = None
    ) -> Iterator[Compilation]:
        """Record the compilation done in the ``with`` block; an error in the block is its outcome."""
        found = Compilation(next(self._ids), kind, cause, pipeline, guard)
        if self._path is not None and profile is not None:
            found.profile = _digest(profile)
        meter = None if self._path is None else ResourceMeter()
        begin = time.perf_counter()
        try:
            with meter or contextlib.nullcontext():
                yield found
        except BaseException as error:
            found.outcome = f"failed: {str(error) or type(error).__name__}"
            raise
        finally:
            found.seconds = time.perf_counter() - begin
            if meter is not None:
                found.peak_bytes = meter.peak_bytes
            self._write(found)

    def _write(self, compilation: Compilation) -> None:
        if self._path is None or self.failure is not None:
            return
        try:
            self._append(json.dumps(compilation.to_dict(), ensure_ascii=False) + "\n")
        except OSError as error:  # compiling does not depend on the log
            self.failure = f"the compile log can't be written: {error.strerror or error}"

    def _append(self, line: str) -> None:
        """Append a line by one write, so that processes may share the file."""
        assert self._path is not None
        with open(self._path, "ab", buffering=0) as file:
            file.write(line.encode())


def _digest(profile: Profile) -> str:
    text = json.dumps(profile.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
