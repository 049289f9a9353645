"""bisect: find the first rewrite after which a check fails.

The check passes before any rewrite and fails after all of them. Halving the number of allowed rewrites
therefore finds two neighbouring runs, one good and one bad, in O(log n) runs, even if runs in between are
inconsistent. These two runs differ by the rewrite at fault.

If the failure names a node, as onnxruntime's messages do, the rewrite that added it is tried first.

Rewriting that does not terminate is stopped, and its rule is recorded. Three cases need more runs. If a check
fails without any rewrite, because of a pass that changes the model in other ways, the number of passes is
searched. If a rewrite is harmful only together with others, a search finds a minimal set of them (delta
debugging, Zeller and Hildebrandt 2002). If two faults mask each other, a check may pass at the end and fail
in between: then some intermediate states are probed, and each rule is tried without the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.debug.checks import Check
from graphopt.debug.culprit import Culprit
from graphopt.debug.delta_debugging import minimize
from graphopt.debug.trial_run import RewriteStep, RunTrial, TrialResult, find_node
from graphopt.errors import VerificationFailed
from graphopt.rewrite.rewrite_filter import RewriteLimit, RewriteSite
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

#: Number of runs for searching a minimal set.
_MINIMIZING = 100
#: Number of intermediate states to probe, besides the ends of passes, if the check passes at the end.
_PROBES = 8
#: Number of rules to try without the others if the check passes at the end.
_OWNERS = 32
#: Number of rewrites to try first because they added a node that the failure names.
_SUSPECTS = 3
_NAMES = re.compile(r"""'([^']*)'|"([^"]*)"|\(([^()"']+)\)""")
#: Matches the failure of a model that runs, but with a different output.
_DIFFERS = re.compile(r"output '[^']*': ")


@dataclass(frozen=True)
class _Bracket:
    """Numbers of rewrites: the check fails after ``bad``, and passes after ``good``, if known.

    Attributes:
        before, after: the results after ``good`` and ``bad``, if known.
    """

    bad: int
    good: int | None = None
    before: TrialResult | None = None
    after: TrialResult | None = None


def _suspects(outcome: TrialResult, reason: str) -> list[int]:
    """Numbers of the rewrites that added the nodes named in ``reason``, or their operands, latest first."""
    made = {label: number for number, step in enumerate(outcome.steps, 1) for label in step.made}
    named = quoted_names(reason)
    producers: list[str] = []
    for name in named:
        node = None if outcome.model is None else find_node(outcome.model, name)
        values = () if node is None else node.inputs
        nodes = (value.producer() for value in values if value is not None)
        producers += [ir.label(node) for node in nodes if node is not None]
    found = [sorted({made[name] for name in names if name in made}) for names in (named, producers)]
    return [number for numbers in found for number in reversed(numbers)][:_SUSPECTS]


def quoted_names(reason: str) -> list[str]:
    """Names in quotes or parentheses: onnxruntime's messages name nodes in them. Empty if outputs differ."""
    if _DIFFERS.search(reason):
        return []
    return list(dict.fromkeys(name for names in _NAMES.findall(reason) for name in names if name))


