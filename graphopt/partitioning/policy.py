"""What a policy says of single nodes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from graphopt import ir


class Role(Enum):
    """Where a node may stand.

    ``ALONG`` is for nodes that are no reason for a group, but no obstacle either, such as those that compute
    sizes: they are in a group where they lie between others of it.
    """

    MEMBER = "inside"
    PASSTHROUGH = "along"
    BOUNDARY = "outside"


class Decision(NamedTuple):
    """Where a node may stand, and why not inside."""

    place: Role
    reason: str = ""


class Policy(Protocol):
    """Which nodes may be in a group of some kind.

    Attributes:
        kind: what the groups are for, in one word.
        minimum: how many nodes a group has at least.
    """

    @property
    def kind(self) -> str: ...

    @property
    def minimum(self) -> int: ...

    def decide(self, node: ir.Node) -> Decision:
        """Where ``node`` may stand."""
        ...

    def is_ordered(self, node: ir.Node) -> bool:
        """Whether ``node`` and all others of which this is so have to run in their order."""
        ...

    def size(self, nodes: Sequence[ir.Node]) -> int:
        """How many nodes a group of ``nodes`` counts as; what is above :attr:`minimum` need not be exact."""
        ...
