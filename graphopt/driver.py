"""One optimization, from what was asked for to the report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.config import Settings
from graphopt.context import Action, Context, Observer, Options
from graphopt.errors import (
    GraphoptError,
    InvalidModel,
    ResourceLimit,
    RuntimeFailure,
    UsageError,
    VerificationFailed,
    exhausted,
    unknown,
)
from graphopt.instrument.growth import new_constants
from graphopt.instrument.report import Report
from graphopt.instrument.stats import Stats
from graphopt.instrument.summary import Interface, Summary
from graphopt.ir.io.interop import PassBase
from graphopt.ir.signature import diff
from graphopt.numerics import Numerics
from graphopt.ort.devices import CPU, Device
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import History, PassInstrumentation
from graphopt.passes.onnx_ir import BY_PLACE, GivenOnnxIrPass
from graphopt.passes.pipeline import Fixpoint, Pipeline, Step
from graphopt.passes.pipelines import registry
from graphopt.rewrite.rule import Rule
from graphopt.util.budget import Budget

if TYPE_CHECKING:
    from graphopt.rewrite.explain import Fused, Missed
    from graphopt.verification.verifier import Verifier


@dataclass(frozen=True)
class Job:
    """What is to be done to a model, who judges the result, and who watches.

    Attributes:
        pipeline: the passes.
        options: what they may do.
        verifier: judges against the original; needed to verify.
        verify: judge the result.
        require_verified: fail where nothing can be compared.
        validate_each: check the structure of the model after each pass.
        verify_each: also judge the model after each pass that changed it.
        stop_after: make only so many rewrites.
        weigh_each: add up the weights after each pass.
        watchers: told of everything.
        gate: asked before each rewrite, unless ``stop_after`` is given.
        libraries: tells the libraries of operators that go with a result, which is judged with and without.
    """

    pipeline: Pipeline
    options: Options
    verifier: Verifier | None = None
    verify: bool = False
    validate_each: bool = False
    verify_each: bool = False
    stop_after: int | None = None
    weigh_each: bool = False
    watchers: Sequence[PassInstrumentation] = ()
    gate: Callable[[Action], bool] | None = None
    require_verified: bool = False
    libraries: Callable[[ir.Model], Sequence[str]] | None = None

    def run(self, model: ir.Model) -> Report:
        """Optimize ``model`` in place.

        Raises:
            PassFailed: a pass raised an error, or does not end.
            VerificationFailed: the result does not compute the same, is called differently, or is broken.
            NotFused: a scope of ``options.strict_fusion`` did not become one fused operator.
            RuntimeFailure: the original does not run, and has to.
        """
        self._check_given()
        before, interface = Summary.of(model), Interface.of(model)
        stats = Stats(by_pass=self.weigh_each)
        gate = self.gate
        if self.stop_after is not None:
            from graphopt.rewrite.filter import RewriteLimit

            gate = RewriteLimit(first=self.stop_after)
        start = time.perf_counter()
        cx = context_for(model, self.options, gate=gate, observers=self._all_watchers(stats))
        done = self._run_passes(model, cx, stats)
        report = Report(
            done.pipeline,
            before,
            Summary.of(model),
            interface,
            done.records,
            done.planned,
            done.skipped,
            stats.rewrites,
            stats.refusals,
            next_action=None if self.stop_after is None else cx.denied,
            seconds={"optimize": time.perf_counter() - start},
            weight_bytes=stats.weight_bytes,
            made=new_constants(model, stats.makers),
            remarks=[*_remarks_of(model), *done.remarks, *cx.budget.remarks()],
            fused=self._fused(model),
            missed=self._missed(model, cx),
            costs=cx.costs if cx.decisions else None,
            decisions=cx.decisions,
        )
        _check_interface(interface, Interface.of(model))
        if self.options.strict_fusion:  # costs less than to verify
            make_pipeline("check-strict-fusion").run(model, cx)
        if self.verify:
            self._verify(model, report)
        elif (fault := ir.find_fault(model)) is not None:
            raise VerificationFailed(f"the optimized model is broken: {fault.sentence}")
        return report

    def _all_watchers(self, stats: Stats) -> list[PassInstrumentation]:
        watchers = [stats, *self.watchers]
        if self.validate_each or self.verify_each:
            from graphopt.instrument.validate_each import ValidateEach

            watchers.append(ValidateEach(self.verifier if self.verify_each else None, self.options.numerics))
        return watchers

    def _check_given(self) -> None:
        """Check, before any work is done, that the original runs, if it has to.

        It has to where the user said something of its inputs, or asked for that.
        """
        if not self.verify or self.verifier is None or not (self.verifier.given or self.require_verified):
            return
        for watcher in self.watchers:
            watcher.entered("running the original")
        if self.verifier.refusal is None:
            return
        if not self.verifier.given:
            raise RuntimeFailure(
                f"not verified: {self.verifier.refusal}",
                hint="--input and --input-shape give inputs; without --require-verified it is written",
            )
        raise RuntimeFailure(
            f"with the inputs given, {self.verifier.refusal}",
            hint="change --input, --input-shape, --dim or --dim-range; --no-verify writes it all the same",
        )

    def _run_passes(self, model: ir.Model, cx: Context, stats: Stats) -> History:
        try:
            return self.pipeline.run(model, cx, self._all_watchers(stats))
        finally:
            cx.close()

    def _fuses(self) -> bool:
        """Whether the pipeline writes fused operators."""
        asked = any(step.name == "fuse-builtin" for step in self.pipeline.passes())
        return asked and "fuse-builtin" not in self.options.skip

    def _fused(self, model: ir.Model) -> list[Fused]:
        """The fused operators that the pipeline wrote."""
        if not self._fuses():
            return []
        from graphopt.rewrite.explain import fused_in
        from graphopt.rules import admitted_rules

        return list(fused_in(model, admitted_rules(self.options, pass_="fuse-builtin")))

    def _missed(self, model: ir.Model, cx: Context) -> list[Missed]:
        """What is left of patterns that the pipeline fuses."""
        if not self._fuses():
            return []
        from graphopt.rewrite.explain import missed_in, weighed_against
        from graphopt.rules import fusing_rules

        missed = list(missed_in(model, fusing_rules(self.options), cx))
        return [*missed, *weighed_against(model, missed, cx)]

    def _verify(self, model: ir.Model, report: Report) -> None:
        assert self.verifier is not None, "somebody has to judge"
        try:
            libraries = () if self.libraries is None else self.libraries(model)
            for watcher in self.watchers:
                watcher.entered("verifying")
            report.verdict = self.verifier.verify(model, numerics=self.options.numerics, libraries=libraries)
        except InvalidModel as error:
            raise VerificationFailed(f"the optimized model is broken: {error.message}") from error
        except GraphoptError:  # about the original
            raise
        except Exception as error:  # writing what is broken may fail in any way
            limit = exhausted(error)
            if limit is not None:
                raise ResourceLimit(
                    f"{limit} to verify the result",
                    hint="--no-verify writes it without a comparison",
                ) from error
            why = f"{type(error).__name__}: {error}"
            raise VerificationFailed(f"the optimized model can't be written: {why}") from error
        report.seconds["verify"] = report.verdict.seconds
        if not report.verdict.ok:
            raise VerificationFailed(
                f"the optimized model is not the same: {report.verdict.summary()}",
                hint="graphopt bisect names the rewrite at fault; --skip leaves out its rule",
                row=next(iter(report.verdict.failures), None),
            )


def _remarks_of(model: ir.Model) -> list[str]:
    """Warnings about definitions that loading ``model`` dropped."""
    return [f"warning: {remark}" for remark in model.graph.meta.get(ir.LOADED_WITH, ())]


def copy(model: ir.Model) -> ir.Model:
    """A copy of ``model`` that shares its tensors, which nobody edits in place."""
    other = model.clone()
    other.meta.update(model.meta)
    return other


def context_for(
    model: ir.Model,
    options: Options | None = None,
    *,
    gate: Callable[[Action], bool] | None = None,
    observers: Sequence[Observer] = (),
) -> Context:
    """Everything that passes need to work on ``model``.

    >>> cx = context_for(model)                               # doctest: +SKIP
    >>> Pipeline.parse("dce", registry()).run(model, cx)      # doctest: +SKIP
    """
    from graphopt.folding.evaluator import Evaluator
    from graphopt.ort.target import Target

    edit = ir.Editor(model)
    ir.track(model)
    options = options or Options()
    ranges = {name: (first, last or math.inf) for name, (first, last) in options.dim_ranges.items()}
    budget = Budget(options.time_limit, options.memory_limit)
    facts = ShapeFacts.of(edit, ranges, budget)
    evaluator = Evaluator.of(model, edit.scopes, budget=budget, filled=facts.is_filled)
    return Context(
        model, edit, facts, Target(options.device), evaluator, options, budget, gate, list(observers)
    )


def is_heavy(model: ir.Model, limit: int) -> bool:
    """Whether a run of ``model`` may take more than ``limit`` bytes: a process with a limit is to run it."""
    from graphopt.analysis.cost import result_bytes
    from graphopt.ort.risks import may_diverge
    from graphopt.transforms.functions.inline_functions import InlineFunctions

    if may_diverge(model) is not None:
        return True
    if model.functions:  # facts are about values in graphs, not about each call
        model = copy(model)
        InlineFunctions().run(model, context_for(model))
    return result_bytes(model) > limit


def make_pipeline(
    pipeline: str | Sequence[str | Pass | PassBase],
    pre_passes: Iterable[str | Pass | PassBase] = (),
    post_passes: Iterable[str | Pass | PassBase] = (),
) -> Pipeline:
    """A pipeline from its name or text, or from passes, with further passes at both ends.

    Where it has places for them (``pre-passes``, ``post-passes``), they go there instead.

    Raises:
        UsageError: a pass is unknown or has the name of another one or of a rule, or the text is malformed.
        TypeError: an object is no pass.
    """
    made = Pipeline(_all_steps(pipeline)).filled(_all_steps(pre_passes), _all_steps(post_passes))
    _check_names(item for item in made.passes() if is_own(item) and item.name not in BY_PLACE)
    return made


def _check_names(own: Iterable[Pass]) -> None:
    """Check that passes of the caller's have names that ``--skip`` and reports can distinguish.

    Raises:
        UsageError: one has the name of a pass or rule of graphopt.
    """
    for item in own:
        from graphopt.rules import all_rules

        is_pass = item.name in registry().passes
        if is_pass or any(item.name == rule.name for rule in all_rules()):
            place = f"{type(item).__module__}:{type(item).__name__}"
            raise UsageError(
                f"pass {place} is named {item.name!r}, like a {'pass' if is_pass else 'rule'} of graphopt",
                hint='give its class another name, or a name="..." of its own',
            )


def _all_steps(items: str | Pass | PassBase | Iterable[str | Pass | PassBase]) -> tuple[Step, ...]:
    if isinstance(items, (str, Pass, PassBase, Rule)) or not isinstance(items, Iterable):
        return tuple(_steps(items))
    return tuple(step for item in items for step in _steps(item))


def _steps(item: object) -> Sequence[Step]:
    """The pass, or the steps of pipeline text."""
    match item:
        case str():
            return Pipeline.parse(item, registry()).steps
        case Pass() | Fixpoint():
            return [item]
        case PassBase():
            return [GivenOnnxIrPass.of(item)]
        case Rule():
            raise TypeError(f"{item.name!r} is a rewrite rule, not a pass: pass it as rules=[...]")
        case type() if issubclass(item, (Pass, PassBase)):
            raise TypeError(f"{item.__name__} is a class; give an instance: {item.__name__}()")
    raise TypeError(
        f"a pass is an object of a subclass of graphopt.Pass or onnx_ir.passes.PassBase, its name or"
        f" 'module:Class', not {type(item).__name__}"
    )


def is_own(pass_: Pass) -> bool:
    """Whether the caller wrote ``pass_``: it is neither graphopt's nor added by an installed package."""
    return pass_.name in BY_PLACE or registry().passes.get(pass_.name) is not type(pass_)


