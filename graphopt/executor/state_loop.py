"""Runs in which outputs become inputs of the next run, as in the decoding loop of a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphopt.errors import UsageError
from graphopt.executor.pytree import as_array
from graphopt.executor.specializer import Specializer
from graphopt.ir.signature import Signature
from graphopt.ort.devices import Device
from graphopt.specialization.ort_values import interfaces, ort_value, owning_value, type_and_shape
from graphopt.specialization.shared_buffer_checks import Spans, check_memory, shared_names
from graphopt.specialization.variant_session import BoundRuns
from graphopt.util.fork_safe_lock import ForkSafeLock
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.ort_array_conversion import from_ort_value, native_feeds

if TYPE_CHECKING:
    from onnxruntime import OrtValue

    from graphopt.executor.plan import Plan


@dataclass(frozen=True)
class _Ports:
    """The names of a loop in one version of the model.

    Attributes:
        signature: the inputs and outputs of the model.
        types: the types of the inputs.
        sources: the input by output, for each state.
        required: inputs of the state that need a value.
        results: the other outputs.
    """

    signature: Signature
    types: dict[str, str]
    sources: dict[str, str]
    required: list[str]
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
        required = [port.name for port in signature.fed if port.name in sources.values()]
        results = [port.name for port in signature.outputs if port.name not in sources]
        return cls(signature, signature.input_types, sources, required, results)


@dataclass(frozen=True)
class _State:
    """The state between two calls.

    Attributes:
        values: the value of each input: an array, or a value of onnxruntime.
        facts: the interface of these values for guards.
        own: inputs whose values the loop may overwrite.
        constant: outputs that had the type and shape of their inputs in the last call.
        spare: for each output that alternates between two buffers, the buffer that does not contain the
            state.
        key, buffers: the key and the buffers of calls that overwrite the whole state; these calls do not
            change ``values``.
    """

    values: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    constant: frozenset[str] = frozenset()
    spare: dict[str, Any] = field(default_factory=dict)
    key: object = None
    buffers: dict[str, OrtValue] = field(default_factory=dict)

    @property
    def ort_values(self) -> dict[str, OrtValue]:
        """The values as values of onnxruntime."""
        return {name: owning_value(value) for name, value in self.values.items()}

    @cached_property
    def memory(self) -> Spans:
        """The memory of the values."""
        return Spans.of(self.ort_values)


class _Step(NamedTuple):
    """One call.

    Attributes:
        plan: the plan that runs.
        given: the inputs that belong to the caller.
        values, feeds: all inputs, and their interface for guards.
        key: equal for calls with the same plan and the same types of given inputs.
        buffers: the values that outputs are written to; ``None`` for a call on arrays.
    """

    plan: Plan
    given: dict[str, Any]
    values: dict[str, Any]
    feeds: dict[str, Any]
    key: object
    buffers: dict[str, OrtValue] | None

    def overwritten(self, sources: Mapping[str, str]) -> set[str]:
        """The inputs whose values the call overwrites; ``sources`` has the input for each output."""
        bound = ((sources[output], buffer) for output, buffer in (self.buffers or {}).items())
        return {source for source, buffer in bound if buffer is self.values.get(source)}

    def next_state(self, found: Mapping[str, Any], sources: Mapping[str, str], last: _State) -> _State:
        """The outputs ``found`` as the state; previous values of the same types are buffers of the next call.

        ``last`` is the state before the call.
        """
        state = {source: found[output] for output, source in sources.items()}
        facts = interfaces(state)
        feeds = self.feeds
        constant = [
            output
            for output, source in sources.items()
            if (old := feeds.get(source)) is not None
            and old.shape == facts[source].shape
            and old.dtype == facts[source].dtype
        ]
        if not constant:  # no buffer can be reused
            return _State(state, facts)
        shared = {id(value) for value in self.given.values()}
        uses = list(map(id, state.values()))
        if len(set(uses)) < len(uses):  # an output that is an input is the same value
            shared |= {use for use in uses if uses.count(use) > 1}
        own = frozenset(source for source, value in state.items() if id(value) not in shared)
        spare = {}
        for output, source in sources.items():
            previous = self.values.get(source)
            is_free = source in last.own and source not in self.given and id(previous) not in uses
            if output in constant and is_free:
                spare[output] = previous
        buffers = self.buffers or {}
        is_whole = all(found[output] is buffers.get(output) for output in sources)
        is_whole = is_whole and all(self.values.get(source) is value for source, value in state.items())
        steady = (self.key, buffers) if is_whole else ()
        return _State(state, facts, own, frozenset(constant), spare, *steady)


class StateLoop:
    """Runs a model repeatedly, with a state that remains on the device; created by :meth:`Executor.loop`.

    Each call binds the outputs of the previous call as inputs, without copies. An output of constant shape is
    written over its input, if no operator of the current plan reads the input afterwards; otherwise two
    buffers alternate. An output whose shape differs from its input's has a new buffer in each call. If no
    buffer is reused, and the inputs are arrays on the host, the call runs on arrays, with the least overhead.
    Buffers of callers are not overwritten.

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
        self._is_host = device.capabilities.is_host
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
        return self._state.ort_values

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        specializer = self._specializer()
        if specializer.signature is not self._ports.signature:  # a flush has loaded the model again
            ports = _Ports.of(specializer.signature, self._pairs)
            if ports.sources != self._ports.sources:
                self._state = _State()
            self._ports = ports
        sources, results = self._ports.sources, self._ports.results
        step = self._step(specializer, inputs)
        before, overwritten = None, step.overwritten(sources) if step.buffers else None
        if overwritten:
            before = specializer.before(step.plan, step.feeds, overwritten)
        try:
            found = self._found(step)
        except UsageError:  # before the run
            raise
        except Exception:
            if overwritten:
                self._state = _State()
            raise
        specializer.ran(step.plan, step.feeds, step.plan.take_observed(found), before)
        if step.buffers is None or step.buffers is not self._state.buffers:
            self._state = step.next_state(found, sources, self._state)
        return {name: _result(found[name], step.values.get(name)) for name in results}

    def _found(self, step: _Step) -> dict[str, Any]:
        """The outputs of a call."""
        ready = step.plan.prepare()
        if step.buffers is None:
            arrays = {
                name: value if isinstance(value, np.ndarray) else value.numpy()
                for name, value in step.values.items()
            }
            found = dict(zip(ready.outputs, ready.run(arrays), strict=True))
            for name in ready.returned_inputs:
                found[name] = step.values.get(name, found[name])
            return found
        if self._runs is None or self._runs.ready is not ready:
            self._runs = BoundRuns(ready, self._device, self._ports.results)
        return self._runs.run(step.values, step.buffers)

    def _step(self, specializer: Specializer, inputs: Mapping[str, Any]) -> _Step:
        """The call with ``inputs``; raises UsageError if a state has no value."""
        types = self._ports.types
        given: dict[str, Any] = dict(native_feeds({name: as_array(value) for name, value in inputs.items()}))
        is_on_arrays = self._is_host and all([type(value) is np.ndarray for value in given.values()])
        if not is_on_arrays:
            given = self._ort_values(given, types)
        state = self._state
        for name in self._ports.required:
            if name not in state.values and name not in given:
                raise UsageError(
                    f"the loop has no state {name!r} yet", hint="the inputs of the first call include it"
                )
        new_facts = interfaces(given)
        feeds = {**state.facts, **new_facts}
        plan = specializer.plan_for(feeds)
        own = state.own - given.keys() if state.own else frozenset()
        if is_on_arrays and not (state.constant and self._reusable(own)) and plan.prepare().is_native:
            values = feeds if state.facts is state.values else {**state.values, **given}
            return _Step(plan, given, values, feeds, None, None)
        key = plan, tuple((name, fact.dtype, fact.shape) for name, fact in new_facts.items())
        given = self._ort_values(given, types)
        values = {**state.ort_values, **given}
        if state.key == key and not any(map(state.memory.overlaps, given.values())):
            buffers = state.buffers
        else:
            buffers = self._buffers(plan, values, own)
        return _Step(plan, given, values, feeds, key, buffers)

    def _ort_values(self, values: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, OrtValue]:
        return {
            name: ort_value(name, value, types.get(name, ""), self._device) for name, value in values.items()
        }

    def _reusable(self, own: Set[str]) -> list[tuple[str, str]]:
        """Outputs that may be written to a buffer of the loop, and their inputs; ``own`` are its inputs."""
        state = self._state
        return [
            (output, source)
            for output, source in self._ports.sources.items()
            if output in state.constant and (source in own or output in state.spare)
        ]

    def _buffers(self, plan: Plan, values: Mapping[str, OrtValue], own: Set[str]) -> dict[str, OrtValue]:
        """For outputs of known shape: the buffer of the input if that is safe, else the spare one."""
        checks = plan.prepare().buffers
        spares = {output: owning_value(value) for output, value in self._state.spare.items()}
        pairs = self._reusable(own)
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


def _result(value: Any, given: Any) -> Any:
    """An output as an array that owns its memory; ``given`` is the input of the same name, if any."""
    if not isinstance(value, np.ndarray):
        return from_ort_value(value)
    return value.copy() if value is given else value
