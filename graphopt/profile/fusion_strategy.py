"""Fusion strategies: the number of specializations, and the kind of each.

Modelled on ``FusionStrategy`` of PyTorch's profiling executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from graphopt.errors import UsageError
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.parse_values import parse_natural


class SpecializationKind(Enum):
    """The treatment of the sizes of dims in a specialization."""

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
        """The kind of the next specialization, if ``remaining`` specializations are left, including this one.

        ``remaining`` exceeds :attr:`depth` only if the strategy was changed after ``remaining`` was set; the
        kind is then static.
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
        """Parse ``static:2,dynamic:10``, ``none``, ``always-dynamic`` or ``static-then-dynamic``.

        Raises:
            UsageError: the syntax is invalid.
        """
        name = text.strip().lower()
        if name in NAMED_STRATEGIES:
            return cls(NAMED_STRATEGIES[name])
        try:
            return cls(tuple(_step(*part.split(":")) for part in name.split(",")))
        except (TypeError, ValueError) as error:
            raise UsageError(f"invalid fusion strategy {text!r}", hint=_EXAMPLES) from error

    @classmethod
    def of(cls, strategy: StrategyLike) -> FusionStrategy:
        """``strategy`` itself, its text, or its pairs, such as ``[("STATIC", 2), ("DYNAMIC", 10)]``.

        Raises:
            UsageError: ``strategy`` has none of these forms.
        """
        if isinstance(strategy, str):
            return cls.parse(strategy)
        if isinstance(strategy, FusionStrategy):
            return strategy
        try:
            return cls(tuple(_step(kind, str(count)) for kind, count in strategy))
        except (AttributeError, TypeError, ValueError) as error:
            raise UsageError(f"invalid fusion strategy {strategy!r}", hint=_EXAMPLES) from error


#: Forms of a strategy in arguments; pairs are those of ``torch.jit.set_fusion_strategy``.
StrategyLike = FusionStrategy | str | Sequence[tuple[str, int]]

#: The steps of strategies by name.
NAMED_STRATEGIES = {
    "none": (),
    "always-dynamic": ((SpecializationKind.DYNAMIC, 12),),
    "static-then-dynamic": FusionStrategy().steps,
}
_EXAMPLES = f"examples: static:2,dynamic:10; {', '.join(sorted(NAMED_STRATEGIES))}"


def _step(kind: str, count: str) -> tuple[SpecializationKind, int]:
    return SpecializationKind(kind.strip().lower()), parse_natural(count)
