"""A second opinion on outputs: ONNX's own reference evaluator."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import onnx

from graphopt import ir

#: Modes: the specification, the widest floats (also behind casts to half precision), no negative zeros, or
#: maxima that drop NaN.
Mode = Literal["plain", "wide", "unrounded", "unsigned", "dropping"]
#: Maximum size of weights, in bytes, to embed for the evaluator, which can't read external data.
_EMBEDDED = 1 << 28
#: CPU time limit of one evaluation, in seconds. It is CPU time so that no excuse depends on the load of the
#: machine.
_PATIENCE = 5.0


class WideResult(NamedTuple):
    """An output computed in the widest float type, and whether all floats in its computation were finite."""

    value: Any
    finite: bool


class Reference:
    """Evaluates a model by onnx's reference evaluator, which follows the specification.

    The evaluator is slow, and does not support vendor domains. It is used only where onnxruntime's result is
    doubtful, for example on empty tensors, for which some kernels return wrong shapes.

    Args:
        model: returns the model when it is first needed.
    """

    def __init__(self, model: Callable[[], ir.Model]) -> None:
        self._model = model
        self._proto: onnx.ModelProto | None = None
        self._evaluators: dict[tuple[str, Mode], Callable[[str, Mapping[str, Any]], dict[str, Any]]] = {}
        self._known: dict[tuple[str, int], tuple[Mapping[str, Any], WideResult | None]] = {}

    def output(self, name: str, feeds: Mapping[str, Any]) -> Any | None:
        """The output ``name`` for ``feeds``; ``None`` if the evaluator fails."""
        results = self._run(name, feeds)
        return None if results is None else results[name]

    def without_negative_zeros(self, name: str, feeds: Mapping[str, Any]) -> Any | None:
        """The output ``name`` if every -0.0 in its computation becomes 0.0."""
        results = self._run(
            name, {name: _without_negative_zeros(value) for name, value in feeds.items()}, "unsigned"
        )
        return None if results is None else results[name]

    def without_nan(self, name: str, feeds: Mapping[str, Any]) -> Any | None:
        """The output ``name`` if maxima drop every NaN (kernels do so only at some positions)."""
        results = self._run(name, feeds, "dropping")
        return None if results is None else results[name]

    def wide(self, name: str, feeds: Mapping[str, Any]) -> WideResult | None:
        """The output ``name`` with all floats in numpy's widest type, cached; ``None`` on failure."""
        key = (name, id(feeds))
        if key not in self._known:
            results = self._run_widened(name, feeds, "wide")
            exact = None
            if results is not None:
                floats = [value for value in results.values() if _is_float(value)]
                finite = all(bool(np.isfinite(value).all()) for value in floats)
                exact = WideResult(results[name], finite)
            self._known[key] = (feeds, exact)  # keeping the feeds prevents reuse of their id
        return self._known[key][1]

    def unrounded(self, name: str, feeds: Mapping[str, Any]) -> Any | None:
        """As :meth:`wide`, with no rounding by casts to half precision."""
        results = self._run_widened(name, feeds, "unrounded")
        return None if results is None else results[name]

    def is_tie(self, name: str, feeds: Mapping[str, Any], indices: Any) -> bool:
        """Whether an ArgMax (ArgMin) computes the output, and ``indices`` are ties of its own indices.

        Rounding or overflow made these elements equal. The operator returns the first of equal elements.
        """
        results = self._run(name, feeds)
        if results is None or self._proto is None:
            return False
        node = next((node for node in self._proto.graph.node if name in node.output), None)
        if node is None or node.domain or node.op_type not in ("ArgMax", "ArgMin"):
            return False
        options = {attribute.name: attribute.i for attribute in node.attribute}
        data, axis = results[node.input[0]], options.get("axis", 0)
        if not options.get("keepdims", 1):
            indices = np.expand_dims(indices, axis)
        best = (np.max if node.op_type == "ArgMax" else np.min)(data, axis=axis, keepdims=True)
        return bool(
            indices.shape == best.shape
            and (indices >= 0).all()
            and (indices < data.shape[axis]).all()
            and np.array_equal(np.take_along_axis(data, indices, axis), best, equal_nan=True)
        )

    def _run_widened(self, name: str, feeds: Mapping[str, Any], mode: Mode) -> dict[str, Any] | None:
        from graphopt.verification.reference_widest_float import widened

        return self._run(name, {name: widened(value) for name, value in feeds.items()}, mode)

    def _run(self, name: str, feeds: Mapping[str, Any], mode: Mode = "plain") -> dict[str, Any] | None:
        """Every value that the output called ``name`` depends on, and that output."""
        key = (name, mode)
        try:
            if key not in self._evaluators:
                self._proto = self._proto or _self_contained(self._model())
                part = _part_for(self._proto, name)
                self._evaluators[key] = _evaluator(part, mode)
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                return self._evaluators[key](name, feeds)
        except Exception:  # the evaluator, numpy and the time limit raise various exceptions
            return None


