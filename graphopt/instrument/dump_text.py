"""The text of dumps of changes: a summary with one line per pass, and the changes of each pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

from graphopt.modeldiff.changes import Change
from graphopt.modeldiff.print_changes import WIDTH, Printed, change_dicts, heading, print_changes
from graphopt.passes.pass_records import PassRecord
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Table, counted, shortened, text_width

#: Number of rules named in a summary or heading.
_RULES = 3
#: Maximum length of a pass with its options, in characters; a longer text is cut to the name of the pass.
_TITLE_WIDTH = 40


@dataclass
class Stage:
    """One run of one pass.

    Attributes:
        nodes: number of nodes before the pass; :attr:`record` has the number after it.
        pooled: number of small constants replaced by equal ones, and number of their replacements.
        unread: number of small constants removed because they had no uses.
    """

    record: PassRecord
    nodes: int
    changes: list[Change] = field(default_factory=list)
    pooled: tuple[int, int] = (0, 0)
    unread: int = 0

    @property
    def counts(self) -> str:
        """``248 → 143``, or ``143`` if the number of nodes did not change."""
        after = f"{self.record.nodes:,}"
        return after if self.nodes == self.record.nodes else f"{self.nodes:,} → {after}"

    def title(self, rounds: int) -> str:
        """The pass, and its round if it runs repeatedly."""
        name = self.record.text if len(self.record.text) <= _TITLE_WIDTH else self.record.name
        return f"{name}, round {self.record.round} of {rounds}" if rounds > 1 else name

    @property
    def does(self) -> str:
        """The effect, such as ``53 collapse-views, 26 drop-zero-bias`` or ``82 unread constants removed``."""
        record = self.record
        pooled, kept = self.pooled
        parts = list(record.remarks)
        rules = {rule: count for rule, count in record.rewrites.most_common() if rule != record.name}
        own = record.rewrites[record.name]
        if rules:
            parts.append(shortened([f"{count} {rule}" for rule, count in rules.items()], _RULES))
        if own > pooled:
            parts.append(f"{own:,} {record.does}" if record.does else counted(own, "rewrite"))
        if pooled:
            parts.append(f"{pooled + kept:,} equal constants share {'one' if kept == 1 else kept}")
        if self.unread:
            parts.append(f"{counted(self.unread, 'unread constant')} removed")
        return ", ".join(parts or self._kinds()) or counted(sum(record.changes.values()), "edit")

    def _kinds(self) -> list[str]:
        """``1 opset removed``, ``2 outputs changed``."""
        verbs = {"-": "removed", "+": "added", "~": "changed"}
        counts = Counter(
            (change.line.kind, verbs[change.mark]) for change in self.changes if change.mark in verbs
        )
        return [f"{counted(count, kind)} {verb}" for (kind, verb), count in counts.items()]

    def heading(self, rounds: int) -> Printed:
        """``── peephole, round 1 of 2 ─ 248 → 143 nodes ─ 53 collapse-views, … ──────``."""
        does = self.does if self.record.changes else "nothing changed"
        return heading(self.title(rounds), f"{self.counts} nodes", does)

    def to_dict(self) -> dict[str, Any]:
        """The changes for programs, unshortened."""
        return {
            "pass": self.record.text,
            "index": self.record.index,
            "round": self.record.round,
            "nodes": [self.nodes, self.record.nodes],
            "pooled_constants": self.pooled[0],
            "unread_constants": self.unread,
            "changes": [item for change in self.changes for item in change_dicts(change)],
        }


class Rounds:
    """The number of rounds of each ``fixpoint`` of a run, without rounds that changed nothing."""

    def __init__(self, records: Sequence[PassRecord]) -> None:
        self._rounds: dict[int, int] = {}
        for record in records:
            if record.changes:
                self._rounds[record.loop] = max(self._rounds.get(record.loop, 0), record.round)

    def of(self, record: PassRecord) -> int:
        """The number of rounds of the ``fixpoint`` around ``record``; 0 outside of any."""
        return self._rounds.get(record.loop, 0)


def summary(stages: Sequence[Stage], records: Sequence[PassRecord]) -> Iterator[Printed]:
    """One line for the run, and one for each of ``stages``."""
    rounds = Rounds(records)
    changed = [stage for stage in stages if stage.record.changes]
    if not records:
        return
    before, after = stages[0].nodes if stages else records[-1].nodes, records[-1].nodes
    nodes = f"{before:,} → {after:,} nodes" if before != after else counted(after, "node")
    passes = f"{len(changed) or 'none'} of {counted(len(records), 'pass', 'passes')}"
    yield Printed("─", f"{nodes}; {passes} changed the model")
    table = Table(["", "", ""], "<><")
    for stage in changed:
        table.add(stage.title(rounds.of(stage.record)), stage.counts, stage.does)
    for line in table.lines("  "):
        yield Printed("@", line if text_width(line) <= WIDTH else f"{line[: WIDTH - 1]}…")


def diffs(
    stages: Sequence[Stage], records: Sequence[PassRecord], *, is_full: bool, all_: bool
) -> Iterator[Printed]:
    """The changes of each of ``stages`` under its heading.

    Args:
        is_full: no shortening.
        all_: include headings of passes without changes.
    """
    rounds = Rounds(records)
    for stage in stages:
        lines = list(print_changes(stage.changes, is_full=is_full))
        if lines or all_:
            yield Printed("@", "")
            yield stage.heading(rounds.of(stage.record))
            yield from lines
