"""What the Python interface puts together: models, the device, what judges, tunes and reproduces."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from graphopt import config, ir
from graphopt.driver import Job, copy
from graphopt.errors import InvalidModel, NotFused, PassFailed, VerificationFailed
from graphopt.instrument.report import Report
from graphopt.instrument.summary import external_bytes
from graphopt.passes.instrumentation import PassInstrumentation

if TYPE_CHECKING:
    from graphopt.debug.culprit import Culprit
    from graphopt.fusion.library import Libraries
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ir.signature import Signature
    from graphopt.ort.devices import Device
    from graphopt.ort.session import Source
    from graphopt.tuning.tuner import Tune, Tuner
    from graphopt.verification.verifier import Verifier

PathLike = str | os.PathLike[str]
#: A model as callers hold it.
ModelLike = ir.ModelLike


def choose_device(
    device: str | Device | None = None, settings: config.Settings | None = None
) -> tuple[Device, str | None]:
    """The device to run on, and a remark if it is not what was hoped for.

    Raises:
        UsageError: ``device`` names none.
        RuntimeFailure: it can't be used, and running on the CPU instead is not allowed.
    """
    from graphopt.ort.devices import Device, choose

    if isinstance(device, Device):
        return device, None
    settings = settings or config.current()
    return choose(device or settings.device, allow_fallback=settings.allow_fallback)


def meant_device(device: str | Device | None, settings: config.Settings) -> Device:
    """The device that is named, whether it is there or not, or else what there is."""
    from graphopt.ort.devices import Device, parse_device

    if isinstance(device, Device):
        return device
    return parse_device(device or settings.device) or choose_device(None, settings)[0]


def loaded(model: ModelLike) -> ir.Model:
    """``model`` as a :class:`graphopt.ir.Model`; that of the caller itself if it is one, else a new one.

    Raises:
        TypeError: ``model`` is none of the accepted types.
        UsageError: there is no such file.
        InvalidModel: it is no valid model, or its external data is missing.
    """
    return ir.as_model(model, allow_external=config.current().allow_external)


def original_of(model: ModelLike) -> ir.Model | Source:
    """``model`` in the form in which onnxruntime, too, reads it as the caller gave it, as far as possible."""
    if isinstance(model, (onnx.ModelProto, bytes)):
        return ir.serialized(model) or loaded(model)
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else loaded(model)


def working_copy(model: ModelLike) -> tuple[ir.Model, ir.Model | Source, int | None]:
    """What is to be changed, what it is compared with, and the bytes of its files if it comes from some."""
    found = loaded(model)
    if isinstance(model, ir.Model):
        return copy(found), found, None
    if isinstance(model, (onnx.ModelProto, bytes)):
        data = ir.serialized(model)
        return (copy(found), found, None) if data is None else (found, data, None)
    size = os.stat(model).st_size + sum(external_bytes(found).values())
    # onnxruntime reads the original's file itself, unless it could not
    readable = Path(model).suffix == ".onnx" and not config.current().allow_external
    return (found, model, size) if readable else (copy(found), found, size)


def verifier_for(
    original: ModelLike,
    inputs: InputOptions | None,
    settings: config.Settings,
    device: str | Device | None,
    isolate: bool,
    signature: Signature | None = None,
) -> tuple[Verifier, str | None]:
    """The judge of candidates for ``original``, and a remark about the device.

    Candidates must have the interface ``signature``; by default that of ``original``.
    """
    from graphopt.inputs.feeds import InputOptions
    from graphopt.verification.verifier import Verifier

    chosen, remark = choose_device(device, settings)
    options = inputs or InputOptions(seed=settings.seed)
    verifier = Verifier(
        original_of(original),
        options=options,
        device=chosen,
        seconds=settings.verify_seconds,
        isolate=isolate,
        memory=settings.memory_limit,
        cpu_level=settings.cpu_level,
        allow_external=settings.allow_external,
        signature=signature,
    )
    return verifier, remark


def tuner_for(
    tune: Tune, inputs: InputOptions | None, device: str | Device | None, settings: config.Settings
) -> Tuner:
    """What tunes on ``device``."""
    from graphopt.fusion.library import compiler_of
    from graphopt.inputs.feeds import InputOptions
    from graphopt.tuning.tuner import Tuner
    from graphopt.util.store import Store

    chosen, _ = choose_device(device, settings)
    return Tuner(
        tune,
        inputs or InputOptions(seed=settings.seed),
        chosen,
        Store(settings.cache_dir),
        lambda model: libraries_of(model, settings, chosen),
        lambda: compiler_of(settings),
    )


def saver_for(
    folder: Path,
    original: ModelLike,
    job: Job,
    inputs: InputOptions | None,
    settings: config.Settings,
    device: str | Device | None,
    command: Sequence[str],
) -> Callable[[Culprit, int], None]:
    """What writes a reproducer of each culprit."""
    from graphopt.debug.checks import CheckOptions
    from graphopt.debug.repair import save_found
    from graphopt.debug.trial import Trial
    from graphopt.inputs.feeds import InputOptions

    attempt = Trial(loaded(original), job.pipeline, job.options)
    chosen, _ = choose_device(device, settings)
    options = inputs or InputOptions(seed=settings.seed)
    check = CheckOptions(
        numerics=job.options.numerics,
        inputs=options,
        device=chosen,
        seconds=settings.verify_seconds,
        memory=settings.memory_limit,
    )
    return save_found(folder, attempt, check, command)


def libraries_of(
    model: ir.Model, settings: config.Settings, device: Device, watchers: Sequence[PassInstrumentation] = ()
) -> Libraries:
    """The libraries that go with ``model`` on ``device``; ``watchers`` are told how far they are."""
    from graphopt.fusion.library import libraries_for

    def progress(done: float | None, text: str) -> None:
        for watcher in watchers:
            watcher.entered(f"kernels: {text}", done)

    return libraries_for(model, settings, device, progress)


def produce(
    job: Job,
    candidate: ir.Model,
    original: ModelLike,
    found: Callable[[Culprit, int], None] | None,
    *,
    repairs: bool,
) -> tuple[ir.Model, Report]:
    """``candidate`` optimized in place, or a copy of ``original`` without rewrites that do harm."""
    begin = time.perf_counter()
    try:
        return candidate, job.run(candidate)
    except (VerificationFailed, PassFailed) as failure:
        misuse = ir.find_misuse(loaded(original)) if isinstance(failure, PassFailed) else None
        if misuse is not None:  # a pass can't make sense of what is no model
            raise InvalidModel(f"the model breaks the rules of ONNX: {misuse}") from failure
        narrowing = job.verify_each or job.validate_each or job.stop_after is not None
        if not repairs or narrowing or isinstance(failure, NotFused):
            raise
        from graphopt.debug.repair import repair

        candidate, report = repair(job, loaded(original), failure, found=found)
        report.seconds["repair"] = time.perf_counter() - begin - sum(report.seconds.values())
        return candidate, report


def chosen_settings(**given: Any) -> config.Settings:
    """The current settings with the arguments that were given."""
    return replace(config.current(), **{key: value for key, value in given.items() if value is not None})


def settings_among(arguments: Mapping[str, Any]) -> config.Settings:
    """The current settings with those of ``arguments`` of :func:`graphopt.optimize` that are settings too."""
    names = {field.name for field in fields(config.Settings)} - {"pipeline", "device"}
    given = {name: value for name, value in arguments.items() if name in names and value is not None}
    if "skip" in given:
        given["skip"] = tuple(given["skip"])
    return chosen_settings(**given)
