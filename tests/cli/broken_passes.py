"""Passes that do harm, for tests of the checks that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import annotate


@dataclass(frozen=True)
class ReluToSigmoid(Pass):
    """Replace each Relu by a Sigmoid, which computes something else."""

    name: ClassVar[str] = "relu-to-sigmoid"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Do the damage."""
        for node in list(model.graph):
            if node.op_type == "Relu" and (action := cx.begin_rewrite(self.name, node)):
                made = cx.edit.make_node("Sigmoid", node.inputs, name="wrong")
                cx.edit.insert_before(node, [made])
                cx.edit.replace(node.outputs[0], made.outputs[0])
                cx.edit.remove(node)
                cx.end_rewrite(action, node, [made])


@dataclass(frozen=True)
class RenameInput(Pass):
    """Rename the first input, which breaks callers."""

    name: ClassVar[str] = "rename-input"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Do the damage."""
        cx.edit.rename(model.graph.inputs[0], "renamed")


@dataclass(frozen=True)
class Unsort(Pass):
    """Move the last node to the front, before its operands."""

    name: ClassVar[str] = "unsort"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Do the damage."""
        last = list(model.graph)[-1]
        model.graph.remove(last)
        model.graph.insert_before(model.graph[0], last)
        cx.edit.resync("moved")


@dataclass(frozen=True)
class Crash(Pass):
    """Raise an error that nobody expects."""

    name: ClassVar[str] = "crash"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Raise it."""
        raise ZeroDivisionError("division by zero")


class RemoveIdentities(onnx_ir.passes.InPlacePass):
    """A sound pass of onnx-ir's kind."""

    def call(self, model: onnx_ir.Model) -> onnx_ir.passes.PassResult:
        """Redirect readers of an Identity to its input."""
        removed = 0
        for node in list(model.graph):
            if node.op_type == "Identity" and not node.outputs[0].is_graph_output():
                node.outputs[0].replace_all_uses_with(node.inputs[0])
                model.graph.remove(node, safe=True)
                removed += 1
        return onnx_ir.passes.PassResult(model, removed > 0)


class Copy(onnx_ir.passes.FunctionalPass):
    """A pass of onnx-ir's kind that returns another model."""

    def call(self, model: onnx_ir.Model) -> onnx_ir.passes.PassResult:
        """Return a copy."""
        return onnx_ir.passes.PassResult(model.clone(), True)


class Fail(onnx_ir.passes.InPlacePass):
    """A pass of onnx-ir's kind that fails."""

    def call(self, model: onnx_ir.Model) -> onnx_ir.passes.PassResult:
        """Fail."""
        raise KeyError("missing")


@dataclass(frozen=True)
class NoteColumns(Pass):
    """Annotate the first input with a profiled size of 4 columns, without a profile."""

    name: ClassVar[str] = "note-columns"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Note it."""
        annotate(model, {model.graph.inputs[0].name or "": ValueProfile("tensor(float)", ("s0", 4))})
