"""The compilations of an executor: their numbers, durations and passes, and their events.

The events have the schema of :mod:`graphopt.diagnostics.events`. A compile log contains their ends, and a
trace all events.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.diagnostics import tracer
from graphopt.diagnostics.tracer import Tracer
from graphopt.errors import UsageError
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pass_records import PassRecord
from graphopt.process.resource_usage import ResourceMeter
from graphopt.profile import Profile
from graphopt.settings import Settings
from graphopt.transforms.profile.guard_groups import GuardGroups
from graphopt.util.lazy_dataclass import dataclass

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

    @property
    def start(self) -> dict[str, Any]:
        """The fields of its event at the start, which are also those of the end."""
        return {"id": self.id, "kind": self.kind, "cause": self.cause, "pipeline": self.pipeline}

    @property
    def end(self) -> dict[str, Any]:
        """The other fields of its event at the end, without its duration."""
        return {
            "guard": self.guard,
            "profile": self.profile,
            "passes": [{"pass": name, "seconds": seconds} for name, seconds in self.passes],
            "not_guarded": dict(self.not_guarded),
            "outcome": self.outcome,
            "peak_bytes": self.peak_bytes,
        }


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
    """Numbers compilations, and writes their events. Thread-safe.

    Args:
        path: the compile log, a file of JSON lines; by default, none.
        settings: the settings; :attr:`Settings.trace` is the file of all events.

    Raises:
        UsageError: the compile log can't be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, settings: Settings | None = None) -> None:
        self._log = (
            None if path is None else Tracer(path, "lines", only="compilation", title="the compile log")
        )
        self._tracer = None if settings is None else Tracer.of(settings)
        self._ids = itertools.count(1)
        if self._log is not None:
            try:
                self._log.open()
            except OSError as error:
                raise UsageError(f"can't write the compile log {path}: {error.strerror or error}") from error

    @property
    def failure(self) -> str | None:
        """The reasons why an event could not be written; nothing is written to that file afterwards."""
        reasons = [one.failure for one in (self._log, self._tracer) if one is not None and one.failure]
        return "; ".join(reasons) or None

    @contextlib.contextmanager
    def compilation(
        self, kind: str, cause: str, pipeline: str, *, guard: str = "", profile: Profile | None = None
    ) -> Iterator[Compilation]:
        """Record the compilation done in the ``with`` block; an error in the block is its outcome."""
        found = Compilation(next(self._ids), kind, cause, pipeline, guard)
        is_written = self._log is not None or self._tracer is not None
        if is_written and profile is not None:
            found.profile = _digest(profile)
        meter = ResourceMeter() if is_written else None
        begin = time.perf_counter()
        failure: BaseException | None = None
        with tracer.numbered() if is_written else contextlib.nullcontext(), tracer.tracing(self._tracer):
            tracer.event("compilation", "start", **found.start)
            try:
                with meter or contextlib.nullcontext():
                    yield found
            except BaseException as error:
                failure = error
                found.outcome = f"failed: {str(error) or type(error).__name__}"
                raise
            finally:
                found.seconds = time.perf_counter() - begin
                if meter is not None:
                    found.peak_bytes = meter.peak_bytes
                ended = {**found.start, **found.end, **tracer.ended(found.seconds, failure)}
                tracer.event("compilation", "end", **ended)
                if self._log is not None:
                    self._log.write("compilation", "end", **ended)


def _digest(profile: Profile) -> str:
    text = json.dumps(profile.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
