"""Leave a run of a model in its middle, and let another graph do the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from graphopt import ir
from graphopt.api.optimizing import optimize
from graphopt.assembly import PathLike, chosen_settings, loaded, oracle_for
from graphopt.driver import is_heavy, make_options
from graphopt.errors import VerificationFailed
from graphopt.instrument.report import Report

if TYPE_CHECKING:
    from graphopt.profile import Profile
    from graphopt.runtime.devices import Device
    from graphopt.runtime.inputs.feeds import InputOptions
    from graphopt.runtime.oracle.verdict import Verdict
    from graphopt.specialize.bailouts import Bailout, Inserted

#: How many guards become bailouts: each holds the rest of the model once more.
MOST = 8
#: The trips in which a run leaves that a comparison looks at.
_OCCURRENCES = (0, 1)


def bailout(
    model: ir.Model | PathLike,
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
        model: a model, which is left as it is, or the path of one.
        at: the number of a place, or the name of the value behind which it lies.
        profile: places are the guards that it calls for; otherwise the values whose shapes depend on data.
        inputs, verify, device, allow_fallback: as for :func:`optimize`.

    Raises:
        UsageError: there is no such place, or the profile is of another model.
        UnsupportedModel: a run can't leave the model there.
        VerificationFailed: the parts do not compute the same.
    """
    from graphopt.specialize.bailouts import bailout_at
    from graphopt.specialize.bailouts.listing import places_of
    from graphopt.specialize.bailouts.rejoining import rejoined

    found = places_of(loaded(model), profile)
    cut = bailout_at(found.model, found.at(str(at)))
    verdict = None
    for occurrence in _OCCURRENCES if cut.occurrence is not None else (0,):
        judged = _judge(model, rejoined(found.model, cut, occurrence), inputs, verify, device, allow_fallback)
        verdict = judged if verdict is None else verdict
    return cut, verdict


class Bailed(NamedTuple):
    """What :func:`with_bailouts` returns: the model, what was done to it, and where a run can leave."""

    model: ir.Model
    report: Report
    inserted: Inserted


def with_bailouts(
    model: ir.Model | PathLike,
    profile: Profile,
    *,
    most: int = MOST,
    inputs: InputOptions | None = None,
    verify: bool | None = None,
    **arguments: Any,
) -> Bailed:
    """Rely on what a profile saw of inner values, and let the rest run generally where that is not so.

    Args:
        model: a model, which is left as it is, or the path of one.
        profile: what was seen.
        most: how many guards become bailouts, the first ones.
        inputs, verify: as for :func:`optimize`.
        arguments: of :func:`optimize`, which is run on the model with its bailouts.

    Raises:
        UsageError: the profile is of another model.
        UnsupportedModel: a part of it can't be put into a branch.
        VerificationFailed: the result does not compute the same.
    """
    from graphopt.specialize.bailouts import insert_bailouts
    from graphopt.specialize.bailouts.listing import guarded_by

    original = loaded(model)
    inserted = insert_bailouts(guarded_by(original, profile), most=most)
    found, report = optimize(
        inserted.model, post_passes=("remove-profile-nodes", "dce"), verify=False, **arguments
    )
    device, fallback = arguments.get("device"), arguments.get("allow_fallback")
    report.verdict = _judge(original, found, inputs, verify, device, fallback)
    return Bailed(found, report, replace(inserted, model=found))


def _judge(
    original: ir.Model | PathLike,
    candidate: ir.Model,
    inputs: InputOptions | None,
    verify: bool | None,
    device: str | Device | None,
    allow_fallback: bool | None,
) -> Verdict | None:
    """The comparison, if it is wanted."""
    settings = chosen_settings(verify=verify, allow_fallback=allow_fallback)
    if not settings.verify:
        return None
    heavy = is_heavy(loaded(original), settings.memory_limit)
    oracle, _ = oracle_for(original, inputs, settings, device, heavy)
    with oracle:
        verdict = oracle.verify(candidate, numerics=make_options(settings).numerics)
    if not verdict.ok:
        raise VerificationFailed(f"the parts do not compute what the model does: {verdict.summary()}")
    return verdict
