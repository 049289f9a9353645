"""The policy for groups that run as one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from graphopt import ir
from graphopt.analysis.symbolic import Dim, typical
from graphopt.context import Context
from graphopt.fusion.loops.ir import Kernel
from graphopt.fusion.operator_table import find, qualified_name, unfit
from graphopt.fusion.ort_overlap import is_builtin, is_widened, touches_convolution, why_left
from graphopt.fusion.signature import Signature
from graphopt.partitioning.duplicates import executed
from graphopt.partitioning.policy import Decision, Role
from graphopt.partitioning.propose import Partition

#: Moves that onnxruntime makes without touching an element.
_FREE = frozenset({"Reshape", "Flatten", "Unsqueeze", "Squeeze", "Identity"})
#: Fused operators that stand for several, and that kernels are faster than: measured, 1.1 to 1.7 times.
_SLOW = frozenset({"BiasGelu", "FastGelu"})
#: Elements below which a pass over memory costs nothing.
_FEW = 64
#: What is read and written may be this share of what it was.
_SHARE = 0.8


class Shapes(Enum):
    """Of which shapes groups are made: all, or those without symbols."""

    ANY = "any"
    STATIC = "static"


@dataclass(eq=False)
class FusionPolicy:
    """A group holds what a loop nest can compute, and onnxruntime would compute in several passes.

    Attributes:
        cx: facts about the model.
        minimum: nodes of a group, each computation counted once; moves that cost nothing do not count.
        shapes: of which shapes groups are made.
        kernels: signature and kernel of each proposed group.
    """

    cx: Context
    minimum: int = 2
    shapes: Shapes = Shapes.ANY
    kind: str = "fusion"
    kernels: dict[Partition, tuple[Signature, Kernel]] = field(default_factory=dict)

    def size(self, nodes: Sequence[ir.Node]) -> int:
        """The nodes that do something, as far as the minimum."""
        counted = executed([node for node in nodes if not is_free(node)], self.minimum)
        return counted + sum(node.op_type in _SLOW for node in nodes)

    def is_ordered(self, node: ir.Node) -> bool:
        """None: what has a turn is not fused, and what is fused has none."""
        return False

    def decide(self, node: ir.Node) -> Decision:
        """Where ``node`` may stand, by what it is, what it computes and what stands beside it."""
        cx = self.cx
        if find(node) is None:
            return Decision(Role.BOUNDARY, f"no kernels for {qualified_name(node)}")
        if ir.is_beyond_standard(node.domain, node.op_type, cx.version(node)):
            return Decision(
                Role.BOUNDARY, "it is an operator that onnxruntime adds, on which it crashes in functions"
            )
        outputs = [output for output in node.outputs if output.name]
        if all(cx.known_ints(output) is not None for output in outputs):
            return Decision(Role.BOUNDARY, "it computes sizes")
        reason = unfit(node, cx) or self._by_shape(node) or self.why_left(node)
        if reason:
            return Decision(Role.BOUNDARY, reason)
        if is_free(node):
            return Decision(Role.PASSTHROUGH, "it moves no element in memory")
        return Decision(Role.MEMBER)

    def _by_shape(self, node: ir.Node) -> str | None:
        for value in (*node.inputs, *node.outputs):
            if value is None or not value.name:
                continue
            shape = self.cx.shape(value)
            if shape is None:
                return f"the rank of {value.name!r} is unknown"
            if self.shapes is Shapes.STATIC and ir.all_ints(shape) is None:
                return f"the shape of {value.name!r} is not static"
            if 0 in shape:
                return f"{value.name!r} has no elements"
        return None

    def why_not(
        self, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> str | None:
        """Why a group of ``nodes`` would not pay."""
        if self.size(nodes) < self.minimum:
            return f"its group has fewer than {self.minimum} nodes"
        elements = [self._elements(value) for value in (*inputs, *outputs)]
        if all(count is not None and count < _FEW for count in elements):
            return "its group has too few elements to pay"
        before, after = self._moved(nodes, inputs, outputs, self._bytes)
        if after > before * _SHARE and not any(node.op_type in _SLOW for node in nodes):
            return "its group would read and write about as much as before"
        if is_widened(inputs, outputs, self.cx):
            return "onnxruntime keeps what comes in or goes out in single precision"
        if is_builtin(nodes, inputs):
            return "onnxruntime makes one operator of its group, which is as fast"
        if not any(self._reduces(node) for node in nodes):
            beside = touches_convolution(nodes)
            if beside is not None:
                layout = "a kernel there breaks onnxruntime's layout of convolutions"
                return f"it stands beside {beside}, and {layout}"
        return None

    def why_left(self, node: ir.Node) -> str | None:
        """Why ``node`` is better left where it is, though a kernel could compute it."""
        return why_left(node, self.cx)

    def _reduces(self, node: ir.Node) -> bool:
        found = find(node)
        return found is not None and found.reduces

    def saved(
        self, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> Dim | None:
        """The bytes that ``nodes`` read and write one by one, less what a kernel of them does."""
        values = [*inputs, *outputs, *(value for node in nodes for value in (*node.inputs, *node.outputs))]
        known = {value: self.cx.facts.nbytes(value) for value in values if value is not None and value.name}
        if any(size is None for size in known.values()):
            return None
        before, after = self._moved(nodes, inputs, outputs, known.__getitem__)
        return before - after

    def _moved(
        self,
        nodes: Sequence[ir.Node],
        inputs: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        size: Callable[[ir.Value], Any],
    ) -> tuple[Any, Any]:
        """What ``nodes`` read and write one by one, and what a kernel of them does."""
        before = sum(
            size(value)
            for node in nodes
            if not is_free(node)
            for value in (*node.inputs, *node.outputs)
            if value is not None and value.name
        )
        return before, sum(map(size, (*inputs, *outputs)))

    def _elements(self, value: ir.Value) -> int | None:
        shape = self.cx.static_shape(value)
        if shape is None:
            return None
        count = 1
        for dim in shape:
            count *= dim
        return count

    def _bytes(self, value: ir.Value) -> int:
        found = self.cx.facts.nbytes(value)
        return 0 if found is None else typical(found) or 0


def is_free(node: ir.Node) -> bool:
    """Whether onnxruntime runs ``node`` without touching an element."""
    return node.domain == "" and node.op_type in _FREE
