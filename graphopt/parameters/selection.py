"""Which initializers are parameters."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.errors import UsageError, unknown

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
#: All initializers that look like parameters, where names may be given.
PARAMS = "params"


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


def chosen(model: ir.Model, which: str | Iterable[str]) -> list[ir.Value]:
    """The initializers of the main graph that ``which`` names: ``params``, or names, as text with commas too.

    Raises:
        UsageError: there is no such initializer.
    """
    own = {value.name or "": value for value in model.graph.initializers.values()}
    if which == PARAMS:
        return [value for value in own.values() if is_parameter(value)]
    if isinstance(which, str):
        which = [which] if which in own else [name.strip() for name in which.split(",") if name.strip()]
    names = list(dict.fromkeys(which))
    if not names:
        raise UsageError("no parameter is named", hint=f"{PARAMS}, or names of initializers")
    for name in names:
        if name not in own:
            raise unknown("initializer", name, own, "graphopt inspect -v shows them")
    return [own[name] for name in names]
