"""update-requires-grad: annotate all values as requiring a gradient or not."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.autodiff.reverse_mode import may_be_float
from graphopt.context import Context
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class UpdateRequiresGrad(Pass):
    """Annotate all floating-point values, also in bodies and functions, as requiring a gradient or not.

    Values inside the forward function of a group require none: the backward function computes gradients.

    Modelled on ``UpdateDifferentiableGraphRequiresGrad`` of PyTorch's JIT.

    Attributes:
        value: the value of the annotation ``graphopt.requires_grad``.
    """

    value: bool = False

    name: ClassVar[str] = "update-requires-grad"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Annotate all values."""
        text = str(self.value).lower()
        for graph in ir.graphs_of(model):
            for value in ir.values_of(graph):
                if value.name and may_be_float(value, cx):
                    cx.edit.note(value, graphopt_operators.REQUIRES_GRAD, text)
