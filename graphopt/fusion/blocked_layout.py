"""onnxruntime's blocked layout for convolutions: the operators that use it, and the values that may have it.

Between convolutions, the channels of tensors are stored in blocks of vectors. A kernel reads and writes rows
of channels, so that onnxruntime reorders its inputs and results. Measured with onnxruntime 1.31.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphopt import ir

#: Operators that may use the layout.
CONVOLUTIONS = frozenset(
    {"Conv", "ConvTranspose", "FusedConv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
    | {"BatchNormalization", "ConvInteger", "QLinearConv", "LRN", "Resize", "Upsample", "DepthToSpace"}
)
#: Elementwise operators that onnxruntime computes in this layout, or as parts of convolutions in it.
_ELEMENTWISE = frozenset(
    {"Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Clip", "QuickGelu"}
    | {"Add", "Sum", "Mul"}
)
#: Maximum number of values between a value and the operators that determine its layout.
_MOST_VALUES = 64


def adjacent_convolution(nodes: Sequence[ir.Node]) -> str | None:
    """A convolution, or an operator with its layout, that is adjacent to ``nodes``."""
    for node in nodes:
        before = [value.producer() for value in node.inputs if value is not None]
        behind = [reader for output in node.outputs for reader in ir.readers(output)]
        for other in (*before, *behind):
            if other is not None and other not in nodes and is_convolution(other):
                return ir.label(other)
    return None


def is_convolution(node: ir.Node | None) -> bool:
    """Whether onnxruntime may use the layout for ``node``."""
    return _is_one_of(node, CONVOLUTIONS)


def sources(value: ir.Value) -> list[ir.Node | None] | None:
    """The operators that determine the layout of ``value``: it is blocked only if all of them use blocks.

    These are its producer or, if that preserves the layout, those of its operands. The producer of an input
    of the graph is ``None``. The result is ``None`` if there are too many.
    """

    def operands(node: ir.Node) -> Iterable[ir.Value]:
        return (each for each in node.inputs if each is not None and ir.constant_of(each) is None)

    return _ends(value, lambda each: (each.producer(),), operands, _ELEMENTWISE | {"Concat"})


def destinations(value: ir.Value) -> list[ir.Node | None] | None:
    """The readers of ``value``, or of their results if they preserve the layout; ``None`` if too many."""
    return _ends(value, ir.readers, lambda node: node.outputs[:1], _ELEMENTWISE)


def _ends(
    value: ir.Value,
    neighbours: Callable[[ir.Value], Iterable[ir.Node | None]],
    behind: Callable[[ir.Node], Iterable[ir.Value]],
    keeping: frozenset[str],
) -> list[ir.Node | None] | None:
    """The ends of all paths from ``value`` through nodes that preserve the layout."""
    pending, visited = [value], {value: None}
    found: list[ir.Node | None] = []
    while pending:
        for node in neighbours(pending.pop()):
            if node is None or not _is_one_of(node, keeping):
                found.append(node)
                continue
            new = [each for each in behind(node) if each not in visited]
            visited.update(dict.fromkeys(new))
            pending += new
        if len(visited) > _MOST_VALUES:
            return None
    return found


def _is_one_of(node: ir.Node | None, ops: frozenset[str]) -> bool:
    return node is not None and node.domain in ("", *ir.RUNTIME_DOMAINS) and node.op_type in ops
