"""stats: what each pass took and changed, which rules did it to which operators, what was left alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from graphopt import ir
from graphopt.context import Action, Context, Refusal
from graphopt.instrument.base import Watcher
from graphopt.instrument.summary import weights
from graphopt.passes.base import Pass
from graphopt.passes.pipeline import Record


@dataclass(frozen=True)
class Refused:
    """Places that a rule left alone for one reason.

    Attributes:
        example: the first such node.
    """

    rule: str
    reason: str
    count: int
    example: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Stats(Watcher):
    """Counts while a pipeline runs.

    Args:
        by_pass: also add up the weights after each pass, which costs a walk over the model.

    Attributes:
        rewrites: for each operator, how many of its nodes each rule or pass removed.
        weight_bytes: by index of the pass, bytes of all weights after it.
        running: the pass that runs, or ran last.
    """

    def __init__(self, *, by_pass: bool = False) -> None:
        self.rewrites: dict[str, Counter[str]] = {}
        self.weight_bytes: dict[int, int] = {}
        self.running = ""
        self._by_pass = by_pass
        self._refusals: dict[tuple[str, str], dict[str, None]] = {}

    def rewrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        """Count the rewrite for its rule and operator, if the node is gone."""
        if root.graph is not None:
            return
        self.rewrites.setdefault(root.op_type, Counter())[action.owner] += 1

    def refused(self, refusal: Refusal) -> None:
        """Keep the place; rules are tried again in every round, so each place counts once."""
        self._refusals.setdefault((refusal.rule, refusal.reason), {})[refusal.node] = None

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Remember which pass runs."""
        self.running = f"{index} ({pass_})"

    def after_pass(self, pass_: Pass, record: Record, model: ir.Model, cx: Context) -> None:
        """Add up the weights."""
        if self._by_pass:
            self.weight_bytes[record.index] = sum(tensor.nbytes for tensor in weights(model))

    @property
    def refusals(self) -> list[Refused]:
        """What was left alone, most frequent first."""
        found = [
            Refused(rule, reason, len(nodes), next(iter(nodes)))
            for (rule, reason), nodes in self._refusals.items()
        ]
        return sorted(found, key=lambda item: (-item.count, item.rule, item.reason))
