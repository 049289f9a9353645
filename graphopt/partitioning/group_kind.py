"""The interface of kinds of groups, for reports and outlining."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context
from graphopt.partitioning.propose_groups import Partition, Proposal
from graphopt.passes.base import Pass


class Grouping(Protocol):
    """The groups of one kind in one model.

    Attributes:
        proposals: the groups of the main graph, then the groups of bodies, with reasons for ungrouped nodes.
        default_reason: the reason why a node is in a group, unless a proposal has another reason.
    """

    @property
    def proposals(self) -> Sequence[Proposal]: ...

    @property
    def default_reason(self) -> str: ...

    def inputs(self, group: Partition) -> list[ir.Value]:
        """The inputs of ``group``, without constants that no other node reads."""
        ...

    def requires_grad(self, value: ir.Value) -> bool | None:
        """Whether ``value`` requires a gradient; ``None`` for kinds without gradients."""
        ...

    def saved_bytes(self, group: Partition) -> Dim | None:
        """The bytes of memory traffic that ``group`` saves; ``None`` if it is not estimated."""
        ...


class GroupKind(Protocol):
    """A kind of groups.

    Attributes:
        name: the name of the policy.
        domain: the domain of the functions that replace groups.
        outlining_pass: the pass that outlines groups as functions.
    """

    @property
    def name(self) -> str: ...

    @property
    def domain(self) -> str: ...

    @property
    def outlining_pass(self) -> Pass: ...

    def find(self, model: ir.Model, cx: Context) -> Grouping:
        """The groups of ``model``, which is annotated as the policy requires.

        Raises:
            UsageError: an option names an unknown value or scope.
        """
        ...

    def obstacles(self, model: ir.Model) -> dict[str, str]:
        """The groups of ``model`` that later passes inline, with the reasons, by name of the group.

        Args:
            model: a model with a function for each group, which may be modified.
        """
        ...

    def raise_version(self, model: ir.Model, cx: Context) -> None:
        """Raise ``model`` to an IR version with functions, unless :attr:`outlining_pass` raises it."""
        ...
