"""The state that operations on models share: the current options, and the services that depend on them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import onnx

from graphopt import config, ir
from graphopt.context import Options
from graphopt.errors import VerificationFailed
from graphopt.fusion.kernel_library import Toolchain
from graphopt.instrument.model_summary import external_bytes
from graphopt.make_pass_options import make_options, vouch
from graphopt.model_arguments import ModelLike, PathLike, copy, in_ort_readable_form, loaded
from graphopt.numerics import Numerics
from graphopt.optimization_attempt import is_heavy
from graphopt.optimize_options import OptimizeOptions
from graphopt.ort.devices import Device, choose_device, target_device
from graphopt.util.disk_store import Store

if TYPE_CHECKING:
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ir.signature import Signature
    from graphopt.ort.session import Source
    from graphopt.passes.instrumentation import PassInstrumentation
    from graphopt.verification.verdict import Verdict
    from graphopt.verification.verifier import Verifier


def new_log(spec: str, options: OptimizeOptions) -> PassInstrumentation:
    """The instrument of the setting ``log``, which prints to stderr; ``options`` may add passes and rules."""
    from graphopt.custom_rules import checked_rules, rules_by_place
    from graphopt.instrument.log import Log
    from graphopt.passes.pipelines import make_pipeline, own_passes, registry
    from graphopt.rules import all_rules

    pipeline = make_pipeline(options["pipeline"] or "", options["pre_passes"], options["post_passes"])
    passes = [*registry().passes, *(item.name for item in own_passes(pipeline.passes()))]
    rules = [*all_rules(), *checked_rules(options["rules"]), *rules_by_place(pipeline)]
    return Log(spec, sys.stderr, passes, rules)


class Environment:
    """The current options, and the services that they determine, such as the device and the store.

    Args:
        settings: values of options that are not given: settings, or the file or artifact that they are read
            from; by default the current settings.
        options: options of :func:`graphopt.optimize`; ``None`` for options that are not given.

    Attributes:
        given: the options that were given.
        settings: the settings, with the given options.

    Raises:
        UsageError: options exclude or require each other, or a value is out of its range.
    """

    def __init__(
        self, settings: config.Settings | PathLike | None = None, /, **options: Unpack[OptimizeOptions]
    ) -> None:
        from graphopt.recorded_settings.sources import resolved

        given = cast(dict[str, Any], dict(options))
        settings = given.pop("settings", None) or settings
        found, record = resolved(settings)
        if record is not None:
            given = {**record.options(str(settings), found, given), **given}
        self.given = cast(OptimizeOptions, given)
        self.settings = found.having(self.given)

    def having(self, options: Any) -> Self:
        """This environment with further ``options``, a dict of options of ``optimize``."""
        if not options:
            return self
        changes = {name: value for name, value in options.items() if value is not None}
        return type(self)(self.settings, **cast(OptimizeOptions, {**self.given, **changes}))

    def without(self, *names: str) -> Self:
        """This environment without the options ``names``, which must not be settings."""
        kept = {name: value for name, value in self.given.items() if name not in names}
        return type(self)(self.settings, **cast(OptimizeOptions, kept))

    @cached_property
    def options(self) -> OptimizeOptions:
        """All options; values of settings and defaults replace options that were not given."""
        return self.settings.complete_options(self.given)

    @property
    def device(self) -> Device:
        """The device that models run on."""
        return self._chosen_device[0]

    @property
    def device_remark(self) -> str | None:
        """The reason why the named device is not used."""
        return self._chosen_device[1]

    @cached_property
    def _chosen_device(self) -> tuple[Device, str | None]:
        return choose_device(self.given.get("device"), self.settings)

    @cached_property
    def target(self) -> Device:
        """The device that results are optimized for, available or not."""
        return target_device(self.options["device"]) or self.device

    @cached_property
    def toolchain(self) -> Toolchain:
        """The builder of native kernels for models on the device."""
        return Toolchain(self.settings, self.device, tuple(self.options["instruments"]))

    @cached_property
    def store(self) -> Store:
        """The store for results that are reused by later runs."""
        return Store(self.settings.cache_dir)

    @cached_property
    def instruments(self) -> tuple[PassInstrumentation, ...]:
        """The given instruments, and the log of the setting ``log``.

        Raises:
            UsageError: the setting names no pass, rule or graph.
        """
        given = tuple(self.options["instruments"])
        return (*given, new_log(self.settings.log, self.options)) if self.settings.log else given

    def entered(self, stage: str) -> None:
        """Report a stage to the instruments."""
        for instrument in self.options["instruments"]:
            instrument.entered(stage)

    def created_graph(self, name: str, model: ir.Model, detail: str = "") -> None:
        """Report a graph that an operation created (:meth:`PassInstrumentation.created_graph`)."""
        for instrument in self.instruments:
            instrument.created_graph(name, model, detail)

    @property
    def numerics(self) -> Numerics:
        """The class of permitted rewrites."""
        return make_options(self.settings).numerics

    @property
    def inputs(self) -> InputOptions:
        """The inputs that models are run with."""
        from graphopt.inputs.feeds import InputOptions

        return self.options["inputs"] or InputOptions(seed=self.settings.seed)

    # Models -------------------------------------------------------------------------------------

    def load(self, model: ModelLike) -> ir.Model:
        """``model`` as a :class:`graphopt.ir.Model` (:func:`graphopt.model_arguments.loaded`)."""
        return loaded(model, self.settings.allow_external)

    def working_copy(self, model: ModelLike) -> tuple[ir.Model, ir.Model | Source, int | None]:
        """A model to change, the original to compare with, and the bytes of its files, if it has any."""
        found = self.load(model)
        if isinstance(model, ir.Model):
            return copy(found), found, None
        if isinstance(model, (onnx.ModelProto, bytes)):
            data = ir.serialized(model)
            return (copy(found), found, None) if data is None else (found, data, None)
        size = os.stat(model).st_size + sum(external_bytes(found).values())
        # onnxruntime reads the original's file itself, if it can
        readable = Path(model).suffix == ".onnx" and not self.settings.allow_external
        return (found, model, size) if readable else (copy(found), found, size)

    def vouched(self, model: ir.Model) -> Options:
        """Limits for passes on ``model``, with fixed dims (:func:`graphopt.make_pass_options.vouch`)."""
        options = self.options
        return vouch(model, options["dims"], options["dim_ranges"], options["dim_relations"])

    def is_heavy(self, model: ir.Model) -> bool:
        """Whether a run of ``model`` may need more memory than the limit."""
        return is_heavy(model, self.settings.memory_limit)

    def verifier(
        self,
        original: ModelLike,
        inputs: InputOptions | None = None,
        *,
        isolate: bool | None = None,
        signature: Signature | None = None,
        work: float | None = None,
        unchanged: ir.Model | None = None,
    ) -> Verifier:
        """A verifier of candidates for ``original``.

        Args:
            original: a model in any form.
            inputs: the inputs for the comparison; by default those of the environment.
            isolate: run models in processes with a memory limit; by default if ``original`` requires it.
            signature: the required interface of candidates; by default that of ``original``.
            work: limit on the estimated CPU seconds of runs.
            unchanged: ``original`` as an object, which may change afterwards; by default it is loaded.
        """
        from graphopt.verification.verifier import Verifier

        settings = self.settings
        if isolate is None:
            # on devices that survive a fork, all models run in processes with a limit anyway
            isolate = not self.device.capabilities.forkable and self.is_heavy(self.load(original))
        return Verifier(
            in_ort_readable_form(original, settings.allow_external),
            options=inputs or self.inputs,
            device=self.device,
            seconds=settings.verify_seconds,
            work=work,
            isolate=isolate,
            memory=settings.memory_limit,
            cpu_level=settings.cpu_level,
            allow_external=settings.allow_external,
            signature=signature,
            loaded=unchanged,
        )

    def compared(
        self, original: ir.Model, candidates: Sequence[ir.Model], subject: str, *, signature: bool = True
    ) -> Verdict:
        """The verdict on the first of ``candidates``; all must compute the same results as ``original``.

        Args:
            original: the model to compare with.
            candidates: models with the same inputs and outputs.
            subject: the beginning of the error message, such as "the results of the parts differ".
            signature: require identical signatures.

        Raises:
            VerificationFailed: a candidate differs.
        """
        with self.verifier(original) as verifier:
            verdicts = [
                verifier.verify(candidate, numerics=self.numerics, signature=signature)
                for candidate in candidates
            ]
        for verdict in verdicts:
            if not verdict.ok:
                raise VerificationFailed(f"{subject}: {verdict.summary()}")
        return verdicts[0]
