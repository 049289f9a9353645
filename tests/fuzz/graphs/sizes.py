"""Shapes that are computed: vectors of dims, and views of tensors through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.fuzz.graphs.grower import Grower

#: A dim at both sets of sizes, and the value and axis whose dim it is; ``None`` for a constant.
Dim = tuple[tuple[int, int], tuple[str, int] | None]


def size_vector(g: Grower, dims: Sequence[Dim]) -> str | None:
    """A vector of ``dims``: constants where they have no source, computed by Shape where they have."""
    parts: list[str | None] = []
    for (size, _), source in dims:
        if source is None:
            parts.append(g.ints(size))
            continue
        value, axis = source
        whole = g.op("Shape", value)
        if whole is None:
            return None
        match g.choose("scalar", "vector", "slice"):
            case "scalar":
                scalar = g.op("Gather", whole, g.constant(axis), axis=0)
                parts.append(scalar and g.with_ints("Unsqueeze", 13, scalar, "axes", [0]))
            case "vector":
                parts.append(g.op("Gather", whole, g.ints(axis), axis=0))
            case _ if g.opset < 10:
                parts.append(g.op("Slice", whole, axes=[0], starts=[axis], ends=[axis + 1]))
            case _:
                parts.append(g.op("Slice", whole, g.ints(axis), g.ints(axis + 1), g.ints(0)))
    if any(part is None for part in parts):
        return None
    return parts[0] if len(parts) == 1 and g.chance(70) else g.op("Concat", *parts, axis=0)


@dataclass(frozen=True)
class _Term:
    """A dim of the target: its sizes, and the axes of the source that it joins (none: cut or new)."""

    sizes: tuple[int, int]
    axes: tuple[int, ...]

    @property
    def static(self) -> bool:
        return self.sizes[0] == self.sizes[1]


def view(g: Grower, x: str) -> str | None:
    """A Reshape of ``x`` that merges, splits, adds and drops dims, with a shape in any form."""
    terms = [_Term(sizes, (axis,)) for axis, sizes in enumerate(g.sizes(x))]
    for _ in range(g.number(1, 3)):
        terms = _changed(g, terms)
    told: list[Dim] = []
    free = True  # -1 has not been used
    for place, term in enumerate(terms):
        same_place = term.axes == (place,)
        ways = []
        if same_place and 0 not in term.sizes:
            ways.append("zero")
        if term.static:
            ways += ["number", "number"]
        if free:
            ways.append("rest")
        if len(term.axes) == 1:
            ways.append("dim")
        if not ways:
            return None
        match g.choose(*ways):
            case "zero":
                told.append(((0, 0), None))
            case "number":
                told.append((term.sizes, None))
            case "rest":
                told.append(((-1, -1), None))
                free = False
            case _:
                told.append((term.sizes, (x, term.axes[0])))
    if all(source is None for _, source in told):
        return g.op("Reshape", x, g.ints(*(size for (size, _), _ in told)))
    target = size_vector(g, told)
    return target and g.op("Reshape", x, target)


def _changed(g: Grower, terms: list[_Term]) -> list[_Term]:
    match g.choose("join", "cut", "one", "drop"):
        case "join" if len(terms) > 1:
            at = g.number(0, len(terms) - 2)
            a, b = terms[at : at + 2]
            sizes = a.sizes[0] * b.sizes[0], a.sizes[1] * b.sizes[1]
            return [*terms[:at], _Term(sizes, a.axes + b.axes), *terms[at + 2 :]]
        case "cut":
            even = [
                i
                for i, term in enumerate(terms)
                if term.static and term.sizes[0] > 2 and term.sizes[0] % 2 == 0
            ]
            if even:
                at = g.choose(*even)
                half = terms[at].sizes[0] // 2
                parts = g.choose([2, half], [half, 2])
                return [*terms[:at], *(_Term((n, n), ()) for n in parts), *terms[at + 1 :]]
        case "one":
            at = g.number(0, len(terms))
            return [*terms[:at], _Term((1, 1), ()), *terms[at:]]
        case "drop":
            ones = [i for i, term in enumerate(terms) if term.sizes == (1, 1)]
            if ones:
                at = g.choose(*ones)
                return terms[:at] + terms[at + 1 :]
    return terms
