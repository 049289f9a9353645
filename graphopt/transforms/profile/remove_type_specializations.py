"""remove-type-specializations: restore the declarations that specialize-types changed."""

from __future__ import annotations

import json
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.transforms.profile.specialize_types import DECLARED
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class RemoveTypeSpecializations(Pass):
    """Restore the declared dims that inputs had before ``specialize-types``.

    Rewrites made after ``specialize-types`` are kept, and are correct only for inputs that satisfy the guard.

    Modelled on ``RemoveTensorTypeSpecializations`` of PyTorch's JIT.
    """

    name: ClassVar[str] = "remove-type-specializations"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Restore the declarations of all inputs."""
        changed = False
        for value in model.graph.inputs:
            text = value.metadata_props.get(DECLARED)
            if text is None:
                continue
            dims = json.loads(text)
            value.shape = None if dims is None else ir.Shape(dims)
            cx.edit.remove_metadata(value, lambda key: key == DECLARED)
            changed = True
        if changed:
            cx.invalidate("specialize")
