"""Run one model at both optimization levels, in this process or in a child."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from graphopt.errors import RuntimeFailure
from graphopt.runtime import session
from graphopt.runtime.devices import CPU, Device
from graphopt.runtime.session import Optimizations, Source
from graphopt.runtime.session_choice import SessionChoice

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from graphopt.runtime.child import Child


#: Seconds that a child may take until it is ready.
_START = 60


class Runner(Protocol):
    """Runs a model; :class:`Runs` here, :class:`RemoteRuns` in a child.

    Attributes:
        seconds: what one run may take; ``None`` for any time.
    """

    seconds: float | None

    def run(self, level: Optimizations, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs; raises RuntimeFailure or ResourceLimit."""


class Runs:
    """The sessions of one model, each made when first needed and kept."""

    def __init__(
        self,
        source: Source,
        device: Device = CPU,
        threads: int | None = None,
        seconds: float | None = None,
        choice: SessionChoice | None = None,
    ) -> None:
        self.seconds = seconds
        self._choice = choice
        self._source = source
        self._device = device
        self._threads = threads
        self._sessions: dict[Optimizations, InferenceSession | RuntimeFailure] = {}

    def session(self, level: Optimizations) -> InferenceSession:
        """The session at ``level``; raises RuntimeFailure, again each time."""
        made = self._sessions.get(level)
        if made is None:
            try:
                made = self._create(level)
            except RuntimeFailure as failure:
                made = failure
            self._sessions[level] = made
        if isinstance(made, RuntimeFailure):
            raise made
        return made

    def run(self, level: Optimizations, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs for ``feeds``; names that the model does not have are left out."""
        made = self.session(level)
        arguments = (*made.get_inputs(), *made.get_overridable_initializers())
        names = {argument.name for argument in arguments}
        known = {name: value for name, value in feeds.items() if name in names}
        return session.run(made, known, seconds=self.seconds)

    def _create(self, level: Optimizations) -> InferenceSession:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # several sessions are alive at once: idle threads must not burn the cores of the others
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return session.create(
            self._source,
            optimizations=level,
            device=self._device,
            threads=self._threads,
            options=options,
            choice=self._choice,
        )


class Host:
    """Several :class:`Runs` by key; lives in a child."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        device: Device,
        threads: int | None,
        choice: SessionChoice | None = None,
    ) -> None:
        self._runs = {key: Runs(source, device, threads, choice=choice) for key, source in sources.items()}

    def run(self, key: str, level: Optimizations, feeds: Mapping[str, Any]) -> list[Any]:
        """Run the model ``key``."""
        return self._runs[key].run(level, feeds)


class RemoteHost:
    """A :class:`Host` in a child, made anew after a crash, or when another one took its place.

    Args:
        child: gives the process, when it is needed; the caller closes it.
        sources: models by key.
        choice: session options of all of them.
    """

    def __init__(
        self,
        child: Callable[[], Child],
        sources: Mapping[str, Source],
        device: Device = CPU,
        threads: int | None = None,
        choice: SessionChoice | None = None,
    ) -> None:
        self._child = child
        self._arguments = (dict(sources), device, threads, choice)
        self._made: tuple[Child, int] | None = None

    def run(
        self, key: str, level: Optimizations, feeds: Mapping[str, Any], seconds: float | None
    ) -> list[Any]:
        """Run the model ``key``, for at most ``seconds``."""
        child = self._child()
        if not child.alive or self._made != (child, child.made):
            child.new(Host, *self._arguments, timeout=_START)
            self._made = child, child.made
        outputs: list[Any] = child.ask("run", key, level, dict(feeds), timeout=seconds)
        return outputs


class RemoteRuns:
    """One model of a :class:`RemoteHost`."""

    def __init__(self, host: RemoteHost, key: str, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._host = host
        self._key = key

    def run(self, level: Optimizations, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs for ``feeds``."""
        return self._host.run(self._key, level, feeds, self.seconds)
