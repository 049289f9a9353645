"""A specialization in progress, for which other runs may wait."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.errors import GraphoptError, ResourceLimit
from graphopt.process.threads import start_thread
from graphopt.profile import Profile, SpecializationKind
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt.executor.plan_cache import GuardedPlans


@dataclass(eq=False)
class Job:
    """A specialization to create, with everything that determines it.

    All errors are failures, because the general plan accepts all inputs, except for an interrupt of the
    thread that created the job, which may try again.

    Attributes:
        original: the source model.
        profile: the profile for which to specialize.
        kind: the treatment of the sizes of dims.
        create: creates the plan, and returns all plans.
        finish: called once with the plans or the reason of a failure; with neither after an interrupt. It
            sets :attr:`done`, because other threads wait for it.
        subject: the assumptions of the plan, once they are known.
        thread: the thread that created the job.
        running_thread: the thread that runs it.
        process: the process that created it; a fork of it has no thread that would finish the job.
        done: set when it is finished or failed.
        begun: its creation time, in seconds of :func:`time.monotonic`.
    """

    original: ir.Model
    profile: Profile
    kind: SpecializationKind
    create: Callable[[Job], GuardedPlans]
    finish: Callable[[Job, GuardedPlans | None, str | None], None]
    subject: str = ""
    running_thread: int | None = None
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

    @property
    def is_of_this_thread(self) -> bool:
        """Whether the current thread created or runs the job, and must not wait for it."""
        return threading.get_ident() in (self.thread, self.running_thread)

    def start(self) -> None:
        """Run the job in a new thread."""
        try:
            start_thread(self.run)
        except ResourceLimit as error:
            self.finish(self, None, error.message)

    def run(self) -> None:
        """Run the job in this thread."""
        plans, failure = None, None
        self.running_thread = threading.get_ident()
        try:
            plans = self.create(self)
        except GraphoptError as error:
            failure = str(error)
        except Exception as error:  # a bug in a pass
            failure = f"{type(error).__name__}: {error}"
        except BaseException as error:
            if self.thread == self.running_thread:
                raise
            failure = f"the thread ended: {type(error).__name__}: {error}"
        finally:  # other threads wait, even if this one was interrupted
            described = None if failure is None else f"{self.subject or self.kind.value}: {failure}"
            self.finish(self, plans, described)
