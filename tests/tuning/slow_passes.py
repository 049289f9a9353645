"""Passes that cost time, or have no effect on it, for tests of tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass


@dataclass(frozen=True)
class Slow(Pass):
    """Insert a long chain of maxima of the input with itself before each Relu."""

    name: ClassVar[str] = "slow"
    times: int = 60

    def run(self, model: ir.Model, cx: Context) -> None:
        """Slow down each Relu once."""
        for node in list(model.graph):
            if node.op_type == "Relu" and (action := cx.begin_rewrite(self.name, node)):
                made, value = [], node.inputs[0]
                for _ in range(self.times):
                    made.append(cx.edit.make_node("Max", [value, node.inputs[0]], name="idle"))
                    value = made[-1].outputs[0]
                cx.edit.insert_before(node, made)
                cx.edit.set_input(node, 0, value)
                cx.end_rewrite(action, node, made)


@dataclass(frozen=True)
class Idle(Pass):
    """Insert an Identity before each Relu, which onnxruntime removes."""

    name: ClassVar[str] = "idle"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Do it once for each Relu."""
        for node in list(model.graph):
            if node.op_type == "Relu" and (action := cx.begin_rewrite(self.name, node)):
                made = cx.edit.make_node("Identity", [node.inputs[0]], name="idle")
                cx.edit.insert_before(node, [made])
                cx.edit.set_input(node, 0, made.outputs[0])
                cx.end_rewrite(action, node, [made])
