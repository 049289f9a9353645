"""remove-type-specializations: inputs are declared again as they were before they were specialized."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.transforms.profile.specialize_types import DECLARED


@dataclass(frozen=True)
class RemoveTypeSpecializations(Pass):
    """Forget the types that were seen: inputs declare the dims that they had before ``specialize-types``.

    What was made of the model meanwhile stays, and is right only where a guard holds.

    The seed is ``RemoveTensorTypeSpecializations`` of PyTorch's JIT.
    """

    name: ClassVar[str] = "remove-type-specializations"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Declare all inputs as before."""
        changed = False
        for value in model.graph.inputs:
            text = value.metadata_props.get(DECLARED)
            if text is None:
                continue
            dims = json.loads(text)
            value.shape = None if dims is None else ir.Shape(dims)
            cx.edit.forget(value, lambda key: key == DECLARED)
            changed = True
        if changed:
            cx.look_afresh("specialize")
