"""What to differentiate by."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.errors import UsageError
from graphopt.parameters.selection import FLOATS, PARAMS, parameters, split_names

#: All inputs of floating-point numbers, where names may be given.
INPUTS = "inputs"


def asked(model: ir.Model, wrt: str | Iterable[str]) -> dict[str, bool]:
    """The names that ``wrt`` comes to, and whether they were named, rather than as a group.

    Args:
        model: as it was given: constants that become of it later are no parameters.
        wrt: ``params``, ``inputs`` and names of values, each of which may be several with commas between.

    Raises:
        UsageError: nothing is named.
    """
    graph = model.graph
    inner = (output for node in graph for output in node.outputs)
    values = {value.name for value in (*graph.inputs, *graph.initializers.values(), *inner)}
    names = split_names(wrt, values)
    if not names:
        raise UsageError("no value is named to differentiate by", hint="--wrt inputs, --wrt params, or names")
    found: dict[str, bool] = {}
    for name in names:
        if name == PARAMS and name not in values:
            found |= {value.name or "": False for value in parameters(model) if value.name not in found}
        elif name == INPUTS and name not in values:
            real = [value for value in graph.inputs if value.dtype in FLOATS and not value.is_initializer()]
            found |= {value.name or "": False for value in real if value.name not in found}
        else:
            found[name] = True
    return found
