"""If a result differs from the original, find the rewrites at fault, and optimize again without them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphopt import ir
from graphopt.config import Settings
from graphopt.debug.bisect import Bisection
from graphopt.debug.checks import Check, CheckOptions, NumericsCheck, ValidCheck
from graphopt.debug.culprit import Culprit
from graphopt.debug.reproducer import save_culprit
from graphopt.debug.trial_run import Trial
from graphopt.errors import GraphoptError, NotFused, PassFailed, VerificationFailed
from graphopt.inputs.feeds import InputOptions
from graphopt.instrument.report import Dropped, Report
from graphopt.model_arguments import copy
from graphopt.optimization_attempt import Attempt
from graphopt.ort.devices import Device
from graphopt.rewrite.rewrite_filter import RewriteLimit

#: Hints for a required pass at fault, by the sessions that show the first difference.
_HINTS = {
    "off": "it is required, so it is not left out; --no-verify writes the result anyway",
    "default": "only default sessions differ: onnxruntime's own optimizer breaks what is right without it",
}
_FAILURES = (VerificationFailed, PassFailed)
_NAME_OR_NUMBER = re.compile(r"'[^']*'|[-+]?(\d[\d.]*(e[-+]?\d+)?|nan|inf)\b")


def repair(
    attempt: Attempt,
    original: ir.Model,
    failure: VerificationFailed | PassFailed,
    *,
    found: Callable[[Culprit, int], None] | None = None,
    most_drops: int = 6,
    most_runs: int = 64,
) -> tuple[ir.Model, Report]:
    """Run ``attempt`` again without the rewrites that caused its failure, or the failure of its verification.

    Each rewrite at fault is found by bisection, and refused by rule and node. If that is not sufficient, its
    rule is refused everywhere, and a pass that is harmful outside of rewrites does not run. When the searches
    have used up their runs, all suspect rules are refused everywhere, and finally only required passes run.
    Nothing is searched if neither the result nor the original with onnxruntime's optimizations can be loaded:
    many correct rewrites expose the same contradiction. Without verification, an attempt must terminate, and
    its result must be structurally valid, with an unchanged interface.

    Args:
        found: called with each culprit and its number from 1.
        most_drops: number of dropped rewrites after which all optional passes are dropped.
        most_runs: limit on the runs of the pipeline for all searches; a count, so that results do not
            depend on the speed of the machine.

    Raises:
        VerificationFailed: the result of the required passes alone still differs.
        NotFused: without the dropped rewrites, a scope does not become one fused operator as required.
        PassFailed: a required pass fails.
    """
    trial = Trial(original, attempt.pipeline, attempt.options)
    _check_required(trial, attempt, original)
    limits, dropped, runs, number = RewriteLimit(), list[Dropped](), 0, 0
    if _breaks_like_original(attempt, failure):
        return _without_passes(attempt, trial, limits, dropped, runs, failure)
    while number < most_drops and runs < most_runs:
        attempt.entered("looking for the rewrite at fault")
        check = _check_of(attempt, original, failure)
        bisection = Bisection(trial, check, most=most_runs - runs)
        try:
            culprit = bisection.find(limits, explain=False)
        except VerificationFailed:
            raise failure from None  # the original itself fails the check
        runs += bisection.runs
        if culprit is None:
            raise failure
        if any(step.required and str(step) == culprit.pass_text for step in attempt.pipeline.passes()):
            if isinstance(failure, PassFailed):
                raise failure
            raise _required_fails(culprit.pass_text, culprit.reason, original)
        number += 1
        limits, drops = _refusing(limits, culprit, dropped, isinstance(failure, PassFailed))
        dropped += drops
        if found is not None:
            found(culprit, number)
        earlier = failure
        try:
            return _rerun(attempt, original, limits, dropped, runs)
        except NotFused:
            raise
        except _FAILURES as error:
            failure = error
        runs += 1
        if drops[0].node and _alike(earlier, failure):  # a wrong rule is usually also wrong at other nodes
            owner, reason = drops[0].owner, failure.message.partition(": ")[2]
            everywhere = replace(limits, owners=limits.owners | {owner})
            more = Dropped(owner, "", drops[0].pass_text, reason, drops[0].failed)
            runs += 1
            try:
                return _rerun(attempt, original, everywhere, [*dropped, more], runs)
            except _FAILURES as error:
                if not _alike(failure, error):  # the earlier failure is repaired, and another failure remains
                    limits, failure = everywhere, error
                    dropped.append(more)
    return _without_passes(attempt, trial, limits, dropped, runs, failure)


def _breaks_like_original(attempt: Attempt, failure: GraphoptError) -> bool:
    """Whether neither the result nor the original with onnxruntime's optimizations can be loaded."""
    row = failure.row if isinstance(failure, VerificationFailed) else None
    return (
        attempt.verifier is not None
        and row is not None
        and row.unloadable
        and attempt.verifier.default_fault() is not None
    )


def _alike(one: GraphoptError, other: GraphoptError) -> bool:
    """Whether two failures are the same except for names and numbers."""
    return _pattern(one) == _pattern(other)


def _pattern(failure: GraphoptError) -> str:
    if isinstance(failure, PassFailed) and failure.owner is not None:
        return f"{failure.owner} fails"
    return _NAME_OR_NUMBER.sub("", failure.message.partition(" (largest ")[0].partition(" optimizations ")[0])


