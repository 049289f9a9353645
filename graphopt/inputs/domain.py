"""Bounds on the values of an input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: An input that is compared with more constants than this is no switch.
MOST_CHOICES = 64


@dataclass(frozen=True)
class Domain:
    """Bounds on the elements of an input; ``None`` where there are none.

    Attributes:
        low, high: inclusive.
        below: symbols of dims (and sizes) that elements must stay below.
        choices: telling values, such as those that the graph compares with.
        only_choices: nothing but ``choices`` makes sense (the keys of an encoder).
        integral: a float input that is cast to integers and used as such.
        from_end: negative values count from the end, as indices do.
        known: some use says what the values mean.
        pattern: ``axes`` are 0, 1, 2 …; a ``reshape`` target is -1, 1, 1 …, which suits any data.
    """

    low: float | None = None
    high: float | None = None
    below: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    only_choices: bool = False
    integral: bool = False
    from_end: bool = False
    known: bool = False
    pattern: Literal["", "axes", "reshape"] = ""

    def meet(self, other: Domain) -> Domain:
        """What satisfies both."""
        lows = [bound for bound in (self.low, other.low) if bound is not None]
        highs = [bound for bound in (self.high, other.high) if bound is not None]
        choices = tuple(dict.fromkeys((*self.choices, *other.choices)))
        return Domain(
            max(lows, default=None),
            min(highs, default=None),
            tuple(dict.fromkeys((*self.below, *other.below))),
            choices if len(choices) <= MOST_CHOICES or self.only_choices else (),
            self.only_choices or other.only_choices,
            self.integral or other.integral,
            self.from_end and other.from_end,
            self.known or other.known,
            self.pattern or other.pattern,
        )
