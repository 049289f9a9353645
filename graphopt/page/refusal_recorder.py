"""The instrument that records the reasons why nodes were not rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation

#: Maximum number of reasons for one node.
_KEPT = 8


class RefusalRecorder(PassInstrumentation):
    """Records, for each node, the rules that match it and the reasons why they did not apply."""

    def __init__(self) -> None:
        self._reasons: dict[str, dict[str, None]] = {}

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Begin again if this is the first pass: a run is repeated without rewrites at fault."""
        if index == 1:
            self._reasons = {}

    def refused(self, refusal: Refusal) -> None:
        """Record the reason once, although rules are tried in every round."""
        reasons = self._reasons.setdefault(refusal.node, {})
        if len(reasons) < _KEPT:
            reasons[f"{refusal.rule}: {refusal.reason}"] = None

    @property
    def notes(self) -> Mapping[str, Sequence[str]]:
        """The reasons by the name of the node."""
        return {node: list(reasons) for node, reasons in self._reasons.items()}
