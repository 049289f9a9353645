"""Outputs written over inputs at run time: the checks of the model that runs, and of each run.

``check-aliasing`` proves that no operator reads an input after an output has overwritten it. The pass is
applied to the graph after onnxruntime's own optimizations, because a fused operator may read and write in
another order. Sizes are computed before the run, because onnxruntime finds a mismatch only when it writes the
output, after it may have overwritten other inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.context.context import context_for
from graphopt.errors import GraphoptError, UsageError
from graphopt.inputs.shared_buffer_pairs import resolve_pairs
from graphopt.ir.signature import Signature
from graphopt.specialization.ort_values import type_and_shape
from graphopt.specialization.output_shapes import OutputShapes, Shape
from graphopt.transforms.scalar.check_aliasing import Refusal, refusals
from graphopt.util.fork_safe_lock import ForkSafeLock
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue


class BufferChecks:
    """The checks of shared buffers for one session. Thread-safe; facts about the model are computed once.

    Args:
        model: returns the model of the session, whose shapes are inferred.
        graph: returns the graph that onnxruntime runs.
        session: the session.
    """

    def __init__(
        self,
        model: Callable[[], ir.Model],
        graph: Callable[[], AbstractContextManager[ir.Model]],
        session: InferenceSession,
    ) -> None:
        self._model, self._graph = model, graph
        self._types = {output.name: output.type for output in session.get_outputs()}
        self._shapes: OutputShapes | None = None
        self._refusals: dict[tuple[str, str], Refusal | None] = {}
        self._lock = ForkSafeLock()

    def are_safe(self, share: Mapping[str, str]) -> bool:
        """Whether outputs may overwrite inputs in this model; ``share`` has the input for each output."""
        self._examine(share)
        return all(self._refusals[source, output] is None for output, source in share.items())

    def for_run(self, share: Mapping[str, str], values: Mapping[str, OrtValue]) -> dict[str, OrtValue]:
        """The checked buffers of outputs for a run with ``values`` in which outputs overwrite inputs.

        Args:
            share: the input for each output.
            values: the values of the inputs.

        Raises:
            VerificationFailed: an output may overwrite elements before they are read.
            UsageError: a size or dtype differs or is unknown, or another input is in the same memory.
        """
        if not share:
            return {}
        for output, source in share.items():
            if source not in values:
                raise UsageError(f"output {output!r} can't be written over {source!r}, which has no value")
        shapes = self.shapes(values)
        for output, source in share.items():
            value, shape = values[source], shapes.get(output)
            if not _is_numbers(value):
                raise _not_numbers(source)
            if shape is not None and (self._types[output], shape) != type_and_shape(value):
                raise UsageError(
                    f"output {output!r} can't be written over {source!r}: it is {self._types[output]} "
                    f"{list(shape)}, and the input {value.data_type()} {value.shape()}"
                )
        self._examine(share)
        for output, source in share.items():
            refusal = self._refusals[source, output]
            if refusal is not None:
                raise refusal.error(source, output)
            if shapes.get(output) is None:
                raise UsageError(
                    f"output {output!r} can't be written over {source!r}: the shapes of the inputs do not "
                    "determine its shape",
                    hint="fix the dims of the model (graphopt optimize --dim), or do not share this buffer",
                )
        check_memory({source: values[source] for source in share.values()}, values)
        return {output: values[source] for output, source in share.items()}

    def shapes(self, values: Mapping[str, OrtValue]) -> dict[str, Shape | None]:
        """The shapes of the outputs for ``values``; ``None`` if they are not known before the run."""
        shapes = self._shapes
        if shapes is None:
            with self._lock:
                shapes = self._shapes
                if shapes is None:
                    shapes = self._shapes = OutputShapes(self._model(), self._types)
        return shapes.of({name: tuple(value.shape()) for name, value in values.items() if value.is_tensor()})

    def type_of(self, output: str) -> str:
        """The type of an output, such as ``tensor(float)``."""
        return self._types[output]

    def _examine(self, share: Mapping[str, str]) -> None:
        """Find the refusals of new pairs."""
        pairs = [(source, output) for output, source in share.items()]
        if all(pair in self._refusals for pair in pairs):
            return
        with self._lock:
            new = [pair for pair in pairs if pair not in self._refusals]
            if not new:
                return
            found: dict[tuple[str, str], Refusal | None]
            try:
                with self._graph() as graph:
                    found = _refusals(graph, new)
            except GraphoptError as error:
                reason = f"the graph that onnxruntime runs can't be examined: {error.message}"
                found = dict.fromkeys(new, Refusal(reason, "run it without sharing this buffer"))
            self._refusals.update(found)


def _refusals(graph: ir.Model, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], Refusal | None]:
    inputs = {value.name: value for value in graph.graph.inputs}
    outputs = {value.name: value for value in graph.graph.outputs}
    found: dict[tuple[str, str], Refusal | None] = dict.fromkeys(pairs)
    # an input that this model lacks is not read
    known = [pair for pair in pairs if pair[0] in inputs]
    with context_for(graph) as cx:
        reasons = refusals([(inputs[source], outputs[output]) for source, output in known], cx)
        found.update(zip(known, reasons, strict=True))
    return found


def shared_names(pairs: Iterable[tuple[str, str]], signature: Signature) -> dict[str, str]:
    """The input for each output, from pairs of an input and an output of a model, or patterns of such pairs.

    Raises:
        UsageError: a name is missing or occurs twice, or no input matches a pattern.
    """
    return resolve_pairs(pairs, signature.input_types, [port.name for port in signature.outputs])


def names_in(share: Mapping[str, str] | None, signature: Signature) -> dict[str, str]:
    """``share``, the input for each output, with all names checked.

    Raises:
        UsageError: ``share`` is not a mapping, or as for :func:`shared_names`.
    """
    if not isinstance(share or {}, Mapping):
        raise UsageError(f"share maps each output to the input under it, and is not {share!r}")
    return shared_names([(source, output) for output, source in (share or {}).items()], signature)


def check_memory(written: Mapping[str, OrtValue], values: Mapping[str, OrtValue]) -> None:
    """Check that the buffers in ``written`` may be overwritten.

    Raises:
        UsageError: a buffer is read-only, not a tensor of numbers, or overlaps with another buffer in
            ``values``.
    """
    for name, value in written.items():
        if not _is_numbers(value):
            raise _not_numbers(name)
        array = getattr(value, "_numpy_obj", None)
        if array is not None and not array.flags.writeable:
            raise UsageError(f"input {name!r} can't share its buffer: its array is read-only")
    last, owner = 0, ""
    for begin, end, name in Spans.of(values).spans:
        if begin < last and (name in written or owner in written):
            raise UsageError(
                f"inputs {owner!r} and {name!r} are in the same memory, which would be overwritten"
            )
        if end > last:
            last, owner = end, name


@dataclass(frozen=True)
class Spans:
    """The memory of some values.

    Attributes:
        spans: the first address of each tensor of numbers, the address after it, and its name, in order;
            empty tensors have no memory.
    """

    spans: tuple[tuple[int, int, str], ...]

    @classmethod
    def of(cls, values: Mapping[str, OrtValue]) -> Spans:
        """The memory of ``values``."""
        return cls(
            tuple(
                sorted(
                    (value.data_ptr(), value.data_ptr() + value.tensor_size_in_bytes(), name)
                    for name, value in values.items()
                    if _is_numbers(value) and value.tensor_size_in_bytes()
                )
            )
        )

    def overlaps(self, value: OrtValue) -> bool:
        """Whether ``value`` is partly in this memory."""
        if not _is_numbers(value):
            return False
        begin = value.data_ptr()
        end = begin + value.tensor_size_in_bytes()
        return end > begin and any(begin < last and first < end for first, last, _ in self.spans)


def _not_numbers(name: str) -> UsageError:
    return UsageError(f"input {name!r} can't share its buffer: it is no tensor of numbers")


def _is_numbers(value: OrtValue) -> bool:
    return value.is_tensor() and value.data_type() != "tensor(string)"
