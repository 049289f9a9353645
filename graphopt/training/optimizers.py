"""Optimizers: their settings, their state for each parameter, and the nodes that update a parameter.

Each optimizer is equivalent to the one of the same name in ``torch.optim``, and has its defaults. Shared
scalars, such as bias corrections, are computed in float64, as torch does in Python.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any, ClassVar

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.errors import UsageError, unknown
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class ParameterStep:
    """A parameter at a step.

    Attributes:
        value, gradient: the parameter and its gradient, of the same shape and element type.
        slots: the state of the optimizer for it, of the same shape and element type.
        decay: its weight decay.
    """

    value: ir.Value
    gradient: ir.Value
    slots: Sequence[ir.Value]
    decay: float

    def decayed(self, op: GraphBuilder) -> ir.Value:
        """The gradient plus the gradient of the weight decay: two passes over memory, if there is a decay."""
        return op.Add(self.gradient, op.Mul(self.value, self.decay)) if self.decay else self.gradient


@dataclass(frozen=True)
class Optimizer(ABC):
    """The base class of optimizers. The fields of a subclass are its settings; it defines :meth:`update`.

    Attributes:
        name: the name of the optimizer.
        slots: names of its state tensors for each parameter, of the parameter's shape, initially zero.
        counts: whether it counts updates.
        rate: the default learning rate.
        weight_decay: the coefficient of weight decay, which is part of the gradient unless the optimizer
            documents otherwise.
    """

    name: ClassVar[str]
    slots: ClassVar[tuple[str, ...]] = ()
    counts: ClassVar[bool] = False
    rate: ClassVar[float] = 0.01

    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self.weight_decay >= 0, "weight decay", self.weight_decay, "at least 0")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, **asdict(self)}

    def shared(self, op: GraphBuilder, rate: ir.Value, step: ir.Value | None) -> tuple[ir.Value, ...]:
        """Write the scalars that all updates of a step share; by default the learning rate.

        Args:
            rate: the learning rate, a float32 scalar.
            step: the number of the update from 1, an int64 scalar; ``None`` unless the optimizer counts.
        """
        return (rate,)

    @abstractmethod
    def update(self, op: GraphBuilder, shared: Sequence[ir.Value], at: ParameterStep) -> tuple[ir.Value, ...]:
        """Write the nodes that update a parameter.

        Args:
            shared: the result of :meth:`shared`.

        Returns:
            The next values of the parameter and of its slots.
        """


@dataclass(frozen=True)
class Sgd(Optimizer):
    """p - lr (g + decay p), as ``torch.optim.SGD``."""

    name = "sgd"

    def update(self, op: GraphBuilder, shared: Sequence[ir.Value], at: ParameterStep) -> tuple[ir.Value, ...]:
        """Write p - lr g: two passes over memory."""
        return (_updated_parameter(op, at.value, shared[0], at.decayed(op)),)


@dataclass(frozen=True)
class Momentum(Optimizer):
    """b = momentum b + g; p - lr b, or p - lr (g + momentum b) with ``nesterov``, as ``torch.optim.SGD``."""

    name = "momentum"
    slots = ("buffer",)

    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(0 < self.momentum < 1, "momentum", self.momentum, "between 0 and 1")

    def update(self, op: GraphBuilder, shared: Sequence[ir.Value], at: ParameterStep) -> tuple[ir.Value, ...]:
        """Write the update: four passes over memory, six with ``nesterov``."""
        gradient = at.decayed(op)
        buffer = op.Add(op.Mul(at.slots[0], self.momentum), gradient)
        direction = op.Add(gradient, op.Mul(buffer, self.momentum)) if self.nesterov else buffer
        return _updated_parameter(op, at.value, shared[0], direction), buffer


@dataclass(frozen=True)
class Adam(Optimizer):
    """p - lr m̂ / (√v̂ + eps), with running means m of g and v of g², as ``torch.optim.Adam``.

    m̂ = m / (1 - β₁ᵗ) and v̂ = v / (1 - β₂ᵗ) correct the bias of the initial zeros (Kingma and Ba, 2015).
    """

    name = "adam"
    slots = ("m", "v")
    counts = True
    rate = 1e-3

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"betas are two numbers from 0 to below 1, not {_text(self.betas)}")
        _check(self.eps >= 0, "eps", self.eps, "at least 0")

    def shared(self, op: GraphBuilder, rate: ir.Value, step: ir.Value | None) -> tuple[ir.Value, ...]:
        """lr √(1 - β₂ᵗ) / (1 - β₁ᵗ) and eps √(1 - β₂ᵗ) in float64, and lr."""
        assert step is not None
        time = op.Cast(step, to=ir.DataType.DOUBLE)
        first, second = (op.Sub(np.float64(1), op.Pow(np.float64(beta), time)) for beta in self.betas)
        root = op.Sqrt(second)
        corrected = op.Div(op.Mul(op.Cast(rate, to=ir.DataType.DOUBLE), root), first)
        return corrected, op.Mul(root, np.float64(self.eps)), rate

    def update(self, op: GraphBuilder, shared: Sequence[ir.Value], at: ParameterStep) -> tuple[ir.Value, ...]:
        """Write the update: twelve passes over memory. Only scalars are corrected, by a factor √(1 - β₂ᵗ)."""
        return self._step(op, shared, replace(at, gradient=at.decayed(op)))

    def _step(self, op: GraphBuilder, shared: Sequence[ir.Value], at: ParameterStep) -> tuple[ir.Value, ...]:
        parameter, gradient, (old_m, old_v) = at.value, at.gradient, at.slots
        first, second = self.betas
        m = op.Add(old_m, op.Mul(op.Sub(gradient, old_m), 1 - first))
        v = op.Add(op.Mul(old_v, second), op.Mul(op.Mul(gradient, gradient), 1 - second))
        rate, eps = shared[:2]
        root = op.Add(op.Sqrt(v), op.cast_like(eps, parameter))
        return _updated_parameter(op, parameter, rate, op.Div(m, root)), m, v


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay p (1 - lr decay), as ``torch.optim.AdamW``.

    Loshchilov and Hutter (2019).
    """

    name = "adamw"

    weight_decay: float = 0.01

    def update(self, op: GraphBuilder, shared: Sequence[ir.Value], at: ParameterStep) -> tuple[ir.Value, ...]:
        """Write the update: twelve passes over memory, thirteen with decay."""
        if at.decay:
            kept = op.Sub(np.float32(1), op.Mul(shared[2], np.float32(at.decay)))
            at = replace(at, value=op.Mul(at.value, op.cast_like(kept, at.value)))
        return self._step(op, shared, at)


