"""Vector-Jacobian products of an executor: a forward and a backward model per set of requested gradients.

The counterpart of the differentiable groups of PyTorch's profiling executor. The set of requested gradients
is the key of a plan. Separate executors compile the forward model, and a backward model for each set of
absent output cotangents, on first use.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from graphopt import ir
from graphopt.autodiff import differentiate_by_group as groups
from graphopt.autodiff.rule_registry import NoGradient
from graphopt.autodiff.specialize_zero_cotangents import specialize_zero_cotangents
from graphopt.autodiff.split_joint import Split, split
from graphopt.context import context_for
from graphopt.errors import GraphoptError, UsageError, unknown
from graphopt.executor.debug_state import GradientState
from graphopt.executor.kept_model import KeptModel
from graphopt.ir.signature import Signature
from graphopt.parameters.selection import FLOATS
from graphopt.passes.pipelines import make_pipeline
from graphopt.util.fork_safe_lock import ForkSafeLock
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.ort_array_conversion import native

#: Maximum number of backward models for sets of absent cotangents; the least recently used one is dropped.
_MOST = 8


class Runner(Protocol):
    """The part of an executor that a :class:`GradientPlan` needs."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the model."""

    def run(self, feeds: Mapping[str, Any], *, donate: bool = False) -> dict[str, np.ndarray]:
        """The outputs by name, for arrays by name; see :meth:`Executor.run`."""


@dataclass(frozen=True)
class ForwardRun:
    """The values of a forward run that the backward model may read.

    Attributes:
        feeds: the inputs; arrays that the backward model reads are copies.
        outputs: the outputs; arrays that the backward model reads are copies.
        saved: the residuals.
    """

    feeds: dict[str, Any]
    outputs: dict[str, Any]
    saved: dict[str, Any]

    def copied(self) -> ForwardRun:
        """The same values, in dicts that may be emptied."""
        return ForwardRun(self.feeds, dict(self.outputs), dict(self.saved))


class Pullback:
    """Maps output cotangents to the requested gradients; created by :meth:`Executor.vjp`. Thread-safe.

    Args:
        plan: the plan that ran forward.
        run: its run.
    """

    def __init__(self, plan: GradientPlan, run: ForwardRun) -> None:
        self.plan = plan
        self._run: ForwardRun | None = run
        self._lock = ForkSafeLock()

    def __call__(self, gradients: Mapping[str, Any], *, retain: bool = False) -> dict[str, np.ndarray]:
        """The gradients by name, with the shapes and dtypes of their inputs and initializers.

        Args:
            gradients: cotangents by output, of the shape and dtype of the output; ``None`` and missing
                cotangents are zero.
            retain: keep the residuals for another call; by default they are freed.

        Raises:
            UsageError: an output is unknown or not differentiable, a shape or dtype does not match, or the
                residuals were freed.
            RuntimeFailure: onnxruntime can't run the backward model.
        """
        given = self.plan.cotangents(self._forward_run(), gradients)
        with self._lock:
            run = self._forward_run().copied()  # calls of other threads may still read the residuals
            if not retain:
                self._run = None
        return self.plan.backward(run, given, retain=retain)

    def _forward_run(self) -> ForwardRun:
        if self._run is None:
            raise UsageError(
                "the residuals of this pullback were freed by its last call",
                hint="pullback(…, retain=True) keeps them for another call",
            )
        return self._run


