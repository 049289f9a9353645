"""Measure whether variants are faster than the general model, instead of estimating it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from graphopt import ir, publish
from graphopt.errors import GraphoptError
from graphopt.fusion.kernel_library import Libraries
from graphopt.inputs.feeds import InputOptions
from graphopt.inputs.run_once import try_out
from graphopt.ort.devices import Device
from graphopt.ort.session_options import SessionChoice, recommended
from graphopt.profile import Guard, Variant
from graphopt.specialization.profitability import Gain
from graphopt.specialization.variant_records import Branch
from graphopt.specialization.versioned_model import build_versioned_model
from graphopt.timing.bench import cuda_options
from graphopt.timing.compare_speed import compare_speed
from graphopt.timing.ratios import decided
from graphopt.timing.stopwatch import RaceLimits, Setup, output_shapes

#: Least seconds of a measurement; fewer processes support no claim.
_LEAST_SECONDS = 20.0
_GENERAL, _VARIANT = "general", "variant"


@dataclass(frozen=True)
class MeasuredGain:
    """Times each variant alternately with the general model, on inputs for which its guard holds.

    A branch of one model is timed with its guard, and with the session options of the general model.

    Attributes:
        inputs: returns inputs that satisfy a guard, or ``None``.
        device: the device.
        libraries: finds the native kernels of a model.
        seconds: maximum time to measure a variant.
        in_one_model: variants are branches of one model.
        threads: threads within an operator; by default onnxruntime's choice.
        advance: receives the name of the measured variant.
    """

    inputs: Callable[[Guard], InputOptions | None]
    device: Device
    libraries: Callable[[ir.Model], Libraries]
    seconds: float
    in_one_model: bool
    threads: int | None = None
    advance: Callable[[str], None] = lambda name: None

    def __call__(self, general: ir.Model, model: ir.Model, variant: Variant) -> Gain:
        """The gain of ``variant`` with the optimized ``model``; none if it can't be measured."""
        self.advance(variant.name)
        options = self.inputs(variant.guard)
        if options is None:
            return Gain("no profiled inputs to measure it with")
        try:
            if self.in_one_model:
                model = build_versioned_model(general, [Branch(variant.name, variant.guard, model)])
            trial = try_out(general, options, device=self.device, typical=True)
            buffers = output_shapes(list(trial.outputs.values()))
            setup = Setup(trial.feeds, buffers, self.device, self.threads, cuda_options(self.device))
            with publish.ScratchFolder() as folder:
                models = {_GENERAL: general, _VARIANT: model}
                sources = {name: folder / f"{name}.onnx" for name in models}
                for name, path in sources.items():
                    ir.save(models[name], path)
                choices = {name: self._choice(model) for name, model in models.items()}
                limits = RaceLimits(seconds=max(self.seconds, _LEAST_SECONDS))
                timing = compare_speed(sources, replace(setup, choices=choices), limits, enough=decided)
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
