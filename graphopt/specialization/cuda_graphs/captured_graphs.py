"""Runs of one session, captured for each set of input shapes and then replayed.

A captured graph reads and writes fixed addresses. Each set of shapes has buffers for its inputs, to which the
inputs of a run are copied, and buffers for its outputs. Inputs that the caller declares static keep their own
addresses. The first run of a set of shapes is not captured, so that shapes that occur once use up no graph.
The second run warms up (kernels are loaded, and algorithms are chosen) and is then captured; later runs are
replayed. onnxruntime never frees a captured graph, so that their number is
bounded: runs of further shapes are not captured. After a capture that fails, no run is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from graphopt.diagnostics.hint import Hint
from graphopt.diagnostics.record import Record
from graphopt.ort.devices import Device
from graphopt.ort.error_text import explain
from graphopt.ort.session import FATAL
from graphopt.specialization.input_layout import distinct_elements, is_aligned
from graphopt.specialization.ort_values import copy_on, empty_like, ort_value
from graphopt.util.fork_safe_lock import ForkSafeLock
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.ort_array_conversion import numpy_type

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue, RunOptions

T = TypeVar("T")
#: Maximum number of sets of input shapes for which runs are counted before a capture.
_COUNTED = 256
#: The run option that selects a graph, and its value for a run that is neither captured nor replayed.
GRAPH_ID, NOT_CAPTURED = "gpu_graph_id", -1


@dataclass(frozen=True)
class GraphOptions:
    """Options of CUDA graphs.

    Attributes:
        most: the maximum number of captured graphs of a session, one for each set of input shapes.
        skipped: the number of runs of a set of input shapes before the run that is captured.
        static: inputs whose values are at the same address in each run, such as weights; they are not copied.
        reuse_outputs: return the buffers of the outputs, which the next run of the same shapes overwrites; by
            default, copies.
    """

    most: int = 8
    skipped: int = 1
    static: tuple[str, ...] = ()
    reuse_outputs: bool = False


def run_options(graph: int) -> RunOptions:
    """The options of a run of the graph with this number."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = FATAL
    options.add_run_config_entry(GRAPH_ID, str(graph))
    return options


@dataclass(eq=False)
class _Captured:
    """A captured graph.

    Attributes:
        binding: the buffers of inputs and outputs.
        options: the run options that select the graph.
        inputs: the buffers of the inputs that are copied, by name.
        uploaded: the distinct elements of inputs with repeated elements that the buffers contain, by name.
    """

    binding: IOBinding
    options: RunOptions
    inputs: dict[str, OrtValue] = field(default_factory=dict)
    uploaded: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)


