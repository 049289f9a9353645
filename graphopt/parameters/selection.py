"""Which initializers are parameters."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.coerce import split_names
from graphopt.errors import UsageError, unknown

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
#: All initializers that look like parameters, where names may be given.
PARAMS = "params"
#: Names of outputs that are gradients begin so.
GRADIENT = "grad."


def is_parameter(value: ir.Value) -> bool:
    """Whether initializer ``value`` looks like a parameter: real numbers, of at least one axis.

    Running statistics of BatchNormalization are none.
    """
    tensor = value.const_value
    return (
        tensor is not None
        and tensor.dtype in FLOATS
        and len(tensor.shape) > 0
        and not any(use.node.op_type == "BatchNormalization" and use.idx in (3, 4) for use in value.uses())
    )


def parameters(model: ir.Model) -> list[ir.Value]:
    """The initializers of the main graph that look like parameters.

    Of a joint graph they are those whose gradients it returns: it has constants of its own.
    """
    graph = model.graph
    returned = {output.name for output in graph.outputs}
    trained = [value for name, value in graph.initializers.items() if GRADIENT + name in returned]
    return trained or [value for value in graph.initializers.values() if is_parameter(value)]


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