def _without_passes(
    attempt: Attempt,
    trial: Trial,
    limits: RewriteLimit,
    dropped: Sequence[Dropped],
    runs: int,
    failure: VerificationFailed | PassFailed,
) -> tuple[ir.Model, Report]:
    """The result of the required passes alone, if dropping rewrites does not help.

    Raises:
        VerificationFailed, PassFailed: the required passes alone also fail.
    """
    optional = [step for step in attempt.pipeline.passes() if not step.required]
    names = {step.name: str(step) for step in optional}
    reason = failure.message.partition(": ")[2]
    failed = isinstance(failure, PassFailed)
    wrote = dict.fromkeys(step.name.partition("{")[0] for step in trial(limits).steps)
    drops = [Dropped(name, "", names[name], reason, failed) for name in wrote if name in names]
    limits = replace(limits, skip=limits.skip | frozenset(names))
    try:
        return _rerun(attempt, trial.model, limits, [*dropped, *drops], runs + 2)
    except NotFused:
        raise
    except _FAILURES:
        pass
    message = f"{failure.message}, also after these were dropped: {', '.join(map(str, dropped))}"
    hint = "--skip disables whole passes and rules; graphopt bisect has details"
    if isinstance(failure, PassFailed):
        raise PassFailed(message, hint=hint, status=failure.status)
    raise VerificationFailed(message, hint=hint)


def _check_of(attempt: Attempt, original: ir.Model, failure: GraphoptError | None = None) -> Check:
    """The check that ``attempt`` failed, limited to the comparison that failed, if that is known."""
    if attempt.verify:
        assert attempt.verifier is not None
        row = failure.row if isinstance(failure, VerificationFailed) else None
        return NumericsCheck(
            attempt.verifier, attempt.options.numerics, libraries=attempt.libraries, failed=row
        )
    return ValidCheck(original)


def _rerun(
    attempt: Attempt, original: ir.Model, limits: RewriteLimit, dropped: Sequence[Dropped], runs: int
) -> tuple[ir.Model, Report]:
    """The result under ``limits``, after ``runs`` runs; raises the errors of :meth:`Attempt.run`."""
    candidate = copy(original)
    withheld = (*attempt.options.withheld, *(drop.withheld for drop in dropped))
    options = replace(limits.applied_to(attempt.options), withheld=withheld)
    report = replace(attempt, options=options, gate=limits).run(candidate)
    return candidate, report.having(dropped=list(dropped), search_runs=runs)


def _check_required(trial: Trial, attempt: Attempt, original: ir.Model) -> None:
    """Check the leading required passes, without bisecting.

    Raises:
        VerificationFailed: the fault exists already after the required passes.
    """
    first = list(itertools.takewhile(lambda step: step.required, attempt.pipeline.passes()))
    outcome = trial(RewriteLimit(passes=len(first))) if first else None
    if outcome is None or outcome.model is None or outcome.error is not None:
        return
    reason = _check_of(attempt, original)(outcome.model)
    if reason is not None:
        raise _required_fails(str(first[-1]), reason, original)


def _required_fails(pass_text: str, reason: str, original: ir.Model) -> VerificationFailed:
    hint = _HINTS["default" if "optimizations default" in reason else "off"]
    if pass_text.startswith("convert-opset") and "Could not find an implementation" in reason:
        own = original.graph.opset_imports.get("")
        hint = (
            f"onnxruntime runs it under its own opset, {own}, and maybe under others between: --target-opset"
        )
    return VerificationFailed(f"after {pass_text} the model does not compute the same: {reason}", hint=hint)


def _refusing(
    limits: RewriteLimit, culprit: Culprit, dropped: Sequence[Dropped], failed: bool
) -> tuple[RewriteLimit, list[Dropped]]:
    """``limits`` that also refuse ``culprit``, and the entries for the report."""
    place, text = culprit.place, culprit.pass_text
    name = text.partition("{")[0]

    def drop(owner: str, node: str = "") -> Dropped:
        return Dropped(owner, node, text, culprit.reason, failed)

    if place is None or (culprit.endless and place.owner == name):
        return replace(limits, skip=limits.skip | {name}), [drop(name)]
    if culprit.owners:
        owners = limits.owners | frozenset(culprit.owners)
        return replace(limits, owners=owners), [drop(owner) for owner in culprit.owners]
    if culprit.endless or any(one.owner == place.owner for one in dropped):
        return replace(limits, owners=limits.owners | {place.owner}), [drop(place.owner)]
    return replace(limits, without=limits.without | {place}), [drop(place.owner, place.node)]


def saving(
    folder: Path,
    original: ir.Model,
    attempt: Attempt,
    settings: Settings,
    device: Device,
    command: Sequence[str] = (),
    record: Mapping[str, Any] | None = None,
) -> Callable[[Culprit, int], None]:
    """A function for :func:`repair` that writes a reproducer of each culprit into a separate folder.

    Args:
        record: the record of the settings of the run, as data, if there is one.
    """
    trial = Trial(original, attempt.pipeline, attempt.options)
    check = CheckOptions(
        numerics=attempt.options.numerics,
        inputs=attempt.inputs or InputOptions(seed=settings.seed),
        device=device,
        seconds=settings.verify_seconds,
        memory=settings.memory_limit,
    )

    def found(culprit: Culprit, number: int) -> None:
        save_culprit(folder / f"dropped-{number}", culprit, trial, check, command, record)

    return found
