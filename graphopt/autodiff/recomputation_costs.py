"""Rematerialization: the nodes that the backward pass may recompute, and their costs."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt import ir
from graphopt.analysis.cost import cost_of
from graphopt.analysis.symbolic import TYPICAL, Dim, evaluate, symbols
from graphopt.autodiff.losses import dynamic_dims
from graphopt.autodiff.return_running_statistics import is_training
from graphopt.context import Context
from graphopt.errors import unknown
from graphopt.ops import graphopt_operators, traits

#: Assumed size of a value of unknown type and shape, in bytes.
_UNKNOWN = 4 * TYPICAL * TYPICAL
#: Overhead of a node, as memory traffic of the same duration, in bytes.
_OVERHEAD = 4096
_CONTROL_FLOW = traits.CONTROL_FLOW | {"SequenceMap"}
#: Parts of the names of compute-bound operators outside the standard domain.
_COMPUTE_BOUND_WORDS = ("Attention", "Conv", "Gemm", "LSTM", "MatMul", "MoE")


def recompute_obstacle(node: ir.Node, cx: Context) -> str | None:
    """The reason why ``node`` can't be recomputed; ``None`` if it can.

    BatchNormalization in training mode is deterministic for a given batch; the recomputed node updates
    separate, unused running statistics.
    """
    if is_training(node):
        scale, mean = node.inputs[1], node.inputs[3]
        same = scale is not None and mean is not None and cx.dtype(scale) == cx.dtype(mean) is not None
        return None if same else "its running statistics have another type than its scale"
    if node.domain == "" and node.op_type in _CONTROL_FLOW:
        return "it is control flow"
    if node.domain == graphopt_operators.AUTODIFF_GROUPS:
        return "the residuals of its group are selected"
    if not cx.is_deterministic(node):
        return "it is not deterministic"
    return None


def is_compute_bound(node: ir.Node) -> bool:
    """Whether arithmetic dominates the run time of ``node``, so that its results are preferably saved."""
    if node.domain == "":
        return node.op_type in traits.COMPUTE_BOUND
    return any(word in node.op_type for word in _COMPUTE_BOUND_WORDS)


class Estimates:
    """Estimated sizes of values and costs of nodes, for given or assumed sizes of dynamic dims.

    Args:
        dims: sizes of dynamic dims by name.

    Attributes:
        assumed: the assumed sizes of the other named dims that estimates depend on.

    Raises:
        UsageError: a given dim occurs in no input of the model.
    """

    def __init__(self, cx: Context, dims: Mapping[str, int]) -> None:
        self._cx = cx
        self._dims = dict(dims)
        self.assumed: dict[str, int] = {}
        known = dynamic_dims(cx.model)
        for name in dims:
            if name not in known:
                raise unknown("dynamic dim", name, known)

    def bytes(self, value: ir.Value) -> int:
        """The size of ``value``, in bytes."""
        symbolic = self._cx.facts.nbytes(value)
        size = self._number(symbolic)
        # sizes that are assumed independently may cancel, such as the start and end of a slice
        return _UNKNOWN if size is None or (size == 0 and not isinstance(symbolic, int)) else size

    def flops(self, node: ir.Node) -> int:
        """The floating-point operations of ``node``; 0 if unknown, or if it calls a group."""
        if node.domain in (graphopt_operators.AUTODIFF_GROUPS, graphopt_operators.AUTODIFF_BACKWARD):
            return 0
        cost = cost_of(node, self._cx.facts)
        return 0 if cost is None else self._number(cost.flops) or 0

    def cost(self, node: ir.Node) -> int:
        """The cost of ``node``, in bytes of memory traffic; an operation counts as one byte."""
        cost = cost_of(node, self._cx.facts)
        if cost is None:
            return _OVERHEAD + sum(self.bytes(value) for value in node.outputs)
        views = traits.is_alias(node) or traits.reads_only_shape(node)
        moved = 0 if views else self._number(cost.bytes) or 0
        return _OVERHEAD + moved + (self._number(cost.flops) or 0)

    def _number(self, dim: Dim | None) -> int | None:
        if dim is None or isinstance(dim, int):
            return dim
        sizes = dict(self._dims)
        for name, symbol in symbols(dim).items():
            if name not in sizes:
                sizes[name] = min(max(TYPICAL, symbol.lo), symbol.hi)  # type: ignore[assignment]
                if not symbol.birth:
                    self.assumed[name] = sizes[name]
        found = evaluate(dim, sizes)
        return None if found is None else max(found, 0)
