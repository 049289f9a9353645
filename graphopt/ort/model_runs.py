"""Run one model at both optimization levels, in this process or in a child."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from graphopt.errors import ResourceLimit, RuntimeFailure, SystemExhausted
from graphopt.ort import session
from graphopt.ort.devices import CPU, Device
from graphopt.ort.session import Optimizations, Source
from graphopt.ort.session_options import SessionChoice
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from graphopt.process.child import Child


#: Seconds of CPU time for creating a session.
_LOADING = 60.0
#: Wall-clock seconds per second of CPU time before a child is killed: the child may wait for other processes
#: or a lock.
SLACK = 8.0
#: Wall-clock seconds that are added to the limit of each call of a child.
START = 30.0


@dataclass(frozen=True)
class SessionMemory:
    """The use of memory by the sessions of a model.

    Attributes:
        is_single: keep one session at a time, without an arena, for models whose sessions do not fit into
            memory together. Sessions without optimizations run nodes in an order in which half-precision
            weights are converted to float32 only shortly before their use.
        prepacks: create packed copies of weights, for faster runs.
        off_only: the reason why only sessions without optimizations are created; ``None`` if all are.
    """

    is_single: bool = False
    prepacks: bool = True
    off_only: str | None = None


class Runner(Protocol):
    """Runs a model: :class:`Runs` in this process, :class:`RemoteRuns` in a child.

    Attributes:
        seconds: limit on the CPU seconds of one run; ``None`` for no limit.
        spent: CPU seconds of all runs so far.
    """

    seconds: float | None
    spent: float

    def load(self, level: Optimizations) -> None:
        """Create the session at ``level``; raises RuntimeFailure or ResourceLimit, also on later calls."""

    def run(self, level: Optimizations, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs; unknown names in ``feeds`` are ignored; raises RuntimeFailure or ResourceLimit."""


class Runs:
    """The sessions of one model, created on demand and kept.

    Args:
        threads: threads inside one operator; by default onnxruntime's choice.
        seconds: limit on the CPU seconds of one run.
        memory: the use of memory by sessions.
    """

    def __init__(
        self,
        source: Source,
        device: Device = CPU,
        threads: int | None = None,
        seconds: float | None = None,
        choice: SessionChoice | None = None,
        memory: SessionMemory = SessionMemory(),
    ) -> None:
        self.seconds = seconds
        self.spent = 0.0
        self._choice = choice
        self._source = source
        self._device = device
        self._threads = threads
        self._memory = memory
        self._sessions: dict[Optimizations, InferenceSession] = {}
        self._failures: dict[Optimizations, RuntimeFailure] = {}

    def session(self, level: Optimizations) -> InferenceSession:
        """The session at ``level``; after a failure, every call raises RuntimeFailure."""
        if level in self._failures:
            raise self._failures[level]
        made = self._sessions.get(level)
        if made is None:
            if self._memory.is_single:
                self._sessions.clear()
            try:
                made = self._sessions[level] = self._create(level)
            except RuntimeFailure as failure:
                self._failures[level] = failure
                raise
        return made

    def load(self, level: Optimizations) -> None:
        self.session(level)

    def run(self, level: Optimizations, feeds: Mapping[str, Any]) -> list[Any]:
        outputs, seconds = self.timed(level, feeds, self.seconds)
        self.spent += seconds
        return outputs

    def timed(
        self, level: Optimizations, feeds: Mapping[str, Any], seconds: float | None
    ) -> tuple[list[Any], float]:
        """The outputs, and the CPU seconds of the run."""
        made = self.session(level)
        arguments = (*made.get_inputs(), *made.get_overridable_initializers())
        names = {argument.name for argument in arguments}
        known = {name: value for name, value in feeds.items() if name in names}
        begin = time.process_time()
        outputs = session.run(made, known, seconds=seconds)
        return outputs, time.process_time() - begin

    def _create(self, level: Optimizations) -> InferenceSession:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # several sessions are alive at once: idle threads must not occupy the cores of the others
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self._memory.is_single:
            options.enable_cpu_mem_arena = options.enable_mem_pattern = False
            if level == "off":
                options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        if not self._memory.prepacks:
            options.add_session_config_entry("session.disable_prepacking", "1")
        return session.create(
            self._source,
            optimizations=level,
            device=self._device,
            threads=self._threads,
            options=options,
            choice=self._choice,
        )


