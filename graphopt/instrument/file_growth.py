"""Attribute the growth of a file to new constants, by the pass that created them, and to nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from graphopt import ir
from graphopt.passes.pass_records import PassRecord
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted, human_bytes

#: Number of passes named.
_NAMED = 3


@dataclass(frozen=True)
class NewConstant:
    """A constant of the result that the original lacks.

    Attributes:
        type: such as ``f32[64]``.
        bytes: its size in bytes.
        by: the pass that created it.
    """

    name: str
    type: str
    bytes: int
    by: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def constants_of(model: ir.Model) -> Iterator[ir.Value]:
    """The constants of the main graph, including Constant nodes."""
    yield from model.graph.initializers.values()
    for node in model.graph:
        if node.op_type == "Constant" and node.domain == "" and node.outputs:
            yield node.outputs[0]


def new_constants(model: ir.Model, makers: Mapping[str, str]) -> list[NewConstant]:
    """The new constants of the main graph, largest first.

    Args:
        makers: the pass that created each constant, by name of the constant; ``""`` for constants of the
            original.
    """
    found = []
    for value in constants_of(model):
        name, tensor = value.name or "", ir.constant_of(value)
        if tensor is not None and makers.get(name):
            type_ = ir.type_text(tensor.dtype, tensor.shape.numpy())
            found.append(NewConstant(name, type_, tensor.nbytes, makers[name]))
    return sorted(found, key=lambda made: -made.bytes)


def growth_lines(
    grown: int,
    weights: int,
    made: Sequence[NewConstant],
    passes: Sequence[PassRecord],
    nodes: int,
    functions: int,
) -> Iterator[str]:
    """Explain why a file grew.

    Args:
        grown: growth of the file in bytes.
        weights: growth of its weights in bytes, which may be negative.
        made: the constants that the original lacks.
        passes: all runs of passes, in order.
        nodes: number of nodes of the original, without functions.
        functions: number of nodes that functions gained.
    """
    if grown <= 0:
        return
    yield f"larger    by {human_bytes(grown)}"
    if weights > 0:
        sizes: Counter[str] = Counter()
        for one in made:
            sizes[one.by] += one.bytes
        for by, size in sizes.most_common(_NAMED):
            ones = [one for one in made if one.by == by]
            first = f"{ones[0].name}: {ones[0].type}"
            if len(ones) > 1:
                first = f"the largest {first}, {human_bytes(ones[0].bytes)}"
            yield f"          {human_bytes(size)} in {counted(len(ones), 'constant')} of {by}, {first}"
        freed = sum(sizes.values()) - weights
        if freed > 0:
            yield f"          {human_bytes(freed)} of the constants that these replace are removed"
    rest = grown - weights
    if rest > 0:
        by = _passes_that_added(passes, nodes, functions)
        yield f"          {human_bytes(rest)} in nodes, names and notes{by}"


def _passes_that_added(passes: Sequence[PassRecord], nodes: int, functions: int) -> str:
    """The passes that added nodes."""
    added: Counter[str] = Counter()
    for record in passes:
        added[record.name] += max(0, record.nodes - nodes)
        nodes = record.nodes
    parts = [f"{name} added {counted(count, 'node')}" for name, count in added.most_common(_NAMED) if count]
    if functions > 0:
        parts.append(f"functions hold {counted(functions, 'more node')}")
    return f": {', '.join(parts)}" if parts else ""
