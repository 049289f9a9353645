"""The result of a bisection: the rewrite at fault, and the nodes around it."""

from __future__ import annotations

from functools import cached_property

from graphopt import ir
from graphopt.debug.trial_run import RewriteStep, find_node
from graphopt.inputs.feeds import Feeds
from graphopt.modeldiff.changes import by_key, difference
from graphopt.modeldiff.print_changes import printed
from graphopt.modeldiff.snapshot import Snapshot
from graphopt.rewrite.rewrite_filter import RewriteLimit, RewriteSite
from graphopt.util.lazy_dataclass import dataclass

#: Maximum number of lines of the neighbourhood.
_SHOWN = 24


@dataclass
class Culprit:
    """The rewrite, or the pass, at fault.

    Attributes:
        place: the rule and the node; ``None`` for a pass that changes the model outside of rewrites.
        number: number of the rewrite, from 1, in the run in which it was found; 0 for a pass.
        pass_index: number of the pass in the run, from 1.
        pass_text: the pass with its options.
        reason: the failure of the check.
        before: the model immediately before the rewrite.
        after: the model immediately after the rewrite; ``None`` without a result.
        limits: the limits that lead to ``after``.
        endless: whether the rule does not terminate; ``place`` is then its last rewrite.
        needs: other rewrites without which the rewrite is harmless.
        masked_by: a later rewrite after which the check passes again.
        feeds: inputs that show the fault.
        owners: the rules and passes that are still suspect, if the search ended early.
    """

    place: RewriteSite | None
    number: int
    pass_index: int
    pass_text: str
    reason: str
    before: ir.Model
    after: ir.Model | None
    limits: RewriteLimit
    endless: bool = False
    needs: tuple[RewriteSite, ...] = ()
    masked_by: RewriteStep | None = None
    feeds: Feeds | None = None
    owners: tuple[str, ...] = ()
    runs: int = 0

    def __str__(self) -> str:
        where = f"pass {self.pass_index} ({self.pass_text})"
        if self.place is None:
            return where
        return f"{self.place} (rewrite {self.number}, in {where})"

    @cached_property
    def lines(self) -> list[str]:
        """The nodes around the rewrite: operands, readers, removed (``-``) and added (``+``) nodes."""
        return _neighbourhood(self)

    @property
    def title(self) -> str:
        """The rewrite or pass at fault, in a few words."""
        return f"pass {self.pass_text}" if self.place is None else str(self.place)


def _neighbourhood(culprit: Culprit) -> list[str]:
    names = ir.Names.of(culprit.before)
    node = None if culprit.place is None else find_node(culprit.before, culprit.place.node)
    read, readers = [], []
    if node is not None:
        producers = [value.producer() for value in node.inputs if value is not None]
        read = [item for item in dict.fromkeys(producers) if item is not None]
        readers = list(dict.fromkeys(user for output in node.outputs for user, _ in output.uses()))[:4]
    lines = [f"  {ir.print_node(item, names)}" for item in read]
    changes = _changes(culprit)
    if changes is not None:
        lines += changes
    elif node is not None:
        lines.append(f"  {ir.print_node(node, names)}")
    shown = {line[2:] for line in lines}
    lines += [
        line for item in readers if (line := f"  {ir.print_node(item, names)}") and line[2:] not in shown
    ]
    if len(lines) > _SHOWN:
        lines = [*lines[:_SHOWN], f"  … {len(lines) - _SHOWN} more lines"]
    return lines


def _changes(culprit: Culprit) -> list[str] | None:
    """Removed and added nodes; ``None`` without a model after the fault, or if it can't be printed."""
    if culprit.after is None:
        return None
    try:
        before, after = Snapshot(culprit.before), Snapshot(culprit.after)
        changes = difference(before, after, by_key(before, after))
    except Exception:  # printing an invalid model may raise any exception
        return None
    lines: list[str] = []
    for change in changes:
        pair = (change.old, change.new) if change.mark in "~ " else (change.line,)
        marks = ("-", "+") if change.mark in "~ " else (change.mark,)
        lines += [f"{mark} {printed(line).strip()}" for mark, line in zip(marks, pair, strict=True) if line]
    return lines
