"""Gradients through an executor: a forward and a backward model for each set of wanted gradients.

The counterpart of the differentiable groups of PyTorch's profiling executor: which gradients are wanted is
the key of a plan; forward and backward are compiled by executors of their own when they are called; which
output gradients are absent is watched, and the backward is then specialized behind a guard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graphopt import ir
from graphopt.autodiff.split import split
from graphopt.autodiff.zero_cotangents import specialize_zero_cotangents
from graphopt.errors import UsageError, unknown
from graphopt.ir.signature import Signature
from graphopt.parameters.selection import FLOATS
from graphopt.util.element_types import native


class Runner(Protocol):
    """The part of an executor that a :class:`GradientPlan` needs."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the model."""

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs by name, for arrays by name."""


@dataclass(frozen=True)
class Pullback:
    """Takes gradients of outputs to gradients of what was asked for; made by :meth:`Executor.vjp`.

    Attributes:
        plan: the plan that ran forward.
        feeds: what it was fed; arrays that the backward model reads are copies.
        outputs: what it returned, likewise.
        saved: what it saved besides.
    """

    plan: GradientPlan
    feeds: Mapping[str, Any]
    outputs: Mapping[str, Any]
    saved: Mapping[str, Any]

    def __call__(self, gradients: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The gradients by name.

        Args:
            gradients: by output, its gradient; outputs that are left out, or ``None``, have none.

        Raises:
            UsageError: there is no such output, or it has no gradients.
            RuntimeFailure: onnxruntime can't run the backward model.
        """
        return self.plan.backward(self, gradients)


class GradientPlan:
    """A forward and a backward model for one set of wanted gradients.

    Args:
        model: what is run.
        wanted: the inputs and initializers whose gradients are wanted.
        start: makes an executor of a model.
        watched: backward runs that are watched for absent gradients before the backward is specialized.

    Raises:
        NoGradient: a gradient leads through an operator without one.
    """

    def __init__(
        self, model: ir.Model, wanted: tuple[str, ...], start: Callable[[ir.Model], Runner], watched: int
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
            raise UsageError("the model returns no floating-point numbers, which have gradients")
        self._start, self._watched = start, watched
        self._split = split(model, self.real, wanted)
        self._held = {name: values[name].const_value for name in wanted}
        self._forward, self._backward = start(self._split.forward), start(self._split.backward)
        self._read = frozenset(port.name for port in self._backward.signature.inputs)
        self._absent: frozenset[str] | None = None
        self._specialized: Runner | None = None
        self._is_specialized = False
        self._lock = threading.Lock()

    @property
    def absent(self) -> frozenset[str] | None:
        """The outputs for which the backward is specialized to have no gradients, if it is."""
        return self._absent if self._is_specialized else None

    def forward(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], Pullback]:
        """The outputs by name, and what goes back from there."""
        found = self._forward.run(feeds)
        outputs = {name: found.pop(name) for name in self.outputs}
        # what callers do to their arrays meanwhile is none of the backward run's business
        kept_feeds, kept = (
            {name: self._kept(name, value) for name, value in part.items()} for part in (feeds, outputs)
        )
        return outputs, Pullback(self, kept_feeds, kept, found)

    def _kept(self, name: str, value: Any) -> Any:
        return np.array(value) if name in self._read and isinstance(value, np.ndarray) else value

    def backward(self, run: Pullback, gradients: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The gradients of what is wanted; see :class:`Pullback`."""
        if not isinstance(gradients, Mapping):
            raise UsageError(f"gradients are a dict of arrays by output, not {type(gradients).__name__}")
        for name in gradients:
            if name not in self.real:
                raise unknown("output with gradients", name, self.real, plural="outputs with gradients")
        given = {
            name: np.asarray(native(value, name)) for name, value in gradients.items() if value is not None
        }
        for name, value in given.items():
            output = run.outputs[name]
            if (value.shape, value.dtype) != (output.shape, output.dtype):
                told = [f"{item.dtype} {list(item.shape)}" for item in (value, output)]
                raise UsageError(f"the gradient of {name!r} is {told[0]}, and {name!r} {told[1]}")
        executor = self._chosen(frozenset(name for name in self.real if name not in given))
        if executor is None:
            return {name: self._zeros(name, run) for name in self.wanted}
        cotangents = self._split.joint.cotangents
        fed = {**run.saved, **run.outputs, **run.feeds}
        for name in self.real:
            fed[cotangents[name]] = given.get(name, np.zeros_like(run.outputs[name]))
        taken = {port.name: fed[port.name] for port in executor.signature.inputs if port.name in fed}
        found = executor.run(taken)
        results = {name: found.get(self._split.joint.gradients[name]) for name in self.wanted}
        return {name: self._zeros(name, run) if dx is None else dx for name, dx in results.items()}

    def _zeros(self, name: str, run: Pullback) -> np.ndarray:
        held = self._held[name]
        return np.zeros_like(run.feeds[name] if name in run.feeds or held is None else held.numpy())

    def _chosen(self, absent: frozenset[str]) -> Runner | None:
        """What runs where these outputs have no gradients: specialized, if what it relies on is absent.

        Nothing does, if all gradients are zero then.
        """
        with self._lock:
            if self._watched > 0:
                self._watched -= 1
                self._absent = absent if self._absent is None else self._absent & absent
                return self._backward
            if not self._absent or not self._absent <= absent:
                return self._backward
            if not self._is_specialized:
                cotangents = self._split.joint.cotangents
                gone = [cotangents[name] for name in self.real if name in self._absent]
                model = specialize_zero_cotangents(self._split.backward, cotangents.values(), gone)
                self._specialized = self._start(model) if model.graph.outputs else None
                self._is_specialized = True
            return self._specialized
