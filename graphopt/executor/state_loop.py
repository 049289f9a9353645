"""Runs in which outputs become inputs of the next run, as in the decoding loop of a language model."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from graphopt.errors import UsageError
from graphopt.executor.pytree import as_array
from graphopt.executor.specializer import Specializer
from graphopt.ir.signature import Signature
from graphopt.ort.devices import Device
from graphopt.specialization.ort_values import BoundValue, bound_values, ort_value, type_and_shape
from graphopt.specialization.shared_buffer_checks import Spans, check_memory, shared_names
from graphopt.specialization.variant_session import BoundRuns
from graphopt.util.ort_array_conversion import from_ort_value

if TYPE_CHECKING:
    from onnxruntime import OrtValue

    from graphopt.executor.plan import Plan


class StateLoop:
    """Runs a model repeatedly, with a state that stays on the device; created by :meth:`Executor.loop`.

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
        self._sources: dict[str, str] = {}
        self._follow(specializer().signature)
        self._state: dict[str, OrtValue] = {}
        self._facts: dict[str, BoundValue] = {}
        #: Inputs whose values this loop may overwrite.
        self._own: set[str] = set()
        #: Outputs that had the type and shape of their inputs in the last call.
        self._constant: set[str] = set()
        #: By output, the buffer that does not contain the state, for outputs that alternate between two.
        self._spare: dict[str, OrtValue] = {}
        self._runs: BoundRuns | None = None
        #: The plan and the types of inputs for which outputs overwrite the whole state, and the buffers of
        #: these outputs.
        self._steady: tuple[object, dict[str, OrtValue], Spans] | None = None
        self._lock = threading.Lock()

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
        return dict(self._state)

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        specializer = self._specializer()
        if specializer.signature is not self._signature:  # a flush has read the model again
            sources = self._sources
            self._follow(specializer.signature)
            if self._sources != sources:
                self._reset()
        types = {port.name: port.type for port in specializer.signature.inputs}
        given = {
            name: ort_value(name, as_array(value), types.get(name, ""), self._device)
            for name, value in inputs.items()
        }
        values = {**self._state, **given}
        for port in specializer.signature.fed:
            if port.name not in values and port.name in self._sources.values() and port.kind != "optional":
                raise UsageError(
                    f"the loop has no state {port.name!r} yet", hint="the inputs of the first call include it"
                )
        new_facts = bound_values(given)
        feeds = {**self._facts, **new_facts}
        plan = specializer.plan_for(feeds)
        key = plan, tuple((name, fact.dtype, fact.shape) for name, fact in new_facts.items())
        steady = self._steady
        if steady is not None and steady[0] == key and not any(map(steady[2].overlaps, given.values())):
            buffers = steady[1]
        else:
            buffers, steady = self._buffers(plan, values, self._own - given.keys()), None
        ready = plan.prepare()
        if self._runs is None or self._runs.ready is not ready:
            self._runs = BoundRuns(ready, self._device, self._results)
        bound = ((self._sources[output], buffer) for output, buffer in buffers.items())
        overwritten = {source for source, buffer in bound if buffer is values.get(source)}
        before = specializer.before(plan, feeds, overwritten) if overwritten else None
        try:
            found = self._runs.run(values, buffers)
        except UsageError:  # before the run
            raise
        except Exception:
            if overwritten:
                self._reset()
            raise
        specializer.ran(plan, feeds, before)
        if steady is None:
            self._advance(found, values, feeds, given)
            is_whole = all(found[output] is buffers.get(output) for output in self._sources)
            is_whole &= all(values.get(source) is self._state[source] for source in self._sources.values())
            self._steady = (key, buffers, Spans.of(self._state)) if is_whole else None
        return {name: from_ort_value(found[name]) for name in self._results}

    def _follow(self, signature: Signature) -> None:
        """Find the states and the results of a model; raises UsageError as the constructor does."""
        sources = shared_names(self._pairs, signature)
        for port in signature.inputs:
            if port.name in sources.values() and port.kind != "tensor":
                raise UsageError(f"a state is a tensor, and input {port.name!r} is of type {port.type}")
        for port in signature.outputs:
            if port.kind != "tensor":
                raise UsageError(
                    f"a loop returns tensors only, and output {port.name!r} is of type {port.type}"
                )
        self._sources, self._signature = sources, signature
        self._results = [port.name for port in signature.outputs if port.name not in sources]

    def _reset(self) -> None:
        """Forget the state."""
        self._state, self._facts, self._own, self._spare = {}, {}, set(), {}
        self._constant, self._steady = set(), None

    def _buffers(self, plan: Plan, values: Mapping[str, OrtValue], own: set[str]) -> dict[str, OrtValue]:
        """The buffers for outputs of known shape: of the input if that is safe, else the spare buffer."""
        checks = plan.prepare().buffers
        pairs = [
            (output, source)
            for output, source in self._sources.items()
            if output in self._constant and (source in own or output in self._spare)
        ]
        if not pairs:
            return {}
        shapes = checks.shapes(values)
        found = {}
        for output, source in pairs:
            kind = checks.type_of(output), shapes.get(output)
            spare = self._spare.get(output)
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

    def _advance(
        self,
        found: Mapping[str, OrtValue],
        values: Mapping[str, OrtValue],
        feeds: Mapping[str, BoundValue],
        given: Mapping[str, OrtValue],
    ) -> None:
        """Make outputs the state; previous values of the same types are buffers for the next call.

        Args:
            found: the outputs.
            values, feeds: the inputs, and their types.
            given: the inputs that belong to the caller.
        """
        state = {source: found[output] for output, source in self._sources.items()}
        facts = bound_values(state)
        callers = {id(value) for value in given.values()}
        # an output that is an input is the same value
        uses = Counter(map(id, state.values()))
        mine = {
            source for source, value in state.items() if id(value) not in callers and uses[id(value)] == 1
        }
        self._constant, spare = set(), {}
        for output, source in self._sources.items():
            old, new = feeds.get(source), facts[source]
            if old is None or (old.dtype, old.shape) != (new.dtype, new.shape):
                continue
            self._constant.add(output)
            previous = values[source]
            if source in self._own and source not in given and not uses[id(previous)]:
                spare[output] = previous
        self._state, self._facts, self._own, self._spare = state, facts, mine, spare
