"""Options of further contents of the report page: run time, a profile, and the losses of a training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli.invocation import Run
from graphopt.cli.options import option_relations, shared_options
from graphopt.cli.options.parameter_types import Seconds, reads_data
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.inputs.feeds import InputOptions


@dataclass(frozen=True)
class PageContents:
    """The values of :data:`page_options`."""

    bench: bool
    seconds: float | None
    threads: int | None
    losses: Path | None
    show_profile: Path | None

    def measured(self, run: Run, models: Mapping[str, ir.Model], inputs: InputOptions) -> dict[str, Any]:
        """The fields of :class:`graphopt.page.section.PageSource` with these contents.

        Args:
            run: the command.
            models: the models of the page by name, the original first.
            inputs: the inputs of timed runs.

        Raises:
            UsageError: the inputs do not fit the original, or a file can't be read.
            RuntimeFailure: the original does not run.
        """
        from graphopt.compiler.run_time import measure_runs
        from graphopt.profile import Profile
        from graphopt.timing.alternating_runs import RaceLimits
        from graphopt.training.loss_log import read_losses

        found: dict[str, Any] = {}
        if self.losses is not None:
            found["losses"] = read_losses(self.losses)
        if self.show_profile is not None:
            found["profile"] = Profile.read(self.show_profile)
        if self.bench:
            limits = RaceLimits(seconds=_SECONDS if self.seconds is None else self.seconds)
            with run.console.progress("timing") as advance:
                found["run_time"] = measure_runs(
                    run.compiler, models, inputs, threads=self.threads, limits=limits, advance=advance
                )
        return found


#: Time limit of the rounds of ``--bench`` by default, in seconds.
_SECONDS = 30.0
_BENCH = "--bench"

page_options = shared_options.values_of(
    PageContents,
    "contents",
    "Contents",
    click.option(_BENCH, is_flag=True, help="Also time the models, and profile their kernels."),
    option_relations.option(
        "--seconds",
        requires=_BENCH,
        type=Seconds(positive=True),
        metavar="TIME",
        help="Time limit of all timed rounds.  [default: 30s]",
    ),
    shared_options.threads_option("one per core", requires=_BENCH),
    click.option(
        "--losses",
        type=reads_data,
        metavar="FILE.jsonl",
        help="Also draw the losses that graphopt.LossLog recorded.",
    ),
    click.option(
        "--show-profile",
        type=reads_data,
        metavar="FILE.json",
        help="Also show the values that `graphopt profile` recorded.",
    ),
)
