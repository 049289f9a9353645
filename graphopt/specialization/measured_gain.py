"""Measure whether variants are faster than the general model, instead of estimating it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graphopt import ir, publish
from graphopt.errors import GraphoptError
from graphopt.fusion.kernel_library import Libraries
from graphopt.inputs.feeds import InputOptions
from graphopt.inputs.run_once import try_out
from graphopt.ort.devices import Device
from graphopt.ort.session_options import SessionChoice, recommended
from graphopt.profile import Guard, Variant
from graphopt.specialization.profitability import Gain
from graphopt.timing.alternating_runs import RaceLimits, Setup, output_shapes
from graphopt.timing.compare_speed import compare_speed
from graphopt.timing.ratios import claims_are_nearly_final
from graphopt.util.lazy_dataclass import dataclass

_GENERAL, _VARIANT = "general", "variant"


@dataclass(frozen=True)
class MeasuredGain:
    """Times each variant alternately with the general model, on inputs for which its guard holds.

    A variant that becomes a branch is timed with its guard, in a model like the output file.

    Attributes:
        inputs: returns inputs that satisfy a guard, or ``None``.
        device: the device.
        libraries: finds the native kernels of a model.
        seconds: maximum time to measure a variant.
        combine: combines the general model and a variant into one model; ``None`` for bundles.
        threads: threads within an operator; by default onnxruntime's choice.
        advance: receives the name of the measured variant.
    """

    inputs: Callable[[Guard], InputOptions | None]
    device: Device
    libraries: Callable[[ir.Model], Libraries]
    seconds: float
    combine: Callable[[ir.Model, ir.Model, Variant], ir.Model] | None
    threads: int | None = None
    advance: Callable[[str], None] = lambda name: None

    def __call__(self, general: ir.Model, model: ir.Model, variant: Variant) -> Gain:
        """The gain of ``variant`` with the optimized ``model``; none if it can't be measured."""
        self.advance(variant.name)
        options = self.inputs(variant.guard)
        if options is None:
            return Gain("no profiled inputs to measure it with")
        try:
            if self.combine is not None:
                model = self.combine(general, model, variant)
            trial = try_out(general, options, device=self.device, typical=True)
            buffers = output_shapes(list(trial.outputs.values()))
            setup = Setup(trial.feeds, buffers, self.device.timed, self.threads)
            with publish.ScratchFolder() as folder:
                models = {_GENERAL: general, _VARIANT: model}
                sources = {name: folder / f"{name}.onnx" for name in models}
                for name, path in sources.items():
                    ir.save(models[name], path)
                choices = {name: self._choice(model) for name, model in models.items()}
                limits = RaceLimits(seconds=self.seconds)
                timing = compare_speed(
                    sources, replace(setup, choices=choices), limits, enough=claims_are_nearly_final
                )
        except GraphoptError as error:
            return Gain(f"it can't be measured: {error.message}")
        comparison = timing.speeds[_VARIANT].comparison
        assert comparison is not None, "every model but the first is compared with the first"
        if comparison.conclusion == "faster":
            return Gain(None, comparison.ratio)
        ratio = f"{comparison.ratio:.2f} × the time of the general model"
        return Gain(f"{ratio}: {comparison.conclusion}", comparison.ratio)

    def _choice(self, model: ir.Model) -> SessionChoice:
        return recommended(model, self.device) | self.libraries(model).choice
