"""The public executor: runs a model; a :class:`Specializer` profiles the runs and creates plans."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphopt import ir
from graphopt.device_hints.model_hints import model_hints
from graphopt.diagnostics.hint import Hint
from graphopt.errors import RuntimeFailure, UsageError, unknown
from graphopt.executor.debug_state import DebugState
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.executor.plan_cache import ModelSource, PlanCache
from graphopt.executor.plan_factory import PlanFactory
from graphopt.executor.pytree import Nested, as_array, check_names, flatten, unflatten
from graphopt.executor.specializer import Specializer
from graphopt.executor.state_loop import StateLoop
from graphopt.executor.thread_local_switches import current_strategy
from graphopt.executor.vjp import GradientPlan, Pullback
from graphopt.inputs.run_once import check_dtypes
from graphopt.ir.signature import Signature
from graphopt.ort.gpu_properties import gpu_properties
from graphopt.profile import FusionStrategy
from graphopt.specialization.ort_values import bound_values
from graphopt.specialization.shared_buffer_checks import names_in
from graphopt.util.fork_safe_lock import ForkSafeLock
from graphopt.util.html_blocks import html_of
from graphopt.util.ort_array_conversion import native_feeds

if TYPE_CHECKING:
    import numpy as np
    from onnxruntime import OrtValue


class Executor:
    """Runs a model, and specializes it for the profiled inputs. Thread-safe.

    >>> executor = graphopt.compile("model.onnx")                            # doctest: +SKIP
    >>> executor({"ids": ids, "mask": mask})["logits"]                       # doctest: +SKIP
    >>> print(executor.debug_state())                                        # doctest: +SKIP

    Args:
        original: the model.
        factory: creates its plans.
        options: options.
        inputs, outputs: names, nested like the caller's tensors; by default a dict by name.
        clock: the current time in seconds, for the delay of the release.

    Raises:
        UsageError: ``inputs`` or ``outputs`` contain unknown or duplicate names.
    """

    def __init__(
        self,
        original: ModelSource,
        factory: PlanFactory,
        options: ExecutorOptions | None = None,
        *,
        inputs: Nested | None = None,
        outputs: Nested | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options or ExecutorOptions()
        self._factory, self._clock = factory, clock
        self._nested_inputs, self._nested_outputs = inputs, outputs
        self._flushing = ForkSafeLock()
        # threads of unfinished jobs keep their specializers alive
        self._flushed: list[weakref.ref[Specializer]] = []
        self._specializer = self._create_specializer(original, stacklevel=4)
        self._differentiating = ForkSafeLock()
        self._gradients: dict[tuple[str, ...], GradientPlan] = {}

    def _create_specializer(self, original: ModelSource, *, stacklevel: int) -> Specializer:
        """A specializer without profile and plans."""
        model = original.read()
        signature = Signature.of(model)
        values = {value.name or "": None for value in ir.values_of(model.graph)}
        for name in self.options.requires_grad:
            if name not in values:
                raise unknown("input or initializer", name, values, plural="values")
        check_names(self._nested_inputs, [port.name for port in signature.inputs], "input")
        check_names(self._nested_outputs, [port.name for port in signature.outputs], "output")
        options = self.options
        self._size_checks = options.features.checks(signature)
        strategy = current_strategy() if options.strategy is None else FusionStrategy.of(options.strategy)
        depth = strategy.depth if options.depth is None else options.depth
        if depth > strategy.depth:
            warnings.warn(
                f"depth {depth} exceeds the {strategy.depth} specializations of the strategy {strategy}: "
                "the first ones are static",
                stacklevel=stacklevel,
            )
        unsupported = self._record_hints(model)
        if unsupported is not None:
            warnings.warn(
                f"{unsupported.message}: the model runs without optimizations", stacklevel=stacklevel
            )
            self._factory = replace(self._factory, unsupported=unsupported.message)
            depth = 0
        cache = PlanCache(original, self._factory, options.delay, self._clock, is_last=depth == 0)
        return Specializer(signature, cache, self._factory, options, strategy, depth)

    def _record_hints(self, model: ir.Model) -> Hint | None:
        """Record the hints about ``model`` on the device; returns the one about missing support."""
        host = self._factory.host
        found = list(model_hints(model, host.device, gpu_properties(host.device), tf32=host.device.has_tf32))
        for hint in found:
            host.record.hint(hint)
        return next((hint for hint in found if hint.code == "bf16-unsupported"), None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Executors can't be pickled: they own sessions and threads.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "an executor can't be pickled or copied",
            hint="create one with graphopt.compile in each process; a bundle (graphopt.load) can be pickled",
        )

    # Running ------------------------------------------------------------------------------------

    def __call__(self, inputs: Any) -> dict[str, np.ndarray]:
        """Run the model; returns the outputs by name.

        Args:
            inputs: numpy arrays, or tensors with DLPack, which are not copied, in a dict by name, or nested
                like ``inputs`` of the executor.

        Raises:
            UsageError: an input is missing or unknown, or the structure differs.
            RuntimeFailure: onnxruntime can't run the model.
        """
        return self.run(self._feeds(inputs))

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        if self._nested_inputs is not None:
            inputs = dict(flatten(self._nested_inputs, inputs))
        elif not isinstance(inputs, Mapping):
            raise UsageError(
                f"inputs must be a dict of arrays by name, not {type(inputs).__name__}",
                hint="graphopt.compile(…, inputs=[…]) declares another structure",
            )
        return {name: as_array(value) for name, value in inputs.items()}

    def run(self, feeds: Mapping[str, Any], *, donate: bool = False) -> dict[str, np.ndarray]:
        """The outputs for ``feeds``, by name.

        Args:
            feeds: numpy arrays by name.
            donate: empty the dict ``feeds``, even if the run fails, so that arrays without other references
                are freed before this method returns; arrays that had to be converted are freed before the
                run.

        Raises:
            UsageError: an input is missing or unknown, or has another element type, or ``feeds`` to donate
                are not a dict.
            RuntimeFailure: onnxruntime can't run the model.
        """
        specializer = self._specializer  # a concurrent flush does not affect this run
        if donate:
            feeds = _emptied(feeds)
        feeds = native_feeds(feeds)
        if self._size_checks is not None:
            self._size_checks.check(feeds)
        plan = specializer.plan_for(feeds)
        try:
            found = plan.run(feeds)
        except RuntimeFailure:
            check_dtypes(feeds, specializer.signature)
            raise
        specializer.ran(plan, feeds, plan.take_observed(found))
        return found

    def run_bound(
        self, values: Mapping[str, OrtValue], *, share: Mapping[str, str] | None = None
    ) -> dict[str, OrtValue]:
        """Run the model on values on the executor's device; returns the outputs by name, on that device.

        Concurrent runs must not use the values that ``share`` overwrites.

        Args:
            values: values of onnxruntime, such as ``OrtValue.ortvalue_from_numpy(array, "cuda", 0)``.
            share: by name of an output, the input that the output overwrites, such as ``{"present":
                "past"}``. The value of the input is then returned as the output. A plan in which this is not
                safe is skipped; for the general plan, this is an error.

        Raises:
            UsageError: a value is not an OrtValue, ``share`` names a missing input or output, or a shared
                output differs in shape or type from its input or has a shape unknown before the run.
            VerificationFailed: an output may overwrite elements before they are read.
            RuntimeFailure: onnxruntime can't run the model. After this error, and no other, shared values may
                be partly overwritten.
        """
        specializer = self._specializer
        share = names_in(share, specializer.signature)
        feeds = bound_values(values)
        if self._size_checks is not None:
            self._size_checks.check(values)
        plan = specializer.plan_for(feeds)
        ready = plan.prepare()
        if plan.kind in ("optimized", "profiled") and not ready.buffers.are_safe(share):
            plan = specializer.cache.general()
            ready = plan.prepare()
        buffers = ready.buffers.for_run(share, values)
        before = specializer.before(plan, feeds, share.values()) if share else None
        found = ready.run_bound(values, self._factory.host.device, buffers)
        specializer.ran(plan, feeds, plan.take_observed(found), before)
        return found

    def loop(self, state: Iterable[tuple[str, str]]) -> StateLoop:
        """Runs in which outputs become inputs of the next run, on the device and without copies.

        >>> loop = executor.loop([("past.*", "present.*")])                      # doctest: +SKIP
        >>> loop({"ids": ids, **empty_cache})["logits"]                          # doctest: +SKIP
        >>> loop({"ids": next_ids})["logits"]                                    # doctest: +SKIP

        Args:
            state: pairs of an input and the output that is its next value, or patterns of them.

        Raises:
            UsageError: a name is missing or occurs twice, or a state or an output is not a tensor.
        """
        return StateLoop(lambda: self._specializer, state, self._factory.host.device)

    def vjp(
        self, feeds: Mapping[str, Any], requires_grad: Iterable[str] | None = None
    ) -> tuple[dict[str, np.ndarray], Pullback]:
        """The outputs by name, and a pullback from output cotangents to gradients of inputs and initializers.

        >>> outputs, pullback = executor.vjp({"x": x}, ["x", "w"])               # doctest: +SKIP
        >>> pullback({"y": dy})["w"]                                             # doctest: +SKIP

        Each set of requested gradients has a plan with a forward and a backward model. Both models are
        specialized for the profiled shapes, the backward model also for absent cotangents.

        Args:
            feeds: numpy arrays by name.
            requires_grad: inputs and initializers to differentiate with respect to; by default those of the
                options.

        Raises:
            UsageError: a name is unknown, there are no names, or the original was released.
            NoGradient: an operator between inputs and outputs is not differentiable.
            RuntimeFailure: onnxruntime can't run the model.
        """
        if not isinstance(feeds, Mapping):
            raise UsageError(f"inputs must be a dict of arrays by name, not {type(feeds).__name__}")
        if isinstance(requires_grad, str):
            requires_grad = (requires_grad,)
        wanted = self.options.requires_grad if requires_grad is None else tuple(requires_grad)
        names = tuple(sorted(set(wanted)))
        if not names:
            raise UsageError("no gradient is requested", hint="requires_grad names inputs and initializers")
        with self._differentiating:
            plan = self._gradients.get(names)
            if plan is None:
                original = self._specializer.cache.original.read()
                plan = GradientPlan(
                    original,
                    names,
                    self._starter(),
                    release=self.options.release,
                    by_group=self.options.by_group,
                )
                self._gradients[names] = plan
        return plan.forward(feeds)

    def _starter(self) -> Callable[[ir.Model, str], Executor]:
        """Returns a function that creates the executors of a forward model and its backward models.

        If the forward model runs without CUDA graphs, so do the backward models.
        """
        forward = self._factory.host.graphs.derived()
        backward = forward.derived(after=forward)

        def start(model: ir.Model, graph: str) -> Executor:
            self._factory.created_graph(graph, model, "")
            host = replace(self._factory.host, graphs=forward if graph == "forward-graph" else backward)
            # no part is differentiated itself
            factory = replace(self._factory, requires_grad=(), host=host)
            inputs = {port.name for port in Signature.of(model).inputs}
            static = tuple(name for name in self.options.static_inputs if name in inputs)
            options = replace(self.options, requires_grad=(), static_inputs=static)
            return Executor(ModelSource(model), factory, options, clock=self._clock)

        return start

    # Between runs -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Discard all plans and profiles, and read the model file and the strategy again.

        Raises:
            UsageError: the original was released and has no file, or the file's model lacks named inputs or
                outputs. In this case, the state is unchanged.
        """
        with self._flushing:
            before = self._specializer
            original = before.cache.original.reopen()
            self._specializer = self._create_specializer(original, stacklevel=3)
            with self._differentiating:
                self._gradients.clear()
            self._flushed = [old for old in (*self._flushed, weakref.ref(before)) if old() is not None]

    def wait(self) -> None:
        """Wait for all specializations in progress, including flushed ones."""
        for specializer in (*(old() for old in self._flushed), self._specializer):
            if specializer is not None:
                specializer.wait()

    # Inspection ---------------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """The inputs and outputs of the model."""
        return self._specializer.signature

    def graph_for(self, feeds: Mapping[str, Any]) -> ir.Model:
        """The model that would run for ``feeds`` with the current plans; creates no specialization."""
        specializer = self._specializer
        return (specializer.known_plan(feeds) or specializer.unguarded_plan(feeds)).model

    @property
    def last_plan(self) -> str | None:
        """The name of the plan that ran last, or ``None``."""
        last = self._specializer.last
        return None if last is None else last.name

    def last_executed_optimized_graph(self) -> ir.Model:
        """The model that ran last.

        Raises:
            UsageError: the executor has not run yet.
        """
        last = self._specializer.last
        if last is None:
            raise UsageError("the executor has not run yet")
        return last.model

    def debug_state(self) -> DebugState:
        """A snapshot of the state."""
        gradients = tuple(plan.state for plan in list(self._gradients.values()))
        record = self._factory.host.record
        found = self._specializer.debug_state()
        return replace(found, gradients=gradients, hints=tuple(record.hints), counters=record.counters)

    def __repr__(self) -> str:
        ports = self.signature
        names = [", ".join(port.name for port in side) for side in (ports.inputs, ports.outputs)]
        return f"{type(self).__name__}(({names[0]}) -> ({names[1]}), last_plan={self.last_plan!r})"

    def _repr_html_(self) -> str:
        return html_of((repr(self), *self.debug_state().blocks()))


class NestedExecutor(Executor):
    """An executor with outputs nested like ``outputs`` of :func:`graphopt.compile`."""

    def __call__(self, inputs: Any) -> Any:
        """Run the model; returns the nested outputs. Arguments and errors as for :class:`Executor`."""
        return unflatten(self._nested_outputs or (), super().__call__(inputs))


def _emptied(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``feeds``; ``feeds`` itself is emptied."""
    if not isinstance(feeds, MutableMapping):
        raise UsageError(f"donate=True empties the inputs: they must be a dict, not a {type(feeds).__name__}")
    taken = dict(feeds)
    feeds.clear()
    return taken
