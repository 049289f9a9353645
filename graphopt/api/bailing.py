"""Leave a run of a model in its middle, and let another graph do the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from graphopt import config, ir
from graphopt.api.optimizing import optimize
from graphopt.assembly import ModelLike, chosen_settings, loaded, settings_among, verifier_for
from graphopt.driver import is_heavy, make_options
from graphopt.errors import VerificationFailed
from graphopt.instrument.report import Report
from graphopt.util.arguments import checked

if TYPE_CHECKING:
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ort.devices import Device
    from graphopt.profile import Profile
    from graphopt.specialization.deopt import Bailout, ModelWithBailouts
    from graphopt.verification.verdict import Verdict

#: How many guards become bailouts: each holds the rest of the model once more.
MOST = 8
#: The trips in which a run leaves that a comparison looks at.
_OCCURRENCES = (0, 1)


@checked()
def bailout(
    model: ModelLike,
    at: int | str,
    *,
    profile: Profile | None = None,
    inputs: InputOptions | None = None,
    verify: bool | None = None,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
) -> tuple[Bailout, Verdict | None]:
    """Cut a model at a place, and compare what both parts compute with what the whole does.

    >>> found, verdict = bailout("model.onnx", 0)                 # doctest: +SKIP
    >>> save(found.rest, "rest.onnx")                             # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`), which is left as it is.
        at: the number of a place, or the name of the value behind which it lies.
        profile: places are the guards that it calls for; otherwise the values whose shapes depend on data.
        inputs, verify, device, allow_fallback: as for :func:`optimize`.

    Raises:
        UsageError: there is no such place, or the profile is of another model.
        UnsupportedModel: a run can't leave the model there.
        VerificationFailed: the parts do not compute the same.
    """
    from graphopt.specialization.deopt import bailout_at
    from graphopt.specialization.deopt.exit_points import exit_points_of
    from graphopt.specialization.deopt.split import reassemble

    original = loaded(model)
    found = exit_points_of(original, profile)
    cut = bailout_at(found.model, found.at(f"#{at}" if isinstance(at, int) else at))
    settings = chosen_settings(verify=verify, allow_fallback=allow_fallback)
    if not settings.verify:
        return cut, None
    occurrences = _OCCURRENCES if cut.occurrence is not None else (0,)
    candidates = [reassemble(found.model, cut, occurrence) for occurrence in occurrences]
    return cut, _judge(original, candidates, inputs, settings, device)


class Bailed(NamedTuple):
    """What :func:`with_bailouts` returns: the model, what was done to it, and where a run can leave."""

    model: ir.Model
    report: Report
    inserted: ModelWithBailouts

    def __repr__(self) -> str:
        return f"Bailed({self.report.headline()}; it has .model, .report and .inserted)"


@checked(optimize)
def with_bailouts(
    model: ModelLike,
    profile: Profile,
    *,
    most: int = MOST,
    inputs: InputOptions | None = None,
    verify: bool | None = None,
    **arguments: Any,
) -> Bailed:
    """Rely on what a profile saw of inner values, and let the rest run generally where that is not so.

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`), which is left as it is.
        profile: what was seen.
        most: how many guards become bailouts, the first ones.
        inputs, verify: as for :func:`optimize`.
        arguments: of :func:`optimize`, which is run on the model with its bailouts.

    Raises:
        UsageError: the profile is of another model.
        UnsupportedModel: a part of it can't be put into a branch.
        VerificationFailed: the result does not compute the same.
    """
    from graphopt.specialization.deopt import insert_bailouts
    from graphopt.specialization.deopt.exit_points import insert_profile_guards

    original = loaded(model)
    inserted = insert_bailouts(insert_profile_guards(original, profile), most=most)
    found, report = optimize(
        inserted.model, post_passes=("remove-profile-nodes", "dce"), verify=False, **arguments
    )
    settings = settings_among({**arguments, "verify": verify})
    if settings.verify:
        report.verdict = _judge(original, [found], inputs, settings, arguments.get("device"))
    return Bailed(found, report, replace(inserted, model=found))


def _judge(
    original: ir.Model,
    candidates: Sequence[ir.Model],
    inputs: InputOptions | None,
    settings: config.Settings,
    device: str | Device | None,
) -> Verdict:
    """The comparison of the first of ``candidates``; all have to compute what ``original`` does."""
    verifier, _ = verifier_for(original, inputs, settings, device, is_heavy(original, settings.memory_limit))
    numerics = make_options(settings).numerics
    with verifier:
        verdicts = [verifier.verify(candidate, numerics=numerics) for candidate in candidates]
    for verdict in verdicts:
        if not verdict.ok:
            raise VerificationFailed(f"the parts do not compute what the model does: {verdict.summary()}")
    return verdicts[0]
