"""Resolve ``wrt``: the values to differentiate with respect to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphopt import ir
from graphopt.autodiff.reverse_mode import may_be_float
from graphopt.context import Context
from graphopt.errors import UsageError, unknown
from graphopt.model_arguments import copy
from graphopt.parameters.constant_nodes_to_initializers import constants_to_initializers
from graphopt.parameters.selection import FLOATS, PARAMS, parameters
from graphopt.util.parse_values import split_names

#: Names of groups that ``wrt`` accepts: all floating-point inputs; all floating-point inputs and parameters.
INPUTS, ALL = "inputs", "all"


def expose_parameters(model: ir.Model, wrt: str | Iterable[str]) -> ir.Model:
    """A copy of ``model`` in which Constant nodes that ``wrt`` includes are initializers."""
    result, names = copy(model), split_names(wrt)
    constants_to_initializers(result, names, weights=PARAMS in names or ALL in names)
    return result


def wrt_names(model: ir.Model, wrt: str | Iterable[str]) -> dict[str, bool]:
    """The names that ``wrt`` selects, each with whether it is explicit rather than a member of a group.

    Args:
        model: the result of :func:`expose_parameters`: constants created later are not parameters.
        wrt: ``params``, ``inputs``, ``all`` for both, or names of values; several are separated by commas.

    Raises:
        UsageError: ``wrt`` is empty.
    """
    graph = model.graph
    inner = (output for node in graph for output in node.outputs)
    values = {value.name for value in (*graph.inputs, *graph.initializers.values(), *inner)}
    names = split_names(wrt, values)
    if not names:
        raise UsageError("nothing to differentiate by", hint="--wrt inputs, --wrt params, or names of values")
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
    """The values of ``names``, the result of :func:`wrt_names`.

    Members of groups that no longer exist, or do not contain real numbers, are omitted.

    Raises:
        UsageError: an explicit name is unknown, or its value does not contain floating-point numbers.
    """
    found = []
    for name, explicit in names.items():
        if name not in values:
            if explicit:
                raise unknown("value", name, [*values, PARAMS, INPUTS, ALL], "graphopt dump shows all")
            continue
        value = values[name]
        if not may_be_float(value, cx):
            if explicit:
                raise UsageError(f"{name!r} holds no floating-point numbers: it has no gradient")
            continue
        found.append(value)
    return found
