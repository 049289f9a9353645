"""Which initializers and constants are parameters."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.errors import UsageError, unknown
from graphopt.ops.traits import COMPUTE_BOUND
from graphopt.util.coerce import split_names

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
#: All initializers that look like parameters, where names may be given.
PARAMS = "params"
#: Names of outputs that are gradients begin so.
GRADIENT = "grad."


#: Operands that hold no parameters: running statistics, and sizes and thresholds that are real numbers.
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

    Those hold real numbers, have at least one axis, and are no running statistics of BatchNormalization nor
    sizes or thresholds. A Constant node of a single number, such as a factor, is one only where an operator
    like Conv or Gemm reads it.
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

    Of a joint graph they are those whose gradients it returns: it has constants of its own.
    """
    own = model.graph.initializers
    return returns_gradients(model) or [value for value in own.values() if is_parameter(value)]


def returns_gradients(model: ir.Model) -> list[ir.Value]:
    """The initializers of the main graph whose gradients the model returns; none but in a joint graph."""
    returned = {output.name for output in model.graph.outputs}
    return [value for name, value in model.graph.initializers.items() if GRADIENT + name in returned]


def chosen(model: ir.Model, which: str | Iterable[str]) -> list[ir.Value]:
    """The initializers of the main graph that ``which`` names: ``params`` and names, with commas between too.

    Raises:
        UsageError: there is no such initializer.
    """
    own = {value.name or "": value for value in model.graph.initializers.values()}
    names = split_names(which, own)
    if not names:
        raise UsageError("no parameter is named", hint=f"{PARAMS}, or names of initializers")
    found: dict[str, ir.Value] = {}
    for name in names:
        if name in own:
            found[name] = own[name]
        elif name == PARAMS:
            found |= {value.name or "": value for value in parameters(model)}
        else:
            raise unknown("initializer", name, [*own, PARAMS], "graphopt inspect -v shows them")
    return list(found.values())
