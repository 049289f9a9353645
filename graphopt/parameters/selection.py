"""Select parameters among initializers and constants."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.errors import UsageError, unknown
from graphopt.ops.traits import COMPUTE_BOUND
from graphopt.util.parse_values import split_names

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
#: Selects all initializers that look like parameters; can be combined with names.
PARAMS = "params"
#: Prefix of the names of gradient outputs.
GRADIENT = "grad."


#: Operands that are not parameters: running statistics, and floating-point sizes and thresholds.
_NO_PARAMETERS = frozenset(
    {
        ("BatchNormalization", 3),
        ("BatchNormalization", 4),
        ("Resize", 1),
        ("Resize", 2),
        ("Upsample", 1),
        ("NonMaxSuppression", 3),
        ("NonMaxSuppression", 4),
    }
)


def is_parameter(value: ir.Value) -> bool:
    """Whether an initializer, or the output of a Constant node, looks like a parameter.

    A parameter is a floating-point tensor with at least one axis, other than running statistics of
    BatchNormalization, sizes and thresholds. A Constant node with a single element, such as a factor, is a
    parameter only if a compute-bound operator such as Conv or Gemm reads it.
    """
    tensor = value.const_value if value.is_initializer() else ir.constant_of(value)
    if tensor is None or tensor.dtype not in FLOATS or len(tensor.shape) == 0:
        return False
    uses = [(use.node.op_type, use.idx) for use in value.uses()]
    if not value.is_initializer() and tensor.size == 1 and not any(op in COMPUTE_BOUND for op, _ in uses):
        return False
    return not any(use in _NO_PARAMETERS for use in uses)


def parameters(model: ir.Model) -> list[ir.Value]:
    """The initializers of the main graph that look like parameters.

    A joint graph has its own constants; for it, the result is the initializers whose gradients it returns.
    """
    own = model.graph.initializers
    return returns_gradients(model) or [value for value in own.values() if is_parameter(value)]


def returns_gradients(model: ir.Model) -> list[ir.Value]:
    """The initializers of the main graph whose gradients the model returns, as a joint graph does."""
    returned = {output.name for output in model.graph.outputs}
    return [value for name, value in model.graph.initializers.items() if GRADIENT + name in returned]


def chosen(model: ir.Model, which: str | Iterable[str]) -> list[ir.Value]:
    """The initializers of the main graph selected by ``which``: ``params`` or names, separated by commas.

    Raises:
        UsageError: an initializer does not exist.
    """
    own = {value.name or "": value for value in model.graph.initializers.values()}
    names = split_names(which, own)
    if not names:
        raise UsageError("no parameter is selected", hint=f"{PARAMS}, or names of initializers")
    found: dict[str, ir.Value] = {}
    for name in names:
        if name in own:
            found[name] = own[name]
        elif name == PARAMS:
            found |= {value.name or "": value for value in parameters(model)}
        else:
            raise unknown("initializer", name, [*own, PARAMS], "graphopt inspect -v shows them")
    return list(found.values())
