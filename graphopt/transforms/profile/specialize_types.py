"""specialize-types: declare the model's inputs with their profiled types, and remove profiling nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.context.drop_contradicted_shapes import drop_contradicted_shapes
from graphopt.ops import graphopt_operators
from graphopt.passes.base import SPECIALIZED_TYPES, Pass
from graphopt.profile.annotations import annotation_of, is_annotation
from graphopt.profile.value_profile import Dim, ValueProfile, is_symbol
from graphopt.transforms.conditionals.fold_if import FoldIf
from graphopt.transforms.profile._profiling_nodes import remove_profiling_nodes
from graphopt.transforms.scalar.constant_propagation import ConstantPropagation
from graphopt.util.lazy_dataclass import dataclass

#: Metadata key of a specialized input: the dims that it declared before, as JSON.
DECLARED = f"{graphopt_operators.PROFILE_NOTES}declared"


@dataclass(frozen=True)
class SpecializeTypes(Pass):
    """Declare the inputs of the model with their profiled types, and remove annotations and profiling nodes.

    Dims are declared with their profiled sizes or with symbols; equal dims have the same symbol. An input
    whose contents never varied is replaced by a constant. The result is correct only for inputs that match
    the profile; a guard around the model must check this. ``remove-type-specializations`` restores the
    declarations, but not the constants. Declared shapes of inner values that contradict the profiled types
    are dropped.

    Modelled on ``RemoveProfileNodesAndSpecializeTypes`` of PyTorch's JIT.

    Attributes:
        fold: replace an If whose condition becomes constant by its branch; onnxruntime may crash on such an
        If.
    """

    fold: bool = True

    name: ClassVar[str] = "specialize-types"
    provides: ClassVar[frozenset[str]] = frozenset({SPECIALIZED_TYPES})

    def run(self, model: ir.Model, cx: Context) -> None:
        """Specialize all annotated inputs together, because they share symbols."""
        remove_profiling_nodes(
            model, cx, self.name, graphopt_operators.PROFILE, graphopt_operators.PROFILE_ZERO
        )
        found = {
            value: profile for value in model.graph.inputs if (profile := annotation_of(value)) is not None
        }
        symbols = _symbols(found)
        for value, profile in found.items():
            cx.edit.remove_metadata(value, is_annotation)
            if profile.shape is not None and isinstance(value.type, ir.TensorType):
                old = value.shape
                dims = None if old is None else [dim if isinstance(dim, int) else dim.value for dim in old]
                value.metadata_props[DECLARED] = json.dumps(dims)
                value.shape = ir.Shape(
                    [
                        known if isinstance(known, int) else _declared(dim, known, symbols)
                        for known, dim in zip(
                            dims or [None] * len(profile.shape), profile.shape, strict=False
                        )
                    ]
                )
        if found:
            cx.invalidate("specialize")
        pinned = [
            self._pin(value, profile, cx)
            for value, profile in found.items()
            if profile.ints is not None and profile.is_static and value.dtype is not None
        ]
        if any(pinned) and self.fold:
            ConstantPropagation().run(model, cx)
            FoldIf().run(model, cx)
        if found:
            drop_contradicted_shapes(cx)

    def _pin(self, value: ir.Value, profile: ValueProfile, cx: Context) -> bool:
        """Replace the uses of ``value`` by a constant with its contents; returns whether there are any."""
        graph, dtype = value.graph, value.dtype
        if not ir.is_read(value) or graph is None or dtype is None:
            return False
        data = np.array(profile.ints, dtype.numpy()).reshape(
            [dim for dim in profile.shape or () if isinstance(dim, int)]
        )
        cx.edit.replace(value, cx.edit.constant(graph, data, f"{value.name}_seen"))
        return True


def _declared(profiled: Dim, known: str | None, symbols: Mapping[str, Dim]) -> Dim | None:
    """The new declaration of a dim profiled as ``profiled`` and declared as ``known``."""
    if isinstance(profiled, int):
        return profiled
    return symbols.get(profiled, known)


def _symbols(found: dict[ir.Value, ValueProfile]) -> dict[str, int | str]:
    """For each profiled symbol, the declared size or name of one of its dims.

    The name is new if no dim is declared, or if all declared names already denote other symbols.
    """
    taken = {
        dim.value for value in found for dim in value.shape or () if not isinstance(dim, int) and dim.value
    }
    pairs = [
        (dim, old)
        for value, profile in found.items()
        for dim, old in zip(
            profile.shape or (), value.shape or [None] * len(profile.shape or ()), strict=False
        )
        if is_symbol(dim)
    ]
    named: dict[str, int | str] = {dim: old for dim, old in pairs if isinstance(old, int)}
    for dim, old in pairs:
        if dim in named:
            continue
        name = None if old is None or isinstance(old, int) else old.value
        if name is None or name in ir.ANONYMOUS_DIMS or name in named.values():
            name = ir.fresh_dim(dim, taken)
        taken.add(name)
        named[dim] = name
    return named
