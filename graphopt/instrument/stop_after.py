"""stop-after: allow only so many changes, to find the first one that does harm."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.context import Action


@dataclass
class StopAfter:
    """A gate for :class:`graphopt.context.Context` that lets the first ``limit`` changes pass.

    Attributes:
        limit: how many changes are made.
        last: the last one that was made.
        first_denied: the first one that was not.
    """

    limit: int
    last: Action | None = None
    first_denied: Action | None = None

    def __call__(self, action: Action) -> bool:
        """Whether ``action`` may be carried out."""
        if action.index <= self.limit:
            self.last = action
            return True
        self.first_denied = self.first_denied or action
        return False
