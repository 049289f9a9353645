"""onnxruntime's activations, alone or fused with a bias, a Conv or a Gemm."""

from __future__ import annotations

from typing import Any

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import decomposition, vjp_of_decomposition
from graphopt.autodiff.rule_registry import Cotangents, gradient

#: The activations of FusedConv and FusedGemm, with their attributes.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Elu": ("alpha",),
    "Softplus": (),
    "Softsign": (),
    "ThresholdedRelu": ("alpha",),
}


@decomposition("com.microsoft::Gelu", "com.microsoft::BiasGelu")
def gelu(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition: Gelu(x + b)."""
    return op.Gelu(_plus_bias(op, node))


@decomposition("com.microsoft::FastGelu")
def fast_gelu(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition: Gelu(x + b) with the tanh approximation."""
    return op.Gelu(_plus_bias(op, node), approximate="tanh")


def _plus_bias(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    bias = node.optional(1)
    return node.x if bias is None else op.Add(node.x, bias)


@decomposition("com.microsoft::QuickGelu")
def quick_gelu(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition: Swish(x)."""
    return op.Swish(node.x, alpha=float(node.attribute("alpha", 1.702)))


@gradient("com.microsoft::FusedConv")
def fused_conv(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """By decomposition: activation(Conv(x, W, b) + z)."""
    activation, numbers = node.attribute("activation", ""), node.attribute("activation_params", ())
    if activation == "Clip":
        low, high = numbers
        dy = op.only_where(op.And(op.Greater(node.y, low), op.Less(node.y, high)), dy)
        activation = ""

    def decompose() -> ir.Value:
        y = op.node("Conv", node.inputs[:3], _without_activation(node))
        if node.optional(3) is not None:
            y = op.Add(y, node.input(3))
        return _activated(op, node, y, activation, numbers)

    return vjp_of_decomposition(op, node, [dy], decompose)


@decomposition("com.microsoft::FusedGemm")
def fused_gemm(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition: activation(Gemm(A, B, C))."""
    activation = node.attribute("activation", "")
    numbers = [node.attribute(f"activation_{name}") for name in _ACTIVATIONS.get(activation, ())]
    y = op.node("Gemm", node.inputs, _without_activation(node))
    return _activated(op, node, y, activation, numbers)


def _without_activation(node: PrimalNode) -> dict[str, ir.Attr]:
    return {name: value for name, value in node.raw.attributes.items() if not name.startswith("activation")}


def _activated(op: GraphBuilder, node: PrimalNode, x: ir.Value, activation: str, numbers: Any) -> ir.Value:
    """The activation of ``x``, with the attribute values ``numbers``."""
    if not activation:
        return x
    if activation not in _ACTIVATIONS:
        raise node.refusal(f"its activation {activation} is unknown")
    names = _ACTIVATIONS[activation]
    return op.node(activation, [x], dict(zip(names, numbers, strict=False)))