def _self_contained(model: ir.Model) -> onnx.ModelProto:
    """The proto of ``model``, with its external data unless that is large."""
    if ir.initializer_bytes(model) > _EMBEDDED:
        return ir.to_proto(model)
    return onnx.ModelProto.FromString(ir.to_bytes(model))


def _evaluator(proto: onnx.ModelProto, mode: Mode) -> Callable[[str, Mapping[str, Any]], dict[str, Any]]:
    """A function of an output's name and feeds that returns all values computed for it, in limited time."""
    from onnx.reference import ReferenceEvaluator

    from graphopt.verification import reference_dropping_nan, reference_fixes, reference_widest_float

    class Hasty(ReferenceEvaluator):
        deadline = math.inf

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            if mode == "unsigned":
                for node in self.rt_nodes_:
                    node.run = _without_negative_zero_results(node.run)

        def _log(self, *_: Any) -> None:
            """The evaluator calls this before each node, and for each value."""
            if time.thread_time() > self.deadline:
                raise TimeoutError

    of_mode: dict[Mode, list[Any]] = {
        "wide": reference_widest_float.OPERATORS,
        "unrounded": reference_widest_float.UNROUNDED,
        "dropping": reference_dropping_nan.OPERATORS,
    }
    evaluator = Hasty(proto, new_ops=reference_fixes.OPERATORS + of_mode.get(mode, []))
    widened = reference_widest_float.widened
    change = {"wide": widened, "unrounded": widened, "unsigned": _without_negative_zeros}.get(mode)
    if change is not None:
        evaluator.rt_inits_ = {name: change(value) for name, value in evaluator.rt_inits_.items()}

    def results(name: str, feeds: Mapping[str, Any]) -> dict[str, Any]:
        evaluator.deadline = time.thread_time() + _PATIENCE
        return cast(dict[str, Any], evaluator.run([name], dict(feeds), intermediate=True))

    return results


def _without_negative_zeros(value: Any) -> Any:
    """Floats without negative zeros; other values are unchanged."""
    return value + value.dtype.type(0) if _is_float(value) else value


def _without_negative_zero_results(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, a method of a node, with 0.0 in place of each -0.0 in its results."""
    return lambda *args, **options: tuple(map(_without_negative_zeros, run(*args, **options)))


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f"


def _part_for(proto: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The part of the model that computes ``output``, as its only output."""
    needed = {output}
    kept = []
    for node in reversed(proto.graph.node):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(_reads(node))
    part = onnx.ModelProto()
    part.CopyFrom(proto)
    del part.graph.node[:], part.graph.output[:]
    part.graph.node.extend(reversed(kept))
    part.graph.output.extend(info for info in proto.graph.output if info.name == output)
    return part


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """All names that ``node`` or a node in its bodies reads."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield from current.input
        for attribute in current.attribute:
            for graph in (attribute.g, *attribute.graphs):
                pending.extend(graph.node)
                yield from (info.name for info in graph.output)
