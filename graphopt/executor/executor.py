"""The profiling executor, as users hold it: it runs a model, and a :class:`Specializer` learns from that."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from graphopt import ir
from graphopt.errors import RuntimeFailure, UsageError
from graphopt.executor.debug_state import DebugState
from graphopt.executor.options import ExecutorOptions, current_strategy
from graphopt.executor.plan import PlanFactory
from graphopt.executor.plan_cache import ModelSource, PlanCache
from graphopt.executor.pytree import Nested, as_array, check_names, flatten, unflatten
from graphopt.executor.specializer import Specializer
from graphopt.executor.vjp import GradientPlan, Pullback
from graphopt.ir.signature import Signature
from graphopt.ort.devices import Device
from graphopt.ort.session import explain
from graphopt.util.element_types import native_feeds, numpy_type

if TYPE_CHECKING:
    import numpy as np
    from onnxruntime import InferenceSession, OrtValue


class Executor:
    """Runs a model, and specializes it for the inputs that come. Many threads may run it at once.

    >>> executor = graphopt.compile("model.onnx")                            # doctest: +SKIP
    >>> executor({"ids": ids, "mask": mask})["logits"]                       # doctest: +SKIP
    >>> print(executor.debug_state())                                        # doctest: +SKIP

    Args:
        original: the model.
        maker: makes plans of it.
        options: how it works.
        inputs, outputs: names, nested as the caller nests tensors; by default a dict by name.
        clock: seconds, for the delay of releasing.

    Raises:
        UsageError: ``inputs`` or ``outputs`` name something else than the model has.
    """

    def __init__(
        self,
        original: ModelSource,
        maker: PlanFactory,
        options: ExecutorOptions | None = None,
        *,
        inputs: Nested | None = None,
        outputs: Nested | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options or ExecutorOptions()
        self._maker, self._clock = maker, clock
        self._nested_inputs, self._nested_outputs = inputs, outputs
        self._flushing = threading.Lock()
        self._flushed: list[weakref.ref[Specializer]] = []  # what still makes something holds itself
        self._now = self._begun(original, stacklevel=4)
        self._differentiating = threading.Lock()
        self._gradients: dict[tuple[str, ...], GradientPlan] = {}

    def _begun(self, original: ModelSource, *, stacklevel: int) -> Specializer:
        """One that has seen nothing yet."""
        signature = Signature.of(original.read())
        check_names(self._nested_inputs, [port.name for port in signature.inputs], "input")
        check_names(self._nested_outputs, [port.name for port in signature.outputs], "output")
        options = self.options
        strategy = options.strategy or current_strategy()
        depth = strategy.depth if options.depth is None else options.depth
        if depth > strategy.depth:
            warnings.warn(
                f"the strategy {strategy} makes {strategy.depth} specializations, not {depth}: "
                "the first ones are static",
                stacklevel=stacklevel,
            )
        memory = PlanCache(original, self._maker, options.delay, self._clock, is_last=depth == 0)
        return Specializer(signature, memory, self._maker, options, strategy, depth)

    def __reduce__(self) -> tuple[Any, ...]:
        """Executors hold sessions, threads and what they saw of runs: there is nothing to pickle.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "an executor can't be pickled or copied",
            hint="make one with graphopt.compile in each process; a bundle (graphopt.load) can be pickled",
        )

    # Running ------------------------------------------------------------------------------------

    def __call__(self, inputs: Any) -> dict[str, np.ndarray]:
        """The outputs by name for ``inputs``, a dict by name, or nested as ``inputs`` of the executor.

        Args:
            inputs: numpy arrays, or tensors with DLPack, whose memory is read in place.

        Raises:
            UsageError: an input is missing, or there is none of that name, or they are nested otherwise.
            RuntimeFailure: onnxruntime can't run the model on them.
        """
        return self.run(self._feeds(inputs))

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        if self._nested_inputs is not None:
            inputs = dict(flatten(self._nested_inputs, inputs))
        elif not isinstance(inputs, Mapping):
            raise UsageError(
                f"inputs are a dict of arrays by name, not {type(inputs).__name__}",
                hint="graphopt.compile(…, inputs=[…]) says how else they are nested",
            )
        return {name: as_array(value) for name, value in inputs.items()}

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs by name, for numpy arrays by name; raises as a call does."""
        now = self._now  # a flush meanwhile is none of this run's business
        feeds = native_feeds(feeds)
        plan = now.plan_for(feeds)
        found = plan.run(feeds)
        now.ran(plan, feeds)
        return found

    def run_bound(self, values: Mapping[str, OrtValue]) -> dict[str, OrtValue]:
        """The outputs by name, as values on the executor's device, where ``values`` stay, too.

        Args:
            values: onnxruntime's own, such as ``OrtValue.ortvalue_from_numpy(array, "cuda", 0)``.

        Raises:
            UsageError: one of them is something else.
            RuntimeFailure: onnxruntime can't run the model on them.
        """
        now = self._now
        for name, value in values.items():
            if not hasattr(value, "data_type"):
                raise UsageError(
                    f"{name!r} is a {type(value).__name__}, no OrtValue", hint="run takes arrays"
                )
        seen = {name: BoundValue(value) for name, value in values.items()}
        plan = now.plan_for(seen)
        ready = plan.prepare()
        found = run_bound(ready.session, ready.own_feeds(values), ready.outputs, self._maker.host.device)
        now.ran(plan, seen)
        return dict(zip(ready.outputs, found, strict=True))

    def vjp(
        self, feeds: Mapping[str, Any], requires_grad: Iterable[str] | None = None
    ) -> tuple[dict[str, np.ndarray], Pullback]:
        """The outputs by name, and what takes gradients of outputs to those of inputs and initializers.

        >>> outputs, pullback = executor.vjp({"x": x}, ["x", "w"])               # doctest: +SKIP
        >>> pullback({"y": dy})["w"]                                             # doctest: +SKIP

        Which gradients are wanted is the key of a plan of its own, whose forward and backward models are
        specialized like others for the shapes that come, and the backward model for outputs that have no
        gradients.

        Args:
            feeds: numpy arrays by name.
            requires_grad: inputs and initializers; by default those of the options. Others count as those of
                which no gradient is wanted.

        Raises:
            UsageError: a name is unknown, or nothing is named; or the original was released.
            NoGradient: a gradient leads through an operator without one.
            RuntimeFailure: onnxruntime can't run the model on them.
        """
        if not isinstance(feeds, Mapping):
            raise UsageError(f"inputs are a dict of arrays by name, not {type(feeds).__name__}")
        if isinstance(requires_grad, str):
            requires_grad = (requires_grad,)
        wanted = self.options.requires_grad if requires_grad is None else tuple(requires_grad)
        names = tuple(sorted(set(wanted)))
        if not names:
            raise UsageError("no gradient is wanted", hint="requires_grad names inputs and initializers")
        with self._differentiating:
            plan = self._gradients.get(names)
            if plan is None:
                original = self._now.memory.original.read()
                plan = GradientPlan(original, names, self._started, self.options.profiled_runs)
                self._gradients[names] = plan
        return plan.forward(feeds)

    def _started(self, model: ir.Model) -> Executor:
        """An executor of the same kind for a part of the model."""
        return Executor(ModelSource(model), self._maker, self.options, clock=self._clock)

    # Between runs -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Forget all plans and all that was seen; the strategy is read anew.

        Raises:
            UsageError: the original was released, and came from no file; or the file is now of a model that
                lacks named inputs or outputs. All stays as it was then.
        """
        with self._flushing:
            before = self._now
            self._now = self._begun(before.memory.original.again(), stacklevel=3)
            with self._differentiating:
                self._gradients.clear()
            self._flushed = [old for old in (*self._flushed, weakref.ref(before)) if old() is not None]

    def wait(self) -> None:
        """Wait until each specialization that is being made is there, or is dropped as it was flushed."""
        for specializer in (*(old() for old in self._flushed), self._now):
            if specializer is not None:
                specializer.wait()

    # Looking in ---------------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """How the model is called."""
        return self._now.signature

    def graph_for(self, feeds: Mapping[str, Any]) -> ir.Model:
        """The model that runs for ``feeds``, as far as it is made by now; nothing is specialized or run."""
        now = self._now
        return (now.known_plan(feeds) or now.memory.general()).model

    @property
    def last_plan(self) -> str | None:
        """The name of the plan that ran last."""
        last = self._now.last
        return None if last is None else last.name

    def last_executed_optimized_graph(self) -> ir.Model:
        """The model that ran last.

        Raises:
            UsageError: none did.
        """
        last = self._now.last
        if last is None:
            raise UsageError("nothing was run yet")
        return last.model

    def debug_state(self) -> DebugState:
        """What was done so far."""
        return self._now.debug_state()

    def __repr__(self) -> str:
        ports = self.signature
        names = [", ".join(port.name for port in side) for side in (ports.inputs, ports.outputs)]
        return f"{type(self).__name__}(({names[0]}) -> ({names[1]}), last_plan={self.last_plan!r})"


class NestedExecutor(Executor):
    """An executor whose outputs are nested as ``outputs`` of :func:`graphopt.compile` are."""

    def __call__(self, inputs: Any) -> Any:
        """The outputs, nested; arguments and errors are those of :class:`Executor`."""
        return unflatten(self._nested_outputs or (), super().__call__(inputs))


class BoundValue:
    """What guards ask of an ``OrtValue``; contents leave the device only if they ask for those."""

    def __init__(self, value: OrtValue) -> None:
        self.value = value
        self.shape = tuple(value.shape())
        self.dtype = numpy_type(value.data_type())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value.numpy(), name)


def run_bound(
    made: InferenceSession, values: Mapping[str, OrtValue], names: list[str], device: Device
) -> list[OrtValue]:
    """The outputs of a session as values on ``device``.

    Raises:
        RuntimeFailure: onnxruntime can't run it, or takes no such values.
    """
    try:
        binding = made.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name, device.kind, device.index)
        made.run_with_iobinding(binding)
        return list(binding.get_outputs())
    except Exception as error:  # onnxruntime's errors have no common base
        raise RuntimeFailure(f"onnxruntime failed: {explain(error)}") from error
