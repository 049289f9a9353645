"""Compare the inner tensors of two models, or of two kinds of sessions of one model."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.errors import RuntimeFailure, UnsupportedModel, UsageError
from graphopt.inputs.binding_search import find_valid_bindings
from graphopt.inputs.feeds import Feeds, InputOptions, Inputs
from graphopt.inputs.run_once import check_feeds, no_run
from graphopt.ir.signature import Signature
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.ort_array_conversion import numpy_type
from graphopt.verification.candidate_comparison import absolute_rounding
from graphopt.verification.inner_tensors.chunked_run import ChunkedRun, SessionKind
from graphopt.verification.inner_tensors.departures import (
    ComparedTensor,
    NonFinite,
    TensorComparison,
    depths_of,
)
from graphopt.verification.inner_tensors.matched_values import MatchedValues, compared_values, match_values
from graphopt.verification.inner_tensors.node_chunks import Chunk, chunks_of, estimated_sizes
from graphopt.verification.inner_tensors.paired_streams import Stream, paired
from graphopt.verification.inner_tensors.tensor_comparison import Tolerances, compare_tensors
from graphopt.verification.numeric_traits import traits_of_values
from graphopt.verification.output_comparison import leaves, nbytes
from graphopt.verification.runners import Runners

#: Limits on the weights that a session maps, and on the tensors that it returns at once, in bytes: a session
#: copies weights for its kernels, and a comparison needs several copies of a tensor.
WEIGHT_BYTES, TENSOR_BYTES = 1 << 28, 1 << 26
#: Number of generated inputs, with different sizes of dynamic dims, from which one is selected.
_BINDINGS = 3


@dataclass(frozen=True)
class Side:
    """One of the two runs.

    Attributes:
        name: the name of the model in messages.
        model: the model.
        kind: the sessions that run it.
        origins: the original nodes of its nodes, by name, if its metadata contains them.
    """

    name: str
    model: ir.Model
    kind: SessionKind
    origins: Mapping[str, Sequence[str]] = field(default_factory=dict)


def compare_models(
    a: Side,
    b: Side,
    options: InputOptions | None = None,
    tolerances: Tolerances | None = None,
    *,
    memory: int | None = None,
) -> TensorComparison:
    """Run both models on the same inputs, each on its own inner values, and compare all matched tensors.

    Args:
        a, b: the runs.
        options: the options for the inputs of ``a``; ``b`` receives them in its own float types.
        tolerances: the tolerances; by default those of reassociation.
        memory: limit on the memory of a process, in addition to the weights, in bytes; ``None`` for no limit.

    Raises:
        UnsupportedModel: no values match, or an input can't be generated.
        UsageError: the inputs do not match a model.
        RuntimeFailure: a model does not run.
    """
    pairs = match_values(a.model, b.model, b.origins)
    if not pairs:
        raise UnsupportedModel(
            f"no tensor of {a.name} has the name or the origin of one of {b.name}",
            hint="graphopt verify compares only the outputs",
        )
    with contextlib.ExitStack() as stack:
        runners = []
        for side in (a, b):
            made = Runners(side.model, side.kind.device, threads=None, memory=memory, isolate=False)
            stack.callback(made.close)
            runners.append(made)
        feeds = valid_feeds(a, runners[0], options)
        chunks = [chunks_for(side.model, compared_values(side.model), feeds) for side in (a, b)]
        fed = (feeds, _in_types_of(b, feeds))
        runs = [
            ChunkedRun(side.name, parts, own, side.kind)
            for side, parts, own in zip((a, b), chunks, runners, strict=True)
        ]
        firsts: list[dict[str, NonFinite]] = [{}, {}]
        streams = [
            _watched(run.stream(one), side.model, first)
            for run, one, side, first in zip(runs, fed, (a, b), firsts, strict=True)
        ]
        found = _compared(a.model, b.model, pairs, streams, tolerances or Tolerances())
    random = sum(pair not in found for pair in _drawn(a.model, b.model, pairs))
    peak = max(*(one.peak_bytes for one in runners), *(one.peak_bytes for one in runs))
    return TensorComparison(
        a.model.graph,
        tuple(found[pair] for pair in pairs if pair in found),
        (len(compared_values(a.model)) - len(pairs), len(compared_values(b.model)) - len(pairs)),
        len(pairs) - len(found) - random,
        random,
        {"a": firsts[0], "b": firsts[1]},
        (len(chunks[0]), len(chunks[1])),
        {name: _kind(value) for name, value in feeds.items()},
        peak,
    )


def valid_feeds(side: Side, runners: Runners, options: InputOptions | None) -> Feeds:
    """The largest of several inputs on which the model runs, because small inputs may hide a fault."""
    generator = Inputs(side.model, options)
    outputs = frozenset(side.model.graph.outputs)
    chunks = chunks_of(
        side.model, outputs, weight_bytes=WEIGHT_BYTES, tensor_bytes=TENSOR_BYTES, nbytes=lambda value: 0
    )
    run = ChunkedRun(side.name, chunks, runners, side.kind)
    valid: list[Feeds] = []

    def attempt(feeds: Feeds) -> str | None:
        try:
            for _ in run.stream(feeds):
                pass
        except RuntimeFailure as failure:
            return str(failure)
        valid.append(feeds)
        return None

    found = find_valid_bindings(generator, attempt, wanted=_BINDINGS)
    run.rest()
    if not valid:
        raise no_run(generator, found.refusal)
    return max(valid, key=nbytes)


def chunks_for(model: ir.Model, wanted: list[ir.Value], feeds: Mapping[str, Any]) -> list[Chunk]:
    """The chunks of ``model`` that return the ``wanted`` values, with sizes estimated for ``feeds``."""
    sizes = {
        dim: size
        for port in Signature.of(model).inputs
        for dim, size in zip(port.named_dims, getattr(feeds.get(port.name), "shape", ()), strict=False)
        if isinstance(dim, str)
    }
    return chunks_of(
        model,
        frozenset(wanted),
        weight_bytes=WEIGHT_BYTES,
        tensor_bytes=TENSOR_BYTES,
        nbytes=estimated_sizes(model, sizes),
    )


def _in_types_of(side: Side, feeds: Feeds) -> Feeds:
    """``feeds`` in the float types of the inputs of ``side``; raises UsageError if shapes or names differ."""
    signature = Signature.of(side.model)
    known = signature.input_types
    if unknown := [name for name in feeds if name not in known]:
        raise UsageError(
            f"{side.name} has no input {unknown[0]!r}", hint="compared models have the same inputs"
        )
    check_feeds(feeds, signature)
    for port in signature.inputs:
        shape = getattr(feeds.get(port.name), "shape", None)
        if shape is not None and not port.accepts(shape):
            sizes = "x".join(map(str, shape))
            raise UsageError(
                f"input {port.name!r} of {side.name} is {port}, not of shape {list(shape)}",
                hint=f"--input-shape {port.name}:{sizes} sets the shape in both models",
            )
    return {name: _cast(value, numpy_type(known[name])) for name, value in feeds.items()}


def _cast(value: Any, wanted: np.dtype[Any] | None) -> Any:
    if not isinstance(value, np.ndarray) or wanted is None or value.dtype == wanted:
        return value
    is_float = all(
        dtype.kind == "f" or dtype.name.startswith(("float", "bfloat")) for dtype in (value.dtype, wanted)
    )
    return value.astype(wanted) if is_float else value


def _watched(stream: Stream, model: ir.Model, first: dict[str, NonFinite]) -> Stream:
    """``stream`` without changes; records the first values with NaN and with infinities in ``first``."""
    nodes = {value.name: ir.label(node) for node in model.graph for value in node.outputs}
    for values in stream:
        for name, value in values.items():
            for kind, test in (("nan", np.isnan), ("inf", np.isinf)):
                if kind not in first and (count := _count(value, test)):
                    first[kind] = NonFinite(name, nodes[name], count)
        yield values


def _count(value: Any, test: Any) -> int:
    """The number of float elements in ``value`` that satisfy ``test``."""
    return sum(
        int(np.count_nonzero(test(array)))
        for array in leaves(value)
        if array.dtype.kind == "f" or array.dtype.name.startswith(("float", "bfloat"))
    )


def _drawn(a: ir.Model, b: ir.Model, pairs: list[MatchedValues]) -> list[MatchedValues]:
    """The pairs that depend on random numbers in one of the models."""
    ours, theirs = traits_of_values(a), traits_of_values(b)
    return [pair for pair in pairs if ours[pair.a].random or theirs[pair.b].random]


def _compared(
    a: ir.Model, b: ir.Model, pairs: list[MatchedValues], streams: list[Stream], tolerances: Tolerances
) -> dict[MatchedValues, ComparedTensor]:
    """The comparison of each pair of values of both ``streams``."""
    ours, theirs, depths = traits_of_values(a), traits_of_values(b), depths_of(a.graph)
    by_name = {pair.a.name or "": pair for pair in pairs}
    partners = {name: pair.b.name or "" for name, pair in by_name.items()}
    found: dict[MatchedValues, ComparedTensor] = {}
    for name, value, twin in paired(streams[0], streams[1], partners):
        pair = by_name[name]
        traits = ours[pair.a], theirs[pair.b]
        if any(one.random for one in traits):
            continue
        rounding = absolute_rounding(pair.a, traits[0].coarsest)
        error = compare_tensors(value, twin, traits, tolerances, rounding)
        if not pair.is_sure and _shapes(value) != _shapes(twin):
            continue
        found[pair] = ComparedTensor(pair, depths[pair.a], _kind(value), error)
    return found


def _shapes(value: Any) -> list[tuple[int, ...]]:
    return [array.shape for array in leaves(value)]


def _kind(value: Any) -> str:
    """The type of a value: ``f32[2, 16]``, ``sequence of 3``."""
    if not isinstance(value, np.ndarray):
        return "none" if value is None else f"sequence of {len(value)}"
    dtype = ir.DataType.STRING if value.dtype.kind in "OUS" else ir.DataType.from_numpy(value.dtype)
    return ir.type_text(dtype, value.shape)
