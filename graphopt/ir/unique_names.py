"""Unique names of the values and nodes of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.nested_graphs import graphs_of


class TakenNames:
    """The names in use by values and nodes of a model, including all bodies and functions.

    ONNX requires the name of a value to be unique in its graph and the enclosing graphs; graphopt keeps it
    unique in the model, so that bodies can be moved and inlined.
    """

    def __init__(self, model: onnx_ir.Model) -> None:
        self._values: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()
        self._suffixes: Counter[str] = Counter()
        self._stems: dict[str, str] = {}
        for graph in graphs_of(model):
            inputs = dict.fromkeys(_names(graph.inputs))
            self._values.update(inputs.keys())
            self._values.update(name for name in graph.initializers if name not in inputs)
            for node in graph:
                self._nodes[node.name or ""] += 1
                self._values.update(_names(node.outputs))

    def reserve_value(self, hint: str) -> str:
        """Reserve an unused value name: ``hint``, or ``hint_1`` and so on."""
        return self._unused_name(hint, self._values)

    def reserve_node(self, hint: str) -> str:
        """Reserve an unused node name."""
        return self._unused_name(hint, self._nodes)

    def free_values(self, values: Iterable[onnx_ir.Value]) -> None:
        """Release the names of ``values``."""
        for name in _names(values):
            self._free(name, self._values)

    def free_node(self, node: onnx_ir.Node) -> None:
        """Release the names of ``node`` and of its outputs."""
        self._free(node.name or "", self._nodes)
        self.free_values(node.outputs)

    def is_shared(self, value: onnx_ir.Value) -> bool:
        """Whether another value of the model has the name of ``value``."""
        return self._values[value.name or ""] > 1

    def _unused_name(self, hint: str, taken: Counter[str]) -> str:
        """``hint`` if unused; otherwise its stem with a new number instead of one appended earlier."""
        name = hint
        if taken[name]:
            stem = self._stems.get(hint, hint)
            while taken[name]:
                self._suffixes[stem] += 1
                name = f"{stem}_{self._suffixes[stem]}"
            self._stems[name] = stem
        taken[name] += 1
        return name

    def _free(self, name: str, taken: Counter[str]) -> None:
        count = taken.get(name, 0) - 1
        if count > 0:
            taken[name] = count
            return
        taken.pop(name, None)
        if name in self._stems and name not in self._values and name not in self._nodes:
            del self._stems[name]


def _names(values: Iterable[onnx_ir.Value]) -> list[str]:
    return [value.name for value in values if value.name]
