"""Deoptimization: leave a run of a model at an exit point, and continue in another graph."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Unpack

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.compiler.optimization import optimize
from graphopt.compiler.record_settings import digest_of, record_of, write_record
from graphopt.instrument.report import Report
from graphopt.model_arguments import ModelLike
from graphopt.optimize_options import CheckOptions, OptimizeOptions
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    from graphopt.profile import Profile
    from graphopt.specialization.deopt import Bailout, ModelWithBailouts
    from graphopt.verification.verdict import Verdict

#: Maximum number of guards that become bailouts, each with another copy of the rest of the model.
MOST = 8
#: Iterations of a loop at which the run exits in a comparison.
_OCCURRENCES = (0, 1)
_DIFFERS = "the results of the parts differ from those of the model"


@checked
def bailout(
    env: Environment,
    model: ModelLike,
    at: int | str,
    *,
    profile: Profile | None = None,
    **options: Unpack[CheckOptions],
) -> tuple[Bailout, Verdict | None]:
    """Cut a model at an exit point, and compare both parts together with the whole.

    >>> found, verdict = bailout("model.onnx", 0)                 # doctest: +SKIP
    >>> save(found.rest, "rest.onnx")                             # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        at: the number of an exit point, or the name of the value that precedes it.
        profile: exit at the guards of this profile; otherwise at values whose shapes depend on data.
        options: as for :func:`optimize`.

    Raises:
        UsageError: the exit point does not exist, or the profile is of another model.
        UnsupportedModel: a run can't leave the model at this exit point.
        VerificationFailed: the outputs of the parts differ from those of the model.
    """
    from graphopt.specialization.deopt import bailout_at
    from graphopt.specialization.deopt.exit_points import exit_points_of
    from graphopt.specialization.deopt.split_model import reassemble

    env = env.having(options)
    original = env.load(model)
    found = exit_points_of(original, profile)
    if profile is not None:
        env.created_graph("profiled-graph", found.model)
    cut = bailout_at(found.model, found.at(f"#{at}" if isinstance(at, int) else at))
    env.created_graph("optimized-graph", cut.prefix, "prefix")
    env.created_graph("optimized-graph", cut.rest, "rest")
    if not env.settings.verify:
        return cut, None
    occurrences = _OCCURRENCES if cut.occurrence is not None else (0,)
    candidates = [reassemble(found.model, cut, occurrence) for occurrence in occurrences]
    return cut, env.compared(original, candidates, _DIFFERS)


class Bailed(NamedTuple):
    """The result of :func:`with_bailouts`: the model, its report, and its exit points."""

    model: ir.Model
    report: Report
    inserted: ModelWithBailouts

    def __repr__(self) -> str:
        return f"Bailed({self.report.headline()}; it has .model, .report and .inserted)"


@checked
def with_bailouts(
    env: Environment,
    model: ModelLike,
    profile: Profile,
    *,
    most: int = MOST,
    **options: Unpack[OptimizeOptions],
) -> Bailed:
    """Assume profiled properties of inner values; the general rest of the model runs if an assumption fails.

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        profile: the recorded properties.
        most: maximum number of guards that become bailouts, in order.
        options: as for :func:`optimize`, which is run on the model with its bailouts.

    Raises:
        UsageError: the profile is of another model.
        UnsupportedModel: a part of the model can't be moved into a branch.
        VerificationFailed: the outputs of the result differ from those of the model.
    """
    from graphopt.specialization.deopt import insert_bailouts
    from graphopt.specialization.deopt.exit_points import insert_profile_guards

    env = env.having(options)
    original = env.load(model)
    guarded = insert_profile_guards(original, profile)
    env.created_graph("profiled-graph", guarded)
    inserted = insert_bailouts(guarded, most=most)
    found, report = optimize(
        env.without("inputs", "require_verified"),
        inserted.model,
        post_passes=("remove-profile-nodes", "dce"),
        verify=False,
    )
    record = record_of(env, with_bailouts, profile=digest_of(profile), most=most)
    write_record(record, found)
    report = report.having(settings="" if record is None else record.to_json())
    if env.settings.verify:
        report = report.having(verdict=env.compared(original, [found], _DIFFERS))
    return Bailed(found, report, replace(inserted, model=found))
