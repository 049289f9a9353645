"""Select the nodes that a pass visits again in later rounds of a fixpoint.

The effect of a rule or pass at a node depends on operators, operands and readers within a few nodes, and on
facts. A node is visited again if, within :data:`_MAX_DISTANCE` nodes,

- a node before it changed, for any number of readers of the values between them, or
- a node before or after it changed, or lost readers. This search does not visit the readers of a value with
  many readers, because no rule searches for one of many readers.

All nodes are visited if a fact changed or became more precise, since it may concern any node, if the model
has bodies or functions, and if too many nodes changed or are near changes.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.context import Context
from graphopt.util.lazy_dataclass import dataclass

#: Maximum distance, in nodes, between a change and a node that is visited again: more than the number of
#: nodes that any rule inspects.
_MAX_DISTANCE = 32
#: Maximum number of readers of a value that the second search visits.
_MAX_READERS = 16
#: All nodes are visited unless the number of visited nodes is smaller by this factor.
_MIN_SAVING = 2


@dataclass(frozen=True)
class Snapshot:
    """The state of the model at the beginning of a pass.

    Attributes:
        position: the position in the log of edits.
        knowledge: the value of :meth:`graphopt.context.Context.knowledge`.
    """

    position: int
    knowledge: tuple[object, ...]

    @classmethod
    def of(cls, cx: Context) -> Snapshot:
        return cls(cx.edit.log.position, cx.knowledge())

    def changed_nodes(self, cx: Context) -> frozenset[ir.Node] | None:
        """The nodes to visit again; ``None`` for all nodes."""
        if self.knowledge != cx.knowledge() or len(cx.graphs) > 1:
            return None
        changes = cx.edit.log.since(self.position)
        if changes is None:
            return None
        most = len(cx.model.graph) // _MIN_SAVING
        below = _reached(changes.nodes, most, up=False, most_readers=None)
        around = None if below is None else _reached({**below, **changes.freed}, most, up=True)
        return None if around is None else frozenset(around)


def _reached(
    start: Iterable[ir.Node], most: int, *, up: bool, most_readers: int | None = _MAX_READERS
) -> dict[ir.Node, None] | None:
    """The nodes within the maximum distance of ``start``; ``None`` if there are more than ``most``.

    Args:
        start: the first nodes.
        most: limit of the number of nodes.
        up: follow operands, not only readers.
        most_readers: ignore the readers of values with more readers; ``None`` for no limit.
    """
    found: dict[ir.Node, None] = dict.fromkeys(start)
    latest = list(found)
    for _ in range(_MAX_DISTANCE):
        if len(found) > most:
            return None
        near: dict[ir.Node, None] = {}
        for node in latest:
            values = [value for value in node.inputs if value is not None] if up else []
            near.update((producer, None) for value in values if (producer := value.producer()) is not None)
            for value in (*node.outputs, *values):
                if most_readers is None or ir.use_count(value) <= most_readers:
                    near.update(dict.fromkeys(ir.readers(value)))
        latest = [node for node in near if node not in found]
        found.update(dict.fromkeys(latest))
    return found
