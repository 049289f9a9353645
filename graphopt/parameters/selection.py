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
#: Selects parameters and running statistics.
WEIGHTS = "weights"
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


#: Operands that store statistics of the training data.
_STATISTICS = frozenset({("BatchNormalization", 3), ("BatchNormalization", 4)})
#: Operators that map floats to integers by a scale, which belongs to the integers.
_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})


def weights(model: ir.Model) -> list[ir.Value]:
    """The initializers of the main graph that a training may change: parameters and running statistics.

    A tensor with a single element, such as a factor or an epsilon, is a weight only if a compute-bound or
    normalizing operator reads it.
    """
    found = []
    for value in model.graph.initializers.values():
        readers = [(use.node.op_type, use.idx) for use in value.uses()]
        is_statistic = bool(readers) and all(reader in _STATISTICS for reader in readers)
        tensor = value.const_value
        if not (is_statistic or is_parameter(value)) or ir.is_overridable(value) or tensor is None:
            continue
        if any(op in _QUANTIZERS and index > 0 for op, index in readers):
            continue
        if tensor.size == 1 and not any(op in COMPUTE_BOUND or "Norm" in op for op, _ in readers):
            continue
        found.append(value)
    return found


def parameters(model: ir.Model) -> list[ir.Value]:
    """The initializers of the main graph that look like parameters.

    For a joint graph, the result is the initializers whose gradients it returns, because constants
    of the gradient computation may look like parameters.
    """
    own = model.graph.initializers
    return returns_gradients(model) or [value for value in own.values() if is_parameter(value)]


def returns_gradients(model: ir.Model) -> list[ir.Value]:
    """The initializers of the main graph whose gradients the model returns, as a joint graph does."""
    returned = {output.name for output in model.graph.outputs}
    return [value for name, value in model.graph.initializers.items() if GRADIENT + name in returned]


def chosen(model: ir.Model, which: str | Iterable[str]) -> list[ir.Value]:
    """The initializers of the main graph selected by ``which``.

    Args:
        which: ``params`` for :func:`parameters`, ``weights`` for :func:`weights`, or names, separated by
            commas.

    Raises:
        UsageError: an initializer does not exist.
    """
    own = {value.name or "": value for value in model.graph.initializers.values()}
    names = split_names(which, own)
    if not names:
        raise UsageError("no parameter is selected", hint=f"{PARAMS}, {WEIGHTS}, or names of initializers")
    found: dict[str, ir.Value] = {}
    for name in names:
        if name in own:
            found[name] = own[name]
        elif name in _GROUPS:
            found |= {value.name or "": value for value in _GROUPS[name](model)}
        else:
            raise unknown("initializer", name, [*own, *_GROUPS], "graphopt inspect -v shows them")
    return list(found.values())


_GROUPS = {PARAMS: parameters, WEIGHTS: weights}
