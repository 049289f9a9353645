"""Pointwise Conv of floats, with the concatenation and normalization of its input.

A convolution whose kernel has one tap is a matrix product, which copies its input to panels. The copy joins
the parts of a Concat of channels, and applies a BatchNormalization, factors and addends of channels, and
Relu, so that these need no passes over memory. DenseNet has all of these before each pointwise convolution
(Huang et al., Densely connected convolutional networks, 2017), and cross-stage blocks have a Concat.
"""

from __future__ import annotations

import math
from dataclasses import field

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.blocked_layout import is_convolution, sources
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, template
from graphopt.fusion.templates import conv
from graphopt.util.lazy_dataclass import dataclass

#: ``GO_POINTWISE_PARTS`` of ``pointwise.h``.
_MOST_PARTS = 8
#: Lanes of vectors with AVX-512.
_LANES = 16
#: Time of the product and the copy relative to onnxruntime's convolution, at whole vectors of positions.
_PRODUCT = 1.13
#: Number of filters at which a pass over the input takes as long as the convolution.
_FILTERS_OF_A_PASS = 10
#: Maximum predicted time relative to onnxruntime.
_FASTER = 0.95


@dataclass(frozen=True)
class PointwiseParameters:
    """Static parameters.

    Attributes:
        parts: the number of inputs that are concatenated.
        epsilon: attribute of the BatchNormalization.
        rectified: whether Relu precedes the convolution.
    """

    parts: int
    epsilon: float = 0.0
    rectified: bool = False


