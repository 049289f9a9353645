"""The text of a comparison of inner tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.util.text_tables import Block, Line, Table, counted, escaped, human_bytes

if TYPE_CHECKING:
    from graphopt.verification.inner_tensors.departures import ComparedTensor, TensorComparison

#: Maximum number of listed tensors.
_LISTED = 10


def lines(found: TensorComparison, names: tuple[str, str], *, everything: bool = False) -> Iterator[Block]:
    """The result as text.

    Args:
        found: the result.
        names: the names of A and B.
        everything: list all tensors.
    """
    identical = sum(one.error.is_identical for one in found.tensors)
    compared = f"{counted(len(found.tensors), 'tensor')} compared, {identical} identical"
    if found.first is None:
        yield Line(f"no tensor departs: {compared}", "good")
    else:
        count = len(found.departed)
        yield Line(f"{counted(count, 'tensor')} {'departs' if count == 1 else 'depart'}: {compared}", "bad")
        yield ""
        yield from _departure(found.first, names)
        others = [one.name for one in found.sources if one is not found.first]
        if others:
            yield f"  departures that do not follow from it: {_listed(others)}"
    for side, name in zip("ab", names, strict=True):
        for kind, value in found.nonfinite[side].items():
            noun = "NaN" if kind == "nan" else "infinity"
            where = escaped(f"{value.value} of {value.node}")
            yield f"  first {noun} in {name}: {where}, {counted(value.count, 'element')}"
    yield ""
    yield Line("relative errors by depth", "title")
    yield _histogram(found)
    if everything:
        yield ""
        yield _all_tensors(found)


def _histogram(found: TensorComparison) -> Table:
    """The numbers of tensors by depth and relative error."""
    from graphopt.verification.inner_tensors.departures import ERROR_BINS

    limits = [f"≤{limit:.0e}" for limit in ERROR_BINS]
    columns = ["depth", "identical", *limits, f">{ERROR_BINS[-1]:.0e}", "departed", "largest"]
    table = Table(columns, "<" + ">" * (len(columns) - 1))
    for depths in found.histogram():
        numbers = [depths.identical, *depths.bins, depths.departed]
        shown = [str(number) if number else "·" for number in numbers]
        where = f"{depths.first}–{depths.last}" if depths.last > depths.first else str(depths.first)
        table.add(where, *shown, f"{depths.largest:.1e}" if depths.largest else "0")
    return table


def _all_tensors(found: TensorComparison) -> Table:
    """A row for each tensor."""
    table = Table(["", "tensor", "type", "node", "max |Δ|", "relative", ""], "<<<<>><")
    departed = {one.name: None for one in found.departed}
    for one in found.tensors:
        error = one.error
        mark = "departs" if one.name in departed else "identical" if error.is_identical else "equal"
        numbers = [f"{error.largest:.1e}", f"{error.relative:.1e}"]
        table.add(mark, one.name, one.kind, _node(one), *numbers, error.reason or "")
    return table


def notes(found: TensorComparison) -> list[str]:
    """The lines on stderr: the inputs, the tensors that were not compared, and the memory."""
    left = [
        (sum(found.unmatched), "are unmatched"),
        (found.lost, "do not exist after onnxruntime's optimizations"),
        (found.random, "depend on random numbers"),
    ]
    parts = [f"{number} {reason}" for number, reason in left if number]
    inputs = escaped(", ".join(f"{name} {kind}" for name, kind in found.inputs.items()))
    noted = [f"  inputs: {inputs}"] if inputs else []
    noted += [f"  not compared: {', '.join(parts)}"] if parts else []
    if max(found.chunks) > 1:
        noted.append(
            f"  ran in {found.chunks[0]} and {found.chunks[1]} chunks, in processes of up to"
            f" {human_bytes(found.peak_bytes)}"
        )
    return noted


def _departure(one: ComparedTensor, names: tuple[str, str]) -> Iterator[Block]:
    """The first departure."""
    node, twin = one.pair.a.producer(), one.pair.b.producer()
    yield Line(escaped(f"first departure: {one.name}, {one.kind}, at depth {one.depth}"), "title")
    yield f"  {one.error.reason}"
    for name, value, producer in ((names[0], one.pair.a, node), (names[1], one.pair.b, twin)):
        if producer is not None:
            own = "" if value.name == one.name else f"{value.name} = "
            operands = ", ".join("" if read is None else read.name or "" for read in producer.inputs)
            call = escaped(f"{own}{producer.op_type}({operands})  {ir.label(producer)}")
            yield f"  in {name}: {call}"
    if twin is not None and ir.created_by(twin) is not None:
        yield f"  created by {ir.created_by(twin)} from {_listed(ir.origins(twin))}"


def _node(one: ComparedTensor) -> str:
    producer = one.pair.a.producer()
    return "" if producer is None else producer.op_type


def _listed(names: list[str] | tuple[str, ...]) -> str:
    few = escaped(", ".join(names[:_LISTED]))
    return few if len(names) <= _LISTED else f"{few} and {len(names) - _LISTED} more"
