"""A specialization in progress, for which other runs may wait."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

from graphopt import ir
from graphopt.profile import Profile, SpecializationKind


@dataclass(frozen=True, eq=False)
class Job:
    """A specialization to create, with everything that determines it.

    Attributes:
        original: the source model.
        profile: the profile for which to specialize.
        kind: the treatment of the sizes of dims.
        thread: the thread that created the job.
        process: the process that created it; a fork of it has no thread that would finish the job.
        done: set when it is finished or failed.
        begun: its creation time, in seconds of :func:`time.monotonic`.
    """

    original: ir.Model
    profile: Profile
    kind: SpecializationKind
    thread: int = field(default_factory=threading.get_ident)
    process: int = field(default_factory=os.getpid)
    done: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=time.monotonic)

    def wait(self, seconds: float | None) -> bool:
        """Wait until the job is done, or ``seconds`` after its creation; returns whether it is done."""
        if os.getpid() != self.process:
            return self.done.is_set()
        left = None if seconds is None else max(0.0, self.begun + seconds - time.monotonic())
        return self.done.wait(left)
