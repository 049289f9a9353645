"""update-requires-grad: of all values a gradient is wanted, or of none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.autodiff.reverse import is_real
from graphopt.context import Context
from graphopt.ops import dialects
from graphopt.passes.base import Pass


@dataclass(frozen=True)
class UpdateRequiresGrad(Pass):
    """Note on all values of real numbers, in bodies and functions too, whether a gradient is wanted of them.

    Inside the forward of a group none is: its backward computes gradients.

    The seed is ``UpdateDifferentiableGraphRequiresGrad`` of PyTorch's JIT.

    Attributes:
        value: what is noted as ``graphopt.requires_grad``.
    """

    value: bool = False

    name: ClassVar[str] = "update-requires-grad"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Note it on all values."""
        text = str(self.value).lower()
        for graph in ir.graphs_of(model):
            for value in ir.values_of(graph):
                if value.name and is_real(value, cx):
                    cx.edit.note(value, dialects.REQUIRES_GRAD, text)
