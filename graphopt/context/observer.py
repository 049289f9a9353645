"""Observers of rewrites, refusals and remarks."""

from __future__ import annotations

from collections.abc import Callable

from graphopt import ir
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Action:
    """One change that a pass is about to make.

    Attributes:
        index: its number in the run, from 1.
        owner: the rule or pass that requests it.
        node: the name of the rewritten node.
    """

    index: int
    owner: str
    node: str


@dataclass(frozen=True)
class Refusal:
    """The reason why a rule did not rewrite a site that its pattern matches.

    Attributes:
        value: the name of the value that prevents the rewrite.
        hint: the next step for the user.
        shared: whether the reason is that other nodes read the value.
    """

    rule: str
    node: str
    reason: str
    value: str | None = None
    hint: str | None = None
    shared: bool = False


class Observer:
    """Observes a run without changing it; a subclass overrides the methods that it needs."""

    def rewrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        """``action`` replaced ``root`` by the nodes ``made``."""

    def refused(self, refusal: Refusal) -> None:
        """A rule matched a site, but did not rewrite it."""

    def said(self, owner: str, message: Callable[[], str]) -> None:
        """A pass or rule has a remark; the text is computed only if ``message`` is called."""
