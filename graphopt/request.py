"""What was asked for: the passes, options and inputs that arguments and settings come to.

Whoever optimizes, explains or looks for a fault takes them from here, so that all of them do the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from graphopt import config, ir
from graphopt.context import Options
from graphopt.driver import context_for, is_own, make_options, make_pipeline
from graphopt.errors import UsageError
from graphopt.ir.io.interop import PassBase
from graphopt.ops import dialects
from graphopt.own_rules import check_applied, checked_rules, rules_by_place
from graphopt.passes.base import Pass
from graphopt.passes.pipeline import Pipeline

if TYPE_CHECKING:
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ort.devices import Device
    from graphopt.rewrite.rule import Rule


@dataclass(frozen=True)
class Request:
    """What to do to a model.

    Attributes:
        passes: the passes.
        options: what they may do.
        inputs: how to feed the models that are compared; made up if ``None``.
        dims: sizes that dynamic dims are fixed to.
        dim_ranges: sizes that dynamic dims will have, as they were given.
        seed: of inputs that are made up.
    """

    passes: Pipeline
    options: Options
    inputs: InputOptions | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    dim_ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    seed: int = 0

    def on(self, model: ir.Model) -> Request:
        """The same for ``model``, whose dims are fixed in place.

        Raises:
            UsageError: no input has a dim that is spoken of, or it is fixed to another size; or no input or
                output is called like one that shares a buffer.
            VerificationFailed: sharing buffers is not safe as it is.
        """
        passes, options, inputs = self.passes, self.options, self.inputs
        if self.dims or self.dim_ranges:
            options = vouch(model, self.dims, self.dim_ranges, options)
            inputs = within(inputs, options, self.seed, fixed=bool(self.dims))
        if options.share_buffers:
            check = make_pipeline("check-aliasing")
            check.run(model, context_for(model, options))
            passes = Pipeline((*passes.steps, *check.steps))
        if any(key[0] == dialects.NATIVE_DOMAIN for key in model.functions):
            passes = Pipeline((*passes.steps, *make_pipeline("rename-groups").steps))
        return replace(self, passes=passes, options=options, inputs=inputs)


def prepare(
    settings: config.Settings,
    *,
    pipeline: str | Sequence[str | Pass | PassBase] | None = None,
    pre_passes: Iterable[str | Pass | PassBase] = (),
    post_passes: Iterable[str | Pass | PassBase] = (),
    only: Iterable[str] = (),
    inputs: InputOptions | None = None,
    dims: Mapping[str, int] | None = None,
    dim_ranges: Mapping[str, tuple[int, int | None]] | None = None,
    target_opset: int | None = None,
    strip_docs: bool = False,
    share_buffers: Iterable[tuple[str, str]] = (),
    device: str | Device | None = None,
    rules: Iterable[Rule] = (),
) -> Request:
    """What arguments of :func:`graphopt.optimize` come to under ``settings``, for any model.

    Raises:
        UsageError: a pass, rule or option is unknown, or they contradict each other.
        TypeError: an object is no pass, or no rule.
    """
    own_rules = checked_rules(rules)
    passes = make_pipeline(settings.pipeline if pipeline is None else pipeline, pre_passes, post_passes)
    if target_opset is not None:  # before all else, whatever place the pipeline has for further passes
        passes = Pipeline((*make_pipeline(_conversion(target_opset, settings)).steps, *passes.steps))
    if strip_docs:
        passes = Pipeline((*passes.steps, *make_pipeline("strip-docs").steps))
    device = _target_device(device, settings, passes)
    every_own = checked_rules({id(rule): rule for rule in (*own_rules, *rules_by_place(passes))}.values())
    options = make_options(settings, only, share_buffers, device, own_rules, every_own)
    names = [step.name for step in passes.passes()]
    check_applied(own_rules, names)
    own = [step.name for step in passes.passes() if is_own(step)] + [rule.name for rule in every_own]
    kernels = "fuse-groups" in names and "fuse-groups" not in options.skip
    options = replace(options, kernels=kernels, own=frozenset(own))
    return Request(passes, options, inputs, dims or {}, dim_ranges or {}, settings.seed)


def _target_device(device: str | Device | None, settings: config.Settings, passes: Pipeline) -> Device | None:
    """What the result is for: the device that was named, whether it is there or not, or what there is.

    To look for one takes time, and is done only if it matters to ``passes``; else there is none.
    """
    from graphopt.ort.devices import Device, choose, parse_device

    if isinstance(device, Device):
        return device
    text = device or settings.device
    named, matters = parse_device(text), any(step.for_speed for step in passes.passes())
    return named or (choose(text)[0] if matters else None)


def _conversion(target: int, settings: config.Settings) -> str:
    """The pass that writes a model for opset ``target``, which the runtime must know if it is to verify."""
    from graphopt.ort.target import Target

    runtime = Target()
    if settings.verify and target > runtime.opset_ceiling:
        raise UsageError(
            f"onnxruntime {runtime.version} runs opsets up to {runtime.opset_ceiling}, not {target}",
            hint="--no-verify writes it all the same",
        )
    return f"convert-opset{{target={target}}}"


def vouch(
    model: ir.Model,
    dims: Mapping[str, int] | None = None,
    dim_ranges: Mapping[str, tuple[int, int | None]] | None = None,
    options: Options | None = None,
) -> Options:
    """Fix ``dims`` in ``model``, in place; returns options that let facts rely on ``dim_ranges`` too.

    Raises:
        UsageError: no input has such a dim, it is fixed to another size, or its size is out of its range.
    """
    from graphopt.inputs import dim_options as said

    ranges = said.vouch(model, dims or {}, dim_ranges or {})
    return replace(options or Options(), dim_ranges=ranges)


def within(
    inputs: InputOptions | None, options: Options, seed: int, *, fixed: bool = False
) -> InputOptions | None:
    """``inputs`` that keep to the ranges of ``options``; new ones are made up from ``seed``.

    ``fixed``: dims of the model were fixed, too.
    """
    from graphopt.inputs.feeds import InputOptions

    if not options.dim_ranges and not fixed:
        return inputs
    return replace(inputs or InputOptions(seed=seed), ranges=options.dim_ranges, vouched=fixed)
