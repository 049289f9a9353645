"""Gates, which are asked before each rewrite: only so many, only some, or none of some."""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphopt.context import Action, Options


@dataclass(frozen=True, order=True)
class RewriteSite:
    """What a rewrite is known by: the rule or pass, and the node that it rewrites."""

    owner: str
    node: str

    def __str__(self) -> str:
        return f"{self.owner} at {self.node}" if self.node else self.owner

    @classmethod
    def parse(cls, text: str) -> RewriteSite:
        """The place that ``str`` of it reads ``text``."""
        owner, _, node = text.partition(" at ")
        return cls(owner, node)


@dataclass(frozen=True)
class RewriteLimit:
    """What a run may do.

    Attributes:
        first: only so many rewrites.
        only: only rewrites at these places.
        without: no rewrites at these places.
        owners: no rewrites by these rules or passes.
        passes: stop after so many runs of passes.
        skip: passes that do not run.
    """

    first: int | None = None
    only: frozenset[RewriteSite] | None = None
    without: frozenset[RewriteSite] = frozenset()
    owners: frozenset[str] = frozenset()
    passes: int | None = None
    skip: frozenset[str] = frozenset()

    def __call__(self, action: Action) -> bool:
        """Whether ``action`` may be carried out; a gate for :class:`graphopt.context.Context`."""
        place = RewriteSite(action.owner, action.node)
        return (
            (self.first is None or action.index <= self.first)
            and (self.only is None or place in self.only)
            and place not in self.without
            and action.owner not in self.owners
        )

    def applied_to(self, options: Options) -> Options:
        """``options`` in which passes that are skipped do not run, and refused rules do not even try."""
        places = {(place.owner, place.node) for place in self.without}
        everywhere = {(owner, "") for owner in self.owners}
        return replace(options, skip=options.skip | self.skip, refused=options.refused | places | everywhere)
