"""Decide whether convolutions run with the channels last.

The rules for GPUs are those of ``decide_layout_opt`` in Inductor (PyTorch, ``torch/_inductor/graph.py``) for
inference, with its measured ratios of times.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.analysis.cost import cost_of
from graphopt.analysis.symbolic import typical_size
from graphopt.context import Context
from graphopt.ort.devices import Capabilities
from graphopt.rewrite.operand_checks import attribute_of
from graphopt.rules.building_blocks.operands import operand
from graphopt.transforms.layout._channels_last_operators import has_kernel
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

#: Relative times of convolutions with the channels last, by kind.
_RATIOS = {"grouped": 1.358, "small": 0.783, "narrowing": 0.725, "other": 0.823}
#: The number of nodes per convolution from which the convolutions do not matter.
_MOST_NODES = 300
#: The largest numbers of channels of a small convolution.
_SMALL = 64


@dataclass(frozen=True)
class ConvolutionFacts:
    """The facts about a convolution that decide its layout.

    Attributes:
        dtype: the element type; ``None`` if unknown.
        weights: [M, C / group, *kernel]; ``None`` if unknown.
        group: the number of groups.
        flops: the number of operations, with typical sizes for unknown dims; ``None`` if unknown.
        is_static: whether all dims except the batch are known.
        has_kernel: whether the target has a channels-last kernel.
    """

    dtype: ir.DataType | None
    weights: tuple[int, ...] | None
    group: int
    flops: int | None
    is_static: bool
    has_kernel: bool

    @classmethod
    def of(cls, node: ir.Node, cx: Context) -> ConvolutionFacts:
        """The facts about ``node``."""
        image = node.inputs[0]
        shape, cost = cx.shape(image), cost_of(node, cx.facts)
        group = attribute_of(node, "group", cx.version(node))
        weights = operand(node, 3 if node.op_type == "QLinearConv" else 1)
        return cls(
            cx.dtype(image),
            None if weights is None else cx.static_shape(weights),
            group if isinstance(group, int) else 1,
            None if cost is None else typical_size(cost.flops),
            shape is not None and all(isinstance(dim, int) for dim in shape[1:]),
            has_kernel(node, cx),
        )

    @property
    def kind(self) -> str:
        """The kind, as in :data:`_RATIOS`."""
        assert self.weights is not None
        results, operands, *kernel = self.weights
        if self.group > 1 and operands > 1:
            return "grouped"
        if results <= _SMALL and operands <= _SMALL:
            return "small"
        return "narrowing" if 2 * results <= operands and kernel[0] > 1 else "other"


@dataclass(frozen=True)
class LayoutDecision:
    """Whether convolutions run with the channels last, and the reason."""

    is_channels_last: bool
    reason: str


def decide_layout(
    convolutions: Sequence[ConvolutionFacts], nodes: int, device: Capabilities, *, force: bool = False
) -> LayoutDecision:
    """Decide the layout of the convolutions of a graph.

    Args:
        convolutions: all of them.
        nodes: the number of all nodes.
        device: the properties of the device that runs the model.
        force: decide by the availability of kernels only.
    """
    count = counted(len(convolutions), "convolution")
    if not convolutions:
        return LayoutDecision(False, "no convolutions")
    usable = [one for one in convolutions if one.has_kernel]
    if not usable:
        return LayoutDecision(False, f"{count}: no channels-last kernel for this device and type")
    if force:
        return LayoutDecision(True, f"{count}: channels last, as requested")
    if device.is_host:
        return LayoutDecision(False, f"{count}: on CPUs, onnxruntime's own layouts are as fast or faster")
    if nodes >= _MOST_NODES * len(convolutions):
        return LayoutDecision(False, f"{count} among {nodes} nodes: too few to matter")
    if not all(one.is_static and one.weights is not None for one in convolutions):
        return LayoutDecision(False, f"{count}: the sizes of images or weights are not known")
    if not any(_runs_on_matrix_units(one.dtype, device) for one in usable):
        return LayoutDecision(False, f"{count}: no tensor cores for this type")
    total = sum(one.flops or 0 for one in convolutions)
    weighted = sum((one.flops or 0) * (_RATIOS[one.kind] if one.has_kernel else 1) for one in convolutions)
    ratio = weighted / total if total else 1.0
    if ratio >= 1:
        return LayoutDecision(False, f"{count}: predicted {ratio:.2f} of the time with the channels last")
    return LayoutDecision(True, f"{count}: channels last, predicted {ratio:.2f} of the time")


def _runs_on_matrix_units(dtype: ir.DataType | None, device: Capabilities) -> bool:
    """Whether the units of ``device`` multiply matrices of ``dtype``; float32 only if TF32 is permitted."""
    if dtype is None or device.matrix_units is None or (dtype is ir.DataType.FLOAT and not device.tf32):
        return False
    return dtype.name.lower() in device.matrix_units.multiples
