"""What a backward pass may compute again, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt import ir
from graphopt.analysis.cost import cost_of
from graphopt.analysis.symbolic import TYPICAL, Dim, evaluate, symbols
from graphopt.autodiff.running_statistics import is_training
from graphopt.context import Context
from graphopt.errors import unknown
from graphopt.ops import traits

#: Bytes of a value of which nothing is known.
_UNKNOWN = 4 * TYPICAL * TYPICAL
#: What starting a node takes, as bytes that could be moved meanwhile.
_START = 4096
_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")
#: Parts of the names of other vendors' operators that do most of a model's arithmetic.
_HEAVY_WORDS = ("Attention", "Conv", "Gemm", "LSTM", "MatMul", "MoE")


def recompute_obstacle(node: ir.Node, cx: Context) -> str | None:
    """Why ``node`` is computed once and never again; ``None`` if it may be.

    BatchNormalization in training gives the same result for the same batch; its copy gets running
    statistics of its own, which nobody reads.
    """
    if is_training(node):
        scale, mean = node.inputs[1], node.inputs[3]
        same = scale is not None and mean is not None and cx.dtype(scale) == cx.dtype(mean) is not None
        return None if same else "its running statistics are of another type than its scale"
    if node.domain == "" and node.op_type in _CONTROL_FLOW:
        return "it is control flow"
    if not cx.is_deterministic(node):
        return "it may not give the same again"
    return None


def is_compute_bound(node: ir.Node) -> bool:
    """Whether ``node`` does so much arithmetic that its result is rather saved."""
    if node.domain == "":
        return node.op_type in traits.COMPUTE_BOUND
    return any(word in node.op_type for word in _HEAVY_WORDS)


class Estimates:
    """Sizes of values and costs of nodes, where dynamic dims have a size that is given or assumed.

    Args:
        dims: sizes of dims, by the names that the model gives them.

    Attributes:
        assumed: the sizes of all other dims that were met and have a name in the model.

    Raises:
        UsageError: no input of the model has a dim of that name.
    """

    def __init__(self, cx: Context, dims: Mapping[str, int]) -> None:
        self._cx = cx
        self._dims = dict(dims)
        self.assumed: dict[str, int] = {}
        known = dict.fromkeys(
            str(dim.value)
            for value in cx.model.graph.inputs
            if value.shape is not None
            for dim in value.shape
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None
        )
        for name in dims:
            if name not in known:
                raise unknown("dynamic dim", name, known)

    def bytes(self, value: ir.Value) -> int:
        """The size of ``value``."""
        told = self._cx.facts.nbytes(value)
        size = self._number(told)
        # sizes that are assumed one by one may come to nothing together, as the end and start of a slice do
        return _UNKNOWN if size is None or (size == 0 and not isinstance(told, int)) else size

    def flops(self, node: ir.Node) -> int:
        """Operations of a run of ``node``; 0 where they are not known."""
        cost = cost_of(node, self._cx)
        return 0 if cost is None else self._number(cost.flops) or 0

    def cost(self, node: ir.Node) -> int:
        """What a run of ``node`` takes, as bytes that are moved in that time."""
        cost = cost_of(node, self._cx)
        if cost is None:
            return _START + sum(self.bytes(value) for value in node.outputs)
        views = node.domain == "" and node.op_type in (*traits.RESHAPES, "Identity", "Shape", "Size")
        moved = 0 if views else self._number(cost.bytes) or 0
        return _START + moved + (self._number(cost.flops) or 0)

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
