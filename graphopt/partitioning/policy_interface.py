"""The interface of policies, which assign a role to each node."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from graphopt import ir


class Role(Enum):
    """The role of a node in grouping.

    A ``PASSTHROUGH`` node, such as one that computes sizes, does not justify a group, but is included if it
    is between members of a group.
    """

    MEMBER = "member"
    PASSTHROUGH = "pass-through"
    BOUNDARY = "boundary"


class Decision(NamedTuple):
    """The role of a node, and the reason why it is not a member."""

    role: Role
    reason: str = ""


class Policy(Protocol):
    """Selects the nodes that may be in a group of some kind.

    Attributes:
        kind: the name of the kind.
        minimum: the minimum :meth:`size` of a group.
    """

    @property
    def kind(self) -> str: ...

    @property
    def minimum(self) -> int: ...

    def decide(self, node: ir.Node) -> Decision:
        """The role of ``node``."""
        ...

    def is_ordered(self, node: ir.Node) -> bool:
        """Whether ``node`` has side effects whose order must be preserved."""
        ...

    def size(self, nodes: Sequence[ir.Node]) -> int:
        """The size of a group of ``nodes``; need not be exact above :attr:`minimum`."""
        ...
