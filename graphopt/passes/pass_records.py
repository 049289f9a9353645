"""The record of each pass that ran, and the history of a run: its records and remarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import field

from graphopt.util.lazy_dataclass import dataclass


@dataclass(repr=False)
class PassRecord:
    """The effect of one run of one pass.

    Attributes:
        index: its position in the run, from 1.
        text: the pass with its options.
        seconds: wall time of the pass, without that of observers.
        changes: edits by kind.
        rewrites: changes by rule (or by pass, for passes without rules).
        nodes: nodes after the pass, including nodes of bodies, without Constant.
        does: the verb for its changes, unless they are rewrites.
        remarks: effects on the model as a whole.
        round: the round of the innermost ``fixpoint`` that contains the pass, from 1; 0 without ``fixpoint``.
        loop: the number of that ``fixpoint`` within the run, from 1; 0 without ``fixpoint``.
    """

    index: int
    name: str
    text: str
    seconds: float
    changes: Counter[str]
    rewrites: Counter[str]
    nodes: int
    does: str | None = None
    remarks: tuple[str, ...] = ()
    round: int = 0
    loop: int = 0

    def __repr__(self) -> str:
        return f"PassRecord({self.index}, {self.text!r}, {self.describe(4) or 'no changes'})"

    def describe(self, most: int | None = None) -> str:
        """The effect: ``compose-transposes ×12, drop-cast ×3``, ``removed ×4``, ``opset 21 → 13``."""
        if self.remarks:
            return "; ".join(self.remarks)
        if self.does is not None:
            count = sum(self.rewrites.values())
            return f"{self.does} ×{count}" if count else ""
        return ", ".join(f"{name} ×{count}" for name, count in self.rewrites.most_common(most))


@dataclass
class History:
    """The effect of a pipeline.

    Attributes:
        remarks: facts that concern no single pass, such as a ``fixpoint`` that reached its limit.
    """

    pipeline: str
    records: list[PassRecord] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Wall time of all passes."""
        return sum(record.seconds for record in self.records)

    @property
    def rewrites(self) -> Counter[str]:
        """Changes by rule or pass, over the whole run."""
        return sum((record.rewrites for record in self.records), Counter())

    def changed_by(self, selects: Callable[[str], bool]) -> list[str]:
        """The names of the passes that changed the model, and of their rules, that ``selects`` accepts."""
        changing = [record for record in self.records if record.changes]
        names = dict.fromkeys(name for record in changing for name in (record.name, *record.rewrites))
        return [name for name in names if selects(name)]
