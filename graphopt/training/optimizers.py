"""Optimizers: their settings, what they keep of each parameter, and the nodes that update one.

They compute what those of ``torch.optim`` of the same name do, with its defaults. Scalars that all parameters
share, such as corrections of the bias, are computed in double precision, as torch does in Python.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from graphopt import ir
from graphopt.autodiff.builder import GraphBuilder
from graphopt.errors import UsageError, unknown


@dataclass(frozen=True)
class Trained:
    """One parameter at a step.

    Attributes:
        value, gradient: of the parameter.
        slots: what the optimizer keeps of it.
        decay: its weight decay.
    """

    value: ir.Value
    gradient: ir.Value
    slots: Sequence[ir.Value]
    decay: float

    def decayed(self, op: GraphBuilder) -> ir.Value:
        """The gradient with that of the weight decay."""
        return op.Add(self.gradient, op.Mul(self.value, self.decay)) if self.decay else self.gradient


@dataclass(frozen=True)
class Optimizer(ABC):
    """What all optimizers have. A subclass is its settings, and :meth:`update`.

    Attributes:
        name: what it is called.
        slots: names of the tensors that it keeps of each parameter, shaped as that, zero at first.
        counts: whether it counts the updates.
        rate: the learning rate if none is given.
        weight_decay: how strongly parameters are drawn to zero; as a part of the gradient, if the optimizer
            does not say otherwise.
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
        """Write what all updates of a step share, scalars; here the learning rate alone.

        Args:
            rate: the learning rate, float32.
            step: which update it is, from 1 on, int64; ``None`` where the optimizer does not count.
        """
        return (rate,)

    @abstractmethod
    def update(self, op: GraphBuilder, shared: Sequence[ir.Value], at: Trained) -> tuple[ir.Value, ...]:
        """Write the nodes that update one parameter.

        Args:
            shared: what :meth:`shared` returned.

        Returns:
            The parameter's new value, and those of its slots.
        """


@dataclass(frozen=True)
class Sgd(Optimizer):
    """p - lr (g + decay p), as ``torch.optim.SGD``."""

    name = "sgd"

    def update(self, op: GraphBuilder, shared: Sequence[ir.Value], at: Trained) -> tuple[ir.Value, ...]:
        """Two passes over the parameter."""
        return (_moved(op, at.value, shared[0], at.decayed(op)),)


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

    def update(self, op: GraphBuilder, shared: Sequence[ir.Value], at: Trained) -> tuple[ir.Value, ...]:
        """Four passes; six with ``nesterov``."""
        gradient = at.decayed(op)
        buffer = op.Add(op.Mul(at.slots[0], self.momentum), gradient)
        direction = op.Add(gradient, op.Mul(buffer, self.momentum)) if self.nesterov else buffer
        return _moved(op, at.value, shared[0], direction), buffer


@dataclass(frozen=True)
class Adam(Optimizer):
    """m and v are running means of g and g²; p - lr m̂ / (√v̂ + eps), as ``torch.optim.Adam``.

    m̂ = m / (1 - β₁ᵗ) and v̂ = v / (1 - β₂ᵗ) undo the bias that zeros bring at the start (Kingma and Ba, 2015).
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
            raise UsageError(f"betas are two numbers from 0 to below 1, not {_spelt(self.betas)}")
        _check(self.eps >= 0, "eps", self.eps, "at least 0")

    def shared(self, op: GraphBuilder, rate: ir.Value, step: ir.Value | None) -> tuple[ir.Value, ...]:
        """lr √(1 - β₂ᵗ) / (1 - β₁ᵗ), eps √(1 - β₂ᵗ), and lr; the first two in double precision."""
        assert step is not None
        time = op.Cast(step, to=ir.DataType.DOUBLE)
        first, second = (op.Sub(np.float64(1), op.Pow(np.float64(beta), time)) for beta in self.betas)
        root = op.Sqrt(second)
        corrected = op.Div(op.Mul(op.Cast(rate, to=ir.DataType.DOUBLE), root), first)
        return corrected, op.Mul(root, np.float64(self.eps)), rate

    def update(self, op: GraphBuilder, shared: Sequence[ir.Value], at: Trained) -> tuple[ir.Value, ...]:
        """Twelve passes: both m̂ and √v̂ are times √(1 - β₂ᵗ), so that only scalars are corrected."""
        return self._step(op, shared, replace(at, gradient=at.decayed(op)))

    def _step(self, op: GraphBuilder, shared: Sequence[ir.Value], at: Trained) -> tuple[ir.Value, ...]:
        parameter, gradient, (old_m, old_v) = at.value, at.gradient, at.slots
        first, second = self.betas
        m = op.Add(old_m, op.Mul(op.Sub(gradient, old_m), 1 - first))
        v = op.Add(op.Mul(old_v, second), op.Mul(op.Mul(gradient, gradient), 1 - second))
        rate, eps = shared[:2]
        root = op.Add(op.Sqrt(v), op.cast_like(eps, parameter))
        return _moved(op, parameter, rate, op.Div(m, root)), m, v


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam, and p (1 - lr decay) beside it, as ``torch.optim.AdamW`` (Loshchilov and Hutter, 2019)."""

    name = "adamw"

    weight_decay: float = 0.01

    def update(self, op: GraphBuilder, shared: Sequence[ir.Value], at: Trained) -> tuple[ir.Value, ...]:
        """One pass more than Adam."""
        if at.decay:
            kept = op.Sub(np.float32(1), op.Mul(shared[2], np.float32(at.decay)))
            at = replace(at, value=op.Mul(at.value, op.cast_like(kept, at.value)))
        return self._step(op, shared, at)


#: By name.
OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (Sgd, Momentum, Adam, AdamW)}


def make(name: str, **settings: Any) -> Optimizer:
    """The optimizer called ``name`` with these settings; ``None`` stands for its default.

    Raises:
        UsageError: there is none of this name, it has no such setting, or a setting is out of its range.
    """
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    kind = OPTIMIZERS[name]
    own = [field.name for field in fields(kind)]
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given:
        if key not in own:
            takers = [other.name for other in OPTIMIZERS.values() if key in other.__dataclass_fields__]
            hint = f"{' and '.join(takers)} do" if takers else f"it takes {', '.join(own)}"
            raise UsageError(f"{name} takes no {key}", hint=hint)
    if "betas" in given:
        given["betas"] = tuple(given["betas"])
    return kind(**given)


def _moved(op: GraphBuilder, parameter: ir.Value, rate: ir.Value, direction: ir.Value) -> ir.Value:
    """``parameter`` - ``rate`` · ``direction``."""
    return op.Sub(parameter, op.Mul(direction, op.cast_like(rate, parameter)))


def _check(holds: bool, what: str, number: float, range_: str) -> None:
    if not holds or not math.isfinite(number):
        raise UsageError(f"{what} is {range_}, not {number:g}")


def _spelt(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)
