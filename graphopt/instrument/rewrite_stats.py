"""stats: counts of rewrites by operator and rule, refusals, and weights after each pass."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from typing import Any

from graphopt import ir
from graphopt.context import Action, Context, Refusal
from graphopt.instrument.file_growth import constants_of
from graphopt.instrument.model_summary import op_name, weights
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pass_records import PassRecord
from graphopt.util.lazy_dataclass import dataclass

#: Words in the reason of a refusal that indicate an obstacle.
_TELLING = (
    r"unknown|provabl|others read|read elsewhere|larger|too large|limit|digits|round|overflow"
    r"|is not constant|not known|widen|wider|NaN|-0\.0|opset|recurs|random|and a guard costs"
)
#: Passes all of whose refusals are obstacles.
_TELLING_PASSES = frozenset({"differentiate", "pad-mm"})


@dataclass(frozen=True)
class RefusalCount:
    """The nodes at which a rule was refused for one reason.

    Attributes:
        example: the first such node.
    """

    rule: str
    reason: str
    count: int
    example: str

    @property
    def is_obstacle(self) -> bool:
        """Whether the reason is an obstacle: an unknown fact, a limit or another use.

        The other reasons mean that there is nothing to rewrite: a Transpose that permutes axes is no
        identity, for example.
        """
        return self.rule in _TELLING_PASSES or re.search(_TELLING, self.reason) is not None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Stats(PassInstrumentation):
    """Counts events while a pipeline runs.

    Args:
        by_pass: add up the weights after each pass, at the cost of a walk over the model.

    Attributes:
        rewrites: the number of nodes of each operator that each rule or pass removed, minus the added nodes.
        weight_bytes: the size of all weights after each pass, in bytes, by index of the pass.
        makers: the pass that created each constant of the main graph, by name of the constant; ``""`` for
            constants of the original.
        running: the current pass, or the last one.
    """

    def __init__(self, *, by_pass: bool = False) -> None:
        self.rewrites: dict[str, Counter[str]] = {}
        self.weight_bytes: dict[int, int] = {}
        self.makers: dict[str, str] = {}
        self.running = ""
        self._by_pass = by_pass
        self._refusals: dict[tuple[str, str], dict[str, None]] = {}
        self._tally: Counter[tuple[str, str]] = Counter()

    def rewrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        """Attribute the removed and added nodes to the rule."""
        self._credit(action.owner)

    def _credit(self, owner: str) -> None:
        for (domain, op_type), change in self._tally.items():
            if change:
                self.rewrites.setdefault(op_name(domain, op_type), Counter())[owner] -= change
        self._tally.clear()

    def refused(self, refusal: Refusal) -> None:
        """Count the node once, although rules are tried in every round."""
        self._refusals.setdefault((refusal.rule, refusal.reason), {})[refusal.node] = None

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        self.running = f"{index} ({pass_})"
        if not self.makers:
            self.makers = {value.name or "": "" for value in constants_of(model)}
        self._tally = cx.edit.tally
        self._tally.clear()

    def after_pass(self, pass_: Pass, record: PassRecord, model: ir.Model, cx: Context) -> None:
        """Attribute the remaining changes to the pass, and add up the weights."""
        self._credit(pass_.name)
        if record.changes:
            for value in constants_of(model):
                self.makers.setdefault(value.name or "", pass_.name)
        if self._by_pass:
            self.weight_bytes[record.index] = sum(tensor.nbytes for tensor in weights(model))

    @property
    def refusals(self) -> list[RefusalCount]:
        """Refusals, most frequent first."""
        found = [
            RefusalCount(rule, reason, len(nodes), next(iter(nodes)))
            for (rule, reason), nodes in self._refusals.items()
        ]
        return sorted(found, key=lambda item: (-item.count, item.rule, item.reason))