class CapturedGraphs:
    """Runs a session with CUDA graphs. Thread-safe: runs exclude each other, because they share buffers.

    Args:
        session: a session with the provider option ``enable_cuda_graph``.
        device: its device.
        options: options.
        record: counts captures, replays, and runs without a graph.
    """

    def __init__(
        self, session: InferenceSession, device: Device, options: GraphOptions, record: Record
    ) -> None:
        self._session, self._device, self._options, self._record = session, device, options, record
        self._inputs = {argument.name: argument.type for argument in session.get_inputs()}
        self._inputs |= {argument.name: argument.type for argument in session.get_overridable_initializers()}
        self._outputs = [argument.name for argument in session.get_outputs()]
        self._graphs: dict[tuple[Any, ...], _Captured] = {}
        self._runs: dict[tuple[Any, ...], int] = {}
        self._lock = ForkSafeLock()
        self._is_off = False

    def arrays(self, feeds: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        """The outputs as arrays that own their memory, in order."""
        return self._run(feeds, lambda value: np.array(value.numpy()))

    def values(self, feeds: Mapping[str, Any]) -> list[OrtValue]:
        """The outputs as values on the device, in order: copies, unless ``reuse_outputs`` is set."""
        if self._options.reuse_outputs:
            return self._run(feeds, lambda value: value)
        return self._run(feeds, lambda value: copy_on(value, self._device))

    def _run(self, feeds: Mapping[str, Any], convert: Callable[[OrtValue], T]) -> list[T]:
        """The outputs, converted by ``convert`` before another run overwrites them.

        Args:
            feeds: arrays, or values of onnxruntime.
            convert: converts an output.
        """
        values = {name: feeds[name] for name in self._inputs if name in feeds}
        with self._lock:
            static = {name: value for name, value in values.items() if self._is_static(name, value)}
            key = tuple(_key(name, value, name in static) for name, value in values.items())
            graph = self._graphs.get(key)
            if graph is not None:
                self._refill(graph, values)
                self._record.count("cuda-graph replays")
                self._session.run_with_iobinding(graph.binding, graph.options)
            else:
                graph = self._warm_up(values, static)
                if self._may_capture(values, key) and not self._capture(graph, key):
                    graph = self._warm_up(values, static)  # the capture replaced the outputs
            return [convert(value) for value in graph.binding.get_outputs()]

    def _is_static(self, name: str, value: Any) -> bool:
        """Whether a value keeps its own address: it is declared static, on the device, and aligned."""
        if name not in self._options.static or not hasattr(value, "data_ptr"):
            return False
        is_there = value.device_name().lower() == self._device.kind
        return bool(is_there and is_aligned(value))

    def _warm_up(self, values: Mapping[str, Any], static: Mapping[str, Any]) -> _Captured:
        """Create buffers for inputs, and run without a graph."""
        graph = _Captured(self._session.io_binding(), run_options(NOT_CAPTURED))
        for name, value in values.items():
            if name not in static:
                # a copy of its own: on the host, an OrtValue shares the memory of the array
                source = ort_value(name, value, self._inputs[name], self._device)
                graph.inputs[name] = copy_on(source, self._device)
                self._remember(graph, name, value)
            graph.binding.bind_ortvalue_input(name, static[name] if name in static else graph.inputs[name])
        for name in self._outputs:
            graph.binding.bind_output(name, self._device.kind, self._device.index)
        self._session.run_with_iobinding(graph.binding, graph.options)
        return graph

    def _may_capture(self, values: Mapping[str, Any], key: tuple[Any, ...]) -> bool:
        """Whether this run may be captured. Runs with empty tensors are not: their graphs have no kernels."""
        if self._is_off or any(prod(_shape(value)) == 0 for value in values.values()):
            self._record.count("cuda-graph runs without a graph")
            return False
        if len(self._graphs) < self._options.most:
            runs = self._runs.pop(key, 0)
            if runs >= self._options.skipped:
                return True
            self._runs[key] = runs + 1  # the last entry is the most recent one
            if len(self._runs) > _COUNTED:
                del self._runs[next(iter(self._runs))]
            return False
        self._record.count("cuda-graph runs without a graph")
        most = self._options.most
        self._record.hint(
            Hint(
                "cuda-graph-off",
                f"CUDA graphs are off for further shapes: {most} sets of input shapes are captured",
                "raise most_graphs, or pad inputs to fewer shapes",
            )
        )
        return False

    def _capture(self, graph: _Captured, key: tuple[Any, ...]) -> bool:
        """Bind buffers for the outputs, and capture another run; returns whether that succeeded."""
        for name, value in zip(self._outputs, graph.binding.get_outputs(), strict=True):
            graph.binding.bind_ortvalue_output(name, empty_like(value, self._device))
        graph.options = run_options(len(self._graphs) + 1)
        try:
            self._session.run_with_iobinding(graph.binding, graph.options)
        except Exception as error:  # onnxruntime's errors have no common base
            self._is_off = True
            self._record.count("cuda-graph runs without a graph")
            self._record.hint(
                Hint(
                    "cuda-graph-off",
                    f"CUDA graphs are off: onnxruntime can't capture a run: {explain(error)}",
                    "the model runs without CUDA graphs; docs/diagnostics.md lists the conditions",
                )
            )
            return False
        self._record.count("cuda-graph captures")
        self._graphs[key] = graph
        return True

    def _refill(self, graph: _Captured, values: Mapping[str, Any]) -> None:
        """Copy the inputs of a run to the buffers; repeated elements are compared first."""
        for name, buffer in graph.inputs.items():
            value = values[name]
            if self._is_uploaded(graph, name, value):
                continue
            buffer.update_inplace(value)
            self._remember(graph, name, value)

    def _is_uploaded(self, graph: _Captured, name: str, value: Any) -> bool:
        before = graph.uploaded.get(name)
        if before is None or not isinstance(value, np.ndarray):
            return False
        distinct = distinct_elements(value)
        return distinct is not None and distinct.tobytes() == before.tobytes()

    def _remember(self, graph: _Captured, name: str, value: Any) -> None:
        distinct = distinct_elements(value) if isinstance(value, np.ndarray) else None
        if distinct is None:
            graph.uploaded.pop(name, None)
        else:
            graph.uploaded[name] = distinct.copy()


def _key(name: str, value: Any, is_static: bool) -> tuple[Any, ...]:
    """The part of the key of a graph that an input determines; a static input has a fixed address."""
    return name, _shape(value), _type(value), value.data_ptr() if is_static else None


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape()) if hasattr(value, "data_type") else tuple(value.shape)


def _type(value: Any) -> str:
    """The element type; equal for arrays and for values of onnxruntime, so that they share a graph."""
    return str(numpy_type(value.data_type()) if hasattr(value, "data_type") else value.dtype)
