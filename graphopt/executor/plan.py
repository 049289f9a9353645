"""Plans, which are models ready to run with their guards, and the factory that creates them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from graphopt import ir
from graphopt.errors import NotFused, PassFailed, VerificationFailed
from graphopt.executor.plan_model import KeptModel
from graphopt.fusion.kernel_library import Libraries
from graphopt.ir.signature import Signature
from graphopt.model_arguments import copy
from graphopt.ort import preflight
from graphopt.ort.devices import Device
from graphopt.ort.loadable_model import Artifact
from graphopt.ort.optimized_graph import optimized_graph
from graphopt.ort.session import Optimizations
from graphopt.profile import Guard, Profile, SpecializationKind
from graphopt.profile.annotations import annotate_gradients
from graphopt.publish import ScratchFolder
from graphopt.specialization.shared_buffer_checks import BufferChecks
from graphopt.specialization.specialize_inputs import annotate_inputs, specialize_inputs
from graphopt.specialization.variant_session import VariantSession

#: ``fallback``: the original model, used while optimizing is off; ``general``: for all inputs;
#: ``optimized``: for inputs that satisfy a guard.
Kind = Literal["fallback", "general", "optimized"]


def _none(model: ir.Model) -> Libraries:
    return Libraries()


@dataclass(frozen=True)
class Host:
    """The execution environment of plans.

    Attributes:
        device: the device.
        threads: threads within an operator; by default onnxruntime's choice.
        optimizations: onnxruntime's optimization level.
        libraries: finds the native kernels of a model.
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
        kind: the inputs that it accepts.
        kept: the model, in memory or in a file.
        host: its execution environment.
        guard: its assumptions.
        specialization: the treatment of the sizes of dims in an optimized plan; otherwise ``None``.
        hits: the number of its runs.
        last_used: the index of its last run among all runs.
        kernels: names of the native kernels that it runs; empty until prepared.
        remarks: the reasons why other native kernels are not used; empty until prepared.
        problems: the reasons why its model is not optimized.
    """

    name: str
    kind: Kind
    kept: KeptModel
    host: Host
    guard: Guard = field(default_factory=Guard)
    specialization: SpecializationKind | None = None
    hits: int = 0
    last_used: int = 0
    kernels: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    _ready: VariantSession | None = None
    _folder: ScratchFolder | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def model(self) -> ir.Model:
        """The model; raises UsageError as :meth:`KeptModel.get` does."""
        return self.kept.get()

    def spill(self) -> None:
        """Drop the model from memory; raises errors as :meth:`KeptModel.spill` does."""
        self.prepare()
        self.kept.spill(self._folder)

    def prepare(self) -> VariantSession:
        """Create the session, once.

        Raises:
            RuntimeFailure: onnxruntime can't load the model.
        """
        with self._lock:
            if self._ready is None:
                model, host = self.model, self.host
                artifact = Artifact(model)
                libraries = host.libraries(model)
                self.kernels, self.remarks = libraries.kernels, libraries.remarks
                runtime: Any = {
                    "optimizations": host.optimizations,
                    "device": host.device,
                    "choice": libraries.choice,
                }
                session = preflight.create(artifact.source, threads=host.threads, **runtime)
                self._folder = artifact.folder  # onnxruntime maps the file of a large model
                model_of = self.kept.get  # without a reference to the plan, which owns the session
                buffers = BufferChecks(model_of, lambda: optimized_graph(model_of(), **runtime), session)
                self._ready = VariantSession(session, Signature.of(model), buffers)
            return self._ready

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, in the model's order.

        Raises:
            UsageError: an input is missing or unknown.
            RuntimeFailure: onnxruntime can't load or run the model.
        """
        ready = self._ready or self.prepare()
        return dict(zip(ready.outputs, ready.run(feeds), strict=True))


class Optimize(Protocol):
    """Optimizes a model and verifies the result at most once, without searching for a faulty rewrite."""

    def __call__(self, model: ir.Model, original: ir.Model, guard: Guard | None) -> ir.Model:
        """The optimized model.

        Args:
            model: the model.
            original: the model for the comparison; ``model`` is equivalent to it if ``guard`` holds.
            guard: the assumptions about inputs; ``None`` without assumptions.

        Raises:
            VerificationFailed: the results differ.
            PassFailed: a pass failed.
        """


@dataclass(frozen=True)
class PlanFactory:
    """Creates plans from models, which are not modified.

    Attributes:
        optimize: optimizes a model.
        prepare: runs the pipeline ``fallback``, for the plan that is used while optimizing is off.
        host: the execution environment of the plans.
        strict: fail if the general plan fails verification; by default the original replaces it.
        by_pass: whether a pass of the pipeline specializes annotated inputs.
        requires_grad: inputs and initializers that require a gradient; annotated in models if ``by_pass``.
    """

    optimize: Optimize
    prepare: Callable[[ir.Model], ir.Model]
    host: Host
    strict: bool = False
    by_pass: bool = False
    requires_grad: tuple[str, ...] = ()

    def general(self, original: ir.Model) -> Plan:
        """The plan for all inputs, ready to run.

        Raises:
            NotFused: a scope of ``strict_fusion`` was not fused into one operator. VerificationFailed,
            PassFailed: with ``strict``, optimizing failed.
        """
        problems: tuple[str, ...] = ()
        try:
            model = self.optimize(self._annotated(original), original, None)
        except (VerificationFailed, PassFailed) as failure:
            if self.strict or isinstance(failure, NotFused):
                raise
            model = self.prepare(original)
            problems = (f"the general plan runs the original: {failure.message}",)
        plan = Plan("general", "general", KeptModel(model), self.host, problems=problems)
        plan.prepare()
        return plan

    def fallback(self, original: ir.Model) -> Plan:
        """The plan that runs while optimizing is off."""
        return Plan(
            "fallback",
            "fallback",
            KeptModel(self.prepare(original)),
            replace(self.host, optimizations="off"),
        )

    def specialized(
        self, original: ir.Model, guard: Guard, kind: SpecializationKind, profile: Profile
    ) -> Plan:
        """A plan for inputs that satisfy ``guard``, ready to run, without a name.

        Args:
            original: the source model.
            guard: the assumptions.
            kind: the treatment of the sizes of dims.
            profile: the profile from which the assumptions are derived.

        Raises:
            GraphoptError: optimizing or verifying failed.
        """
        if self.by_pass:
            prepared = self._annotated(annotate_inputs(original, guard, profile))
        else:
            prepared = specialize_inputs(original, guard, profile)
        model = self.optimize(prepared, original, guard)
        plan = Plan("", "optimized", KeptModel(model), self.host, guard, kind)
        plan.prepare()
        return plan

    def _annotated(self, model: ir.Model) -> ir.Model:
        """``model``, or a copy annotated with the values that require a gradient."""
        if not self.by_pass or not self.requires_grad:
            return model
        found = copy(model)
        annotate_gradients(found, dict.fromkeys(self.requires_grad, True))
        return found
