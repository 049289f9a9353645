"""A model that is ready to run, and what it assumes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from graphopt import ir
from graphopt.fusion.libraries import Libraries
from graphopt.ir.signature import Signature
from graphopt.ort import preflight
from graphopt.ort.artifact import Artifact
from graphopt.ort.devices import Device
from graphopt.ort.session import Optimizations
from graphopt.profile import Behaviour, Guard
from graphopt.specialize.variant_session import VariantSession

#: ``fallback``: as it came, where optimizing is off; ``general``: for all inputs; ``optimized``: for some.
Kind = Literal["fallback", "general", "optimized"]


def _none(model: ir.Model) -> Libraries:
    return Libraries()


@dataclass(frozen=True)
class Host:
    """Where plans run.

    Attributes:
        device: the device.
        threads: inside one operator; by default onnxruntime's choice.
        optimizations: those of onnxruntime.
        libraries: tells the kernels that go with a model, and why some do not.
    """

    device: Device
    threads: int | None
    optimizations: Optimizations
    libraries: Callable[[ir.Model], Libraries] = _none


@dataclass(eq=False)
class Plan:
    """A model that is ready to run.

    Attributes:
        name: such as ``static-1``.
        kind: what it is for.
        model: the model; in memory as long as its session is not made, at least.
        host: where it runs.
        guard: what it assumes.
        behaviour: how closely it keeps to what was seen.
        hits: how often it ran.
        last_used: when it ran last, as counted by all runs.
        kernels: names of the native kernels that it runs, once it is prepared.
        remarks: why it runs without others that it could have, then.
        problems: why its model is not optimized, if so.
    """

    name: str
    kind: Kind
    model: ir.Model
    host: Host
    guard: Guard = field(default_factory=Guard)
    behaviour: Behaviour | None = None
    hits: int = 0
    last_used: int = 0
    kernels: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    _ready: VariantSession | None = None
    _artifact: Artifact | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self) -> VariantSession:
        """Make the session, once.

        Raises:
            RuntimeFailure: onnxruntime can't load the model.
        """
        with self._lock:
            if self._ready is None:
                self._artifact = Artifact(self.model)
                host = self.host
                libraries = host.libraries(self.model)
                self.kernels, self.remarks = libraries.kernels, libraries.remarks
                made = preflight.create(
                    self._artifact.source,
                    optimizations=host.optimizations,
                    device=host.device,
                    threads=host.threads,
                    choice=libraries.choice,
                )
                self._ready = VariantSession(made, Signature.of(self.model))
            return self._ready

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, in the model's order.

        Raises:
            UsageError: an input is missing, or there is none of that name.
            RuntimeFailure: onnxruntime can't load or run the model.
        """
        ready = self._ready or self.prepare()
        return dict(zip(ready.outputs, ready.run(feeds), strict=True))
