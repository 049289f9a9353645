"""Whether templates are faster than onnxruntime's kernels: by figures in the table of costs.

A figure belongs to an operator, a case (the class of its shapes, such as ``1d, 1 channel in``), an element
type and a number of operations; :mod:`graphopt.tuning.template_subjects` defines the measured shapes. A
table that was measured on this machine decides alone. The shipped figures were measured on another machine,
so both they and the template's own rule (:attr:`graphopt.fusion.template_table.Template.is_faster`) must
expect a gain. Without figures, the template's rule decides.
"""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.cost import cost_of
from graphopt.analysis.symbolic import Dim, product, typical_size
from graphopt.context import Context
from graphopt.cost import Grid
from graphopt.fusion.operator_table import find, qualified_name
from graphopt.fusion.template_table import Match, has_template
from graphopt.ops import traits
from graphopt.util.lazy_dataclass import dataclass

#: Largest predicted ratio of times at which a template computes a group.
LEAST_GAIN = 0.95
#: Least predicted ratio at which a template is no candidate for a race.
RULED_OUT = 1.25
#: Largest number of rows in classes of few rows, to which products of unknown numbers of rows belong as well.
FEW_ROWS = 16
_FEW_ROWS = "few rows"
#: Name of the pass, for reports.
_PASS = "fuse-groups"
#: Operators with common figures, by their qualified names.
_FIGURES_OF = {
    "com.microsoft::FusedConv": "Conv",
    "Gemm": "MatMul",
    "com.microsoft::FusedMatMul": "MatMul",
    "com.microsoft::MatMulNBits": "MatMulNBits",
}


@dataclass(frozen=True)
class ShapeClass:
    """The figures that apply to a match.

    Attributes:
        op: name of the figures in the table of costs.
        case: the class of the shapes.
        dtype: element type of the first operand.
        operations: number of operations; ``None`` if unknown.
    """

    op: str
    case: str
    dtype: ir.DataType
    operations: int | None


def template_name(op: str) -> str:
    """The name of the templates of an operator in the table of costs."""
    return f"{op} template"


def is_faster_as_template(match: Match, cx: Context) -> bool:
    """Whether the template of ``match`` is expected to be faster; records a decision by figures."""
    expected = match.is_faster is None or match.is_faster(match, cx)
    is_measured_here = cx.costs.passes is not None
    if not expected and not is_measured_here:
        return False
    found = shape_class(match, cx)
    if found is None or _figures(found, cx) is None:
        return expected
    decision = cx.weigh(
        found.op,
        by=_PASS,
        at=match.results[:1],
        case=found.case,
        dtype=found.dtype,
        operations=found.operations,
    )
    return bool(decision) and decision.ratio is not None and decision.ratio <= LEAST_GAIN


def is_ruled_out(match: Match, cx: Context) -> bool:
    """Whether figures predict that the template of ``match`` is much slower, so that a race is futile."""
    found = shape_class(match, cx)
    grid = None if found is None else _figures(found, cx)
    return (
        found is not None
        and grid is not None
        and grid.at({"operations": found.operations}).ratio >= RULED_OUT
    )


def _figures(found: ShapeClass, cx: Context) -> Grid | None:
    """The figures of exactly this case and type."""
    dtype = found.dtype.name.lower()
    grid = cx.costs.grid(found.op, found.case, dtype)
    return grid if grid is not None and (grid.case, grid.dtype) == (found.case, dtype) else None


def shape_class(match: Match, cx: Context) -> ShapeClass | None:
    """The figures that apply to ``match``; ``None`` if its types are unknown, or it has several anchors."""
    anchors = [node for node in match.nodes if has_template(node)]
    value = match.operands[0] if match.operands else None
    dtype = None if value is None else cx.dtype(value)
    if len(anchors) != 1 or dtype is None:
        return None
    (anchor,) = anchors
    name = qualified_name(anchor)
    op = _FIGURES_OF.get(name, name)
    cost = cost_of(anchor, cx.facts)
    operations = None if cost is None or cost.flops is None else typical_size(cost.flops)
    case = {
        "Conv": _conv_case,
        "MatMul": _product_case,
        "MatMulNBits": _low_bits_case,
        "LSTM": _recurrent_case,
        "GRU": _recurrent_case,
        "RNN": _recurrent_case,
    }.get(op)
    text = "" if case is None else case(anchor, cx)
    if _FEW_ROWS in text and cost is not None and not isinstance(cost.flops, int):
        operations = None  # a typical size is that of many rows
    if match.template == "pointwise":  # the figures of the convolution do not contain the operators before it
        text += ", with operators before it"
    return ShapeClass(template_name(op), text, dtype, operations)


