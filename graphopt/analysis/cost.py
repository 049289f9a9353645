"""cost: arithmetic and memory traffic, as exact expressions over symbolic dims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from graphopt import ir
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.symbolic import Dim, product, typical_size
from graphopt.ops import traits
from graphopt.util.resource_budget import Budget

#: Time limit of shape inference, in seconds. Values beyond this limit have unknown shapes and no cost.
_TIME_LIMIT = 5.0

#: Operations per output element, for operators with more than one per element.
_PER_ELEMENT = {
    "Softmax": 5,
    "LogSoftmax": 6,
    "LayerNormalization": 8,
    "RMSNormalization": 6,
    "SimplifiedLayerNormalization": 6,
    "SkipLayerNormalization": 9,
    "SkipSimplifiedLayerNormalization": 7,
    "BatchNormalization": 2,
    "InstanceNormalization": 8,
    "GroupNormalization": 8,
    "Exp": 4,
    "Log": 4,
    "Sigmoid": 5,
    "Tanh": 5,
    "Erf": 8,
    "Gelu": 10,
    "BiasGelu": 11,
    "FastGelu": 10,
    "QuickGelu": 7,
    "Mish": 16,
    "Pow": 8,
}


@dataclass(frozen=True)
class NodeCost:
    """The cost of one execution of a node.

    Attributes:
        flops: floating-point (or integer) operations; a multiply-add is two.
        bytes: size of all inputs and outputs: the minimum memory traffic.
    """

    flops: Dim
    bytes: Dim


@dataclass
class Cost:
    """Costs of the nodes of one graph, without bodies.

    Attributes:
        nodes: cost by node; nodes of unknown shapes are missing.
        unknown: nodes of unknown cost.
    """

    nodes: dict[ir.Node, NodeCost] = field(default_factory=dict)
    unknown: list[ir.Node] = field(default_factory=list)

    @classmethod
    def of(cls, graph: ir.Graph, facts: ShapeFacts) -> Cost:
        """The costs of the nodes of ``graph``."""
        found = cls()
        for node in graph:
            cost = cost_of(node, facts)
            if cost is None:
                found.unknown.append(node)
            else:
                found.nodes[node] = cost
        return found

    @property
    def flops(self) -> Dim:
        """Operations of all nodes of known cost."""
        return sum((cost.flops for cost in self.nodes.values()), 0)

    @property
    def bytes(self) -> Dim:
        """Memory traffic of all nodes of known cost, in bytes."""
        return sum((cost.bytes for cost in self.nodes.values()), 0)


def cost_of(node: ir.Node, facts: ShapeFacts) -> NodeCost | None:
    """The cost of one execution of ``node``; ``None`` without outputs, or if shapes are unknown."""
    if not node.outputs:
        return None
    traffic: Dim = 0
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        size = facts.nbytes(value)
        if size is None:
            return None
        traffic += size
    if node.domain == "" and node.op_type in traits.VIEW | traits.SHAPE_ONLY | {"Constant"}:
        return NodeCost(0, traffic)
    formula = _FORMULAS.get(node.op_type) if node.domain in ("", ir.MICROSOFT) else None
    flops = formula(node, facts) if formula is not None else _per_element(node, facts)
    return None if flops is None else NodeCost(flops, traffic)


def _numel(value: ir.Value | None, facts: ShapeFacts) -> Dim | None:
    dims = facts.shape(value) if value is not None else None
    return None if dims is None else product(dims)


def _per_element(node: ir.Node, facts: ShapeFacts) -> Dim | None:
    """One or a few operations per element: of the input for reductions, otherwise of the output."""
    out, first = _numel(node.outputs[0], facts), _numel(node.inputs[0], facts) if node.inputs else None
    if out is None:
        return None
    elements = first if node.op_type.startswith(("Reduce", "Arg", "Global")) and first is not None else out
    return elements * _PER_ELEMENT.get(node.op_type, 1)


def _matmul(node: ir.Node, facts: ShapeFacts) -> Dim | None:
    """2·M·N·K per matrix of the batch. FusedMatMul also accepts [K, M], and M before the batch dims."""
    a, out = facts.shape(node.inputs[0]), _numel(node.outputs[0], facts)  # type: ignore[arg-type]
    if not a or out is None:
        return None
    flags = {name: node.attributes.get(name) for name in ("transA", "transBatchA")}
    if any(attribute is not None and attribute.is_ref() for attribute in flags.values()):
        return None
    swapped, rows_first = (attribute is not None and bool(attribute.value) for attribute in flags.values())
    return 2 * out * a[(0 if rows_first else -2) if swapped else -1]


def _gemm(node: ir.Node, facts: ShapeFacts) -> Dim | None:
    a, out = facts.shape(node.inputs[0]), _numel(node.outputs[0], facts)  # type: ignore[arg-type]
    if a is None or len(a) != 2 or out is None:
        return None
    transposed = node.attributes.get("transA")
    if transposed is not None and transposed.is_ref():
        return None
    return 2 * out * a[0 if transposed is not None and transposed.value else 1]


def _conv(node: ir.Node, facts: ShapeFacts) -> Dim | None:
    """2 · outputs · (C/group · kernel), with C/group · kernel weights per output channel."""
    index = {"QLinearConv": 3}.get(node.op_type, 1)
    weight, out = facts.shape(node.inputs[index]), _numel(node.outputs[0], facts)  # type: ignore[arg-type]
    return None if weight is None or out is None else 2 * out * product(weight[1:])


def _conv_transpose(node: ir.Node, facts: ShapeFacts) -> Dim | None:
    weight, first = facts.shape(node.inputs[1]), _numel(node.inputs[0], facts)  # type: ignore[arg-type]
    return None if weight is None or first is None else 2 * first * product(weight[1:])


def _recurrent(node: ir.Node, facts: ShapeFacts) -> Dim | None:
    """The product with all weights of all gates and directions, per time step and batch element."""
    x, w, r = (facts.shape(value) if value is not None else None for value in node.inputs[:3])
    if x is None or w is None or r is None or len(x) != 3:
        return None
    return 2 * x[0] * x[1] * (product(w) + product(r))


_FORMULAS: dict[str, Callable[[ir.Node, ShapeFacts], Dim | None]] = {
    "MatMul": _matmul, "MatMulInteger": _matmul, "FusedMatMul": _matmul, "QLinearMatMul": _matmul,
    "Gemm": _gemm, "FusedGemm": _gemm,
    "Conv": _conv, "ConvInteger": _conv, "FusedConv": _conv, "QLinearConv": _conv, "NhwcConv": _conv,
    "ConvTranspose": _conv_transpose, "LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent,
}  # fmt: skip


def result_bytes(model: ir.Model) -> int:
    """Total bytes of all node outputs in one run. Dynamic dims count as 16, unknown sizes as 0."""
    facts = ShapeFacts(
        model, constant=ir.constant_of, version=ir.Scopes(model).version, budget=Budget(seconds=_TIME_LIMIT)
    )
    facts.infer_all()
    total = 0
    for graph in ir.graphs_of(model):
        for node in graph:
            for output in node.outputs:
                size = facts.nbytes(output)
                if size is not None and not isinstance(size, int):
                    size = typical_size(size)
                total += max(0, size or 0)
    return total
