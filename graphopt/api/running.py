"""Compare models by running them, and run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphopt import config, ir
from graphopt.assembly import (
    ModelLike,
    choose_device,
    chosen_settings,
    libraries_of,
    loaded,
    verifier_for,
)
from graphopt.driver import copy, is_heavy
from graphopt.numerics import Numerics
from graphopt.request import vouch, within
from graphopt.util.arguments import checked

if TYPE_CHECKING:
    import numpy as np

    from graphopt.inputs.feeds import InputOptions
    from graphopt.inputs.run_once import TimedRun
    from graphopt.ort.devices import Device
    from graphopt.ort.session import Optimizations
    from graphopt.ort.session_options import SessionChoice
    from graphopt.verification.verdict import Verdict


@checked()
def verify(
    original: ModelLike,
    candidate: ModelLike,
    *,
    numerics: Numerics = Numerics.REASSOCIATES,
    inputs: InputOptions | None = None,
    dims: Mapping[str, int] | None = None,
    dim_ranges: Mapping[str, tuple[int, int | None]] | None = None,
    signature: bool = True,
    bits: bool = False,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
    libraries: Sequence[str] | None = None,
) -> Verdict:
    """Compare two models by running them: with onnxruntime's optimizations off, and at its defaults.

    >>> verdict = verify("model.onnx", "model.opt.onnx")     # doctest: +SKIP
    >>> verdict.ok, verdict.delta                            # doctest: +SKIP
    (True, 2.1e-06)

    Args:
        original, candidate: models in any form (:data:`graphopt.ModelLike`).
        numerics: how far results may move.
        inputs: how to feed them; made up by default, in several shapes and kinds of numbers.
        dims: sizes of dynamic dims that are fixed in both first.
        dim_ranges: sizes of dynamic dims outside which they may differ.
        signature: they must be called alike, too.
        bits: demand identical outputs where onnxruntime's optimizations are off.
        device, allow_fallback: as for :func:`run`.
        libraries: of operators of the candidate, which is compared with and without them; by default kernels
            of its native groups.

    Raises:
        UsageError: ``inputs`` does not fit the original, or a path leads nowhere.
        InvalidModel: a file is not a model.
    """
    from graphopt.inputs.dim_options import fix_dims

    settings = chosen_settings(allow_fallback=allow_fallback)
    if dims or dim_ranges:
        original, candidate = (copy(loaded(model)) for model in (original, candidate))
        inputs = within(inputs, vouch(original, dims, dim_ranges), settings.seed)
        fix_dims(candidate, dims or {}, strict=False)  # they may be fixed there already
    heavy = is_heavy(loaded(original), settings.memory_limit)
    verifier, _ = verifier_for(original, inputs, settings, device, heavy)
    with verifier:
        found = loaded(candidate)
        if libraries is None:
            libraries = libraries_of(found, settings, choose_device(device, settings)[0]).paths
        return verifier.verify(found, numerics=numerics, signature=signature, bits=bits, libraries=libraries)


@checked()
def run(
    model: ModelLike,
    feeds: Mapping[str, Any],
    *,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
    optimizations: Optimizations = "default",
    session_options: bool = True,
    libraries: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """Run a model through onnxruntime; returns its outputs by name, in the model's order.

    Outputs are numpy arrays. Sequences are lists of arrays and maps are dicts, although the type of the
    result leaves them out; an optional without a value is ``None``.

    >>> outputs = run("model.onnx", {"x": np.zeros((1, 3), np.float32)})   # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`).
        feeds: a numpy array for each input (of ``ml_dtypes`` where numpy lacks the element
            type); sequences are lists, maps are dicts.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        allow_fallback: run on the CPU where the device can't be used.
        optimizations: onnxruntime's own, ``default`` or ``off``.
        session_options: use those that the model's metadata recommends for the device.
        libraries: paths of libraries with operators; by default kernels of the model's native groups,
            from the store or built (:func:`graphopt.kernels`).

    Raises:
        UsageError: an input is missing, or there is none of that name.
        RuntimeFailure: onnxruntime can't load or run the model, or the device can't be used.
    """
    from graphopt.inputs.run_once import run_once

    settings = chosen_settings(allow_fallback=allow_fallback)
    chosen, _ = choose_device(device, settings)
    found = loaded(model)
    choice = _choice(found, chosen, settings, session_options, libraries)
    return run_once(found, feeds, device=chosen, optimizations=optimizations, choice=choice)


@checked()
def try_out(
    model: ModelLike,
    inputs: InputOptions | None = None,
    *,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
    optimizations: Optimizations = "default",
    session_options: bool = True,
    libraries: Sequence[str] | None = None,
) -> TimedRun:
    """Run a model on inputs that are made up to suit it, in shapes that it accepts.

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`).
        inputs: what is given: shapes, arrays in files, the seed.
        device, allow_fallback, optimizations, session_options, libraries: as for :func:`run`.

    Raises:
        UsageError: ``inputs`` does not fit the model.
        RuntimeFailure: the model runs on none of the inputs that were tried.
    """
    from graphopt.inputs import run_once
    from graphopt.inputs.feeds import InputOptions

    settings = chosen_settings(allow_fallback=allow_fallback)
    chosen, _ = choose_device(device, settings)
    given = inputs or InputOptions(seed=settings.seed)
    found = loaded(model)
    choice = _choice(found, chosen, settings, session_options, libraries)
    return run_once.try_out(found, given, device=chosen, optimizations=optimizations, choice=choice)


def _choice(
    model: ir.Model,
    device: Device,
    settings: config.Settings,
    session_options: bool,
    libraries: Sequence[str] | None,
) -> SessionChoice:
    from graphopt.ort.session_options import SessionChoice, recommended

    choice = recommended(model, device) if session_options else SessionChoice()
    if libraries is None:
        return choice | libraries_of(model, settings, device).choice
    level = settings.cpu_level if libraries else None
    return choice | SessionChoice(libraries=tuple(libraries), cpu_level=level)
