"""cost: arithmetic and memory traffic, as exact expressions over symbolic dims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Protocol

from graphopt import ir
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.symbolic import Dim, product, typical_size
from graphopt.ops import traits
from graphopt.util.lazy_dataclass import dataclass
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


class Sizes(Protocol):
    """Shapes and sizes of values, ``None`` if unknown: :class:`ShapeFacts`, or those of one run."""

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None: ...

    def nbytes(self, value: ir.Value) -> Dim | None: ...


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
    def of(cls, graph: ir.Graph, facts: Sizes) -> Cost:
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


def cost_of(node: ir.Node, facts: Sizes) -> NodeCost | None:
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
    formula = _FORMULAS.get(node.op_type) if node.domain in _DOMAINS else None
    flops = formula(node, facts) if formula is not None else _per_element(node, facts)
    return None if flops is None else NodeCost(flops, traffic)


def has_formula(node: ir.Node) -> bool:
    """Whether the operations of ``node`` follow from its shapes; other operators count one per element."""
    if node.domain == "":
        return node.op_type not in _DATA_DEPENDENT
    return node.domain in _DOMAINS and (node.op_type in _FORMULAS or node.op_type in _PER_ELEMENT)


def _numel(value: ir.Value | None, facts: Sizes) -> Dim | None:
    dims = facts.shape(value) if value is not None else None
    return None if dims is None else product(dims)


def _per_element(node: ir.Node, facts: Sizes) -> Dim | None:
    """One or a few operations per element: of the input for reductions, otherwise of the output."""
    out, first = _numel(node.outputs[0], facts), _numel(node.inputs[0], facts) if node.inputs else None
    if out is None:
        return None
    elements = first if node.op_type.startswith(("Reduce", "Arg", "Global")) and first is not None else out
    return elements * _PER_ELEMENT.get(node.op_type, 1)


def _matmul(node: ir.Node, facts: Sizes) -> Dim | None:
    """2·M·N·K per matrix of the batch. FusedMatMul also accepts [K, M], and M before the batch dims."""
    a, out = facts.shape(node.inputs[0]), _numel(node.outputs[0], facts)  # type: ignore[arg-type]
    if not a or out is None:
        return None
    flags = {name: node.attributes.get(name) for name in ("transA", "transBatchA")}
    if any(attribute is not None and attribute.is_ref() for attribute in flags.values()):
        return None
    swapped, rows_first = (attribute is not None and bool(attribute.value) for attribute in flags.values())
    return 2 * out * a[(0 if rows_first else -2) if swapped else -1]


def _gemm(node: ir.Node, facts: Sizes) -> Dim | None:
    a, out = facts.shape(node.inputs[0]), _numel(node.outputs[0], facts)  # type: ignore[arg-type]
    if a is None or len(a) != 2 or out is None:
        return None
    transposed = node.attributes.get("transA")
    if transposed is not None and transposed.is_ref():
        return None
    return 2 * out * a[0 if transposed is not None and transposed.value else 1]


def _conv(node: ir.Node, facts: Sizes) -> Dim | None:
    """2 · outputs · (C/group · kernel), with C/group · kernel weights per output channel."""
    index = {"QLinearConv": 3}.get(node.op_type, 1)
    weight, out = facts.shape(node.inputs[index]), _numel(node.outputs[0], facts)  # type: ignore[arg-type]
    return None if weight is None or out is None else 2 * out * product(weight[1:])


def _conv_transpose(node: ir.Node, facts: Sizes) -> Dim | None:
    weight, first = facts.shape(node.inputs[1]), _numel(node.inputs[0], facts)  # type: ignore[arg-type]
    return None if weight is None or first is None else 2 * first * product(weight[1:])


def _recurrent(node: ir.Node, facts: Sizes) -> Dim | None:
    """The product with all weights of all gates and directions, per time step and batch element."""
    x, w, r = (facts.shape(value) if value is not None else None for value in node.inputs[:3])
    if x is None or w is None or r is None or len(x) != 3:
        return None
    return 2 * x[0] * x[1] * (product(w) + product(r))


def _low_bits(node: ir.Node, facts: Sizes) -> Dim | None:
    """2·M·N·K; the weights of MatMulNBits are packed, and K is an attribute."""
    out, depth = _numel(node.outputs[0], facts), node.attributes.get("K")
    return None if out is None or depth is None or depth.is_ref() else 2 * out * depth.as_int()


def _attention(node: ir.Node, facts: Sizes) -> Dim | None:
    """2·B·S·T·(Q + V) for Q [B, S, Q] and a result [B, S, V]; T keys, past ones included; no masks.

    ``None`` for packed inputs, and for past keys without the output of all keys.
    """
    if len(node.inputs) < 3 or node.inputs[1] is None:
        return None
    query, key, out = (facts.shape(value) for value in (node.inputs[0], node.inputs[1], node.outputs[0]))  # type: ignore[arg-type]
    if query is None or key is None or out is None or len(key) not in (3, 4):
        return None
    keys = key[-2]
    past = {"MultiHeadAttention": 6, "GroupQueryAttention": 3}.get(node.op_type, 4)
    if len(node.inputs) > past and node.inputs[past] is not None:
        present = facts.shape(node.outputs[1]) if len(node.outputs) > 1 else None
        if present is None or len(present) != 4:
            return None
        keys = present[-2]
    return 2 * keys * (product(query) + product(out))


def _self_attention(node: ir.Node, facts: Sizes) -> Dim | None:
    """The products with the weights [H, 3·V] and the attention, for com.microsoft.Attention without past."""
    if node.domain == "":
        return _attention(node, facts)
    x, weight, out = (facts.shape(value) for value in (node.inputs[0], node.inputs[1], node.outputs[0]))  # type: ignore[arg-type]
    if x is None or weight is None or out is None or len(x) != 3 or len(node.outputs) > 1:
        return None
    return 2 * x[0] * x[1] * product(weight) + 4 * x[1] * product(out)


def _no_operations(node: ir.Node, facts: Sizes) -> Dim | None:
    return 0


#: Domains of the formulas; the last is onnxruntime's blocked layout.
_DOMAINS = ("", ir.MICROSOFT, "com.microsoft.nchwc")
#: Operators whose operations do not follow from one element of their results.
_DATA_DEPENDENT = {"Einsum", "DFT", "STFT", "If", "Loop", "Scan", "NonMaxSuppression", "Unique"}

_FORMULAS: dict[str, Callable[[ir.Node, Sizes], Dim | None]] = {
    "MatMul": _matmul, "MatMulInteger": _matmul, "FusedMatMul": _matmul, "QLinearMatMul": _matmul,
    "Gemm": _gemm, "FusedGemm": _gemm,
    "Conv": _conv, "ConvInteger": _conv, "FusedConv": _conv, "QLinearConv": _conv, "NhwcConv": _conv,
    "ConvTranspose": _conv_transpose, "LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent,
    "MatMulNBits": _low_bits, "MultiHeadAttention": _attention, "GroupQueryAttention": _attention,
    "Attention": _self_attention, "ReorderInput": _no_operations, "ReorderOutput": _no_operations,
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