def make_options(
    settings: Settings,
    only: Iterable[str] = (),
    share_buffers: Iterable[tuple[str, str]] = (),
    device: Device | None = None,
    rules: Sequence[Rule] = (),
    every_own: Sequence[Rule] = (),
) -> Options:
    """What passes may do under ``settings``; of the rewrite rules only those of ``only``, if any are given.

    Args:
        settings: those in force.
        only: names of rules and families; empty for all.
        share_buffers: inputs, and outputs that the caller writes over them.
        device: where the result is to run, if that matters.
        rules: rules of the caller that run along with graphopt's.
        every_own: all rules of the caller, those that passes apply by themselves included.

    Raises:
        UsageError: the settings contradict each other, name an unknown pass or rule, or a table of costs
            that can't be read.
    """
    if settings.exact and settings.fast_math:
        raise UsageError("--exact and --fast-math exclude each other")
    numerics = Numerics.REASSOCIATES
    if settings.exact:
        numerics = Numerics.EXACT
    elif settings.fast_math:
        numerics = Numerics.APPROXIMATES
    skip, only = frozenset(settings.skip), frozenset(only)
    if skip or only:
        skip, only = _rule_names(settings.skip, only, every_own or rules)
        if only and only <= skip:
            raise UsageError("--skip leaves nothing of what --only names")
    costs = None
    if device is not None:
        from graphopt.cost.sources import costs_for

        costs = costs_for(settings.costs, device, settings.cache_dir)
    return Options(
        numerics=numerics,
        fold_limit=settings.fold_limit,
        time_limit=settings.time_limit,
        memory_limit=settings.memory_limit,
        skip=skip,
        only=only or None,
        share_buffers=tuple(share_buffers),
        portable=settings.portable,
        device=device or CPU,
        costs=costs,
        rules=tuple(rules),
    )


