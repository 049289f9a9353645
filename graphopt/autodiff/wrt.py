"""What to differentiate by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphopt import ir
from graphopt.autodiff.reverse import is_real
from graphopt.context import Context
from graphopt.driver import copy
from graphopt.errors import UsageError, unknown
from graphopt.parameters.constant_nodes import expose
from graphopt.parameters.selection import FLOATS, PARAMS, parameters
from graphopt.util.coerce import split_names

#: All inputs of floating-point numbers, where names may be given; and these with all parameters.
INPUTS, ALL = "inputs", "all"


def expose_parameters(model: ir.Model, wrt: str | Iterable[str]) -> ir.Model:
    """A copy of ``model`` where the constants that ``wrt`` includes are initializers, as parameters are."""
    result, names = copy(model), split_names(wrt)
    expose(result, names, weights=PARAMS in names or ALL in names)
    return result


def wrt_names(model: ir.Model, wrt: str | Iterable[str]) -> dict[str, bool]:
    """The names that ``wrt`` comes to, and whether they were named, rather than as a group.

    Args:
        model: of :func:`with_parameters`: constants that become of it later are no parameters.
        wrt: ``params``, ``inputs``, ``all`` for both, and names of values; also several with commas between.

    Raises:
        UsageError: nothing is named.
    """
    graph = model.graph
    inner = (output for node in graph for output in node.outputs)
    values = {value.name for value in (*graph.inputs, *graph.initializers.values(), *inner)}
    names = split_names(wrt, values)
    if not names:
        raise UsageError("no value is named to differentiate by", hint="--wrt inputs, --wrt params, or names")
    real = [value for value in graph.inputs if value.dtype in FLOATS and not value.is_initializer()]
    groups = {PARAMS: parameters(model), INPUTS: real}
    groups[ALL] = [*real, *groups[PARAMS]]
    found: dict[str, bool] = {}
    for name in names:
        if name in groups and name not in values:
            found |= {value.name or "": False for value in groups[name] if value.name not in found}
        else:
            found[name] = True
    return found


def wrt_values(names: Mapping[str, bool], values: Mapping[str, ir.Value], cx: Context) -> list[ir.Value]:
    """The values of ``names``, as :func:`asked` tells them. What was part of a group may have gone since.

    Raises:
        UsageError: no value bears a name that was named, or it holds no real numbers.
    """
    found = []
    for name, named in names.items():
        if name not in values:
            if named:
                raise unknown("value", name, [*values, PARAMS, INPUTS, ALL], "graphopt dump shows all")
            continue
        value = values[name]
        if not is_real(value, cx):
            if named:
                raise UsageError(f"{name!r} holds no floating-point numbers: it has no gradient")
            continue
        found.append(value)
    return found
