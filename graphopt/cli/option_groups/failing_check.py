"""The options that bisect and reduce share, and their values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli.invocation import Run
from graphopt.cli.options import resolve_options, shared_options
from graphopt.cli.options.parameter_types import Number, Runs, Seconds
from graphopt.errors import RuntimeFailure
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Line

if TYPE_CHECKING:
    from graphopt.debug.checks import Check, CheckOptions
    from graphopt.debug.culprit import Culprit
    from graphopt.debug.trial_run import Trial


@dataclass(frozen=True)
class CheckValues:
    """The values of :data:`check_options`."""

    check: str
    growth: float | None
    seconds: float | None


check_options = shared_options.values_of(
    CheckValues,
    "chosen",
    "Check",
    click.option(
        "--check",
        type=Runs(),
        default="numerics",
        metavar="numerics|valid|crash|size|work|CMD",
        help="The check that fails; in a command, {model} is the file of the result.  [default: numerics]",
    ),
    click.option(
        "--growth",
        type=Number(1),
        metavar="FACTOR",
        help="Maximum ratio of size or work to the original's.  [default: 1.1]",
    ),
    click.option(
        "--seconds",
        type=Seconds(positive=True),
        metavar="TIME",
        help="Time limit for comparing one model.  [default: the setting verify-seconds]",
    ),
)


def prepare(run: Run, model: Path, chosen: CheckValues) -> tuple[Trial, CheckOptions]:
    """The trial of the pipeline on ``model``, and the check of its results."""
    from graphopt import optimization_attempt
    from graphopt.debug.checks import GROWTH, CheckOptions
    from graphopt.debug.trial_run import Trial

    loaded = run.compiler.load(model)
    found = optimization_attempt.prepare(run.settings, **run.options).on(loaded)
    check = CheckOptions(
        chosen.check,
        found.options.numerics,
        found.inputs or run.compiler.inputs,
        resolve_options.chosen_device(run),
        chosen.growth or GROWTH,
        run.settings.verify_seconds if chosen.seconds is None else chosen.seconds,
        run.settings.memory_limit,
    )
    return Trial(loaded, found.pipeline, found.options), check


def check_compared(judge: Check) -> None:
    """Check that a successful check compared something.

    Raises:
        RuntimeFailure: the original does not run.
    """
    from graphopt.debug.checks import NumericsCheck

    refusal = judge.refusal if isinstance(judge, NumericsCheck) else None
    if refusal is not None:
        raise RuntimeFailure(
            f"not verified: {refusal}",
            hint="--input and --input-shape feed it; graphopt run tries that out; --check valid needs none",
        )


def lines(culprit: Culprit) -> Iterator[Line]:
    """The culprit as text."""
    yield Line(f"  pass       {culprit.pass_index}: {culprit.pass_text}")
    if culprit.place is not None:
        number = f"{culprit.number}: " if culprit.number else ""
        yield Line(f"  rewrite    {number}{culprit.place}", "title")
    yield Line(f"  fails      {culprit.reason}", "bad")
    for site in culprit.needs:
        yield Line(f"  only with  {site}")
    if culprit.masked_by is not None:
        yield Line(f"  masked by  {culprit.masked_by.place}, after which the check holds again")
    yield Line("")
    for line in culprit.lines:
        yield Line(f"    {line}", "good" if line[:1] == "+" else "bad" if line[:1] == "-" else "plain")
    yield Line("")


def as_dict(culprit: Culprit | None) -> dict[str, Any] | None:
    """A culprit for JSON."""
    if culprit is None:
        return None
    mask = culprit.masked_by
    return {
        "owner": culprit.place.owner if culprit.place else None,
        "node": culprit.place.node if culprit.place else None,
        "rewrite": culprit.number,
        "pass": culprit.pass_text,
        "pass_index": culprit.pass_index,
        "reason": culprit.reason,
        "needs": [{"owner": place.owner, "node": place.node} for place in culprit.needs],
        "masked_by": None if mask is None else {"owner": mask.place.owner, "node": mask.place.node},
        "lines": culprit.lines,
        "runs": culprit.runs,
    }
