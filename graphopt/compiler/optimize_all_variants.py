"""Optimize a model and the variants of its profile, each verified on inputs that satisfy its guard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.compiler.optimization import Result, optimize, pipeline_provides
from graphopt.compiler.optimize_variant import optimize_variant
from graphopt.inputs.feeds import InputOptions
from graphopt.model_arguments import ModelLike
from graphopt.passes.base import PROFILED_GROUPS, SPECIALIZED_TYPES
from graphopt.profile import Guard, Variant
from graphopt.specialization.restrict_profile import Restricted, ranges_of
from graphopt.specialization.specialize_inputs import annotate_inputs, profiled_inputs, specialize_inputs
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt.specialization.measured_gain import MeasuredGain
    from graphopt.tuning.tuner import Tune

#: Maximum number of profiled sets of shapes for which the general model is tuned, the most frequent ones.
_SHAPES = 2


@dataclass(frozen=True)
class VariantOptimizer:
    """Optimizes a model and its variants.

    Attributes:
        env: the options.
        restricted: the original and its profile.
        variants: the number of variants, which share the budget for tuning.
    """

    env: Environment
    restricted: Restricted
    variants: int

    @cached_property
    def inputs(self) -> InputOptions:
        """The inputs for the comparison of the general model, including the inputs of the profile."""
        given = self.env.inputs
        return replace(given, examples=(*given.examples, *self.restricted.profile.shapes))

    @cached_property
    def by_pass(self) -> bool:
        """Whether a pass specializes annotated inputs; if so, no earlier step does."""
        return pipeline_provides(SPECIALIZED_TYPES, self.env)

    @cached_property
    def guards_groups(self) -> bool:
        """Whether a pass specializes groups of nodes for annotated intermediate values, in any model."""
        return pipeline_provides(PROFILED_GROUPS, self.env)

    def general(self, model: ModelLike, original: ir.Model) -> Result:
        """The optimized ``model``, which ``original`` is loaded from."""
        profile, tune = self.restricted.profile, self.env.options["tune"]
        if self.guards_groups:
            model = annotate_inputs(original, Guard(), profile)
        elif self.by_pass and any(profile.requires_grad.values()):
            model = annotate_inputs(original, Guard(), replace(profile, values={}))
        shapes = profile.shapes[:_SHAPES] if tune is None else tune.shapes or profile.shapes[:_SHAPES]
        return optimize(self.env.having({"tune": self._tune(shapes)}), model, inputs=self.inputs)

    def variant(self, guard: Guard) -> Result:
        """The optimized variant of ``guard``."""
        original, profile = self.restricted.model, self.restricted.profile
        if self.by_pass:
            candidate = annotate_inputs(original, guard, profile)
        else:
            candidate = specialize_inputs(original, guard, profile if self.guards_groups else None)
        typical = self._profiled_inputs(guard)
        options = {
            "tune": self._tune(() if typical is None else (typical.shapes,)),
            "dim_ranges": ranges_of(candidate, self.restricted.ranges),
        }
        env = self.env.without("inputs", "dims", "dim_ranges", "dim_relations").having(options)
        found = optimize_variant(env, candidate, original, guard, self.inputs, by_pass=self.by_pass)
        env.created_graph("optimized-graph", found.model, str(guard))
        return found

    def measured_gain(
        self, combine: Callable[[ir.Model, ir.Model, Variant], ir.Model] | None
    ) -> MeasuredGain:
        """Measures variants; ``combine`` builds one model of the general model and a variant."""
        from graphopt.specialization.measured_gain import MeasuredGain

        env, tune = self.env, self.env.options["tune"]
        assert tune is not None, "only --tune measures variants"
        return MeasuredGain(
            self._profiled_inputs,
            env.device,
            env.toolchain.libraries,
            tune.share_for(self.variants),
            combine,
            tune.threads,
            env.entered,
        )

    def _tune(self, shapes: Iterable[Mapping[str, tuple[int, ...]]]) -> Tune | None:
        """The tuning of one model for ``shapes``."""
        tune = self.env.options["tune"]
        return None if tune is None else tune.with_share(tune.share_for(self.variants), shapes)

    def _profiled_inputs(self, guard: Guard) -> InputOptions | None:
        return profiled_inputs(guard, self.restricted.profile, self.inputs)
