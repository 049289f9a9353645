"""The layouts that the nodes of an operator support: the interface of the tables of operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from graphopt import ir
from graphopt.rewrite import Builder, Match
from graphopt.transforms.layout._permutations import Perm, Placement

Inputs = Sequence[ir.Value | None]


class Operator(ABC):
    """The layouts that nodes of an operator support.

    Attributes:
        exact: whether every layout gives the same bits.
    """

    exact: bool = True

    @abstractmethod
    def reads(self, m: Match, node: ir.Node) -> Sequence[int]:
        """The indices of the inputs whose layout changes."""

    @abstractmethod
    def placement(self, m: Match, node: ir.Node, perm: Perm, *, given: str) -> Placement | None:
        """The layouts of ``node`` if its inputs or its results have layout ``perm``; ``None`` if impossible.

        Args:
            given: ``read`` or ``result``.
        """

    @abstractmethod
    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        """Build ``node`` in the layouts ``at``; inputs in ``reads`` have that layout, others their own."""

    def penalty(self, m: Match, node: ir.Node, at: Placement) -> int:
        """The number of passes over the data that the layout ``at`` costs in the kernel itself."""
        return 0


class SameRank(Operator):
    """Operators whose data inputs and results have one rank and one layout."""

    def placement(self, m: Match, node: ir.Node, perm: Perm, *, given: str) -> Placement | None:
        return Placement(perm, perm) if self.fits(m, node, perm) else None

    @abstractmethod
    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        """Whether ``node`` can be computed in layout ``perm``."""
