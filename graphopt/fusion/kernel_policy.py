"""The policy for groups that run as one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from enum import Enum
from typing import Any

from graphopt import ir
from graphopt.analysis.symbolic import Dim, typical_size
from graphopt.context import Context
from graphopt.fusion.backend import backend_for
from graphopt.fusion.blocked_layout import adjacent_convolution
from graphopt.fusion.group_signature import Signature
from graphopt.fusion.lower_partition import lower_partition
from graphopt.fusion.operator_table import find, obstacle_to_kernel, qualified_name
from graphopt.fusion.ort_overlap import is_builtin, is_widened, multiplies_dequantized, overlap
from graphopt.fusion.single_nodes import is_faster_alone
from graphopt.fusion.template_groups import TemplateGroups, propose_template_groups
from graphopt.fusion.template_kernel import NativeKernel
from graphopt.fusion.template_policy import is_faster_as_template, is_ruled_out
from graphopt.fusion.template_table import Match
from graphopt.fusion.unknown_sizes import obstacle_to_static_shape
from graphopt.ops import traits
from graphopt.partitioning.policy_interface import Decision, Role
from graphopt.partitioning.propose_groups import Partition
from graphopt.partitioning.redundant_nodes import executed
from graphopt.util.lazy_dataclass import dataclass

#: Fused operators of onnxruntime that are slower than kernels on CPUs, by 1.1 to 1.7 times (measured).
_SLOW = frozenset({"BiasGelu", "FastGelu"})
#: Number of elements below which memory traffic counts as free.
_FEW = 64
#: Maximum memory traffic of a kernel, relative to that of its nodes.
_SHARE = 0.8
#: The pass that creates the groups, for refused rewrites.
_PASS = "fuse-groups"
#: Reason to exclude moves of elements without cost.
FREE_REASON = "it moves no element in memory"
#: Reason to exclude nodes whose results are sizes, which are known before the model runs.
SIZES_REASON = "it computes sizes"
#: Reason to leave nodes with a template to onnxruntime.
AS_FAST_REASON = "onnxruntime is expected to be as fast"
#: The start of the reason that excludes groups of few nodes.
FEW_NODES_REASON = "its group has fewer than"
#: Reason to include a node in a group.
MEMBER_REASON = "it is computed in the same loops"


class Kernels(Enum):
    """The templates and single nodes that are groups, compared with onnxruntime by figures and rules.

    ``LOOPS`` is ``FASTER`` without templates. Loop nests of several nodes do not depend on it.
    """

    FASTER = "faster"
    CANDIDATES = "candidates"
    ALL = "all"
    LOOPS = "loops"


class Shapes(Enum):
    """Permitted shapes of values in groups: all, or only static ones."""

    ANY = "any"
    STATIC = "static"


@dataclass(eq=False)
class FusionPolicy:
    """Selects groups of nodes that a kernel computes in one pass over memory, but onnxruntime in several.

    Attributes:
        minimum: minimum size of a group; equal computations count once, moves of elements without cost do not
        count.
        shapes: shapes of values in groups.
        choice: the templates and single nodes that are groups.
        kind: the kind of groups, for messages.
        kernels: signature and kernel of each proposed group.
    """

    cx: Context
    minimum: int = 2
    shapes: Shapes = Shapes.ANY
    choice: Kernels = Kernels.FASTER
    kind: str = "fusion"
    kernels: dict[Partition, tuple[Signature, NativeKernel]] = field(default_factory=dict)
    _alone: dict[ir.Node, bool] = field(default_factory=dict, init=False)
    _template_groups: dict[ir.Graph, TemplateGroups] = field(default_factory=dict, init=False)

    def size(self, nodes: Sequence[ir.Node]) -> int:
        """The size of a group, exact up to the minimum; a node that is faster as a kernel counts as two."""
        counted = executed([node for node in nodes if not traits.is_alias(node)], self.minimum)
        counted += sum(map(self._is_slow, nodes))
        return counted + 1 if counted < self.minimum and self._is_faster_alone(nodes) else counted

    @property
    def _is_host(self) -> bool:
        return self.cx.options.device.capabilities.is_host

    def _is_slow(self, node: ir.Node) -> bool:
        """Whether ``node`` is a fused operator of onnxruntime that is slower than a kernel."""
        return self._is_host and node.op_type in _SLOW

    def _is_faster_alone(self, nodes: Sequence[ir.Node]) -> bool:
        """Whether ``nodes`` are moves and one node that is faster as a kernel by the table of costs."""
        computing = [node for node in nodes if not traits.is_alias(node)]
        if len(computing) != 1:
            return False
        (node,) = computing
        if node not in self._alone:
            is_eager = self.choice in (Kernels.CANDIDATES, Kernels.ALL)
            self._alone[node] = is_faster_alone(node, self.cx, always=is_eager)
        return self._alone[node]

    def is_ordered(self, node: ir.Node) -> bool:
        """Always false: nodes with side effects are not fused."""
        return False

    def decide(self, node: ir.Node) -> Decision:
        """The role of ``node``, by its operator, its types and its neighbours."""
        if node.graph is not None:
            templates = self.template_groups(node.graph)
            if node in templates.members:
                return Decision(Role.BOUNDARY, "a template computes it")
            if find(node) is None and node in templates.reasons:
                return Decision(Role.BOUNDARY, templates.reasons[node])
        reason = self.obstacle(node) or self.overlap(node)
        if reason:
            return Decision(Role.BOUNDARY, reason)
        if traits.is_alias(node):
            return Decision(Role.PASSTHROUGH, FREE_REASON)
        return Decision(Role.MEMBER)

    def template_groups(self, graph: ir.Graph) -> TemplateGroups:
        """The groups of templates in ``graph``, whose nodes are in no other groups."""
        if graph not in self._template_groups:
            self._template_groups[graph] = TemplateGroups()  # none while they are proposed
            if self.choice is not Kernels.LOOPS:
                self._template_groups[graph] = propose_template_groups(graph, self)
        return self._template_groups[graph]

    def note_kernel(self, group: Partition) -> None:
        """Lower ``group`` to its kernel; raises CantFuse if it has none."""
        self.kernels[group] = lower_partition(group, self.cx)

    def obstacle_to_template(self, match: Match) -> str | None:
        """The reason why onnxruntime runs the nodes of ``match``; ``None`` if its template does.

        Loop nests may compute the nodes next to a template whose group is refused.
        """
        backend = backend_for(self.cx.options.device)
        if backend is not None and match.template not in backend.features.templates:
            return f"{self.cx.options.device} has no kernels of the template {match.template!r}"
        if multiplies_dequantized(match.operands):
            return "onnxruntime computes it on quantized values"
        if any((_PASS, ir.label(node)) in self.cx.options.refused for node in match.nodes):
            return "its group was excluded"
        if self.choice is Kernels.ALL:
            return None
        if self.choice is Kernels.CANDIDATES:
            return "its figures rule out a gain" if is_ruled_out(match, self.cx) else None
        if is_faster_as_template(match, self.cx):
            return None
        return AS_FAST_REASON

    def obstacle(self, node: ir.Node) -> str | None:
        """The reason why no loop nest computes ``node``, regardless of its neighbours."""
        cx = self.cx
        if find(node) is None:
            return f"no kernels for {qualified_name(node)}"
        if ir.is_beyond_standard(node.domain, node.op_type, cx.version(node)):
            return "onnxruntime crashes on this nonstandard operator in functions"
        outputs = [output for output in node.outputs if output.name]
        if all(cx.known_ints(output) is not None for output in outputs):
            return SIZES_REASON
        return obstacle_to_kernel(node, cx) or self._unsupported_shape(node)

    def _unsupported_shape(self, node: ir.Node) -> str | None:
        for value in (*node.inputs, *node.outputs):
            if value is None or not value.name:
                continue
            shape = self.cx.shape(value)
            if shape is None:
                return f"the rank of {value.name!r} is unknown"
            if self.shapes is Shapes.STATIC and ir.all_ints(shape) is None:
                return obstacle_to_static_shape(value, self.cx)
            if 0 in shape:
                return f"{value.name!r} has no elements"
        return None

    def unprofitability(
        self, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> str | None:
        """The reason why a group of ``nodes`` is not worth a kernel; ``None`` for a profitable group.

        A single node is a profitable group if a kernel is faster by the table of costs.
        """
        if self.size(nodes) < self.minimum:
            return f"{FEW_NODES_REASON} {self.minimum} nodes"
        elements = [self._elements(value) for value in (*inputs, *outputs)]
        if all(count is not None and count < _FEW for count in elements):
            return "its group has too few elements"
        before, after = self._traffic(nodes, inputs, outputs, self._bytes)
        slow = self._is_faster_alone(nodes) or any(map(self._is_slow, nodes))
        if after > before * _SHARE and not slow:
            return "its group saves too little memory traffic"
        if self._is_host and is_widened(inputs, outputs, self.cx):
            return "onnxruntime keeps its operands in single precision"
        if is_builtin(nodes, inputs, self.cx):
            return "onnxruntime fuses its group into an operator that is as fast"
        reduces = any(self._reduces(node) for node in nodes)
        if self._is_host and not self._is_faster_alone(nodes) and not reduces:
            neighbour = adjacent_convolution(nodes)
            if neighbour is not None:
                return f"a kernel next to {neighbour} breaks onnxruntime's layout of convolutions"
        return None

    def overlap(self, node: ir.Node) -> str | None:
        """The reason to leave ``node`` to onnxruntime although a kernel could compute it."""
        return overlap(node, self.cx)

    def _reduces(self, node: ir.Node) -> bool:
        found = find(node)
        return found is not None and found.reduces

    def saved_bytes(
        self, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> Dim | None:
        """Memory traffic that a kernel of ``nodes`` saves, in bytes; ``None`` if sizes are unknown."""
        values = [*inputs, *outputs, *(value for node in nodes for value in (*node.inputs, *node.outputs))]
        known = {value: self.cx.facts.nbytes(value) for value in values if value is not None and value.name}
        if any(size is None for size in known.values()):
            return None
        before, after = self._traffic(nodes, inputs, outputs, known.__getitem__)
        return before - after

    def _traffic(
        self,
        nodes: Sequence[ir.Node],
        inputs: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        size: Callable[[ir.Value], Any],
    ) -> tuple[Any, Any]:
        """Memory traffic of separate ``nodes``, and of a kernel."""
        before = sum(
            size(value)
            for node in nodes
            if not traits.is_alias(node)
            for value in (*node.inputs, *node.outputs)
            if value is not None and value.name
        )
        return before, sum(map(size, (*inputs, *outputs)))

    def _elements(self, value: ir.Value) -> int | None:
        shape = self.cx.static_shape(value)
        return None if shape is None else math.prod(shape)

    def _bytes(self, value: ir.Value) -> int:
        found = self.cx.facts.nbytes(value)
        return 0 if found is None else typical_size(found) or 0
