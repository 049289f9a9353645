"""optimize --tune: run the pipeline, measure its rewrites, and run it again without unprofitable ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import graphopt
from graphopt import ir, publish
from graphopt.device_hints.model_hints import timing_hints
from graphopt.diagnostics import record
from graphopt.errors import GraphoptError, ResourceLimit, RuntimeFailure, UsageError
from graphopt.fusion.kernel_library import Toolchain
from graphopt.inputs import run_once
from graphopt.inputs.dim_bindings import Shape
from graphopt.inputs.feeds import InputOptions
from graphopt.instrument.report import Dropped, Report
from graphopt.model_arguments import copy
from graphopt.optimization_attempt import Attempt
from graphopt.ort.devices import Device
from graphopt.ort.gpu_properties import gpu_properties
from graphopt.ort.session_options import recommend
from graphopt.ort.target import Target
from graphopt.passes.base import NATIVE_GROUPS
from graphopt.rewrite.rewrite_filter import RewriteSite
from graphopt.timing.alternating_runs import Setup, output_shapes
from graphopt.timing.bench import format_shapes
from graphopt.tuning.kernel_candidates import KernelRacer
from graphopt.tuning.kernel_groups import KernelGroups, kernel_groups
from graphopt.tuning.measure_variants import HarnessMeasurer
from graphopt.tuning.measurements import Finding
from graphopt.tuning.search_space import KernelRecorder, Variant, choices_for, newer_opset, rewrite_groups
from graphopt.tuning.tuning_result import StoredTuning, Tuning, describe
from graphopt.tuning.variant_builder import VariantBuilder, attempt_for
from graphopt.tuning.variant_search import search
from graphopt.util.cpu_features import processor
from graphopt.util.disk_store import Store, key_of
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted, human_seconds

#: Runs an attempt on a model in place; the result is verified, and repaired if necessary.
Produce = Callable[[Attempt, ir.Model], tuple[ir.Model, Report]]

#: Minimum budget in seconds: enough for a few variants of a small model.
_LEAST_BUDGET = 10.0
#: Share of the budget after which no kernels are raced, and the maximum number of races: other kernels may
#: replace the losers.
_RACE_SHARE, _RACES = 0.35, 3


@dataclass(frozen=True)
class Tune:
    """Options for tuning.

    Attributes:
        budget: seconds for measurements; the comparison with the original is made in any case.
        threads: threads inside one operator; by default one per core, and other numbers are tried.
        shapes: sets of input shapes to measure; by default the shapes of the inputs.
        fresh: measure again, even if the store has a result.

    Raises:
        UsageError: the budget is too small to measure anything.
    """

    budget: float = 60.0
    threads: int | None = None
    shapes: tuple[dict[str, Shape], ...] = ()
    fresh: bool = False

    def share_for(self, variants: int) -> float:
        """The seconds to tune a model and each of its variants, and to time each variant against the model.

        Raises:
            UsageError: the budget is too small.
        """
        parts = 1 + 2 * variants
        if self.budget < parts * _LEAST_BUDGET:
            given, least = human_seconds(self.budget), f"{parts * _LEAST_BUDGET:g}s"
            raise UsageError(
                f"a budget of {given} is too small to tune a model with {counted(variants, 'variant')}",
                hint=f"the least is --budget {least}; or limit the variants by --variants",
            )
        return self.budget / parts

    def with_share(self, seconds: float, shapes: Iterable[Mapping[str, Shape]] = ()) -> Tune:
        """A copy for one of several models, with its part of the budget, and with other shapes if given."""
        return replace(self, budget=seconds, shapes=tuple(map(dict, shapes)) or self.shapes)

    def __post_init__(self) -> None:
        if self.budget < _LEAST_BUDGET:
            given, least = human_seconds(self.budget), f"{_LEAST_BUDGET:g}s"
            raise UsageError(
                f"a budget of {given} is too small for any measurement: give at least {least}",
                hint="models that take more than a few milliseconds need 60s or more",
            )


@dataclass(frozen=True)
class Tuner:
    """Tunes one model."""

    tune: Tune
    inputs: InputOptions
    device: Device
    store: Store
    toolchain: Toolchain

    def run(self, original: ir.Model, attempt: Attempt, produce: Produce) -> tuple[ir.Model, Report]:
        """The tuned model and its report.

        Args:
            original: the model before tuning; not modified.

        Raises:
            RuntimeFailure: the original does not run on the given inputs.
        """
        self._report(attempt, "looking for inputs", None)
        try:
            setups, shapes, seconds = self._setups(original)
        except (RuntimeFailure, ResourceLimit) as failure:
            if self.inputs.given or self.tune.shapes:
                raise
            model, report = produce(attempt, copy(original))
            return model, report.having(remarks=[f"not tuned: {failure.message}"])
        memory = StoredTuning(self.store, self._circumstances(original, attempt, shapes))
        tuning = None if self.tune.fresh else memory.recall()
        if tuning is not None and tuning.is_hasty(self.tune.budget):
            tuning = None
        dropped, first, repair, kernels = [], None, 0.0, KernelRecorder()
        if tuning is None:
            watched = replace(attempt, instruments=(*attempt.instruments, kernels))
            model, report = first = produce(attempt_for(watched, Variant()), copy(original))
            dropped, repair = report.dropped, report.seconds.get("repair", 0.0)
            opset = self._opset(original, attempt, produce, dropped)
            tuning = self._measure(original, attempt, first, kernels, setups, shapes, seconds, opset)
            remark = memory.keep(tuning)
        variant = tuning.decision.variant
        if first is None or variant != Variant(choice=variant.choice):
            self._report(attempt, "building the result", None)
            model, report = produce(attempt_for(attempt, variant, dropped), copy(original))
            repaired = {"repair": repair + report.seconds.get("repair", 0.0)} if repair else {}
            report = report.having(dropped=[*dropped, *report.dropped], seconds=repaired)
        recommend(model, tuning.choice, self.device)
        report = report.having(
            remarks=[remark] if first is not None and remark is not None else [],
            # the table of tuning lists the passes that it disabled
            skipped=[name for name in report.skipped if name not in variant.off],
            tuning=tuning,
            seconds={"tune": 0.0 if tuning.stored else tuning.seconds},
        )
        return model, report

    def _opset(
        self, original: ir.Model, attempt: Attempt, produce: Produce, dropped: Sequence[Dropped]
    ) -> int | None:
        """A newer opset to try, if the model computes the same in it."""
        opset = newer_opset(original, attempt.pipeline, Target(self.device).opset_ceiling)
        if opset is not None:
            self._report(attempt, f"trying opset {opset}", None)
            try:
                quiet = replace(attempt, instruments=())
                produce(attempt_for(quiet, Variant(opset=opset), dropped), copy(original))
            except GraphoptError:  # the model can't be converted, or computes other results
                return None
        return opset

    def _setups(self, original: ir.Model) -> tuple[list[Setup], list[str], float]:
        """Session settings for each set of shapes, the shapes as text, and the seconds of the longest run."""
        setups, measured, longest = [], [], 0.0
        for shapes in self.tune.shapes or (self.inputs.shapes,):
            inputs = replace(self.inputs, shapes=shapes)
            trial = run_once.try_out(original, inputs, device=self.device, typical=True)
            buffers = output_shapes(list(trial.outputs.values()))
            setups.append(Setup(trial.feeds, buffers, self.device.timed, self.tune.threads))
            measured.append(format_shapes(trial.feeds))
            longest = max(longest, trial.seconds)
        return setups, measured, longest

    def _measure(
        self,
        original: ir.Model,
        attempt: Attempt,
        first: tuple[ir.Model, Report],
        kernels: KernelRecorder,
        setups: Sequence[Setup],
        shapes: list[str],
        seconds: float,
        opset: int | None,
    ) -> Tuning:
        model, report = first
        for hint in timing_hints({"the original": original}, self.device, gpu_properties(self.device)):
            record.hint(hint)
        choices = list(choices_for(model, self.device, self.tune.threads))
        begin = time.perf_counter()
        with (
            publish.ScratchFolder() as folder,
            VariantBuilder(
                original, attempt, report.dropped, folder, setups[0], self.toolchain.libraries
            ) as builder,
        ):
            measurer = HarnessMeasurer(
                builder,
                setups,
                seconds,
                self.tune.budget,
                lambda text, spent: self._report(attempt, text, min(spent, 1.0)),
                lambda: self.toolchain.seconds,
            )
            raced = self._race(model, kernels, builder, measurer, attempt, setups)
            groups = rewrite_groups(report.passes, attempt.pipeline.passes(), raced.groups)
            found = search(groups, choices, measurer, opset, raced.lost)
            duration = time.perf_counter() - begin
            return Tuning(found, self._where(), shapes, duration, measurer.measured)

    def _race(
        self,
        model: ir.Model,
        kernels: KernelRecorder,
        builder: VariantBuilder,
        measurer: HarnessMeasurer,
        attempt: Attempt,
        setups: Sequence[Setup],
    ) -> KernelGroups:
        """Race the kernels of ``model``, and those that replace the losers, against onnxruntime's kernels."""
        if not kernels.sites:
            return KernelGroups(())
        racer = KernelRacer(self.toolchain, self.tune.threads, self.tune.fresh)
        feeds = [setup.feeds for setup in setups]
        sites: Mapping[str, RewriteSite] = kernels.sites
        lost: list[Finding] = []
        try:
            for _ in range(_RACES):
                seconds = self.tune.budget * max(0.0, _RACE_SHARE - measurer.spent())
                report = partial(self._report_race, attempt, measurer)
                candidates = racer.race(model, feeds, seconds, report)
                found = kernel_groups(model, sites, candidates)
                if not found.lost:
                    break
                lost.extend(found.lost)
                variant = Variant(frozenset(owner for finding in lost for owner in finding.reverted))
                model, sites = builder.model(variant), builder.sites(variant)
                racer = replace(racer, fresh=False)
                found = kernel_groups(model, sites, candidates)
        except GraphoptError:  # the model does not run with further outputs
            return KernelGroups(tuple(kernels.groups()))
        return replace(found, lost=tuple(lost))

    def _report_race(self, attempt: Attempt, measurer: HarnessMeasurer, text: str, spent: float) -> None:
        self._report(attempt, text, min(measurer.spent(), 1.0))

    def _where(self) -> str:
        threads = "default threads" if self.tune.threads is None else counted(self.tune.threads, "thread")
        return f"{self.device}, onnxruntime {Target(self.device).version}, {processor()}, {threads}"

    def _circumstances(self, original: ir.Model, attempt: Attempt, shapes: Sequence[str]) -> list[str]:
        """Everything that the result depends on, for its key in the store."""
        fingerprint = ir.fingerprint(original, names=True)
        options = describe(attempt.options)
        provider_options = self.device.timed.provider_options()
        where = [self._where(), str(os.cpu_count()), str(self.device), repr(provider_options)]
        if attempt.pipeline.provides(NATIVE_GROUPS):
            where.append(self.toolchain.compiler)
        return [fingerprint, str(attempt.pipeline), options, *where, _code(), *shapes]

    def _report(self, attempt: Attempt, text: str, spent: float | None) -> None:
        attempt.entered(f"tuning: {text}", spent)


def _code() -> str:
    """The key of graphopt's own sources: another version may produce another model."""
    root = Path(graphopt.__file__).parent
    return key_of(*(path.read_bytes() for path in sorted(root.rglob("*.py"))))