class Bisection:
    """Searches for the rewrite that makes a check fail.

    Args:
        most: number of runs of the pipeline after which the interval is not narrowed further.

    Attributes:
        runs: number of runs of the pipeline so far.
    """

    def __init__(
        self,
        trial: RunTrial,
        check: Check,
        progress: Callable[[str], None] = lambda text: None,
        *,
        most: int | None = None,
    ) -> None:
        self._most = most
        self._trial = trial
        self._check = check
        self._report = progress
        self._known: dict[RewriteLimit, str | None] = {}
        self.runs = 0

    def find(self, base: RewriteLimit | None = None, *, explain: bool = True) -> Culprit | None:
        """The first culprit among the rewrites that ``base`` allows; ``None`` if the check never fails.

        Args:
            base: limits that apply to all runs.
            explain: also search for other rewrites that the culprit needs, and for faults that mask each
                other.

        Raises:
            VerificationFailed: the check fails on the model itself.
        """
        base = base or RewriteLimit()
        untouched = self._check_original(base) if explain else None
        outcome, reason = self._try(base)
        if outcome.endless and reason is not None:
            return self._endless(base, outcome, untouched or self._check_original(base), reason)
        masked = reason is None
        if reason is None:
            stop = self._probe(base, outcome) if explain else None
            if stop is None:
                culprit = self._find_masked(base, outcome) if explain else None
                if culprit is not None:
                    culprit.runs = self.runs
                return culprit
            bracket = _Bracket(stop)
        else:
            bracket = self._bracket(base, outcome, reason)
        if bracket.good is None:
            still, reason = self._try(replace(base, first=0))
            if reason is not None:
                culprit = self._find_pass(
                    replace(base, first=0), still, untouched or self._check_original(base), reason
                )
                culprit.runs = self.runs
                return culprit
            bracket = replace(bracket, good=0, before=still)
        culprit = self._find_rewrite(base, bracket)
        if masked:
            culprit.masked_by = self._find_mask(base, bracket.bad, len(outcome.steps))
        elif explain and not culprit.owners:
            culprit.needs = self._find_needs(base, culprit)
        culprit.runs = self.runs
        return culprit

    def _check_original(self, base: RewriteLimit) -> TrialResult:
        """The model before any pass; raises VerificationFailed if the check fails on it."""
        untouched, reason = self._try(replace(base, passes=0))
        if reason is not None:
            raise VerificationFailed(f"the check fails before any pass has run: {reason}")
        return untouched

    def _try(self, limits: RewriteLimit) -> tuple[TrialResult, str | None]:
        """The result under ``limits``, and the failure of the check."""
        outcome = self._trial(limits)
        self.runs += 1
        reason = outcome.error
        if reason is None and limits in self._known:
            reason = self._known[limits]
        elif reason is None:
            assert outcome.model is not None
            reason = self._check(outcome.model)
        self._known[limits] = reason
        allowed = limits.first if limits.first is not None else len(outcome.steps)
        self._report(f"run {self.runs}: {counted(allowed, 'rewrite')}: {reason or 'good'}")
        return outcome, reason

    def _endless(
        self, base: RewriteLimit, outcome: TrialResult, untouched: TrialResult, reason: str
    ) -> Culprit:
        """The culprit if rewriting does not terminate; it is known without further, slow runs."""
        assert outcome.failed_at is not None and untouched.model is not None
        owner = outcome.failed_at.owner
        number, last = max(
            (number, step) for number, step in enumerate(outcome.steps, 1) if step.place.owner == owner
        )
        before = untouched.model
        return Culprit(
            last.place,
            number,
            last.index,
            last.name,
            reason,
            before,
            None,
            base,
            endless=True,
            runs=self.runs,
        )

    # Halving --------------------------------------------------------------------------------

    def _bracket(self, base: RewriteLimit, outcome: TrialResult, reason: str) -> _Bracket:
        """Narrow the interval by the rewrites that added the nodes named in ``reason``, or their operands.

        The check fails on ``outcome``. If it passes before such a rewrite and fails after it, two runs
        suffice.
        """
        bracket = _Bracket(len(outcome.steps), after=outcome)
        for number in _suspects(outcome, reason):
            for stop in (number, number - 1):
                if stop >= bracket.bad or stop <= (bracket.good or 0):
                    continue
                tried, why = self._try(replace(base, first=stop))
                if why is None:
                    bracket = replace(bracket, good=stop, before=tried)
                else:
                    bracket = replace(bracket, bad=min(stop, len(tried.steps)), after=tried)
            if bracket.good is not None:
                break
        return bracket

    def _find_rewrite(self, base: RewriteLimit, bracket: _Bracket) -> Culprit:
        """The rewrite at fault; the check passes at one end of ``bracket`` and fails at the other."""
        good, bad, before, after = bracket.good or 0, bracket.bad, bracket.before, bracket.after
        while bad - good > 1 and (self._most is None or self.runs < self._most):
            middle = (good + bad) // 2
            outcome, reason = self._try(replace(base, first=middle))
            if reason is None:
                good, before = middle, outcome
            else:
                bad, after = min(middle, len(outcome.steps)), outcome
        if before is None:
            before, _ = self._try(replace(base, first=good))
        limits = replace(base, first=bad)
        if after is None:
            after, _ = self._try(limits)
        reason = self._known.get(limits) or self._known[base]
        step = after.steps[bad - 1]
        assert before.model is not None and reason is not None
        culprit = Culprit(
            step.place,
            bad,
            step.index,
            step.name,
            reason,
            before.model,
            after.model if after.error is None else None,
            limits,
            feeds=self._check.feeds(),
        )
        if bad - good > 1:
            culprit.owners = tuple(dict.fromkeys(step.place.owner for step in after.steps[good:bad]))
        return culprit

    def _find_pass(
        self, base: RewriteLimit, failing: TrialResult, untouched: TrialResult, reason: str
    ) -> Culprit:
        """The pass at fault, if the check fails although no rewrite is allowed."""
        good, bad = 0, len(failing.passes)
        before, after = untouched, failing
        while bad - good > 1:
            middle = (good + bad) // 2
            outcome, why = self._try(replace(base, passes=middle))
            if why is None:
                good, before = middle, outcome
            else:
                bad, after, reason = middle, outcome, why
        limits = replace(base, passes=bad)
        after, why = self._try(limits)
        assert before.model is not None
        return Culprit(
            after.failed_at,
            0,
            bad,
            after.passes[bad - 1],
            why or reason,
            before.model,
            after.model if after.error is None else None,
            limits,
            feeds=self._check.feeds(),
        )

    # Interactions -----------------------------------------------------------------------------

    def _find_needs(self, base: RewriteLimit, culprit: Culprit) -> tuple[RewriteSite, ...]:
        """A minimal set of other rewrites with which the culprit is harmful."""
        site = culprit.place
        assert site is not None
        outcome = self._trial(culprit.limits)
        self.runs += 1
        others = [place for place in dict.fromkeys(step.place for step in outcome.steps) if place != site]
        stop = self.runs + _MINIMIZING

        def harmful(places: Sequence[RewriteSite]) -> bool:
            only = frozenset([site, *places])
            return self.runs < stop and self._try(replace(base, only=only))[1] is not None

        if harmful([]) or not harmful(others):
            return ()
        return tuple(minimize(others, harmful))

    def _probe(self, base: RewriteLimit, outcome: TrialResult) -> int | None:
        """A number of rewrites after which the check fails, although it passes after all of them."""
        total = len(outcome.steps)
        ends = [
            place for place in range(1, total) if outcome.steps[place].index != outcome.steps[place - 1].index
        ]
        spread = [total * part // _PROBES for part in range(1, _PROBES)]
        for stop in sorted({place for place in (*ends, *spread) if 0 < place < total}):
            if self._try(replace(base, first=stop))[1] is not None:
                return stop
        return None

    def _find_masked(self, base: RewriteLimit, outcome: TrialResult) -> Culprit | None:
        """A rewrite that is harmful if only its own rule applies, and the rewrite that masks it."""
        owners = list(dict.fromkeys(step.place.owner for step in outcome.steps))
        if len(owners) < 2:
            return None
        for owner in owners[:_OWNERS]:
            alone = replace(base, owners=base.owners | (frozenset(owners) - {owner}))
            outcome_alone, reason = self._try(alone)
            if reason is None or self._try(replace(alone, first=0))[1] is not None:
                continue
            culprit = self._find_rewrite(alone, _Bracket(len(outcome_alone.steps), 0))
            own = frozenset(step.place for step in outcome_alone.steps)
            others = [step for step in outcome.steps if step.place not in own]
            bad, good = 0, len(others)
            while good - bad > 1:
                middle = (good + bad) // 2
                places = own | {step.place for step in others[:middle]}
                if self._try(replace(base, only=places))[1] is None:
                    good = middle
                else:
                    bad = middle
            culprit.masked_by = others[good - 1]
            return culprit
        return None

    def _find_mask(self, base: RewriteLimit, bad: int, good: int) -> RewriteStep:
        """The rewrite that repairs the model, which fails the check after ``bad`` rewrites."""
        while good - bad > 1:
            middle = (good + bad) // 2
            if self._try(replace(base, first=middle))[1] is None:
                good = middle
            else:
                bad = middle
        outcome, _ = self._try(replace(base, first=good))
        return outcome.steps[good - 1]
