"""A log of the latest edits: nodes with changed operands or attributes, and values that lost readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.value_uses import only_reader, readers
from graphopt.util.lazy_dataclass import dataclass

#: Maximum number of entries. After more edits, nearly all of a model is near an edit.
_MAX_ENTRIES = 4096
#: Maximum number of remaining readers that are added for a value without a producer.
_MAX_READERS = 16


@dataclass(frozen=True)
class Changes:
    """The nodes that some edits concern; all of them are still in graphs.

    Attributes:
        nodes: inserted nodes, and nodes with changed operands, attributes or outputs.
        freed: for each value that lost a reader, its producer, and its reader if only one remains; without a
            producer, the remaining readers.
    """

    nodes: dict[onnx_ir.Node, None]
    freed: dict[onnx_ir.Node, None]


class ChangeLog:
    """The latest edits of a model.

    Attributes:
        position: the number of entries so far, including those that were discarded.
    """

    def __init__(self) -> None:
        self.position = 0
        self._entries: deque[onnx_ir.Node | onnx_ir.Value] = deque(maxlen=_MAX_ENTRIES)

    def changed(self, nodes: Iterable[onnx_ir.Node]) -> None:
        """Record ``nodes``, which were inserted or have other operands, attributes or outputs."""
        for node in nodes:
            self._entries.append(node)
            self.position += 1

    def freed(self, values: Iterable[onnx_ir.Value | None]) -> None:
        """Record ``values``, which lost a reader."""
        for value in values:
            if value is not None:
                self._entries.append(value)
                self.position += 1

    def changed_anywhere(self) -> None:
        """Record an edit that may concern all nodes."""
        self.position += _MAX_ENTRIES + 1
        self._entries.clear()

    def since(self, position: int) -> Changes | None:
        """The edits after ``position``; ``None`` if they may concern all nodes, or are too many."""
        count = self.position - position
        if count > len(self._entries):
            return None
        nodes: dict[onnx_ir.Node, None] = {}
        freed: dict[onnx_ir.Node, None] = {}
        for index in range(len(self._entries) - count, len(self._entries)):
            entry = self._entries[index]
            if isinstance(entry, onnx_ir.Node):
                nodes[entry] = None
                continue
            producer = entry.producer()
            # no producer connects an input or an initializer with its readers
            near = (
                islice(readers(entry), _MAX_READERS) if producer is None else [producer, only_reader(entry)]
            )
            freed.update((node, None) for node in near if node is not None)
        return Changes(_in_graphs(nodes), _in_graphs(freed))


def _in_graphs(nodes: Iterable[onnx_ir.Node]) -> dict[onnx_ir.Node, None]:
    return {node: None for node in nodes if node.graph is not None}
