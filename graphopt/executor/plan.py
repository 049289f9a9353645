"""A model that is ready to run, and what it assumes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from graphopt import ir
from graphopt.errors import NotFused, PassFailed, VerificationFailed
from graphopt.fusion.library import Libraries
from graphopt.ir.signature import Signature
from graphopt.ort import preflight
from graphopt.ort.artifact import Artifact
from graphopt.ort.devices import Device
from graphopt.ort.session import Optimizations
from graphopt.profile import Guard, SpecializationKind
from graphopt.specialization.build import FIRST
from graphopt.specialization.session import VariantSession
from graphopt.specialization.specialize_inputs import specialize_inputs

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
    behaviour: SpecializationKind | None = None
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


class Optimize(Protocol):
    """Optimizes a model, and verifies the result at most once: it never searches for a rewrite at fault."""

    def __call__(
        self, model: ir.Model, first: tuple[str, ...], original: ir.Model, guard: Guard | None
    ) -> ir.Model:
        """The optimized model.

        Args:
            model: the model.
            first: passes that run before all others.
            original: the model to compare with, which ``model`` equals where ``guard`` holds.
            guard: the assumptions about inputs; ``None`` if there are none.

        Raises:
            VerificationFailed: the result does not compute the same.
            PassFailed: a pass failed.
        """


@dataclass(frozen=True)
class PlanFactory:
    """Makes plans; models that it is given stay as they are.

    Attributes:
        optimize: optimizes a model.
        prepare: does what the plan needs that runs where optimizing is off, as the pipeline ``fallback``.
        host: where plans run.
        strict: a general plan that fails verification is an error; by default the original runs in its place.
    """

    optimize: Optimize
    prepare: Callable[[ir.Model], ir.Model]
    host: Host
    strict: bool = False

    def general(self, original: ir.Model) -> Plan:
        """The plan for all inputs, ready to run.

        Raises:
            NotFused: a scope of ``strict_fusion`` did not become one fused operator.
            VerificationFailed, PassFailed: ``strict``, and it fails.
        """
        problems: tuple[str, ...] = ()
        try:
            model = self.optimize(original, (), original, None)
        except (VerificationFailed, PassFailed) as failure:
            if self.strict or isinstance(failure, NotFused):
                raise
            model = self.prepare(original)
            problems = (f"the general plan runs the original: {failure.message}",)
        plan = Plan("general", "general", model, self.host, problems=problems)
        plan.prepare()
        return plan

    def fallback(self, original: ir.Model) -> Plan:
        """The plan that runs where optimizing is switched off."""
        return Plan("fallback", "fallback", self.prepare(original), replace(self.host, optimizations="off"))

    def specialized(self, original: ir.Model, guard: Guard, behaviour: SpecializationKind) -> Plan:
        """A plan for inputs that ``guard`` lets through, ready to run; it has no name yet.

        Raises:
            GraphoptError: it can't be made, or fails verification.
        """
        model = self.optimize(specialize_inputs(original, guard), FIRST, original, guard)
        plan = Plan("", "optimized", model, self.host, guard, behaviour)
        plan.prepare()
        return plan
