"""MatMul, Gemm and FusedMatMul of floats, with the transpositions of their operands.

The schedule is that of Goto and van de Geijn (Anatomy of high-performance matrix multiplication, 2008): tiles
of registers, constant operands packed once, and the epilogue on tiles that are in a cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.analysis.symbolic import product, typical_size
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.ort_overlap import overlap
from graphopt.fusion.template_table import Match, template
from graphopt.util.lazy_dataclass import dataclass

#: Maximum rank of an operand.
MOST_AXES = 8


@dataclass(frozen=True)
class MatMulParameters:
    """Static parameters of ``alpha · A · B + beta · C``.

    Attributes:
        orders: for A and B, the axes of the operand in memory in the order of the matrices: batch axes, rows,
            columns.
        alpha, beta: factors; C is omitted if ``beta`` is 0.
    """

    orders: tuple[tuple[int, ...], tuple[int, ...]]
    alpha: float = 1.0
    beta: float = 0.0


def is_faster(match: Match, cx: Context) -> bool:
    """Whether the kernel is faster, by its measured times relative to onnxruntime's (docs/kernels.md).

    onnxruntime 1.31 is as fast as the template, at 1 thread with AVX-512, for products of several rows with a
    constant matrix, unless the sum has 1024 or more terms or an epilogue repays the kernel.
    """
    (a, b), orders = match.operands[:2], match.parameters.orders
    assert a is not None and b is not None
    a_dims, b_dims = _ordered(a, orders[0], cx), _ordered(b, orders[1], cx)
    m, n = (a_dims[-2] if len(a_dims) > 1 else 1), (b_dims[-1] if len(b_dims) > 1 else 1)
    k = a_dims[-1]
    is_shared = len(b_dims) <= 2
    if is_shared:
        m *= _size(a_dims[:-2])
    if n == 1:  # 0.2 of the time: onnxruntime pads columns to vectors
        return m * k >= 1 << 14
    if ir.constant_of(b) is not None:
        if m == 1:
            return n * k >= 1 << 16  # 0.82 to 0.9; below, both take the time of a call
        return k >= 1024 or _has_epilogue(match, cx)
    if orders[1] and orders[1][-1] != len(orders[1]) - 1:  # transposed: copied to panels by each run
        return m == 1
    if not _is_known(b, orders[1][-1:], cx):
        return False
    is_known = _is_known(a, orders[0][:-1] if is_shared else orders[0][-2:-1], cx)
    if n >= 1024:
        return is_known and 1 < m <= 8  # 0.34 to 0.71; 0.7 to 1.0 with 16 rows
    if not is_known:
        return True  # 0.45 to 0.95 up to 64 rows, and as fast with more: onnxruntime copies B
    if m == 1:
        return not is_shared and n <= 128  # 0.7 to 0.9
    if m * n * k <= 1 << 12:
        return not is_shared  # 0.1 to 0.4: a call of onnxruntime's routine takes longer than a small product
    return m <= 64


def _is_known(value: ir.Value, axes: Sequence[int], cx: Context) -> bool:
    """Whether dims of an operand are known before the model runs."""
    shape = cx.shape(value) or ()
    return all(isinstance(shape[axis], int) for axis in axes)


def _has_epilogue(match: Match, cx: Context) -> bool:
    """Whether the template saves passes over the result that take longer than its call.

    A cheap operator that onnxruntime runs after the product takes as long as the template is slower, so that
    two are needed. Those that onnxruntime fuses into the product do not count.
    """
    count = 0
    (value,) = match.results
    while count < 2:
        readers = list(ir.readers(value))
        if len(readers) != 1 or value.is_graph_output() or overlap(readers[0], cx) is not None:
            return False
        if readers[0].op_type in _SLOW:
            return True
        if readers[0].op_type not in _CHEAP:
            return False
        (value,) = readers[0].outputs
        count += 1
    return True


#: Operators whose passes take longer in onnxruntime than as an epilogue.
_SLOW = frozenset(
    {"Gelu", "BiasGelu", "FastGelu", "Mish", "HardSwish", "Softplus", "Erf", "Add", "Sum", "Tanh"}
)
#: Operators whose passes take about as long as in an epilogue.
_CHEAP = frozenset(
    {"QuickGelu", "Swish", "Sigmoid", "Relu", "LeakyRelu", "Mul", "Sub", "Div", "Cast", "Clip"}
)


def _ordered(value: ir.Value, order: Sequence[int], cx: Context) -> list[int]:
    """The typical dims of an operand, in the order of the matrices; 1 if unknown."""
    shape = cx.shape(value) or ()
    return [typical_size(shape[axis]) or 1 for axis in order]


def _size(dims: Sequence[int]) -> int:
    found = product(dims)
    assert isinstance(found, int)
    return found


@template("MatMul", "Gemm", "com.microsoft::FusedMatMul", is_faster=is_faster)
def matmul(anchor: ir.Node, cx: Context) -> Match:
    """The product alone."""
    return _match(anchor, cx, ())


@template("MatMul", "Gemm", "com.microsoft::FusedMatMul", is_faster=is_faster)
def transposed_matmul(anchor: ir.Node, cx: Context) -> Match:
    """The product of operands that Transpose nodes compute, which become strides."""
    nodes = [value.producer() for value in anchor.inputs[:2] if value is not None]
    transposes = tuple(
        node for node in nodes if node is not None and (node.domain, node.op_type) == ("", "Transpose")
    )
    if not transposes:
        raise CantFuse("no Transpose computes its operands")
    return _match(anchor, cx, transposes)


def _match(anchor: ir.Node, cx: Context, transposes: Sequence[ir.Node]) -> Match:
    attributes = {name: attribute.value for name, attribute in anchor.attributes.items()}
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        raise CantFuse("its batch axes are between those of the matrices")
    operands: list[ir.Value | None] = []
    orders = []
    for number, value in enumerate(anchor.inputs[:2]):
        if value is None:
            raise CantFuse("an operand is missing")
        order = _order(value, cx)
        if attributes.get(("transA", "transB")[number]):
            if len(order) < 2:
                raise CantFuse("it transposes a vector")
            order = [*order[:-2], order[-1], order[-2]]
        producer = value.producer()
        if producer is not None and producer in transposes:
            perm = producer.attributes.get("perm")
            axes = list(perm.as_ints()) if perm is not None else list(range(len(order)))[::-1]
            order = [axes[axis] for axis in order]
            value = producer.inputs[0]
            assert value is not None
        operands.append(value)
        orders.append(tuple(order))
    c = anchor.inputs[2] if len(anchor.inputs) > 2 else None
    beta = attributes.get("beta", 1.0) if c is not None else 0.0
    operands.append(c if beta else None)
    for value in operands:
        if value is not None and cx.dtype(value) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for products of other types than float")
    if operands[2] is not None and cx.rank(operands[2]) is None:
        raise CantFuse(f"the rank of {operands[2].name!r} is unknown")
    if cx.shape(anchor.outputs[0]) is None:
        raise CantFuse(f"the shape of {anchor.outputs[0].name!r} is unknown")
    parameters = MatMulParameters((orders[0], orders[1]), float(attributes.get("alpha", 1.0)), float(beta))
    return Match("matmul", (*transposes, anchor), tuple(operands), (anchor.outputs[0],), parameters)


def _order(value: ir.Value, cx: Context) -> list[int]:
    rank = cx.rank(value)
    if rank is None:
        raise CantFuse(f"the rank of {value.name!r} is unknown")
    if not 0 < rank <= MOST_AXES:
        raise CantFuse(f"no kernels for products of tensors with {rank} axes")
    return list(range(rank))
