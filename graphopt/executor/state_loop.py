"""Runs in which outputs become inputs of the next run, as in the decoding loop of a language model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graphopt.errors import UsageError
from graphopt.executor.pytree import as_array
from graphopt.executor.specializer import Specializer
from graphopt.ir.signature import Signature
from graphopt.ort.devices import Device
from graphopt.process.fork_safe_lock import ForkSafeLock
from graphopt.specialization.ort_values import BoundValue, bound_values, ort_value, type_and_shape
from graphopt.specialization.shared_buffer_checks import Spans, check_memory, shared_names
from graphopt.specialization.variant_session import BoundRuns
from graphopt.util.ort_array_conversion import from_ort_value

if TYPE_CHECKING:
    from onnxruntime import OrtValue

    from graphopt.executor.plan import Plan


@dataclass(frozen=True)
class _Ports:
    """The names of a loop in one version of the model.

    Attributes:
        signature: the inputs and outputs of the model.
        sources: the input by output, for each state.
        results: the other outputs.
    """

    signature: Signature
    sources: dict[str, str]
    results: list[str]

    @classmethod
    def of(cls, signature: Signature, pairs: Iterable[tuple[str, str]]) -> _Ports:
        """The names for ``pairs``; raises UsageError as :class:`StateLoop` does."""
        sources = shared_names(pairs, signature)
        for port in signature.inputs:
            if port.name in sources.values() and port.kind != "tensor":
                raise UsageError(f"a state is a tensor, and input {port.name!r} is of type {port.type}")
        for port in signature.outputs:
            if port.kind != "tensor":
                raise UsageError(
                    f"a loop returns tensors only, and output {port.name!r} is of type {port.type}"
                )
        return cls(signature, sources, [port.name for port in signature.outputs if port.name not in sources])


@dataclass(frozen=True)
class _State:
    """The state between two calls.

    Attributes:
        values: the value of each input.
        facts: the interface of these values for guards.
        own: inputs whose values the loop may overwrite.
        constant: outputs that had the type and shape of their inputs in the last call.
        spare: for each output that alternates between two buffers, the buffer that does not contain the
            state.
        key, buffers: the key and the buffers of calls that overwrite the whole state; these calls do not
            change ``values``.
    """

    values: dict[str, OrtValue] = field(default_factory=dict)
    facts: dict[str, BoundValue] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    constant: frozenset[str] = frozenset()
    spare: dict[str, OrtValue] = field(default_factory=dict)
    key: object = None
    buffers: dict[str, OrtValue] = field(default_factory=dict)

    @cached_property
    def memory(self) -> Spans:
        """The memory of the values."""
        return Spans.of(self.values)


@dataclass(frozen=True)
class _Step:
    """One call.

    Attributes:
        plan: the plan that runs.
        given: the inputs that belong to the caller.
        values, feeds: all inputs, and their interface for guards.
        key: equal for calls with the same plan and the same types of given inputs.
        buffers: the values that outputs are written to.
    """

    plan: Plan
    given: dict[str, OrtValue]
    values: dict[str, OrtValue]
    feeds: dict[str, BoundValue]
    key: object
    buffers: dict[str, OrtValue]

    def overwritten(self, sources: Mapping[str, str]) -> set[str]:
        """The inputs whose values the call overwrites; ``sources`` has the input for each output."""
        bound = ((sources[output], buffer) for output, buffer in self.buffers.items())
        return {source for source, buffer in bound if buffer is self.values.get(source)}

    def next_state(self, found: Mapping[str, OrtValue], sources: Mapping[str, str], last: _State) -> _State:
        """The outputs ``found`` as the state; previous values of the same types are buffers of the next call.

        ``last`` is the state before the call.
        """
        state = {source: found[output] for output, source in sources.items()}
        facts = bound_values(state)
        callers = {id(value) for value in self.given.values()}
        # an output may be the value of an input
        uses = Counter(map(id, state.values()))
        own = {source for source, value in state.items() if id(value) not in callers and uses[id(value)] == 1}
        constant, spare = set(), {}
        for output, source in sources.items():
            old, new = self.feeds.get(source), facts[source]
            if old is None or (old.dtype, old.shape) != (new.dtype, new.shape):
                continue
            constant.add(output)
            previous = self.values[source]
            if source in last.own and source not in self.given and not uses[id(previous)]:
                spare[output] = previous
        is_whole = all(found[output] is self.buffers.get(output) for output in sources)
        is_whole &= all(self.values.get(source) is value for source, value in state.items())
        steady = (self.key, self.buffers) if is_whole else ()
        return _State(state, facts, frozenset(own), frozenset(constant), spare, *steady)


class StateLoop:
    """Runs a model repeatedly, with a state that remains on the device; created by :meth:`Executor.loop`.

    Each call binds the outputs of the previous call as inputs, without copies. An output of constant shape is
    written over its input, if no operator of the current plan reads the input afterwards; otherwise two
    buffers alternate. An output whose shape differs from its input's has a new buffer in each call. Buffers
    of callers are not overwritten.

    Calls from several threads run one after another; several loops of an executor are independent.

    Args:
        specializer: returns the current specializer of the executor.
        state: pairs of an input and an output, or patterns of them, such as ``("past.*", "present.*")``.
        device: the device.

    Raises:
        UsageError: a name is missing or occurs twice, or a state or an output is not a tensor.
    """

    def __init__(
        self, specializer: Callable[[], Specializer], state: Iterable[tuple[str, str]], device: Device
    ) -> None:
        self._specializer, self._device = specializer, device
        self._pairs = state if isinstance(state, str) else list(state)
        self._ports = _Ports.of(specializer().signature, self._pairs)
        self._state = _State()
        self._runs: BoundRuns | None = None
        self._lock = ForkSafeLock()

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model once; returns the outputs that are not part of the state, as arrays by name.

        Args:
            inputs: the other inputs by name: arrays, tensors with DLPack, or values of onnxruntime. Inputs of
                the state are necessary in the first call, and replace the state in later calls.

        Raises:
            UsageError: an input is missing or unknown, or the model that the executor read after a flush
                lacks a state.
            RuntimeFailure: onnxruntime can't run the model. If the state was being overwritten, it is lost,
                and the next call requires it as inputs.
        """
        if not isinstance(inputs, Mapping):
            raise UsageError(f"inputs must be a dict of arrays by name, not {type(inputs).__name__}")
        with self._lock:
            return self._run(inputs)

    @property
    def state(self) -> dict[str, OrtValue]:
        """The state by name of its inputs. Later calls may overwrite these values: copy them to keep them."""
        return dict(self._state.values)

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        specializer = self._specializer()
        if specializer.signature is not self._ports.signature:  # a flush has loaded the model again
            ports = _Ports.of(specializer.signature, self._pairs)
            if ports.sources != self._ports.sources:
                self._state = _State()
            self._ports = ports
        sources, results = self._ports.sources, self._ports.results
        step = self._step(specializer, inputs)
        ready = step.plan.prepare()
        if self._runs is None or self._runs.ready is not ready:
            self._runs = BoundRuns(ready, self._device, results)
        overwritten = step.overwritten(sources)
        before = specializer.before(step.plan, step.feeds, overwritten) if overwritten else None
        try:
            found = self._runs.run(step.values, step.buffers)
        except UsageError:  # raised before the run
            raise
        except Exception:
            if overwritten:
                self._state = _State()
            raise
        specializer.ran(step.plan, step.feeds, step.plan.take_observed(found), before)
        if step.buffers is not self._state.buffers:
            self._state = step.next_state(found, sources, self._state)
        return {name: from_ort_value(found[name]) for name in results}

    def _step(self, specializer: Specializer, inputs: Mapping[str, Any]) -> _Step:
        """The call with ``inputs``; raises UsageError if a state has no value."""
        types = specializer.signature.input_types
        given = {
            name: ort_value(name, as_array(value), types.get(name, ""), self._device)
            for name, value in inputs.items()
        }
        state = self._state
        values = {**state.values, **given}
        for port in specializer.signature.fed:
            is_state = port.name in self._ports.sources.values()
            if port.name not in values and is_state and port.kind != "optional":
                raise UsageError(
                    f"the loop has no state {port.name!r} yet", hint="the inputs of the first call include it"
                )
        new_facts = bound_values(given)
        feeds = {**state.facts, **new_facts}
        plan = specializer.plan_for(feeds)
        key = plan, tuple((name, fact.dtype, fact.shape) for name, fact in new_facts.items())
        if state.key == key and not any(map(state.memory.overlaps, given.values())):
            buffers = state.buffers
        else:
            buffers = self._buffers(plan, values, state.own - given.keys())
        return _Step(plan, given, values, feeds, key, buffers)

    def _buffers(self, plan: Plan, values: Mapping[str, OrtValue], own: Set[str]) -> dict[str, OrtValue]:
        """For outputs of known shape: the buffer of the input if that is safe, else the spare one."""
        checks, spares = plan.prepare().buffers, self._state.spare
        pairs = [
            (output, source)
            for output, source in self._ports.sources.items()
            if output in self._state.constant and (source in own or output in spares)
        ]
        if not pairs:
            return {}
        shapes = checks.shapes(values)
        found = {}
        for output, source in pairs:
            kind = checks.type_of(output), shapes.get(output)
            spare = spares.get(output)
            if source in own and type_and_shape(values[source]) == kind and checks.are_safe({output: source}):
                found[output] = values[source]
            elif spare is not None and type_and_shape(spare) == kind:
                found[output] = spare
        current = {source: values[source] for output, source in pairs if found.get(output) is values[source]}
        spare_ones = {
            f"next {source}": found[output]
            for output, source in pairs
            if output in found and source not in current
        }
        check_memory(current | spare_ones, {**values, **spare_ones})
        return found
