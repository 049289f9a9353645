"""The difference between two models: interface, operators, and lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from graphopt import ir
from graphopt.ir.printer import Types
from graphopt.modeldiff.changes import Change, difference
from graphopt.modeldiff.match_nodes import match
from graphopt.modeldiff.print_changes import Printed, change_dicts, heading, print_changes
from graphopt.modeldiff.snapshot import Line, Snapshot
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Table, counted

_INTERFACE = ("format", "opset", "input", "output")


@dataclass(frozen=True)
class ModelDiff:
    """The differences between two models.

    Attributes:
        interface: changes of IR version, opsets, inputs and outputs.
        changes: all other changes.
        operators: the number of nodes of each model, by operator.
        equal: nodes that both models have.
        renamed: equal nodes whose values have other names.
    """

    interface: tuple[Change, ...]
    changes: tuple[Change, ...]
    operators: dict[str, tuple[int, int]]
    equal: int
    renamed: int
    nodes: tuple[int, int]

    @property
    def is_empty(self) -> bool:
        """Whether the models are equal except for metadata and names of inner values, nodes and graphs."""
        return not self.interface and not self.changes

    def counts(self) -> dict[str, int]:
        """The number of nodes by kind of change, including unchanged ones."""
        marks = Counter(change.mark for change in self.changes if _is_node(change.line))
        return {
            "equal": self.equal,
            "renamed": self.renamed,
            "changed": marks["~"],
            "removed": marks["-"],
            "added": marks["+"],
        }

    def lines(self, names: tuple[str, str], *, is_full: bool = False) -> Iterator[Printed]:
        """The difference as text; ``names`` are the names of the models."""
        counts = self.counts()
        renamed = f" ({counts['renamed']:,} renamed)" if counts["renamed"] else ""
        if self.is_empty:
            yield Printed("─", f"equal: {counted(self.equal, 'node')}{renamed}")
            return
        before, after = (f"{name}: {counted(n, 'node')}" for name, n in zip(names, self.nodes, strict=True))
        rest = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("changed", "removed", "added"))
        yield Printed("─", f"{before}; {after}; {counts['equal']:,} equal{renamed}, {rest}")
        if self.interface:
            yield Printed("@", "")
            yield heading("interface")
            yield from print_changes(self.interface, is_full=is_full)
        differing = {name: pair for name, pair in self.operators.items() if pair[0] != pair[1]}
        if differing:
            yield Printed("@", "")
            yield heading("operators")
            table = Table(["", "", "", ""], "<>>>")
            for name, (one, other) in differing.items():
                table.add(name, f"{one:,}", f"→ {other:,}", f"{other - one:+,}")
            yield from (Printed("@", line) for line in table.lines("  "))
        if self.changes:
            yield Printed("@", "")
            yield heading("changes")
            yield from print_changes(self.changes, is_full=is_full)

    def to_dict(self) -> dict[str, Any]:
        """The difference for programs, unshortened."""
        return {
            "equal": self.is_empty,
            "nodes": dict(zip("ab", self.nodes, strict=True)) | self.counts(),
            "operators": {name: list(pair) for name, pair in self.operators.items()},
            "interface": [item for change in self.interface for item in change_dicts(change)],
            "changes": [item for change in self.changes for item in change_dicts(change)],
        }


def compare(before: ir.Model, after: ir.Model, types: tuple[Types, Types] | None = None) -> ModelDiff:
    """The difference between two models.

    Nodes are matched by structure and by names; producer, metadata, names of inner values, nodes and graphs,
    and the order of nodes are not compared.

    Args:
        types: texts of types to show, for each model; by default the declared types.
    """
    shown = types or (None, None)
    one = Snapshot(before, shown[0], is_anonymous=True)
    other = Snapshot(after, shown[1], is_anonymous=True)
    matching = match(before, after, one, other)
    found = difference(one, other, matching)
    interface = [change for change in found if change.line.kind in _INTERFACE and not change.line.path]
    interface += _reordered(before, after)
    rest = [change for change in found if change.line.kind not in _INTERFACE or change.line.path]
    differing = dict.fromkeys(change.old.key for change in found if change.old is not None)
    nodes = [[line for line in side.lines.values() if _is_node(line)] for side in (one, other)]
    equal = [line for line in nodes[0] if line.key in matching.lines and line.key not in differing]
    renamed = sum(line.names[0] != other.lines[matching.lines[line.key]].names[0] for line in equal)
    counts = [Counter(line.operator for line in lines) for lines in nodes]
    operators = {name: (counts[0][name], counts[1][name]) for name in sorted({**counts[0], **counts[1]})}
    return ModelDiff(
        tuple(interface), tuple(rest), operators, len(equal), renamed, (len(nodes[0]), len(nodes[1]))
    )


def _is_node(line: Line) -> bool:
    return line.kind == "node" and line.operator != "Constant"


def _reordered(before: ir.Model, after: ir.Model) -> Iterator[Change]:
    """Inputs or outputs that both models have, in different orders."""
    for kind in ("inputs", "outputs"):
        ours, theirs = (_names(getattr(model.graph, kind)) for model in (before, after))
        common = [name for name in ours if name in theirs], [name for name in theirs if name in ours]
        if common[0] != common[1]:
            old, new = (
                Line(((), "order", kind), "order", ((f"order of {kind}", None),), (), f" {', '.join(names)}")
                for names in common
            )
            yield Change("~", old, new)


def _names(values: Iterable[ir.Value]) -> dict[str, None]:
    return dict.fromkeys(value.name or "" for value in values)
