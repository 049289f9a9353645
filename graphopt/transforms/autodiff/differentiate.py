"""differentiate: split groups into forward and backward functions."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.autodiff.split_group_functions import split_group_functions
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.transforms.profile._assumed_facts import assumed_facts
from graphopt.transforms.profile._unguardable_groups import inline_unguardable_groups
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Differentiate(Pass):
    """Split groups of ``create-autodiff-subgraphs`` into a forward and a backward function.

    The function of a group becomes its forward function, which also returns residuals, selected by a minimum
    cut. The backward function, of the domain ``graphopt.autodiff.backward``, has the name of the group. Its
    inputs are the residuals, the required inputs and outputs of the group, and the cotangents of its outputs;
    its outputs are the gradients of the group's inputs. Nothing calls it in a model without gradients.

    A group is inlined, and the reason is reported, if an operator has no gradient, or its gradient needs a
    newer opset. In a profiled model, a group is also inlined if it can't be guarded: the rank of an input is
    unknown, or the opset of the group is not that of the model.

    Modelled on ``guardDifferentiableGraph``, ``differentiate`` and ``packGradient`` of PyTorch's JIT.
    """

    name: ClassVar[str] = "differentiate"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Inline groups that can't be guarded, and differentiate the others, group by group."""
        with assumed_facts(cx) as facts:
            if facts is not None:
                inline_unguardable_groups(facts, self.name)
        split_group_functions(cx, self.name)
