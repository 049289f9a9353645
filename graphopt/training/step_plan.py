"""The plan of a training step: the roles of inputs and outputs, stored in the metadata of the model."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, field
from typing import Any

from graphopt.errors import UsageError
from graphopt.util.lazy_dataclass import dataclass

#: Metadata key of the plan.
KEY = "graphopt:training"
#: Prefix of outputs that are inputs of the next step: the output ``new.w`` is fed to ``w``.
NEW = "new."
#: The input with the learning rate, a float32 scalar.
RATE = "learning_rate"
_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """The roles of the inputs and outputs of a training step.

    Attributes:
        loss: the output with the loss.
        inputs: inputs to feed at each step.
        outputs: further outputs of the model.
        parameters: inputs that are parameters; each ``w`` has an output ``new.w``.
        statistics: inputs that are running statistics of BatchNormalization; each also has an output
            ``new.*``.
        state: inputs with the state of the optimizer; each also has an output ``new.*``.
        learning_rate: the default learning rate, for the input ``learning_rate``.
        optimizer: name and settings of the optimizer.
        no_decay: parameters without weight decay.
        clip_norm: the maximum global norm of the gradients; ``None`` for no limit.
        accumulate: the number of steps whose gradients are averaged for one update.
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
        """Check untrusted contents; raises ValueError."""
        names = (self.inputs, self.outputs, self.parameters, self.statistics, self.state, self.no_decay)
        if not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in names):
            raise ValueError("not a list of names")
        if not isinstance(self.loss, str) or not isinstance(self.optimizer, dict):
            raise ValueError("the loss is not a name, or the optimizer not an object")
        for number in (self.learning_rate, 0.0 if self.clip_norm is None else self.clip_norm):
            if type(number) not in (int, float) or not 0 <= number < math.inf:
                raise ValueError("not a number, or out of range")
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise ValueError("accumulate is not a positive integer")

    @property
    def carried(self) -> list[str]:
        """The inputs that receive outputs of the previous step."""
        return [*self.parameters, *self.statistics, *self.state]

    @property
    def new(self) -> dict[str, str]:
        """The output of the previous step for each carried input, by name."""
        return {name: NEW + name for name in self.carried}

    def to_dict(self) -> dict[str, Any]:
        """The plan for JSON; the entry ``next`` contains :attr:`new`."""
        return {"version": _VERSION, **asdict(self), "next": self.new}

    def to_json(self) -> str:
        """JSON text in one line."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str | None) -> Plan:
        """Parse the result of :meth:`to_json`.

        Raises:
            UsageError: the text is not a plan, or is ``None``.
        """
        if text is None:
            raise UsageError("the model is not a training step", hint="graphopt train-step writes one")
        try:
            data = json.loads(text)
            version = data.pop("version")
            data.pop("next")
            found = cls(**data)
            found._check()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UsageError(f"the model's metadata {KEY!r} has an unsupported format") from error
        if version != _VERSION:
            raise UsageError(f"the model's metadata {KEY!r} has version {version}, not {_VERSION}")
        return found
