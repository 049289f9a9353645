"""Sets of shapes, one shape for each input in a set, from repeated ``--input-shape`` options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from graphopt.errors import UsageError
from graphopt.inputs.dim_bindings import Shape
from graphopt.inputs.feeds import parse_shape

Shapes = dict[str, Shape]


def parse_shape_sets(texts: Iterable[str]) -> list[Shapes]:
    """The sets of shapes to try, in order; without options, one empty set.

    ``x:1x3x224x224,8x3x224x224`` gives input ``x`` two shapes; two options ``--input-shape x:…`` have the
    same effect. The first shapes of several inputs form the first set, the second shapes the second set, and
    so on; an input with one shape has it in all sets.

    >>> parse_shape_sets(["x:1x8,4x8", "n:2"])
    [{'x': (1, 8), 'n': (2,)}, {'x': (4, 8), 'n': (2,)}]

    Raises:
        UsageError: a text is malformed, or two inputs have different numbers of shapes.
    """
    found: dict[str, list[Shape]] = {}
    for text in texts:
        for part in _texts_by_shape(text):
            name, shape = parse_shape(part)
            found.setdefault(name, []).append(shape)
    several = {name: shapes for name, shapes in found.items() if len(shapes) > 1}
    counts = {len(shapes) for shapes in several.values()}
    if len(counts) > 1:
        numbers = ", ".join(f"{name} {len(shapes)}" for name, shapes in several.items())
        raise UsageError(
            f"inputs have different numbers of shapes: {numbers}",
            hint="the first shapes of all inputs form a set, then the second ones, and so on",
        )
    count = max(counts, default=1)
    return [
        {name: shapes[index] if len(shapes) > 1 else shapes[0] for name, shapes in found.items()}
        for index in range(count)
    ]


def _texts_by_shape(text: str) -> Iterator[str]:
    """``text`` once for each of its shapes; if sizes are joined by ``x``, commas separate shapes."""
    name, colon, sizes = text.rpartition(":")
    if colon and re.search(r"\d\s*x\s*\d", sizes) and "," in sizes:
        yield from (f"{name}:{shape.strip()}" for shape in sizes.split(","))
    else:
        yield text
