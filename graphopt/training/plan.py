"""What a loop has to know of a model that does a step of training; kept in its metadata."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from graphopt.errors import UsageError

#: The metadata entry of the model.
KEY = "graphopt:training"
#: The output ``new.w`` is what the next step takes as ``w``.
NEW = "new."
#: The input that takes the learning rate, a float32 scalar.
RATE = "learning_rate"
_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """What a model does that does a step of training, and what its inputs and outputs are for.

    Attributes:
        loss: the output that is the loss.
        inputs: what is fed anew at each step.
        outputs: what the model returns besides.
        parameters: inputs that are parameters; for each ``w`` there is an output ``new.w``.
        statistics: inputs that are running statistics of BatchNormalization; the same.
        state: inputs that the optimizer keeps; the same.
        learning_rate: what was given when the step was made; the input ``learning_rate`` takes another.
        optimizer: its name and settings.
        no_decay: parameters without weight decay.
        clip_norm: the largest norm of all gradients together; ``None`` for any.
        accumulate: gradients of so many steps make one update.
    """

    loss: str
    inputs: list[str]
    outputs: list[str]
    parameters: list[str]
    statistics: list[str]
    state: list[str]
    learning_rate: float
    optimizer: dict[str, Any]
    no_decay: list[str] = field(default_factory=list)
    clip_norm: float | None = None
    accumulate: int = 1

    def _check(self) -> None:
        """Check what anybody may have written; raises ValueError."""
        names = (self.inputs, self.outputs, self.parameters, self.statistics, self.state, self.no_decay)
        if not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in names):
            raise ValueError("a list of names is none")
        if not isinstance(self.loss, str) or not isinstance(self.optimizer, dict):
            raise ValueError("the loss or the optimizer is not what it has to be")
        for number in (self.learning_rate, 0.0 if self.clip_norm is None else self.clip_norm):
            if type(number) not in (int, float) or not 0 <= number < math.inf:
                raise ValueError("a number is none, or out of range")
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise ValueError("accumulate is no positive number")

    @property
    def carried(self) -> list[str]:
        """The inputs that take an output of the step before."""
        return [*self.parameters, *self.statistics, *self.state]

    @property
    def new(self) -> dict[str, str]:
        """By the name of an input, the output of the step before that it takes."""
        return {name: NEW + name for name in self.carried}

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``next`` tells :attr:`new`."""
        return {"version": _VERSION, **asdict(self), "next": self.new}

    def to_json(self) -> str:
        """In one line."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str | None) -> Plan:
        """Read what :meth:`to_json` made.

        Raises:
            UsageError: it is something else, or there is nothing.
        """
        if text is None:
            raise UsageError(
                "the model does no step of training", hint="graphopt train-step makes one that does"
            )
        try:
            data = json.loads(text)
            version = data.pop("version")
            data.pop("next")
            found = cls(**data)
            found._check()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UsageError(f"the model's metadata {KEY!r} is not understood") from error
        if version != _VERSION:
            raise UsageError(f"the model's metadata {KEY!r} is of version {version}, not {_VERSION}")
        return found
