"""MatMulNBits: products with weights of 4 or 8 bits, which are dequantized in registers.

The computation is that of onnxruntime: weights become floats, (q − zero) · scale, and products of floats are
added. At accuracy level 4, blocks of the other operand are rounded to int8, and integers are multiplied if
the machine does so.
"""

from __future__ import annotations

import math

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, template
from graphopt.fusion.unknown_sizes import require_static_shape
from graphopt.util.lazy_dataclass import dataclass

#: Accuracy levels: single precision, and int8.
_SINGLE, _INT8 = (0, 1), 4
#: Sizes of blocks that onnxruntime supports.
_SIZES = (16, 32, 64, 128, 256)
#: Number of rows from which a product of integers is faster than that of onnxruntime.
_FEWEST_ROWS = 16


@dataclass(frozen=True)
class NBitsParameters:
    """Static parameters: ``bits`` per weight, ``size`` of a block, ``depth`` and ``columns`` of weights.

    Attributes:
        rounds: whether blocks of the other operand are rounded to int8.
    """

    bits: int
    size: int
    depth: int
    columns: int
    rounds: bool

    @property
    def blocks(self) -> int:
        """The number of blocks of a column."""
        return -(-self.depth // self.size)


def is_faster(match: Match, cx: Context) -> bool:
    """Whether the weights are constant, so that they are packed once; products of int8 also need many rows.

    Relative to onnxruntime 1.31, the kernel takes 0.1 to 0.5 times the time with 8 bits; with 4 bits 0.5 to
    0.8 times up to 16 rows, 0.9 at 32 and 0.99 at 64; and 0.5 to 0.7 for int8. onnxruntime is faster for a
    single row of int8: 0.7 to 0.8 times the kernel's time. These times are those of 1 thread with AVX-512,
    for depths of 256 to 1024 and 256 to 4096 columns.
    """
    if any(value is not None and ir.constant_of(value) is None for value in match.operands[1:]):
        return False
    if not match.parameters.rounds:
        return True
    a = match.operands[0]
    shape = None if a is None else cx.static_shape(a)
    return shape is not None and math.prod(shape[:-1]) >= _FEWEST_ROWS


@template("com.microsoft::MatMulNBits", is_faster=is_faster)
def nbits(anchor: ir.Node, cx: Context) -> Match:
    """a [..., depth] times the transpose of weights [columns, blocks, bytes of a block], plus a bias."""
    a, weights, scales, zeros, order, bias = [*anchor.inputs, *([None] * 6)][:6]
    attributes = {name: attribute.value for name, attribute in anchor.attributes.items()}
    if a is None or weights is None or scales is None:
        raise CantFuse("an input is missing")
    if order is not None or attributes.get("weight_prepacked", 0):
        raise CantFuse("its weights are in another order")
    level = attributes.get("accuracy_level", 0)
    if level not in (*_SINGLE, _INT8):
        raise CantFuse(f"no kernels for accuracy level {level}")
    size, depth, columns = (attributes.get(name, 0) for name in ("block_size", "K", "N"))
    if size not in _SIZES or min(depth, columns) < 1:
        raise CantFuse("onnxruntime rejects its size of blocks, K or N")
    found = NBitsParameters(attributes.get("bits", 4), size, depth, columns, level == _INT8)
    if found.bits not in (4, 8):
        raise CantFuse(f"no kernels for weights of {found.bits} bits")
    for value in (a, scales, bias):
        if value is not None and cx.dtype(value) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for other types than float")
    if cx.rank(a) is None:
        raise CantFuse(f"the rank of {a.name!r} is unknown")
    column_bytes = -(-found.blocks * found.bits // 8)
    for value, elements in (
        (weights, found.columns * found.blocks * found.size * found.bits // 8),
        (scales, found.columns * found.blocks),
        (zeros, found.columns * column_bytes),
    ):
        if value is not None and math.prod(require_static_shape(value, cx)) != elements:
            raise CantFuse(f"the number of elements of {value.name!r} is wrong")
    if zeros is not None and cx.dtype(zeros) is not ir.DataType.UINT8:
        raise CantFuse("its zero points are floats")
    return Match("nbits", (anchor,), (a, weights, scales, zeros, bias), (anchor.outputs[0],), found)
