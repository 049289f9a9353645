# mypy: implicit-reexport
"""Symbolic dims: integer polynomials over symbols, floor division, minimum, maximum and choice.

A dim (:data:`Dim`) is an ``int`` or a :class:`SymDim`, a polynomial with integer coefficients over *atoms*:
symbols, floor divisions, minima, maxima and choices. ``+``, ``-``, ``*``, ``//`` and ``%`` work as on ints.
The form is canonical, so that most equal expressions compare equal and have equal hashes. A result without
atoms is always an ``int``. A symbol is an integer within its bounds. By default it is at least 0, because a
size of zero is valid. Only identities that hold for all values within the bounds are applied.

The cost of each operation is bounded: an expression that grows too large is replaced by an opaque symbol with
its bounds, named by a hash of its text, so that equal expressions remain equal.
"""

from graphopt.analysis.symbolic.division import ceildiv, divide_exactly, floordiv
from graphopt.analysis.symbolic.min_max import dim_max, dim_min, or_else
from graphopt.analysis.symbolic.polynomial import (
    Atom,
    Dim,
    Minimum,
    OrElse,
    Symbol,
    SymDim,
    dim_of_atom,
    fresh_symbol,
    lone_atom,
    polynomial,
    product,
    symbol,
)
from graphopt.analysis.symbolic.proofs import at_least, bounds, equal, known_nonzero
from graphopt.analysis.symbolic.ranges import Bound
from graphopt.analysis.symbolic.substitution import (
    TYPICAL,
    contains_atom,
    declared_name,
    evaluate,
    number,
    replace_atoms,
    substitute,
    symbols,
    typical_size,
)
from graphopt.analysis.symbolic.zero_propagation import zero_with
