"""How closely a specialization keeps to what was seen, one after the other.

The seed is ``FusionStrategy`` of PyTorch's profiling executor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from graphopt.errors import UsageError
from graphopt.util.coerce import parse_natural


class Behaviour(Enum):
    """What a specialization assumes of sizes."""

    #: All are as they were.
    STATIC = "static"
    #: Those that varied are symbols, and equal ones share a symbol.
    DYNAMIC = "dynamic"


@dataclass(frozen=True)
class FusionStrategy:
    """How many specializations are made, and how closely each keeps to what was seen.

    Attributes:
        steps: behaviours, each with the number of specializations that follow it.
    """

    steps: tuple[tuple[Behaviour, int], ...] = ((Behaviour.STATIC, 2), (Behaviour.DYNAMIC, 10))

    @property
    def depth(self) -> int:
        """How many specializations are made before all runs take the general model."""
        return sum(count for _, count in self.steps)

    def behaviour(self, remaining: int) -> Behaviour:
        """What the next specialization assumes, with ``remaining`` of them left, this one included.

        More than :attr:`depth` can only be left if the strategy was changed meanwhile; it is static then.
        """
        left = 0
        for behaviour, count in reversed(self.steps):
            left += count
            if remaining <= left:
                return behaviour
        return Behaviour.STATIC

    def __str__(self) -> str:
        return ",".join(f"{behaviour.value}:{count}" for behaviour, count in self.steps) or "none"

    @classmethod
    def parse(cls, text: str) -> FusionStrategy:
        """Read ``static:2,dynamic:10``, or ``none``.

        Raises:
            UsageError: it is not of that form.
        """
        if text.strip().lower() == "none":
            return cls(())
        steps = []
        for part in map(str.strip, text.split(",")):
            word, _, count = part.partition(":")
            try:
                steps.append((Behaviour(word.strip().lower()), parse_natural(count)))
            except ValueError as error:
                raise UsageError(
                    f"can't read the fusion strategy {text!r}",
                    hint="write it like static:2,dynamic:10, or none",
                ) from error
        return cls(tuple(steps))
