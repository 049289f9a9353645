"""A rewrite that is built, but not in the graph yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graphopt import ir


class ProposedRewrite(NamedTuple):
    """The replacement of one node.

    Attributes:
        root: the node, which is removed.
        values: the replacements of its outputs; ``None`` for an output without readers.
        matched: nodes that are removed if they become unused.
        made: nodes to be inserted.
        is_followed_by_workaround: whether a :attr:`~graphopt.rewrite.rule.Rule.workaround` runs later.
    """

    root: ir.Node
    values: Sequence[ir.Value | None]
    matched: Sequence[ir.Node] = ()
    made: Sequence[ir.Node] = ()
    is_followed_by_workaround: bool = False

    def replacements(self) -> dict[ir.Value, ir.Value]:
        """The replaced values, with their replacements."""
        pairs = zip(self.root.outputs, self.values, strict=False)
        return {old: new for old, new in pairs if new is not None and new is not old}
