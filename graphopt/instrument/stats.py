"""stats: what each pass took and changed, which rules did it to which operators, what was left alone."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from graphopt import ir
from graphopt.context import Action, Context, Refusal
from graphopt.instrument.growth import constants_of
from graphopt.instrument.summary import op_name, weights
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation, PassRecord

#: Words of reasons that something stood in the way.
_TELLING = (
    r"unknown|provabl|others read|read elsewhere|larger|too large|limit|digits|round|overflow"
    r"|is not constant|not known|widen|wider|NaN|-0\.0|opset|recurs|random"
)


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

    @property
    def telling(self) -> bool:
        """Whether more knowledge, another limit or another reader would have let the rule act.

        The other reasons say that there was nothing to do, such as a Transpose that does move axes.
        """
        return re.search(_TELLING, self.reason) is not None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Stats(PassInstrumentation):
    """Counts while a pipeline runs.

    Args:
        by_pass: also add up the weights after each pass, which costs a walk over the model.

    Attributes:
        rewrites: for each operator, how many of its nodes each rule or pass removed; negative where it
            added more.
        weight_bytes: by index of the pass, bytes of all weights after it.
        makers: by the name of each constant of the main graph, the pass that made it; ``""`` for those of
            the original.
        running: the pass that runs, or ran last.
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
        """Credit the rule with the nodes that went and came."""
        self._credit(action.owner)

    def _credit(self, owner: str) -> None:
        for (domain, op_type), change in self._tally.items():
            if change:
                self.rewrites.setdefault(op_name(domain, op_type), Counter())[owner] -= change
        self._tally.clear()

    def refused(self, refusal: Refusal) -> None:
        """Keep the place; rules are tried again in every round, so each place counts once."""
        self._refusals.setdefault((refusal.rule, refusal.reason), {})[refusal.node] = None

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Remember which pass runs."""
        self.running = f"{index} ({pass_})"
        if not self.makers:
            self.makers = {value.name or "": "" for value in constants_of(model)}
        self._tally = cx.edit.tally
        self._tally.clear()

    def after_pass(self, pass_: Pass, record: PassRecord, model: ir.Model, cx: Context) -> None:
        """Credit the pass with what belongs to no rewrite, and add up the weights."""
        self._credit(pass_.name)
        if record.changes:
            for value in constants_of(model):
                self.makers.setdefault(value.name or "", pass_.name)
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