def _rule_names(
    skip: Iterable[str], only: Iterable[str], own: Sequence[Rule]
) -> tuple[frozenset[str], frozenset[str]]:
    """``skip`` and ``only`` with families of rules spelt out; ``own`` are rules of the caller's."""
    from graphopt.rules import all_rules

    passes = registry().passes
    rules = {rule.name: [rule.name] for rule in (*all_rules(), *own)}
    families: dict[str, list[str]] = {}
    for rule in (*all_rules(), *own):
        families.setdefault(rule.family, []).append(rule.name)
    names = {**families, **rules}
    for name in sorted(only):
        if name in names:
            continue
        if name in passes:
            raise UsageError(
                f"{name!r} is a pass, and --only takes rewrite rules",
                hint=f"--passes {name} runs only that pass",
            )
        raise unknown("rule or family of rules", name, names, "graphopt passes peephole lists all")
    for name in skip:
        if name not in passes and name not in names:
            raise unknown("pass or rule", name, [*passes, *names], "graphopt passes lists all")
    # a pass and a family may share a name: then both are left out
    left_out = [*skip, *(rule for name in skip for rule in names.get(name, ()))]
    return frozenset(left_out), frozenset(rule for name in only for rule in names[name])


def _check_interface(before: Interface, after: Interface) -> None:
    """A model that is called differently is wrong, whatever it computes."""
    changes = diff(before.signature, after.signature)
    if changes:
        raise VerificationFailed(f"the optimized model is called differently: {changes[0]}")
