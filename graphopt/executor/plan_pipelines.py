"""The pipelines of the plans of an executor: one preset for all plans, or those of PyTorch's JIT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from graphopt.passes.pipelines import make_pipeline
from graphopt.specialization.build_variants import FIRST
from graphopt.transforms.profile.instrument import Instrument, Watch
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt.executor.fusers import Fuser
    from graphopt.ir.io.interoperability import PassBase
    from graphopt.passes.base import Pass
    from graphopt.passes.pipeline_steps import Step

    Steps = str | Sequence[str | Pass | PassBase] | Sequence[Step]


@dataclass(frozen=True)
class PlanPipeline:
    """The pipeline of one kind of plans.

    Attributes:
        name: its name, or its text.
        steps: its passes.
        first: further passes, which run first.
        skip: names of passes to leave out.
        by_pass: whether a pass specializes annotated inputs; if so, no earlier step does.
        differentiates: whether it depends on the values that require a gradient.
        has_own: whether it runs the passes of the caller.
    """

    name: str
    steps: Steps
    first: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    by_pass: bool = False
    differentiates: bool = False
    has_own: bool = True


@dataclass(frozen=True)
class PlanPipelines:
    """The pipelines of all plans.

    Attributes:
        general: that of the plan for all inputs.
        optimized: that of specializations.
        gradients: that of specializations if a value requires a gradient.
        profiled: that of the plan whose runs are profiled, and from which specializations are made.
            ``None`` if runs of the general plan are profiled, and specializations are made from the original.
    """

    general: PlanPipeline
    optimized: PlanPipeline
    gradients: PlanPipeline
    profiled: PlanPipeline | None = None


def preset_pipelines(steps: Steps, *, by_pass: bool) -> PlanPipelines:
    """The pipelines if all plans run the same passes.

    Args:
        steps: the passes.
        by_pass: whether one of the passes specializes annotated inputs.
    """
    name = steps if isinstance(steps, str) else ",".join(map(str, steps))
    general = PlanPipeline(name, steps, by_pass=by_pass, differentiates=by_pass)
    optimized = replace(general, first=FIRST)
    return PlanPipelines(general, optimized, optimized)


def jit_pipelines(fuser: Fuser, watch: Watch, limit: int, *, by_pass: bool) -> PlanPipelines:
    """The pipelines ``plan-general``, ``plan-profiled`` and ``plan-optimized``.

    Passes of the caller run where these pipelines have placeholders: in specializations without gradients.

    Args:
        fuser: the fuser, which selects the variant of ``plan-optimized``.
        watch, limit: the profiled values, as for :class:`Instrument`.
        by_pass: whether a pass of this variant specializes annotated inputs.
    """
    instrumented = [
        replace(step, watch=watch, limit=limit) if isinstance(step, Instrument) else step
        for step in make_pipeline("plan-profiled").steps
    ]
    return PlanPipelines(
        general=PlanPipeline("plan-general", "plan-general", has_own=False),
        profiled=PlanPipeline("plan-profiled", instrumented, has_own=False),
        optimized=PlanPipeline(fuser.plan, fuser.plan, skip=fuser.skip, by_pass=by_pass),
        gradients=PlanPipeline(
            "plan-optimized-gradients", "plan-optimized-gradients", differentiates=True, has_own=False
        ),
    )
