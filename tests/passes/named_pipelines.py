"""Run the named pipelines on models with and without annotations, with the same result on all machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import graphopt
from graphopt import config, ir
from graphopt.model_arguments import copy
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import annotate, annotate_gradients


@dataclass(frozen=True)
class Annotations:
    """The kinds of annotations of a model."""

    profile: bool
    gradients: bool

    def __str__(self) -> str:
        words = ["with" if annotated else "without" for annotated in (self.profile, self.gradients)]
        return f"{words[0]} a profile, {words[1]} gradients"

    def annotated(
        self, model: ir.Model, values: Mapping[str, ValueProfile], requiring_grad: Iterable[str]
    ) -> ir.Model:
        """A copy of ``model`` with these annotations."""
        model = copy(model)
        if self.profile:
            annotate(model, values)
        if self.gradients:
            annotate_gradients(model, dict.fromkeys(requiring_grad, True))
        return model


COMBINATIONS = [Annotations(profile, gradients) for profile in (False, True) for gradients in (False, True)]


def run_named(pipeline: str, model: ir.Model) -> tuple[ir.Model, str]:
    """The result of ``pipeline``, and the passes that changed the model."""
    with config.patch(costs="shipped", cpu_level=3):
        result, report = graphopt.optimize(model, pipeline=pipeline, device="cpu", verify=False, strict=True)
    return result, ", ".join(record.text for record in report.passes if record.changes) or "nothing"