class GradientPlan:
    """A forward and a backward model for one set of requested gradients.

    Args:
        model: the model to differentiate.
        wanted: the inputs and initializers whose gradients are requested.
        start: creates an executor of a model, given the name of the graph for logs.
        release: keep the model from which backward models are made in a file, not in memory.
        by_group: differentiate groups of nodes.

    Raises:
        UsageError: a name is unknown, or no output is differentiable.
        NoGradient: no output has gradients, because an operator on the path to each is not differentiable.

    Attributes:
        barred: the errors for outputs through which no gradient can pass, by name of the output; an error is
            raised only if its output has a cotangent.
    """

    def __init__(
        self,
        model: ir.Model,
        wanted: tuple[str, ...],
        start: Callable[[ir.Model, str], Runner],
        *,
        release: bool = False,
        by_group: bool = False,
    ) -> None:
        graph = model.graph
        values = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
        for name in wanted:
            if name not in values:
                known = [name for name in values if name]
                raise unknown("input or initializer", name, known, "graphopt inspect -v shows them")
        self.wanted = wanted
        self.outputs = [output.name or "" for output in graph.outputs]
        self.real = [output.name or "" for output in graph.outputs if output.dtype in FLOATS]
        if not self.real:
            raise UsageError("no output is differentiable: none is of a floating-point type")
        self._start = start
        splitter = _split_by_group if by_group else split
        parts, self.barred = _split_outputs(splitter, model, self.real, wanted)
        self.real = [name for name in self.real if name not in self.barred]
        self._cotangents, self._names = parts.joint.cotangents, parts.joint.gradients
        self._defaults = {
            name: (tuple(weight.shape.numpy()), weight.dtype.numpy())
            for name in wanted
            if (weight := values[name].const_value) is not None
        }
        self._forward = start(parts.forward, "forward-graph")
        self._backward = start(parts.backward, "backward-graph")
        self._general = KeptModel(parts.backward)
        if release:
            with contextlib.suppress(GraphoptError, OSError):  # without a file, it stays in memory
                self._general.spill()
        self._read = frozenset(port.name for port in self._backward.signature.inputs)
        self._specialized: OrderedDict[tuple[str, ...], Runner | None] = OrderedDict()
        self._runs: Counter[tuple[str, ...]] = Counter()
        self._lock = ForkSafeLock()

    @property
    def state(self) -> GradientState:
        """A snapshot of the numbers of backward runs."""
        with self._lock:
            return GradientState(self.wanted, tuple(self._runs.items()))

    def forward(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], Pullback]:
        """The outputs by name, and the pullback."""
        found = self._forward.run(feeds)
        outputs = {name: found.pop(name) for name in self.outputs}
        # callers may modify their arrays before the backward run
        kept_feeds, kept = (
            {name: self._copy_if_read(name, value) for name, value in part.items()}
            for part in (feeds, outputs)
        )
        return outputs, Pullback(self, ForwardRun(kept_feeds, kept, found))

    def _copy_if_read(self, name: str, value: Any) -> Any:
        return np.array(value) if name in self._read and isinstance(value, np.ndarray) else value

    def cotangents(self, run: ForwardRun, gradients: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The given cotangents by output; raises UsageError as :class:`Pullback` does."""
        if not isinstance(gradients, Mapping):
            raise UsageError(f"gradients must be a dict of arrays by output, not {type(gradients).__name__}")
        for name, value in gradients.items():
            if name in self.barred and value is not None:
                raise self.barred[name]
            if name not in self.real and name not in self.barred:
                raise unknown("output with gradients", name, self.real, plural="outputs with gradients")
        given = {
            name: np.asarray(native(value, name)) for name, value in gradients.items() if value is not None
        }
        for name, value in given.items():
            output = run.outputs[name]
            if (value.shape, value.dtype) != (output.shape, output.dtype):
                types = [f"{item.dtype} {list(item.shape)}" for item in (value, output)]
                raise UsageError(f"the gradient of {name!r} is {types[0]}, but {name!r} is {types[1]}")
        return given

    def backward(
        self, run: ForwardRun, given: Mapping[str, np.ndarray], *, retain: bool
    ) -> dict[str, np.ndarray]:
        """The requested gradients for these cotangents; see :class:`Pullback`."""
        executor = self._backward_for(tuple(name for name in self.real if name not in given))
        if executor is None:
            return {name: self._zeros(name, run) for name in self.wanted}
        available = {**run.saved, **run.outputs, **run.feeds}
        for name in self.real:  # the model may read the shape of an absent cotangent
            available[self._cotangents[name]] = given.get(name, np.zeros_like(run.outputs[name]))
        ports = [port.name for port in executor.signature.inputs if port.name in available]
        feeds = {name: available[name] for name in ports}
        if not retain:  # only the run has references to the residuals
            del available
            run.saved.clear()
            run.outputs.clear()
        found = executor.run(feeds, donate=not retain)
        results = {name: found.get(self._names[name]) for name in self.wanted}
        return {name: self._zeros(name, run) if dx is None else dx for name, dx in results.items()}

    def _zeros(self, name: str, run: ForwardRun) -> np.ndarray:
        default = self._defaults.get(name)
        return np.zeros_like(run.feeds[name]) if name in run.feeds or default is None else np.zeros(*default)

    def _backward_for(self, absent: tuple[str, ...]) -> Runner | None:
        """The backward executor for these absent cotangents; ``None`` if all gradients are zero.

        Zeros in place of absent cotangents would yield NaN where a slope is infinite.
        """
        with self._lock:
            if absent and absent not in self._specialized:
                zero = [self._cotangents[name] for name in absent]
                model = specialize_zero_cotangents(self._general.get(), self._cotangents.values(), zero)
                self._specialized[absent] = (
                    self._start(model, "backward-graph") if model.graph.outputs else None
                )
                if len(self._specialized) > _MOST:
                    self._specialized.popitem(last=False)
            self._runs[absent] += 1
            if not absent:
                return self._backward
            self._specialized.move_to_end(absent)
            return self._specialized[absent]


def _split_by_group(model: ir.Model, outputs: list[str], wanted: tuple[str, ...]) -> Split:
    """The split by group; its groups are inlined, so that both executors optimize across them."""
    found = groups.split(model, outputs, wanted)
    for half in (found.forward, found.backward):
        with context_for(half) as cx:
            make_pipeline("inline-functions").run(half, cx)
    return found


def _split_outputs(
    splitter: Callable[[ir.Model, list[str], tuple[str, ...]], Split],
    model: ir.Model,
    outputs: Sequence[str],
    wanted: tuple[str, ...],
) -> tuple[Split, dict[str, NoGradient]]:
    """The split for all differentiable ``outputs``, and the errors of the others.

    Raises:
        NoGradient: no output is differentiable.
    """
    try:
        return splitter(model, list(outputs), wanted), {}
    except NoGradient:
        barred: dict[str, NoGradient] = {}
        for name in outputs:
            try:
                splitter(model, [name], wanted)
            except NoGradient as error:
                barred[name] = error
        passable = [name for name in outputs if name not in barred]
        if not passable:
            raise
        return splitter(model, passable, wanted), barred
