"""What groups of one kind are, for whoever shows and writes them without knowing what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context
from graphopt.partitioning.propose import Partition, Proposal
from graphopt.passes.base import Pass


class Grouping(Protocol):
    """The groups of one kind in one model.

    Attributes:
        proposals: the groups of the main graph, then those of bodies, and why other nodes are in none.
        because: why a node is in a group, where nothing else is known.
    """

    @property
    def proposals(self) -> Sequence[Proposal]: ...

    @property
    def default_reason(self) -> str: ...

    def inputs(self, group: Partition) -> list[ir.Value]:
        """What goes into ``group``, without constants that it has to itself."""
        ...

    def requires_grad(self, value: ir.Value) -> bool | None:
        """Whether a gradient of ``value`` is wanted; ``None`` where nobody asks for gradients."""
        ...

    def saved(self, group: Partition) -> Dim | None:
        """The bytes that ``group`` reads and writes less than its nodes; ``None`` if that is not told."""
        ...


class GroupKind(Protocol):
    """What groups are for.

    Attributes:
        name: of the policy.
        domain: that of the functions that groups become.
        made_by: the pass that makes them.
    """

    @property
    def name(self) -> str: ...

    @property
    def domain(self) -> str: ...

    @property
    def outlining_pass(self) -> Pass: ...

    def find(self, model: ir.Model, cx: Context) -> Grouping:
        """The groups of ``model``, on which what the policy has to know is noted.

        Raises:
            UsageError: something that was named is not there.
        """
        ...

    def raise_version(self, model: ir.Model, cx: Context) -> None:
        """Raise ``model`` to a version of the IR that has functions, if :attr:`made_by` does not do so."""
        ...
