"""A session of a variant that accepts the feeds of the whole model."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from graphopt.diagnostics.record import Record
from graphopt.errors import InvalidModel, ResourceLimit, RuntimeFailure
from graphopt.inputs.run_once import check_feeds
from graphopt.ir.signature import Signature
from graphopt.ort import session
from graphopt.ort.error_text import as_failure
from graphopt.specialization.cuda_graphs.captured_graphs import NOT_CAPTURED, CapturedGraphs, run_options
from graphopt.specialization.guard_counts import GuardCounter
from graphopt.specialization.input_layout import aligned, note_repeated
from graphopt.specialization.ort_values import type_and_shape
from graphopt.specialization.shared_buffer_checks import BufferChecks
from graphopt.util.ort_array_conversion import LOW_TYPES

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue

    from graphopt.ort.devices import Device


class VariantSession:
    """A session with precomputed run arguments, to keep the overhead of a run low.

    Attributes:
        session: the session.
        outputs: the names of the outputs.
        buffers: the checks of outputs that are written over inputs.
        counter: counts the guards in the model by an additional output, which runs do not return.
        fetched: the names of the outputs, and of the additional output.
        graphs: runs the session with CUDA graphs, if it captures them.
        options: the options of runs that are neither captured nor replayed.
    """

    def __init__(
        self,
        session_: InferenceSession,
        signature: Signature,
        buffers: BufferChecks,
        counter: GuardCounter | None = None,
        *,
        graphs: CapturedGraphs | None = None,
        record: Record | None = None,
    ) -> None:
        import onnxruntime

        arguments = [*session_.get_inputs(), *session_.get_overridable_initializers()]
        results = session_.get_outputs()
        own = {argument.name for argument in arguments}
        self.session, self.buffers, self.counter = session_, buffers, counter
        self.fetched = [result.name for result in results]
        self.outputs = self.fetched if counter is None else self.fetched[:-1]
        #: Inputs and outputs that are tensors of numbers.
        self.numeric = frozenset(
            value.name
            for value in (*arguments, *results)
            if value.type.startswith("tensor(") and value.type != "tensor(string)"
        )
        self._signature = signature
        self._unused = frozenset(port.name for port in signature.inputs) - own
        #: Whether runs accept and return arrays without a conversion.
        self.is_native = all(value.type not in LOW_TYPES for value in (*arguments, *results))
        #: Outputs that are inputs.
        self.returned_inputs = [name for name in self.outputs if name in own]
        self.graphs = graphs
        self._record = record or Record()
        self._is_first_run = True
        self.options = onnxruntime.RunOptions()
        self.options.log_severity_level = session.FATAL
        if graphs is not None:
            self.options = run_options(NOT_CAPTURED)

    def own_feeds(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """``feeds`` without inputs of the whole model that the session lacks."""
        return {name: value for name, value in feeds.items() if name not in self._unused}

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs, in order; ignores feeds of inputs that the session lacks."""
        if self._unused or type(feeds) is not dict:
            feeds = self.own_feeds(feeds)
        if self._is_first_run:
            self._is_first_run = False
            note_repeated(feeds.items(), self._record)
        try:
            found: list[Any]
            if self.graphs is not None:
                found = self.graphs.arrays(feeds)
            elif self.is_native:
                found = self.session.run(self.fetched, feeds, self.options)
            else:
                found = session.run(self.session, feeds)
        except Exception as error:  # onnxruntime's errors have no common base
            raise self.failure(error, feeds) from error
        if self.counter is not None:
            self.counter.add(found.pop())
        return found

    def run_bound(
        self, values: Mapping[str, OrtValue], device: Device, buffers: Mapping[str, OrtValue]
    ) -> dict[str, OrtValue]:
        """The outputs by name, as values on ``device``; arguments and errors as for :meth:`BoundRuns.run`."""
        if not device.capabilities.is_host:
            values = aligned(values, device, self._record)
        if self.graphs is None or buffers:
            return BoundRuns(self, device).run(values, buffers)
        try:
            return dict(zip(self.outputs, self.graphs.values(self.own_feeds(values)), strict=True))
        except Exception as error:  # onnxruntime's errors have no common base
            raise self.failure(error, values) from error

    def failure(self, error: Exception, feeds: Mapping[str, Any]) -> RuntimeFailure | ResourceLimit:
        """The error for a failed run; raises UsageError if an input is missing or unknown."""
        check_feeds(feeds, self._signature)
        if isinstance(error, RuntimeFailure | ResourceLimit):
            return error
        return as_failure(error, "onnxruntime failed", on_gpu=session.is_on_gpu(self.session))


