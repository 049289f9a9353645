"""Options about dims, as hints print them."""

from __future__ import annotations

import math
import shlex

from graphopt.analysis import symbolic
from graphopt.analysis.symbolic import Dim
from graphopt.util.dim_expressions import canonical_sum, names_within


def dim_option(option: str, name: str, value: str) -> str:
    """``--dim batch=1``, quoted for a shell where ``name`` or ``value`` requires it."""
    return f"{option} {shlex.quote(f'{name}={value}')}"


def relation_hint(a: Dim, b: Dim) -> str | None:
    """The option that declares two dims as equal; ``None`` unless both derive from dims of inputs.

    Also ``None`` if the command line has no notation for the relation: for quotients, for instance, or for
    names that are not identifiers. A dim with a range can't also have a relation.
    """
    for dim, other in ((a, b), (b, a)):
        name, parts = symbolic.declared_name(dim), symbolic.symbols(other)
        declared = all(symbolic.declared_name(symbolic.dim_of_atom(part)) for part in parts.values())
        if name is None or "=" in name or not parts or name in parts or not declared:
            continue
        if symbolic.bounds(dim) != (0, math.inf):
            continue
        right = str(other).replace(" ", "")
        if canonical_sum(right) is not None and {*names_within(right)} == {*parts}:
            return f"{dim_option('--dim-relation', name, right)} (if that holds in every run)"
    return None