class RemoteRuns:
    """:class:`Runs` in a child, which is restarted after a crash.

    A run that exceeds its time limit is stopped between two operators, so that the sessions survive;
    otherwise its process is killed.

    Args:
        source, device, threads, seconds, choice, memory: as for :class:`Runs`.
        loading: limit on the CPU seconds of creating a session.
    """

    def __init__(
        self,
        start: Callable[[], Child],
        source: Source,
        device: Device = CPU,
        threads: int | None = None,
        seconds: float | None = None,
        choice: SessionChoice | None = None,
        *,
        memory: SessionMemory = SessionMemory(),
        loading: float = _LOADING,
    ) -> None:
        self.seconds = seconds
        self.spent = 0.0
        self._start = start
        self._arguments = (source, device, threads, None, choice, memory)
        self._memory = memory
        self._loading = loading
        self._child: Child | None = None
        self._loaded: set[Optimizations] = set()
        self._failures: dict[Optimizations, RuntimeFailure | ResourceLimit] = {}

    @property
    def peak_bytes(self) -> int:
        """Peak resident memory of the process."""
        return 0 if self._child is None else self._child.peak_bytes

    def load(self, level: Optimizations) -> None:
        """Create the session at ``level``.

        Raises:
            RuntimeFailure, ResourceLimit: onnxruntime refuses the model, crashes, or exceeds a limit on time
                or memory. Later calls raise the same error without another attempt.
        """
        self._loaded_child(level)

    def _loaded_child(self, level: Optimizations) -> Child:
        """The process with the session at ``level``."""
        if level in self._failures:
            raise self._failures[level]
        if level != "off" and self._memory.off_only is not None:
            raise ResourceLimit(self._memory.off_only)
        child = self._ready()
        if level in self._loaded:
            return child
        if self._memory.is_single:
            self._loaded.clear()
        try:
            child.invoke(
                "load",
                level,
                timeout=START + SLACK * self._loading,
                cpu=self._loading,
                doing=f"loading the model {LEVELS[level]}",
            )
        except (RuntimeFailure, ResourceLimit) as failure:
            self._failures[level] = failure
            raise
        self._loaded.add(level)
        return child

    def run(self, level: Optimizations, feeds: Mapping[str, Any]) -> list[Any]:
        child = self._loaded_child(level)
        most = self.seconds
        try:
            outputs, seconds = child.invoke(
                "timed",
                level,
                dict(feeds),
                most,
                timeout=None if most is None else START + SLACK * most,
                cpu=most,
                doing=f"running the model {LEVELS[level]}",
            )
        except SystemExhausted:  # the run was not stopped for time
            raise
        except ResourceLimit:
            self.spent += most or 0.0
            raise
        self.spent += seconds
        found: list[Any] = outputs
        return found

    def rest(self) -> None:
        """End the process and release its memory until the next call."""
        if self._child is not None:
            self._child.close()
        self._child = None

    def _ready(self) -> Child:
        if self._child is None:
            self._child = self._start()
            self._loaded.clear()
        if not self._child.alive or not self._child.made:
            self._loaded.clear()
            self._child.new(Runs, *self._arguments, timeout=START)
        return self._child


#: onnxruntime's optimization levels, for messages.
LEVELS: dict[Optimizations, str] = {
    "off": "without optimizations",
    "basic": "with its optimizations (level basic)",
    "default": "with its optimizations (level all)",
}
