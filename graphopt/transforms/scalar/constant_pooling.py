"""constant-pooling: deduplication of constants."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass

#: Number of leading elements that are compared before tensors are read completely.
_HEAD = 256
#: Key in ``tensor.meta``: the result of :func:`_likeness`.
_LIKENESS = "graphopt.likeness"


@dataclass(frozen=True)
class ConstantPooling(Pass):
    """Deduplicate constants: equal constants of one graph share one initializer or Constant node.

    Graphs are processed one by one: onnxruntime treats a weight of an outer graph as a variable inside a
    body, and would not prepack it. Only tensors with equal beginnings are read completely.
    """

    name: ClassVar[str] = "constant-pooling"
    proven_exact: ClassVar[bool] = True
    tags: ClassVar[tuple[str, ...]] = (
        "onnxslim:weight-tying",
        "onnxoptimizer:eliminate_duplicate_initializer",
        "onnxruntime:ConstantSharing",
    )

    def run(self, model: ir.Model, cx: Context) -> None:
        """Merge equal constants, graph by graph."""
        for graph in cx.graphs:
            for values in _grouped(_constants(graph), _likeness):
                for equal in _grouped(values, _contents):
                    self._merge(equal, cx)

    def _merge(self, values: list[ir.Value], cx: Context) -> None:
        kept, gone = values[0], []
        for value in values[1:]:
            users = value.uses()
            if value.is_graph_output() or not users:
                continue
            reader = next(iter(users)).node
            action = cx.begin_rewrite(self.name, reader)
            if action is None:
                continue
            gone.append(value)
            cx.edit.replace(value, kept)
            producer = value.producer()
            if producer is not None:
                cx.edit.remove(producer)
            else:
                cx.edit.remove_initializer(value)
            cx.end_rewrite(action, reader, [])
        if gone and (record := ir.read_record_of(cx.model)) is not None:
            record.merge(kept, gone)


def _grouped(values: list[ir.Value], key: Callable[[ir.TensorProtocol], Hashable]) -> list[list[ir.Value]]:
    """The groups of at least two constants with equal ``key``."""
    groups: dict[Hashable, list[ir.Value]] = {}
    for value in values:
        tensor = ir.constant_of(value)
        if tensor is not None:
            groups.setdefault(key(tensor), []).append(value)
    return [group for group in groups.values() if len(group) > 1]


def _likeness(tensor: ir.TensorProtocol) -> Hashable:
    """A key that is equal for equal tensors, computed once from only the beginning of their contents."""
    known: Hashable = tensor.meta.get(_LIKENESS)
    if known is None:
        head = b""
        if tensor.dtype != ir.DataType.STRING and tensor.dtype.bitwidth >= 8:
            head = tensor.numpy().reshape(-1)[:_HEAD].tobytes()
        known = tensor.meta[_LIKENESS] = tensor.dtype, tuple(tensor.shape.numpy()), head
    return known


def _contents(tensor: ir.TensorProtocol) -> Hashable:
    return ir.hash_of(tensor)


def _constants(graph: ir.Graph) -> list[ir.Value]:
    """Initializers and outputs of Constant nodes of ``graph``, in order."""
    nodes = [node.outputs[0] for node in graph if node.op_type == "Constant" and node.domain == ""]
    return [*graph.initializers.values(), *nodes]
