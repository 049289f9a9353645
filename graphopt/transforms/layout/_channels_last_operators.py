"""onnxruntime's channels-last operators: images as [batch, height, width, channels].

The operators of ``com.microsoft`` are used. onnxruntime has more of them in ``com.ms.internal.nhwc``, the
domain of its own layout transformer, whose operators may change in every release.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.context import Context
from graphopt.rewrite import Builder, Match
from graphopt.rewrite.traced_array import tensor_to_compute
from graphopt.rules.building_blocks.axes import reduce
from graphopt.rules.building_blocks.operands import operand
from graphopt.transforms.layout._operator import Inputs, Operator, SameRank
from graphopt.transforms.layout._permutations import Perm, Placement, identity

#: From [N, C, H, W] to [N, H, W, C].
NHWC: Perm = (0, 2, 3, 1)


class ChannelsLast(SameRank):
    """An operator with a channels-last form."""

    exact = False  # kernels sum in another order

    def reads(self, m: Match, node: ir.Node) -> Sequence[int]:
        return (0,)

    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        if m.rank(node.inputs[0]) != len(perm) or len(perm) != 4:
            return False
        return perm == identity(4) or (perm == NHWC and self.has_form(m, node))

    def has_form(self, m: Match, node: ir.Node) -> bool:
        """Whether the operator supports the attributes and inputs of ``node`` in this layout."""
        return True

    def kernel(self, node: ir.Node) -> str | None:
        """The operator of ``com.microsoft`` that the target needs; ``None`` if the form needs none."""
        return node.op_type


class Convolution(ChannelsLast):
    """Conv → NhwcConv, whose weights are [M, height, width, C / group]."""

    def kernel(self, node: ir.Node) -> str:
        return "NhwcConv"

    def has_form(self, m: Match, node: ir.Node) -> bool:
        weights = operand(node, 1)  # the CUDA kernel requires an initializer
        return m.rank(weights) == 4 and tensor_to_compute(weights, m.graph, m.cx) is not None

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        weights = m.traced(operand(node, 1))
        assert weights is not None
        operands = [inputs[0], op.constant(weights.transpose(NHWC)), *inputs[2:]]
        return op.fused(op.node("NhwcConv", operands, dict(node.attributes), domain=ir.MICROSOFT))


class MaxPooling(ChannelsLast):
    """MaxPool of bytes → NhwcMaxPool."""

    exact = True

    def kernel(self, node: ir.Node) -> str:
        return "NhwcMaxPool"

    def has_form(self, m: Match, node: ir.Node) -> bool:
        return sum(bool(output.name) for output in node.outputs) == 1

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        attributes = {name: value for name, value in node.attributes.items() if name != "storage_order"}
        return op.fused(op.node("NhwcMaxPool", inputs, attributes, domain=ir.MICROSOFT))


class ByAttribute(ChannelsLast):
    """Quantized operators with the attribute ``channels_last``."""

    exact = True  # in integers

    def has_form(self, m: Match, node: ir.Node) -> bool:
        return node.domain == "" or not m.attribute(node, "channels_last")

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        attributes = {**node.attributes, "channels_last": 1}
        return op.fused(op.node(node.op_type, inputs, attributes, domain=ir.MICROSOFT))


class GlobalAverage(ChannelsLast):
    """GlobalAveragePool → ReduceMean, which has no layout."""

    def kernel(self, node: ir.Node) -> str | None:
        return None

    def fits(self, m: Match, node: ir.Node, perm: Perm) -> bool:
        return m.rank(node.inputs[0]) == len(perm)

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        assert inputs[0] is not None
        axes = sorted(at.read.index(axis) for axis in range(2, len(at.read)))
        return reduce(op, m, "ReduceMean", inputs[0], axes, keepdims=True)


_BY_ATTRIBUTE = ByAttribute()
_FORMS: dict[tuple[str, str], ChannelsLast] = {
    ("", "Conv"): Convolution(),
    ("", "GlobalAveragePool"): GlobalAverage(),
    ("", "MaxPool"): MaxPooling(),
    ("", "QLinearConv"): _BY_ATTRIBUTE,
    (ir.MICROSOFT, "QLinearConv"): _BY_ATTRIBUTE,
    (ir.MICROSOFT, "QLinearAveragePool"): _BY_ATTRIBUTE,
    (ir.MICROSOFT, "QLinearGlobalAveragePool"): _BY_ATTRIBUTE,
}
#: The operators whose number and sizes decide whether images are stored with the channels last.
CONVOLUTIONS = (("", "Conv"), ("", "QLinearConv"), (ir.MICROSOFT, "QLinearConv"))


def is_convolution(node: ir.Node) -> bool:
    """Whether ``node`` is a convolution with a channels-last form."""
    return (node.domain, node.op_type) in CONVOLUTIONS


def has_kernel(node: ir.Node, cx: Context) -> bool:
    """Whether ``node`` has a channels-last form, and the target its kernel."""
    form = _FORMS.get((node.domain, node.op_type))
    if form is None:
        return False
    kernel = form.kernel(node)
    return kernel is None or cx.target.has_kernel(kernel, ir.MICROSOFT, 1, cx.dtype(node.inputs[0]))


def channels_last_operator(node: ir.Node, cx: Context) -> Operator | None:
    """The channels-last form of ``node``, if the target has a kernel for it."""
    return _FORMS[node.domain, node.op_type] if has_kernel(node, cx) else None