class BoundRuns:
    """Runs of a session on values of onnxruntime; only values that changed are bound. Not thread-safe.

    Args:
        ready: the session.
        device: the device of outputs without a buffer.
        on_host: outputs to copy to the host.
    """

    def __init__(self, ready: VariantSession, device: Device, on_host: Container[str] = ()) -> None:
        self.ready = ready
        self._device, self._on_host = device, on_host
        self._binding: IOBinding | None = None
        self._inputs: dict[str, OrtValue] = {}
        self._outputs: dict[str, OrtValue] = {}

    def run(self, values: Mapping[str, OrtValue], buffers: Mapping[str, OrtValue]) -> dict[str, OrtValue]:
        """The outputs by name; ignores values for inputs that the session lacks.

        An output that is an input is returned as the value of the input, which owns the memory.

        Args:
            values: the inputs.
            buffers: by name of an output, the value that the output is written to, of the same shape and
                type. An output that is an input or a constant is not written.

        Raises:
            UsageError: an input is missing or unknown.
            RuntimeFailure: onnxruntime can't run the model, or rejects the values.
        """
        ready = self.ready
        feeds = ready.own_feeds(values)
        try:
            if not buffers and self._device.capabilities.is_host:
                found = ready.session.run_with_ort_values(ready.fetched, feeds)
            else:
                found = self._run(feeds, buffers)
        except Exception as error:  # onnxruntime's errors have no common base
            self._binding = None
            raise ready.failure(error, values) from error
        if ready.counter is not None:
            ready.counter.add(found.pop().numpy())
        results = dict(zip(ready.outputs, found, strict=True))
        # onnxruntime ignores the buffer of an output that is an input or a constant
        written = {
            name: buffer for name, buffer in buffers.items() if results[name].data_ptr() == buffer.data_ptr()
        }
        self._outputs = written
        results |= written
        if len(written) < len(results):
            numeric = ready.numeric
            given = {value.data_ptr(): value for name, value in feeds.items() if name in numeric}
            for name in (results.keys() - written.keys()) & numeric:
                same = given.get(results[name].data_ptr())
                if same is not None and type_and_shape(same) == type_and_shape(results[name]):
                    results[name] = same
        return results

    def _run(self, feeds: Mapping[str, OrtValue], buffers: Mapping[str, OrtValue]) -> list[OrtValue]:
        binding, ready = self._binding, self.ready
        if binding is None or self._inputs.keys() != feeds.keys():
            binding = self._binding = ready.session.io_binding()
            self._inputs, self._outputs = {}, {}
        for name, value in feeds.items():
            if self._inputs.get(name) is not value:
                binding.bind_ortvalue_input(name, value)
        for name in ready.outputs:
            if name in buffers:
                if self._outputs.get(name) is not buffers[name]:
                    binding.bind_ortvalue_output(name, buffers[name])
            elif name in self._on_host:
                binding.bind_output(name)
            else:
                binding.bind_output(name, self._device.kind, self._device.index)
        if ready.counter is not None:
            binding.bind_output(ready.counter.output)
        self._inputs = dict(feeds)
        ready.session.run_with_iobinding(binding, ready.options)
        found: list[OrtValue] = binding.get_outputs()
        return found


def check_signature(name: str, found: Signature, planned: Signature) -> None:
    """Check that a variant has the outputs of the whole model, and a subset of its inputs.

    Args:
        name: the name of the variant.
        found: its signature.
        planned: the signature of the whole model.

    Raises:
        InvalidModel: the signatures are incompatible.
    """
    types = {port.name: port.type for port in planned.inputs}
    others = [port for port in found.inputs if not _fits(port.type, types.get(port.name))]
    fault = f"input {others[0].name!r} of type {others[0]}" if others else None
    names = [port.name for port in planned.outputs]
    if fault is None and [port.name for port in found.outputs] != names:
        fault = f"outputs {', '.join(port.name for port in found.outputs)} instead of {', '.join(names)}"
    for mine, other in zip(found.outputs, planned.outputs, strict=False):
        if fault is None and not _fits(mine.type, other.type):
            fault = f"output {mine.name!r} of type {mine}"
    if fault is not None:
        raise InvalidModel(
            f"{name} does not match the plan: it has {fault}",
            hint="write the bundle again, or copy all of it again",
        )


def _fits(found: str, planned: str | None) -> bool:
    """Whether types agree; an undeclared type is empty, and agrees with any."""
    return planned is not None and (found == planned or not found or not planned)