#: The optimizers by name.
OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (Sgd, Momentum, Adam, AdamW)}


def make(name: str, **settings: Any) -> Optimizer:
    """The optimizer ``name`` with these settings; ``None`` is the default of a setting.

    Raises:
        UsageError: the optimizer or a setting is unknown, or a setting is out of range.
    """
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    kind = OPTIMIZERS[name]
    own = [field.name for field in fields(kind)]
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given:
        if key not in own:
            others = [other.name for other in OPTIMIZERS.values() if key in other.__dataclass_fields__]
            hint = f"{' and '.join(others)} do" if others else f"it has {', '.join(own)}"
            raise UsageError(f"{name} has no setting {key}", hint=hint)
    if "betas" in given:
        given["betas"] = tuple(given["betas"])
    return kind(**given)


def _updated_parameter(
    op: GraphBuilder, parameter: ir.Value, rate: ir.Value, direction: ir.Value
) -> ir.Value:
    """``parameter`` - ``rate`` · ``direction``."""
    return op.Sub(parameter, op.Mul(direction, op.cast_like(rate, parameter)))


def _check(is_in_range: bool, name: str, number: float, range_: str) -> None:
    if not is_in_range or not math.isfinite(number):
        raise UsageError(f"{name} is {range_}, not {number:g}")


def _text(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)