def is_faster(match: Match, cx: Context) -> bool:
    """Whether the kernel saves more time of passes over the input than it costs.

    Measured on AVX-512 with onnxruntime 1.31, 1 thread. onnxruntime keeps values between convolutions in a
    blocked layout. A kernel between these adds conversions, which take about the time of the passes.
    """
    weights, parts = match.operands[0], match.operands[_PARTS:]
    assert weights is not None
    shape = cx.shape(match.results[0])
    filters = cx.shape(weights)
    if not conv.is_fixed(weights) or shape is None or filters is None or not isinstance(filters[0], int):
        return False
    is_affine = any(node.op_type in ("Mul", "Add") for node in match.nodes)
    if not is_affine and all(value is not None and _is_blocked(value, cx) for value in parts):
        return False
    points = math.prod(conv.typical_sizes(shape)[2:])
    if not points:
        return False
    fill = -(-points // _LANES) * _LANES / points
    passes = len(match.nodes)  # one for each node before the convolution, and a conversion of its input
    return _PRODUCT * fill / (1 + _FILTERS_OF_A_PASS * passes / filters[0]) <= _FASTER


#: Operands before the parts: weights, bias, those of BatchNormalization, factor and addend.
_WEIGHTS, _BIAS, _NORM, _FACTOR, _ADDEND, _PARTS = 0, 1, 2, 6, 7, 8


@template("Conv", is_faster=is_faster)
def pointwise(anchor: ir.Node, cx: Context) -> Match:
    """A pointwise convolution and, in this order, Concat, BatchNormalization, Mul, Add and Relu before it."""
    inputs: list[ir.Value | None] = [*anchor.inputs, None, None][:3]
    x, weights, bias = (value if value is not None and value.name else None for value in inputs)
    if x is None or weights is None:
        raise CantFuse("an operand is missing")
    shape, filters = cx.shape(x), cx.shape(weights)
    if shape is None or filters is None or not 3 <= len(shape) <= 5 or len(filters) != len(shape):
        raise CantFuse("its rank is unknown, or no kernel has it")
    _check_attributes(anchor, len(shape) - 2)
    channels = filters[1]
    if list(filters[2:]) != [1] * (len(shape) - 2) or not isinstance(channels, int) or channels < 1:
        raise CantFuse("its kernel has several taps")
    before = _Before(x, channels, cx)
    before.find()
    if not before.nodes or (len(before.nodes) == 1 and before.rectified):
        raise CantFuse("no operators before it that its kernel computes")
    operands = (weights, bias, *before.norm, before.factor, before.addend, *before.parts)
    for value in operands:
        if value is not None and cx.dtype(value) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for convolutions of other types than float")
    parameters = PointwiseParameters(len(before.parts), before.epsilon, before.rectified)
    return Match("pointwise", (*before.nodes[::-1], anchor), operands, (anchor.outputs[0],), parameters)


def _check_attributes(node: ir.Node, rank: int) -> None:
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    ones = [list(attributes.get(name) or [1] * rank) for name in ("strides", "dilations", "kernel_shape")]
    if ones != [[1] * rank] * 3 or any(attributes.get("pads") or ()) or attributes.get("group", 1) != 1:
        raise CantFuse("it has strides, dilations, pads or groups")


@dataclass(eq=False)
class _Before:
    """The operators before a convolution that its kernel computes, the last one first.

    Attributes:
        value: the input of the operators that are found so far.
        channels: its size on axis 1.
        nodes: the operators.
        parts: their inputs, concatenated along axis 1.
        norm: scale, bias, mean and variance of the BatchNormalization.
        factor, addend: those of each channel.
    """

    value: ir.Value
    channels: int
    cx: Context
    nodes: list[ir.Node] = field(default_factory=list)
    parts: tuple[ir.Value, ...] = ()
    norm: tuple[ir.Value | None, ...] = (None,) * 4
    factor: ir.Value | None = None
    addend: ir.Value | None = None
    epsilon: float = 0.0
    rectified: bool = False

    def find(self) -> None:
        """Find all of them."""
        if (node := self._producer("Relu")) is not None:
            self.rectified = True
            self._claim(node, node.inputs[0])
        self.addend = self._vector("Add")
        self.factor = self._vector("Mul")
        self._find_norm()
        self.parts = (self.value,)
        self._find_parts()

    def _producer(self, op: str) -> ir.Node | None:
        """The producer of the value, if it is ``op`` and has no other readers."""
        node = self.value.producer()
        if node is None or (node.domain, node.op_type) != ("", op) or self.value.is_graph_output():
            return None
        return node if ir.use_count(self.value) == 1 else None

    def _claim(self, node: ir.Node, value: ir.Value | None) -> None:
        assert value is not None
        self.nodes.append(node)
        self.value = value

    def _vector(self, op: str) -> ir.Value | None:
        """Claim ``op`` with one number for each channel, and return these numbers."""
        node = self._producer(op)
        if node is None:
            return None
        for vector, value in ((node.inputs[1], node.inputs[0]), node.inputs):
            if vector is not None and value is not None and self._is_of_channels(vector, value):
                self._claim(node, value)
                return vector
        return None

    def _is_of_channels(self, vector: ir.Value, value: ir.Value) -> bool:
        """Whether ``vector`` has one element for each channel of ``value``, which has the result's shape."""
        shape, whole = self.cx.shape(vector), self.cx.shape(value)
        if shape is None or whole is None or len(whole) != self.cx.rank(self.value) or self.channels == 1:
            return False
        axis = len(shape) - (len(whole) - 1)
        sizes = [self.channels if index == axis else 1 for index in range(len(shape))]
        return axis in (0, 1) and list(shape) == sizes and whole[1] == self.channels

    def _find_norm(self) -> None:
        node = self._producer("BatchNormalization")
        if node is None or len(node.inputs) != 5 or any(output.name for output in node.outputs[1:]):
            return
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        vectors = tuple(node.inputs[1:])
        is_inference = not attributes.get("training_mode", 0) and attributes.get("spatial", 1) == 1
        shapes = [None if value is None else self.cx.shape(value) for value in vectors]
        if not is_inference or any(shape is None or list(shape) != [self.channels] for shape in shapes):
            return
        self.epsilon = float(attributes.get("epsilon", 1e-5))
        self.norm = vectors
        self._claim(node, node.inputs[0])

    def _find_parts(self) -> None:
        node = self._producer("Concat")
        if node is None or not 1 < len(node.inputs) <= _MOST_PARTS:
            return
        axis, rank = node.attributes["axis"].as_int(), self.cx.rank(self.value)
        shapes = [None if value is None else self.cx.shape(value) for value in node.inputs]
        if axis not in (1, 1 - (rank or 0)) or any(
            shape is None or len(shape) != rank or not isinstance(shape[1], int) for shape in shapes
        ):
            return
        self.nodes.append(node)
        self.parts = tuple(value for value in node.inputs if value is not None)


def _is_blocked(value: ir.Value, cx: Context) -> bool:
    """Whether onnxruntime may compute ``value`` in its blocked layout, in which moves are impossible."""
    found = sources(value)
    return found is None or all(is_convolution(node) and not _is_kernel(node, cx) for node in found)


def _is_kernel(node: ir.Node | None, cx: Context) -> bool:
    """Whether the template of convolutions is expected to compute ``node``."""
    if node is None or node.op_type not in ("Conv", "FusedConv"):
        return False
    try:
        return conv.is_faster(conv.conv.match(node, cx), cx)
    except CantFuse:
        return False
