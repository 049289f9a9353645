"""Optionals that are constructed and read in the model are replaced by their contents."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule


@rule(
    lambda op, x: op.OptionalGetElement(op.Optional(x)),
    lambda op, x: op.OptionalGetElement(x),
    numerics=Exact,
)
def element_of_made_optional(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """OptionalGetElement(Optional(x)), OptionalGetElement(x) → x."""
    if _is_made_of(m, x) or m.dtype(x) is not None:
        return x
    return m.no("it may have no element", x)


@rule(
    lambda op, x: op.OptionalHasElement(op.Optional(x.optional())),
    lambda op, x: op.OptionalHasElement(x.optional()),
    numerics=Exact,
)
def made_optional_has_element(op: Builder, m: Match, x: ir.Value | None) -> Outcome:
    """OptionalHasElement(Optional(x)) → True; OptionalHasElement(Optional()) → False."""
    if x is None or _is_made_of(m, x) or m.dtype(x) is not None:
        return op.constant(np.array(x is not None))
    return m.no("it may have no element", x)


def _is_made_of(m: Match, x: ir.Value) -> bool:
    """Whether ``x`` is the element of the matched Optional."""
    return len(m.nodes) > 1 and any(value is x for value in m.nodes[1].inputs)
