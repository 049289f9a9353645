"""Steps of pipelines: passes, repetitions, choices and placeholders."""

from __future__ import annotations

from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Fixpoint:
    """Repeats ``steps`` until no step changes the model; at most ``rounds`` times."""

    steps: tuple[Step, ...]
    rounds: int = 10

    def __str__(self) -> str:
        return f"fixpoint({','.join(map(str, self.steps))})"


#: Separates the two paths of ``if-gradient`` in pipeline text.
OTHERWISE = "otherwise"


@dataclass(frozen=True)
class IfGradient:
    """Runs the steps ``then`` if a value is annotated as requiring a gradient, and ``otherwise`` if none is.

    Unknown requirements count as none. Modelled on ``needsGradientInProfilingMode`` of PyTorch's executor.
    """

    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]

    def __str__(self) -> str:
        return f"if-gradient({','.join(map(str, self._parts()))})"

    def _parts(self) -> tuple[Step | str, ...]:
        return (*self.then, OTHERWISE, *self.otherwise)


#: Placeholders for passes of the caller, with the options that fill them.
SLOTS = {"pre-passes": "passes of --pre-pass", "post-passes": "passes of --post-pass"}


@dataclass(frozen=True)
class Slot:
    """A placeholder for passes of the caller, filled by :meth:`Pipeline.filled`."""

    name: str

    def __str__(self) -> str:
        return self.name


Step = Pass | Fixpoint | IfGradient | Slot
