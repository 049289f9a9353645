"""Plans: models ready to run, with their guards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any, Literal

from graphopt import ir
from graphopt.device_hints.bf16 import naming_bf16
from graphopt.diagnostics.record import Record
from graphopt.errors import UsageError
from graphopt.executor.compile_log import Compilation
from graphopt.executor.kept_model import KeptModel, store_together
from graphopt.fusion.kernel_library import Libraries
from graphopt.ir.signature import Signature
from graphopt.ort import preflight
from graphopt.ort.devices import Device
from graphopt.ort.loadable_model import Artifact
from graphopt.ort.optimized_graph import optimized_graph
from graphopt.ort.session import Optimizations, Source
from graphopt.profile import Guard, SpecializationKind
from graphopt.publish import ScratchFolder
from graphopt.specialization.cuda_graphs.graph_switch import GraphSwitch
from graphopt.specialization.guard_counts import GuardCounter, count_guards
from graphopt.specialization.instrumented_model import Observed
from graphopt.specialization.shared_buffer_checks import BufferChecks
from graphopt.specialization.variant_session import VariantSession
from graphopt.util.fork_safe_lock import ForkSafeLock
from graphopt.util.lazy_dataclass import dataclass

#: ``fallback``: the original model, used while optimizing is off; ``general``: for all inputs;
#: ``profiled``: for all inputs, and observes watched values; ``optimized``: for inputs that satisfy a guard.
Kind = Literal["fallback", "general", "profiled", "optimized"]


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
        record: the hints and counters of the executor.
        graphs: creates sessions with CUDA graphs, if requested.
    """

    device: Device
    threads: int | None
    optimizations: Optimizations
    libraries: Callable[[ir.Model], Libraries] = _none
    record: Record = field(default_factory=Record)
    graphs: GraphSwitch = field(default_factory=GraphSwitch)


@dataclass(eq=False)
class Plan:
    """A model that is ready to run.

    Attributes:
        name: its name, such as ``static-1``.
        kind: the inputs that it accepts.
        kept: the model, in memory or in a file.
        host: its execution environment.
        compilation: the compilation that created it.
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
    compilation: Compilation
    guard: Guard = field(default_factory=Guard)
    specialization: SpecializationKind | None = None
    hits: int = 0
    last_used: int = 0
    kernels: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    _ready: VariantSession | None = None
    _folder: ScratchFolder | None = None
    _lock: ForkSafeLock = field(default_factory=ForkSafeLock)

    @property
    def model(self) -> ir.Model:
        """The model; raises UsageError as :meth:`KeptModel.get` does."""
        return self.kept.get()

    @property
    def guards(self) -> GuardCounter | None:
        """The counts of the guarded groups in the model; ``None`` if there are none, and until prepared."""
        return None if self._ready is None else self._ready.counter

    def prepare(self) -> VariantSession:
        """Create the session, once.

        Raises:
            RuntimeFailure: onnxruntime can't load the model.
        """
        if self._ready is not None:
            return self._ready
        with self._lock:
            if self._ready is None:
                model_of, host = self._session_model(), self.host
                model = model_of()
                counted = count_guards(model)
                artifact = Artifact(model if counted is None else counted.model)
                libraries = host.libraries(model)
                self.kernels, self.remarks = libraries.kernels, libraries.remarks
                runtime: Any = {
                    "optimizations": host.optimizations,
                    "device": host.device,
                    "choice": libraries.choice,
                }
                create = partial(_session, artifact.source, {"threads": host.threads, **runtime})
                with naming_bf16(model_of, host.device):
                    session, graphs = host.graphs.session(create, artifact.model, host.device)
                self._folder = artifact.folder  # onnxruntime maps the file of a large model
                run_of = model_of if counted is None else partial(_counted, model_of)
                buffers = BufferChecks(model_of, lambda: optimized_graph(run_of(), **runtime), session)
                counter = None if counted is None else counted.counter
                self._ready = VariantSession(
                    session, Signature.of(model), buffers, counter, graphs=graphs, record=host.record
                )
            return self._ready

    def _session_model(self) -> Callable[[], ir.Model]:
        """Returns the model of the session, and holds no reference to the plan, which owns the session."""
        return self.kept.get

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, in the model's order.

        Raises:
            UsageError: an input is missing or unknown.
            RuntimeFailure: onnxruntime can't load or run the model.
        """
        ready = self._ready or self.prepare()
        return dict(zip(ready.outputs, ready.run(feeds), strict=True))

    def take_observed(self, outputs: dict[str, Any]) -> Observed | None:
        """Remove the observations of watched values from the ``outputs`` of a run; ``None`` without any."""
        return None


def store_models(plans: Sequence[Plan]) -> None:
    """Write the models of ``plans`` to files, and keep them in memory; raises as :func:`store_together`."""
    for plan in plans:
        counted = plan.prepare().counter is not None  # the model in the folder then has another output
        if plan._folder is not None and not counted:
            plan.kept.store(plan._folder)
    store_together(plan.kept for plan in plans)


def _session(source: Source, arguments: dict[str, Any], provider_options: Mapping[str, str]) -> Any:
    return preflight.create(source, provider_options=provider_options, **arguments)


def _counted(model_of: Callable[[], ir.Model]) -> ir.Model:
    """The model with an output that counts guards.

    Raises:
        UsageError: the model was released, and read again from a file, which does not mark guards.
    """
    counted = count_guards(model_of())
    if counted is None:
        raise UsageError("the model was released, and its file does not mark guards")
    return counted.model
