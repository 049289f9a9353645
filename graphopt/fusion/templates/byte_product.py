"""Products of bytes: MatMulInteger, QLinearMatMul and onnxruntime's operators of dynamic quantization.

Integers are exact modulo 2³², and are converted in the same steps as by onnxruntime without optimizations, so
that results have the same bits. (Its kernels saturate sums of two products on x86-64 machines without VNNI.)
"""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, template
from graphopt.fusion.templates.quantized_product import BYTES, is_batched
from graphopt.util.lazy_dataclass import dataclass

#: For each operator, the indices of inputs: a, b, scale of a, scales of b, zero of a, zeros of b, bias, scale
#: and zero of the result.
_INPUTS: dict[str, tuple[int | None, ...]] = {
    "MatMulInteger": (0, 1, None, None, 2, 3, None, None, None),
    "MatMulIntegerToFloat": (0, 1, 2, 3, 4, 5, 6, None, None),
    "DynamicQuantizeMatMul": (0, 1, None, 2, None, 3, 4, None, None),
    "QLinearMatMul": (0, 3, 1, 4, 2, 5, None, 6, 7),
}
_A, _B, _A_SCALE, _B_SCALES, _A_ZERO, _B_ZEROS, _BIAS, _SCALE, _ZERO = range(9)


@dataclass(frozen=True)
class ByteProductParameters:
    """Static parameters of ``a · b``.

    Attributes:
        batched: whether each matrix of ``a`` has its own ``b``.
        by_column: whether scales, and zero points, of ``b`` are those of columns.
    """

    batched: bool
    by_column: tuple[bool, bool]


def is_faster(match: Match, cx: Context) -> bool:
    """Whether onnxruntime is slower: it multiplies uint8 by int8 at the peak of the machine.

    Dynamic quantization converts floats to uint8. For two operands of uint8 the kernel took 0.4 to 0.55 of
    onnxruntime's time (0.84 for one row), and for int8 0.04 to 0.13, measured with onnxruntime 1.31 at 1
    thread on AVX-512 with VNNI.
    """
    a, b = (None if value is None else cx.dtype(value) for value in match.operands[:2])
    return a is ir.DataType.INT8 or b is ir.DataType.UINT8


@template(
    "MatMulInteger",
    "QLinearMatMul",
    "com.microsoft::MatMulIntegerToFloat",
    "com.microsoft::DynamicQuantizeMatMul",
    is_faster=is_faster,
)
def byte_product(anchor: ir.Node, cx: Context) -> Match:
    """a [..., rows, depth] times b [depth, columns], or b [..., depth, columns] of the same batches."""
    inputs = dict(enumerate(anchor.inputs))
    operands = [None if index is None else inputs.get(index) for index in _INPUTS[anchor.op_type]]
    a, b = operands[_A], operands[_B]
    if a is None or b is None:
        raise CantFuse("an input is missing")
    dynamic = anchor.op_type == "DynamicQuantizeMatMul"
    types = (cx.dtype(a), cx.dtype(b))
    if types[1] not in BYTES or types[0] not in ((ir.DataType.FLOAT,) if dynamic else BYTES):
        raise CantFuse("no kernels for the types of its operands")
    for index in (_A_SCALE, _B_SCALES, _BIAS, _SCALE):
        value = operands[index]
        if value is not None and cx.dtype(value) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for other scales than floats")
    batched = is_batched(a, b, cx)
    columns = (cx.shape(b) or (None,))[-1]
    for index in (_A_SCALE, _A_ZERO, _SCALE, _ZERO):
        if operands[index] is not None and _by_column(operands[index], None, cx):
            raise CantFuse("rows have scales or zero points")
    by_column = (_by_column(operands[_B_SCALES], columns, cx), _by_column(operands[_B_ZEROS], columns, cx))
    if batched and any(by_column):
        raise CantFuse("onnxruntime rejects scales or zero points of columns in batches")
    bias = operands[_BIAS]
    if bias is not None and not _is_row(bias, columns, cx):
        raise CantFuse("its bias is not one number for each column")
    found = ByteProductParameters(batched, by_column)
    return Match("byte_product", (anchor,), tuple(operands), (anchor.outputs[0],), found)


def _is_row(value: ir.Value, columns: Dim | None, cx: Context) -> bool:
    """Whether ``value`` has the shape [columns]."""
    shape = cx.shape(value) or ()
    return len(shape) == 1 and columns is not None and cx.facts.dim_equal(shape[0], columns)


def _by_column(value: ir.Value | None, columns: Dim | None, cx: Context) -> bool:
    """Whether there is one number for each column; false for one number.

    Raises:
        CantFuse: there are other numbers, or their count is unknown.
    """
    if value is None or cx.static_shape(value) in ((), (1,)):
        return False
    if not _is_row(value, columns, cx):
        raise CantFuse("its scales or zero points are neither one number nor one for each column")
    return True
