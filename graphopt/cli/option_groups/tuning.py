"""``--tune`` of ``optimize`` and ``compile``: values, and the options that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphopt.cli.invocation import Run
from graphopt.cli.options import option_relations, shared_options
from graphopt.cli.options.parameter_types import Seconds
from graphopt.optimize_options import OptimizeOptions
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt.inputs.dim_bindings import Shape
    from graphopt.tuning.tuner import Tune


@dataclass(frozen=True)
class TuneValues:
    """The values of :data:`tune_options`."""

    tune: bool
    budget: float | None
    threads: int | None
    fresh: bool

    def of(self, grid: Sequence[dict[str, Shape]]) -> Tune | None:
        """The options of tuning for each of the sets of shapes in ``grid``, if tuning is requested."""
        if not self.tune:
            return None
        from graphopt.tuning.tuner import Tune

        budget = 60.0 if self.budget is None else self.budget
        return Tune(budget, self.threads, tuple(grid) if any(grid) else (), self.fresh)


tune_options = shared_options.values_of(
    TuneValues,
    "tuning",
    "Tuning",
    option_relations.option(
        "--tune",
        is_flag=True,
        excludes=("--stop-after",),
        hint="only whole results are tuned",
        help="Measure rewrites and session options, and keep those that make the model faster"
        " (docs/tune.md).",
    ),
    option_relations.option(
        "--budget",
        requires="--tune",
        type=Seconds(positive=True),
        metavar="TIME",
        help="Approximate measuring time, such as 60s or 2m; in less than about 35s, little is measured."
        " The comparison with IN adds up to half a minute.  [default: 60s]",
    ),
    shared_options.threads_option("one per core, and others are tried", requires="--tune"),
    option_relations.option(
        "--fresh", is_flag=True, requires="--tune", help="Measure again, even if the store has results."
    ),
)


def tuning_and_inputs(
    run: Run, tuning: TuneValues, shapes: tuple[str, ...], files: tuple[str, ...]
) -> OptimizeOptions:
    """The options ``tune`` and ``inputs``; only the first set of shapes is verified."""
    found = OptimizeOptions()
    if tuning.tune:
        from graphopt.inputs.shape_sets import parse_shape_sets

        grid: list[dict[str, Shape]] = parse_shape_sets(shapes)
        shapes = tuple(f"{name}:{','.join(map(str, shape))}" for name, shape in grid[0].items())
        found["tune"] = tuning.of(grid)
    if shapes or files:
        from graphopt.inputs.feeds import InputOptions

        found["inputs"] = InputOptions.parse(shapes, files, run.settings.seed)
    return found
