"""repair: when a result is not the same, find the rewrites at fault, drop them, and go on without."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from graphopt import ir
from graphopt.debug.attempt import Attempt
from graphopt.debug.bisect import Bisection
from graphopt.debug.checks import Check, CheckOptions, NumericsCheck, ValidCheck
from graphopt.debug.culprit import Culprit
from graphopt.debug.reproducer import save_culprit
from graphopt.driver import Job, copy
from graphopt.errors import NotFused, PassFailed, VerificationFailed
from graphopt.gates import Limits
from graphopt.instrument.report import Dropped, Report

#: What to do about a required pass that is at fault, by the sessions in which the first difference shows.
_HINTS = {
    "off": "it was asked for, and is not left out; --no-verify writes the result all the same",
    "default": "only default sessions differ: onnxruntime's own optimizer breaks what is right without it",
}
#: How many drops are tried before giving up.
_DROPS = 6
_FAILURES = (VerificationFailed, PassFailed)


def repair(
    job: Job,
    original: ir.Model,
    failure: VerificationFailed | PassFailed,
    *,
    found: Callable[[Culprit, int], None] | None = None,
) -> tuple[ir.Model, Report]:
    """Run ``job`` again without the rewrites that made it fail, or its verification.

    Each is found by bisection and refused by rule and node; where that is not enough, its rule is
    refused everywhere; a pass that does harm without asking does not run at all. A job that is not
    verified has to end, and its result has to be sound in structure and called alike.

    Args:
        job: what failed.
        original: the model before.
        failure: how it failed.
        found: told of each culprit, with its number from 1.

    Raises:
        VerificationFailed: the result is still not the same after a few drops.
        NotFused: without them, a scope that is to become one fused operator does not.
        PassFailed: a pass still fails then.
    """
    attempt = Attempt(original, job.pipeline, job.options)
    _check_required(attempt, job, original)
    limits, dropped = Limits(), list[Dropped]()
    while len(dropped) < _DROPS:
        for watcher in job.watchers:
            watcher.entered("looking for the rewrite at fault")
        try:
            culprit = Bisection(attempt, _check_of(job, original)).find(limits, explain=False)
        except VerificationFailed:
            raise failure from None  # the original does not even equal itself
        if culprit is None:
            raise failure
        if any(step.required and str(step) == culprit.pass_text for step in job.pipeline.passes()):
            if isinstance(failure, PassFailed):
                raise failure
            raise _required_fails(culprit.pass_text, culprit.reason, original)
        limits, drop = _without(limits, culprit, dropped)
        drop = replace(drop, failed=isinstance(failure, PassFailed))
        dropped.append(drop)
        if found is not None:
            found(culprit, len(dropped))
        try:
            return _rerun(job, original, limits, dropped)
        except NotFused:
            raise
        except _FAILURES as error:
            failure = error
        if drop.node:  # a rule that is wrong tends to be wrong wherever it applies
            everywhere = replace(limits, owners=limits.owners | {drop.owner})
            reason = failure.message.partition(": ")[2]
            more = Dropped(drop.owner, "", drop.pass_text, reason, isinstance(failure, PassFailed))
            with contextlib.suppress(*_FAILURES):
                return _rerun(job, original, everywhere, [*dropped, more])
    message = f"{failure.message}, also after these were dropped: {', '.join(map(str, dropped))}"
    hint = "--skip leaves out whole passes and rules; graphopt bisect tells more"
    if isinstance(failure, PassFailed):
        raise PassFailed(message, hint=hint, status=failure.status)
    raise VerificationFailed(message, hint=hint)


def _check_of(job: Job, original: ir.Model) -> Check:
    if job.verify:
        assert job.oracle is not None
        return NumericsCheck(job.oracle, job.options.numerics, libraries=job.libraries)
    return ValidCheck(original)


def _rerun(
    job: Job, original: ir.Model, limits: Limits, dropped: Sequence[Dropped]
) -> tuple[ir.Model, Report]:
    """The result under ``limits``; raises what :meth:`Job.run` raises if that fails, too."""
    candidate = copy(original)
    withheld = (*job.options.withheld, *(drop.withheld for drop in dropped))
    options = replace(limits.applied_to(job.options), withheld=withheld)
    report = replace(job, options=options, gate=limits).run(candidate)
    report.dropped = list(dropped)
    return candidate, report


def _check_required(attempt: Attempt, job: Job, original: ir.Model) -> None:
    """Whether the fault is already there after the required passes that come first, without bisecting.

    Raises:
        VerificationFailed: it is.
    """
    first = list(itertools.takewhile(lambda step: step.required, job.pipeline.passes()))
    outcome = attempt(Limits(passes=len(first))) if first else None
    if outcome is None or outcome.model is None or outcome.error is not None:
        return
    reason = _check_of(job, original)(outcome.model)
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


def _without(limits: Limits, culprit: Culprit, dropped: Sequence[Dropped]) -> tuple[Limits, Dropped]:
    """``limits`` that leave out ``culprit`` too, and what that means."""
    place, text = culprit.place, culprit.pass_text
    name = text.partition("{")[0]
    if place is None or (culprit.endless and place.owner == name):
        return replace(limits, skip=limits.skip | {name}), Dropped(name, "", text, culprit.reason)
    if culprit.endless or any(drop.owner == place.owner for drop in dropped):
        return replace(limits, owners=limits.owners | {place.owner}), Dropped(
            place.owner, "", text, culprit.reason
        )
    return replace(limits, without=limits.without | {place}), Dropped(
        place.owner, place.node, text, culprit.reason
    )


def save_found(
    folder: Path, attempt: Attempt, check: CheckOptions, command: Sequence[str] = ()
) -> Callable[[Culprit, int], None]:
    """For :func:`repair`: writes a reproducer of each culprit into a folder of its own."""

    def found(culprit: Culprit, number: int) -> None:
        save_culprit(folder / f"dropped-{number}", culprit, attempt, check, command)

    return found
