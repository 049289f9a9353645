"""The profiling executor: it watches what inputs come, and makes plans for them.

The seed is ``torch/csrc/jit/runtime/profiling_graph_executor_impl.cpp``. There, a miss of a guard calls a
fallback function, which has an executor of its own with one specialization less to make; here that chain is
one list of plans, whose guards one function asks in turn.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphopt import ir
from graphopt.errors import GraphoptError, UsageError
from graphopt.executor import switches
from graphopt.executor.binding import Bound, run_bound
from graphopt.executor.chain import Chain
from graphopt.executor.options import ExecutorOptions
from graphopt.executor.plan import Host, Plan
from graphopt.executor.state import DebugState, PlanState
from graphopt.executor.structure import Nested, as_array, flatten, unflatten
from graphopt.profile import Behaviour, Guard, Pattern, Profile, assumed, observe, unfit
from graphopt.runtime.once import check_feeds
from graphopt.runtime.signature import Signature
from graphopt.specialize.build import FIRST
from graphopt.specialize.narrow import narrowed

if TYPE_CHECKING:
    from onnxruntime import OrtValue

#: Optimizes a model by a preset, running the named passes before all others.
Optimize = Callable[[ir.Model, tuple[str, ...]], ir.Model]
#: Passes of the plan that runs where optimizing is off, as of the pipeline ``fallback``.
Prepare = Callable[[ir.Model], ir.Model]
#: Different reasons that are told apart.
_REASONS = 50


class Executor:
    """Runs a model, and specializes it for the inputs that come. Many threads may run it at once.

    >>> executor = graphopt.compile("model.onnx")                            # doctest: +SKIP
    >>> executor({"ids": ids, "mask": mask})["logits"]                       # doctest: +SKIP
    >>> print(executor.debug_state())                                        # doctest: +SKIP

    Args:
        load: gives the original.
        reloads: it can give the original again after it was released; else it raises UsageError.
        optimize: makes the general and the optimized plans.
        prepare: makes the plan that runs where optimizing is switched off.
        host: where plans run.
        options: how it works.
        inputs, outputs: names, nested as the caller nests tensors; by default a dict by name.
        clock: seconds, for the delay of releasing.
    """

    def __init__(
        self,
        load: Callable[[], ir.Model],
        optimize: Optimize,
        prepare: Prepare,
        host: Host,
        options: ExecutorOptions,
        *,
        reloads: bool = False,
        inputs: Nested | None = None,
        outputs: Nested | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options, self._reloads = options, reloads
        self._load, self._optimize, self._prepare, self._host = load, optimize, prepare, host
        self._nested_inputs, self._nested_outputs, self._clock = inputs, outputs, clock
        self._take(load())
        self._lock = threading.RLock()  # one compilation at a time
        self._counts = threading.Lock()
        self._general: Plan | None = None
        self._fallback: Plan | None = None
        self._last: Plan | None = None
        self._begin()

    def _take(self, original: ir.Model) -> None:
        """Let ``original`` be what runs."""
        self._original: ir.Model | None = original
        self.signature = Signature.of(original)
        self._outputs = [port.name for port in self.signature.outputs]
        self._ports = {port.name: port for port in self.signature.inputs if port.role != "constant"}

    def _begin(self) -> None:
        """Nothing was seen, and nothing is compiled."""
        self._strategy = self.options.strategy or switches.current_strategy()
        depth = self.options.depth
        if depth is not None and depth > self._strategy.depth:
            warnings.warn(
                f"the strategy {self._strategy} makes {self._strategy.depth} specializations, not {depth}: "
                "the first ones are static",
                stacklevel=4,
            )
        self._depth = self._strategy.depth if depth is None else depth
        self._chain = Chain()
        self._record = Profile("")
        self._compiling: threading.Thread | None = None
        self._compiled_at: float | None = None
        self._evicted = self._runs = 0
        self._made: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._failures: list[str] = []
        self._hopeless: frozenset[object] = frozenset()

    # Running ------------------------------------------------------------------------------------

    def __call__(self, inputs: Any) -> Any:
        """The outputs for ``inputs``, both nested as was said, or dicts by name.

        Args:
            inputs: numpy arrays, or tensors of others that speak DLPack, whose memory is read where it is.

        Raises:
            UsageError: an input is missing, or there is none of that name, or they are nested otherwise.
            RuntimeFailure: onnxruntime can't run the model on them.
        """
        if self._nested_inputs is not None:
            inputs = dict(flatten(self._nested_inputs, inputs))
        elif not isinstance(inputs, Mapping):
            raise UsageError(
                f"inputs are a dict of arrays by name, not {type(inputs).__name__}",
                hint="graphopt.compile(…, inputs=[…]) says how else they are nested",
            )
        feeds = {name: as_array(value) for name, value in inputs.items()}
        outputs = self.run(feeds)
        return outputs if self._nested_outputs is None else unflatten(self._nested_outputs, outputs)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, for numpy arrays by name; raises as a call does."""
        plan = self._plan_for(feeds)
        found = plan.run(feeds)
        self._ran(plan, feeds)
        return dict(zip(self._outputs, found, strict=True))

    def run_bound(self, values: Mapping[str, OrtValue]) -> dict[str, OrtValue]:
        """The outputs by name, as values on the executor's device, where ``values`` stay, too.

        Args:
            values: onnxruntime's own, such as ``OrtValue.ortvalue_from_numpy(array, "cuda", 0)``.

        Raises:
            RuntimeFailure: onnxruntime can't run the model on them.
        """
        seen = {name: Bound(value) for name, value in values.items()}
        plan = self._plan_for(seen)
        ready = plan.prepare()
        found = run_bound(ready.session, ready.taken(values), self._outputs, self._host.device)
        self._ran(plan, seen)
        return dict(zip(self._outputs, found, strict=True))

    def _plan_for(self, feeds: Mapping[str, Any]) -> Plan:
        if not switches.is_optimizing():
            return self._fallback_plan()
        chain = self._chain
        number = chain.dispatch(feeds)
        return chain.plans[number] if number < len(chain.plans) else self._missed(feeds)

    def _ran(self, plan: Plan, feeds: Mapping[str, Any]) -> None:
        """Count a run that succeeded, and learn from it."""
        with self._counts:
            self._runs += 1
            plan.hits += 1
            plan.last_used = self._runs
        self._last = plan
        switches.note_executed(plan.model)
        if plan.kind == "general":
            self._watch(feeds)
        if self.options.release and self._original is not None:
            self._release_if_due()

    def _missed(self, feeds: Mapping[str, Any]) -> Plan:
        """The plan for ``feeds`` that no guard let through: the general one, or a new one."""
        if not self._ports.keys() >= feeds.keys():
            check_feeds(feeds, self.signature)
        with self._lock:
            chain = self._chain
            number = chain.dispatch(feeds)
            if number == len(chain.plans):  # no other thread was quicker
                reason = self._why_general(feeds)
                if reason is not None:
                    self._tell(reason, chain, feeds)
                    return self._general_plan()
                self._compile()
                chain = self._chain
                number = chain.dispatch(feeds)
                if number == len(chain.plans):
                    again = self._why_general(feeds) or "the new specialization is for other inputs"
                    self._tell(again, chain, feeds)
                    return self._general_plan()
            return chain.plans[number]

    def _why_general(self, feeds: Mapping[str, Any]) -> str | None:
        """Why nothing is to be specialized now; ``None`` if it is."""
        if self._depth == 0:
            return "all specializations are made"
        if self._original is None:
            return "the original was released"
        if self._compiling is not None:
            return "a specialization is being made"
        if self.options.profiled_runs == 0 and self._record.runs == 0:
            self._see(feeds)
        if self._record.runs < max(self.options.profiled_runs, 1):
            return self._unfit(feeds) or "profiling"
        return "a specialization is being made" if self.options.compile == "background" else None

    def _tell(self, reason: str, chain: Chain, feeds: Mapping[str, Any]) -> None:
        """Count why the general plan runs, with the nearest guard's first difference."""
        near = min((plan.guard.explain(feeds) for plan in chain.plans), key=len, default=[])
        text = f"{reason}: {near[0]}" if near else reason
        with self._counts:
            self._reasons[text if text in self._reasons or len(self._reasons) < _REASONS else reason] += 1

    # Watching and compiling ---------------------------------------------------------------------

    def _watch(self, feeds: Mapping[str, Any]) -> None:
        """Note what the general plan just ran on, if that is of use."""
        if self._depth == 0 or self._original is None or self._compiling is not None:
            return
        with self._lock:
            wanted = max(self.options.profiled_runs, 1)
            known = self._chain.dispatch(feeds) < len(self._chain.plans)  # another thread just saw to it
            waits = self._record.runs < wanted and self._compiling is None
            if waits and not known:
                self._see(feeds)
            if self._record.runs >= wanted and self.options.compile == "background":
                self._start()

    def _unfit(self, feeds: Mapping[str, Any]) -> str | None:
        """Why nothing can be specialized for such ``feeds``; ``None`` if it can."""
        return next(filter(None, (unfit(port, feeds.get(name)) for name, port in self._ports.items())), None)

    def _see(self, feeds: Mapping[str, Any]) -> None:
        """Note what ``feeds`` are, if something can be specialized for them."""
        if self._unfit(feeds) is None:
            inputs = observe({name: port.type for name, port in self._ports.items()}, feeds)
            if Pattern(inputs).key not in self._hopeless:
                self._record = self._record.seen(inputs)

    def _start(self) -> None:
        """Compile in a thread of its own; called under the lock."""
        if self._compiling is None and self._depth > 0 and self._original is not None:
            self._compiling = threading.Thread(target=self._compile_aside, args=(self._runs,), daemon=True)
            self._compiling.start()

    def _compile_aside(self, begun: int) -> None:
        behaviour, record, original = self._strategy.behaviour(self._depth), self._record, self._original
        assert original is not None
        plan, failure = self._make(original, record, behaviour)
        with self._lock:
            if self._compiling is threading.current_thread():  # else it was flushed meanwhile
                self._compiling = None
                self._add(plan, failure)

    def _compile(self) -> None:
        """Make the next specialization, under the lock."""
        assert self._original is not None
        seen_now = self.options.profiled_runs == 0
        behaviour = self._strategy.behaviour(self._depth)
        self._add(*self._make(self._original, self._record, behaviour))
        if seen_now and self.options.release:
            self._release()

    def _make(
        self, original: ir.Model, record: Profile, behaviour: Behaviour
    ) -> tuple[Plan | None, str | None]:
        """An optimized plan for what ``record`` saw, or why there is none."""
        guard = assumed(record, behaviour)
        try:
            model = self._optimize(narrowed(original, guard), FIRST)
            plan = Plan("", "optimized", model, self._host, guard, behaviour)
            plan.prepare()
        except GraphoptError as failure:
            return None, f"{guard}: {failure}"
        return plan, None

    def _add(self, plan: Plan | None, failure: str | None) -> None:
        """Let a plan be asked last, under the lock. What is made next watches anew."""
        self._depth -= 1
        seen, self._record = self._record, Profile("")
        self._compiled_at = self._clock()
        if failure is not None:
            self._failures.append(failure)
            self._hopeless |= {pattern.key for pattern in seen.patterns}
        if plan is None or plan.behaviour is None:
            return
        kind = plan.behaviour.value
        self._made[kind] += 1
        plan.name = f"{kind}-{self._made[kind]}"
        chain = self._chain.with_last(plan)
        if self.options.most_plans is not None and len(chain.plans) > self.options.most_plans:
            chain = chain.without_least_used()  # whose session ends with its last run
            self._evicted += 1
        self._chain = chain

    def _general_plan(self) -> Plan:
        with self._lock:
            if self._general is None:
                model = self._optimize(self._need_original(), ())
                self._general = Plan("general", "general", model, self._host)
                self._general.prepare()
            return self._general

    def _fallback_plan(self) -> Plan:
        with self._lock:
            if self._fallback is None and self._original is None and not self._reloads:
                return self._general_plan()  # all that is left
            if self._fallback is None:
                host = replace(self._host, optimizations="off")
                self._fallback = Plan("fallback", "fallback", self._prepare(self._need_original()), host)
            return self._fallback

    # Memory -------------------------------------------------------------------------------------

    def _need_original(self) -> ir.Model:
        if self._original is None:
            self._original = self._load()
        return self._original

    def _release_if_due(self) -> None:
        made = self._compiled_at
        if made is not None and self._clock() - made > self.options.delay:
            with self._lock:
                self._release()

    def _release(self) -> None:
        """Let go what only further specializations need, and where optimizing is off."""
        if self._compiling is None:
            self._general_plan()
            self._original = self._fallback = None
            self._record = Profile("")

    def flush(self) -> None:
        """Forget all plans and all that was seen; the strategy is read anew.

        Raises:
            UsageError: the original was released, and came from no file.
        """
        with self._lock:
            if self._original is None:
                self._take(self._load())
            self._general = self._fallback = self._last = None
            self._begin()

    # Looking in ---------------------------------------------------------------------------------

    def graph_for(self, feeds: Mapping[str, Any]) -> ir.Model:
        """The model that runs for ``feeds``, as far as it is made by now."""
        chain = self._chain
        number = chain.dispatch(feeds)
        return (chain.plans[number] if number < len(chain.plans) else self._general_plan()).model

    @property
    def last_plan(self) -> str | None:
        """The name of the plan that ran last."""
        return None if self._last is None else self._last.name

    def last_executed_optimized_graph(self) -> ir.Model:
        """The model that ran last.

        Raises:
            UsageError: none did.
        """
        if self._last is None:
            raise UsageError("nothing was run yet")
        return self._last.model

    def wait(self) -> None:
        """Wait until the specialization that is being made is there."""
        thread = self._compiling
        if thread is not None:
            thread.join()

    def debug_state(self) -> DebugState:
        """What was done so far."""
        with self._lock, self._counts:
            others = [plan for plan in (self._general, self._fallback) if plan is not None]
            plans = tuple(
                PlanState(
                    plan.name,
                    plan.kind,
                    "" if plan.guard == Guard() else str(plan.guard),
                    plan.hits,
                    ir.count_nodes(plan.model.graph),
                )
                for plan in (*self._chain.plans, *others)
            )
            return DebugState(
                str(self._strategy),
                self._depth,
                plans,
                dict(self._reasons),
                self._record.runs,
                self._compiling is not None,
                self._original is None,
                self._evicted,
                tuple(self._failures),
            )
