"""Filters of rewrites, by number, site or rule, for bisection, repair and ``--stop-after``."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from graphopt.context import Action, Options
from graphopt.util.lazy_dataclass import dataclass


@dataclasses.dataclass(frozen=True, order=True)
class RewriteSite:
    """The identity of a rewrite: the rule or pass, and the name of the node."""

    owner: str
    node: str

    def __str__(self) -> str:
        return f"{self.owner} at {self.node}" if self.node else self.owner

    @classmethod
    def parse(cls, text: str) -> RewriteSite:
        """The inverse of ``str``."""
        owner, _, node = text.partition(" at ")
        return cls(owner, node)


@dataclass(frozen=True)
class RewriteLimit:
    """The rewrites that a run may make.

    Attributes:
        first: the number of rewrites allowed; ``None`` for any number.
        only: the only sites allowed; ``None`` for all.
        without: blocked sites.
        owners: blocked rules and passes.
        passes: the number of passes after which the run ends.
        skip: passes that do not run.
    """

    first: int | None = None
    only: frozenset[RewriteSite] | None = None
    without: frozenset[RewriteSite] = frozenset()
    owners: frozenset[str] = frozenset()
    passes: int | None = None
    skip: frozenset[str] = frozenset()

    def __call__(self, action: Action) -> bool:
        """Whether ``action`` is allowed; a gate of :class:`graphopt.context.Context`."""
        site = RewriteSite(action.owner, action.node)
        return (
            (self.first is None or action.index <= self.first)
            and (self.only is None or site in self.only)
            and site not in self.without
            and action.owner not in self.owners
        )

    def applied_to(self, options: Options) -> Options:
        """``options`` with the skipped passes and the blocked sites and rules added."""
        sites = {(site.owner, site.node) for site in self.without}
        everywhere = {(owner, "") for owner in self.owners}
        return replace(options, skip=options.skip | self.skip, refused=options.refused | sites | everywhere)
