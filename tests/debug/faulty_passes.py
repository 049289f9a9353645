"""Passes that rewrite every node, one of them wrongly: faults that bisect must find.

Each copies every node of the graph, with one rewrite per node. One rewrite is faulty.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass

BRANCHES = 36


def big_model() -> onnx.ModelProto:
    """More than 200 nodes: branches of Softmax((x @ w · a · b) - x), summed up one after the other."""
    generator = np.random.default_rng(0)
    initializers, nodes, total = [], [], "x"
    for i in range(BRANCHES):
        for name, array in (
            (f"w_{i}", generator.standard_normal((8, 8)).astype(np.float32) / 3),
            (f"a_{i}", np.float32(1.0 + i / 64)),
            (f"b_{i}", np.float32(1.5)),
        ):
            initializers.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        last = "y" if i == BRANCHES - 1 else f"sum_{i}"
        nodes += [
            oh.make_node("MatMul", ["x", f"w_{i}"], [f"m_{i}"], name=f"matmul_{i}"),
            oh.make_node("Mul", [f"m_{i}", f"a_{i}"], [f"p_{i}"], name=f"first_{i}"),
            oh.make_node("Mul", [f"p_{i}", f"b_{i}"], [f"q_{i}"], name=f"second_{i}"),
            oh.make_node("Sub", [f"q_{i}", "x"], [f"d_{i}"], name=f"sub_{i}"),
            oh.make_node("Softmax", [f"d_{i}"], [f"s_{i}"], name=f"softmax_{i}", axis=-1),
            oh.make_node("Add", [total, f"s_{i}"], [last], name=f"add_{i}"),
        ]
        total = last
    x = oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 8])
    y = oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 8])
    graph = oh.make_graph(nodes, "branches", [x], [y], initializers)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)


@dataclass(frozen=True)
class FaultyCopy(Pass):
    """Copies every node, one of them wrongly."""

    name: ClassVar[str] = "sound-copy"
    guilty: ClassVar[str] = ""

    def owner(self, node: ir.Node) -> str:
        """The name of the rewrite of ``node``."""
        return self.name

    def run(self, model: ir.Model, cx: Context) -> None:
        """Rewrite every node once."""
        for node in list(model.graph):
            action = cx.begin_rewrite(self.owner(node), node)
            if action is None:
                continue
            if ir.label(node) in self.guilty.split():
                made = self.harm(node, model, cx)
            else:
                made = replace(node, cx, node.op_type, node.inputs)
            cx.end_rewrite(action, node, made)

    @abstractmethod
    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        """The wrong rewrite."""


def replace(
    node: ir.Node, cx: Context, op_type: str, inputs: object, attributes: object = None
) -> list[ir.Node]:
    """Replace ``node`` by a new node."""
    given = node.attributes.values() if attributes is None else attributes
    made = cx.edit.make_node(op_type, list(inputs), given, name=node.name or "")  # type: ignore[call-overload, arg-type]
    return put(node, cx, [made])


def put(node: ir.Node, cx: Context, made: list[ir.Node]) -> list[ir.Node]:
    """Replace ``node`` by ``made``, whose last node computes the result."""
    name = node.name
    cx.edit.insert_before(node, made)
    old, new = node.outputs[0], made[-1].outputs[0]
    was_output = old.is_graph_output()
    cx.edit.replace(old, new)
    if not was_output:
        cx.edit.transfer_name(new, old)
    cx.edit.remove(node)
    made[-1].name = name
    return made


def before(node: ir.Node, cx: Context, op_type: str, *more: ir.Value, **attributes: object) -> list[ir.Node]:
    """Insert a node between ``node`` and its first input."""
    made = cx.edit.make_node(op_type, [node.inputs[0], *more], attributes, name=f"{node.name}_extra")
    cx.edit.insert_before(node, [made])
    cx.edit.set_input(node, 0, made.outputs[0])
    return [made]


def constant(node: ir.Node, cx: Context, array: object) -> ir.Value:
    """A new constant."""
    assert node.graph is not None
    return cx.edit.constant(node.graph, np.asarray(array), "planted")


class WrongConstant(FaultyCopy):
    """A factor that is a little off."""

    name = "wrong-constant"
    guilty = "first_11"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        return replace(node, cx, "Mul", [node.inputs[0], constant(node, cx, np.float32(1.3))])


@dataclass(frozen=True)
class WrongFactor(FaultyCopy):
    """A factor with a given error, by default none."""

    name = "wrong-factor"
    guilty = "first_11"
    factor: float = 1.0

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        scale = constant(node, cx, np.float32(self.factor * (1 + 11 / 64)))
        return replace(node, cx, "Mul", [node.inputs[0], scale])


class SwappedInputs(FaultyCopy):
    """a - b becomes b - a."""

    name = "swapped-inputs"
    guilty = "sub_20"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        return replace(node, cx, "Sub", node.inputs[::-1])


class LostOutput(FaultyCopy):
    """The output has another name."""

    name = "lost-output"
    guilty = f"add_{BRANCHES - 1}"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        cx.edit.rename(model.graph.outputs[0], "renamed")
        return []


class OtherDtype(FaultyCopy):
    """A float32 value becomes float16, which its readers do not accept."""

    name = "other-dtype"
    guilty = "sub_7"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        return before(node, cx, "Cast", to=int(onnx.TensorProto.FLOAT16))


class Cycle(FaultyCopy):
    """A node reads a value that depends on its own result."""

    name = "cycle"
    guilty = "sub_13"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        reader = next(iter(node.outputs[0].uses())).node
        cx.edit.set_input(node, 1, reader.outputs[0])
        return []


class MakesNan(FaultyCopy):
    """Logarithms of numbers below 0."""

    name = "makes-nan"
    guilty = "softmax_2"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        return before(node, cx, "Log")


class Grows(FaultyCopy):
    """A large table is added, and one row of zeros is read."""

    name = "grows"
    guilty = "add_30"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        table = constant(node, cx, np.zeros((50_000, 8), np.float32))
        row = cx.edit.make_node("Gather", [table, constant(node, cx, np.int64(0))], {"axis": 0}, name="row")
        cx.edit.insert_before(node, [row])
        return [row, *before(node, cx, "Add", row.outputs[0])]


class Slow(FaultyCopy):
    """A detour over matrices that are 256 times as wide."""

    name = "slow"
    guilty = "softmax_9"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        wide = np.eye(8, 2048, dtype=np.float32)
        first = before(node, cx, "MatMul", constant(node, cx, wide))
        return [*first, *before(node, cx, "MatMul", constant(node, cx, wide.T.copy()))]


class OneShapeOnly(FaultyCopy):
    """Adds something where the first dim has size 1, and only there."""

    name = "one-shape-only"
    guilty = "add_25"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        edit = cx.edit
        shape = edit.make_node("Shape", [node.inputs[0]], {"end": 1}, name=f"{node.name}_extra")
        equal = edit.make_node(
            "Equal", [shape.outputs[0], constant(node, cx, np.array([1], np.int64))], name="extra"
        )
        cast = edit.make_node(
            "Cast", [equal.outputs[0]], {"to": int(onnx.TensorProto.FLOAT)}, name=f"{node.name}_extra"
        )
        edit.insert_before(node, [shape, equal, cast])
        return [shape, equal, cast, *before(node, cx, "Add", cast.outputs[0])]


class FlipFirst(FaultyCopy):
    """A sign that is wrong."""

    name = "flip-first"
    guilty = "first_5"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        return before(node, cx, "Neg")


class FlipSecond(FlipFirst):
    """Another wrong sign, which compensates :class:`FlipFirst`."""

    name = "flip-second"
    guilty = "second_5"


class FlipBoth(FlipFirst):
    """The same by two independent rules."""

    name = "flip-both"
    guilty = "first_5 second_5"

    def owner(self, node: ir.Node) -> str:
        return {"first_5": "rule-a", "second_5": "rule-b"}.get(ir.label(node), self.name)


class Together(FaultyCopy):
    """A rewrite that is wrong only together with another rewrite."""

    name = "together"
    guilty = "sub_3 sub_28"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        if ir.label(node) == "sub_28" and model.graph.meta.get("first made"):
            return before(node, cx, "Neg")
        model.graph.meta["first made"] = True
        return []


class Fails(FaultyCopy):
    """An exception at one node."""

    name = "fails"
    guilty = "second_22"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        raise ZeroDivisionError("nothing to divide by")


class CanNotBeWritten(FaultyCopy):
    """An attribute whose contents are not of its type."""

    name = "can-not-be-written"
    guilty = "softmax_4"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        wrong = ir.Attr("extra", ir.AttributeType.TENSOR, "no tensor")
        return replace(node, cx, "Softmax", node.inputs, [*node.attributes.values(), wrong])


@dataclass(frozen=True)
class NeverEnds(Pass):
    """Rewrites without end."""

    name: ClassVar[str] = "never-ends"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Do so."""
        node = next(iter(model.graph))
        while (action := cx.begin_rewrite(self.name, node)) is not None:
            cx.end_rewrite(action, node, [])


class Dies(FaultyCopy):
    """The process ends at one node."""

    name = "dies"
    guilty = "second_23"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        os.abort()


class WrongAttribute(FaultyCopy):
    """Softmax along another axis."""

    name = "wrong-attribute"
    guilty = "softmax_33"

    def harm(self, node: ir.Node, model: ir.Model, cx: Context) -> list[ir.Node]:
        return replace(node, cx, "Softmax", node.inputs, ir.make_attributes({"axis": 0}))


class ManyWrong(FaultyCopy):
    """More wrong factors than are dropped one by one."""

    name = "many-wrong"
    guilty = " ".join(f"first_{i}" for i in range(BRANCHES))
    harm = WrongConstant.harm


@dataclass(frozen=True)
class Unasked(Pass):
    """Swaps the inputs of a Sub outside of rewrites."""

    name: ClassVar[str] = "unasked"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Do the damage."""
        node = next(node for node in model.graph if node.op_type == "Sub")
        replace(node, cx, "Sub", node.inputs[::-1])
