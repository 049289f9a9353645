"""Fusion strategies: the number of specializations, and the kind of each.

Modelled on ``FusionStrategy`` of PyTorch's profiling executor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from graphopt.errors import UsageError
from graphopt.util.parse_values import parse_natural


class SpecializationKind(Enum):
    """How a specialization treats the sizes of dims."""

    #: All sizes are fixed to the profiled ones.
    STATIC = "static"
    #: Sizes that varied become symbols; equal sizes share a symbol.
    DYNAMIC = "dynamic"


@dataclass(frozen=True)
class FusionStrategy:
    """The number and the kinds of the specializations to create, in order.

    Attributes:
        steps: pairs of a kind and a number of specializations.
    """

    steps: tuple[tuple[SpecializationKind, int], ...] = (
        (SpecializationKind.STATIC, 2),
        (SpecializationKind.DYNAMIC, 10),
    )

    @property
    def depth(self) -> int:
        """The total number of specializations."""
        return sum(count for _, count in self.steps)

    def kind(self, remaining: int) -> SpecializationKind:
        """The kind of the next specialization, with ``remaining`` of them left, this one included.

        ``remaining`` exceeds :attr:`depth` only if the strategy was changed since; the kind is then static.
        """
        left = 0
        for kind, count in reversed(self.steps):
            left += count
            if remaining <= left:
                return kind
        return SpecializationKind.STATIC

    def __str__(self) -> str:
        return ",".join(f"{kind.value}:{count}" for kind, count in self.steps) or "none"

    @classmethod
    def parse(cls, text: str) -> FusionStrategy:
        """Parse ``static:2,dynamic:10``, or ``none``.

        Raises:
            UsageError: the syntax is invalid.
        """
        if text.strip().lower() == "none":
            return cls(())
        steps = []
        for part in map(str.strip, text.split(",")):
            word, _, count = part.partition(":")
            try:
                steps.append((SpecializationKind(word.strip().lower()), parse_natural(count)))
            except ValueError as error:
                raise UsageError(
                    f"invalid fusion strategy {text!r}",
                    hint="examples: static:2,dynamic:10, or none",
                ) from error
        return cls(tuple(steps))
