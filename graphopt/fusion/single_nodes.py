"""Single nodes that a kernel computes faster than onnxruntime, by the figures in the table of costs.

The figures are those of :mod:`graphopt.tuning.kernel_subjects`. An operator without figures for its case and
element type runs in onnxruntime.
"""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.symbolic import product
from graphopt.context import Context
from graphopt.fusion.operator_table import find

#: Largest predicted ratio of times at which a single node becomes a kernel. A kernel can prevent fusions that
#: the measured models do not have, so the gain must be clear.
LEAST_GAIN = 0.95
#: Name of the pass, for reports.
_PASS = "fuse-groups"


def kernel_name(op: str) -> str:
    """The name of the kernel of one operator in the table of costs."""
    return f"{op} kernel"


def is_faster_alone(node: ir.Node, cx: Context, *, always: bool = False) -> bool:
    """Whether a kernel of ``node`` alone is faster by the table of costs; records the decision.

    With ``always``, the result is true for all nodes with figures, and nothing is recorded.
    """
    value = node.inputs[0] if node.inputs else None
    data = node.inputs[1] if node.op_type == "Where" and len(node.inputs) > 1 else value
    dtype = None if data is None else cx.dtype(data)
    if value is None or dtype is None or node.domain != "":
        return False
    op, case = kernel_name(node.op_type), _case(node, cx)
    grid = cx.costs.grid(op, case, dtype.name.lower())
    if grid is None or (grid.case, grid.dtype) != (case, dtype.name.lower()):
        return False
    if always:
        return True
    operator = find(node)
    largest = value if operator is not None and operator.reduces else node.outputs[0]
    shape = cx.shape(largest)
    elements = None if shape is None else product(shape)
    decision = cx.weigh(op, by=_PASS, at=node.outputs[:1], case=case, dtype=dtype, elements=elements)
    return bool(decision) and decision.ratio is not None and decision.ratio <= LEAST_GAIN


def _case(node: ir.Node, cx: Context) -> str:
    """The axes of a softmax: ``inner`` if the last axis is not reduced."""
    if node.op_type not in ("Softmax", "LogSoftmax"):
        return ""
    attribute = node.attributes.get("axis")
    rank = cx.rank(node.outputs[0])
    if cx.version(node) < 13:  # all axes from the given one on
        return "last"
    axis = -1 if attribute is None else attribute.as_int()
    return "last" if axis == -1 or axis + 1 == rank else "inner"