def _conv_case(node: ir.Node, cx: Context) -> str:
    """The number of spatial axes, and the property of channels and filters that decides on the algorithm."""
    shape = _dims(node.inputs[1], cx)
    axes = f"{len(shape) - 2}d"
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    if attributes.get("group", 1) != 1:
        return f"{axes}, {'depthwise' if shape[1] == 1 else 'grouped'}"
    if shape[1] == 1:
        return f"{axes}, 1 channel in"
    if shape[0] == 1:
        return f"{axes}, 1 channel out"
    kernel = shape[2:]
    is_dense = all(
        stride == 1 for stride in (*attributes.get("strides", ()), *attributes.get("dilations", ()))
    )
    if len(kernel) == 2 and list(kernel) == [3, 3] and is_dense:
        return f"{axes}, 3×3"
    return f"{axes}, 1×1" if set(kernel) == {1} else axes


def _product_case(node: ir.Node, cx: Context) -> str:
    """A product of a row, a column, with a constant matrix, or of two computed operands.

    Templates read transposed operands in place.
    """
    shape, right = _dims(node.outputs[0], cx), node.inputs[1]
    rows = product(shape[:-1] if right is not None and cx.rank(right) == 2 else shape[-2:-1])
    if shape[-1:] == (1,):
        return "column"
    if right is None or not _is_constant(right):
        before = [value.producer() for value in node.inputs[:2] if value is not None]
        is_transposed = any(one is not None and one.op_type == "Transpose" for one in before)
        if is_transposed:
            return "computed, transposed"
        return "computed" if isinstance(rows, int) and rows > FEW_ROWS else f"computed, {_FEW_ROWS}"
    if rows == 1:
        return "row"
    return "constant, epilogue" if has_epilogue(node) else "constant"


def _is_constant(value: ir.Value) -> bool:
    """Whether ``value`` is a constant, also a quantized one."""
    producer = value.producer()
    if producer is not None and producer.op_type == "DequantizeLinear":
        return all(one is None or ir.constant_of(one) is not None for one in producer.inputs)
    return ir.constant_of(value) is not None


def has_epilogue(node: ir.Node) -> bool:
    """Whether an elementwise operator is the only reader of the result."""
    readers = list(ir.readers(node.outputs[0]))
    operator = find(readers[0]) if len(readers) == 1 else None
    return operator is not None and not operator.reduces and not traits.is_alias(readers[0])


def _low_bits_case(node: ir.Node, cx: Context) -> str:
    """The number of bits, and the class of the number of rows; products of int8 are a class of their own.

    An unknown number of rows counts as few: a decoder runs with one row most of the time, and the ratios of
    many rows are close to 1.
    """
    bits, level = node.attributes.get("bits"), node.attributes.get("accuracy_level")
    rows = product(_dims(node.outputs[0], cx)[:-1])
    is_int8 = level is not None and level.as_int() == 4
    if rows == 1:
        name = "1 row"
    elif is_int8 or (isinstance(rows, int) and rows > FEW_ROWS):
        name = "rows"
    else:
        name = _FEW_ROWS
    return f"{4 if bits is None else bits.as_int()} bits, {name}{' of int8' if is_int8 else ''}"


def _recurrent_case(node: ir.Node, cx: Context) -> str:
    """One sequence, or a batch of them."""
    shape = _dims(node.inputs[0], cx)
    layout = node.attributes.get("layout")
    batch = shape[0 if layout is not None and layout.as_int() == 1 else 1] if len(shape) == 3 else None
    return "1 row" if batch == 1 or not isinstance(batch, int) else "rows"


def _dims(value: ir.Value | None, cx: Context) -> tuple[Dim, ...]:
    return () if value is None else tuple(cx.shape(value) or ())
