"""specialize-types: the inputs of the model are taken to be what was seen of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import dialects
from graphopt.passes.base import Pass
from graphopt.profile.annotations import is_note, noted
from graphopt.profile.value_profile import Dim, Seen, is_symbol

#: Metadata of an input that was specialized: the dims that it declared before, as JSON.
DECLARED = f"{dialects.PROFILE_NOTES}declared"


@dataclass(frozen=True)
class SpecializeTypes(Pass):
    """Give the inputs of the model the types that were seen, and remove what noted them.

    Their dims are declared as they were in profiled runs, equal ones by one symbol; whoever reads an input
    whose contents never varied reads a constant instead. The result is right only where that holds again,
    which a guard around it has to see to. ``remove-type-specializations`` declares the dims as before; the
    constants stay.

    The seed is ``RemoveProfileNodesAndSpecializeTypes`` of PyTorch's JIT.
    """

    name: ClassVar[str] = "specialize-types"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Specialize all inputs that bear a note, at once, since equal dims go together."""
        found = {value: seen for value in model.graph.inputs if (seen := noted(value)) is not None}
        symbols = _symbols(found)
        for value, seen in found.items():
            cx.edit.forget(value, is_note)
            if seen.shape is not None and isinstance(value.type, ir.TensorType):
                old = value.shape
                dims = None if old is None else [dim if isinstance(dim, int) else dim.value for dim in old]
                value.metadata_props[DECLARED] = json.dumps(dims)
                value.shape = ir.Shape(
                    [
                        known if isinstance(known, int) else _declared(dim, known, symbols)
                        for known, dim in zip(dims or [None] * len(seen.shape), seen.shape, strict=False)
                    ]
                )
        if found:
            cx.look_afresh("specialize")
        for value, seen in found.items():
            if seen.ints is not None and seen.is_static and value.dtype is not None:
                self._pin(value, seen, cx)

    def _pin(self, value: ir.Value, seen: Seen, cx: Context) -> None:
        """Let the readers of ``value`` read its contents."""
        graph, dtype = value.graph, value.dtype
        if not ir.is_read(value) or graph is None or dtype is None:
            return
        data = np.array(seen.ints, dtype.numpy()).reshape(
            [dim for dim in seen.shape or () if isinstance(dim, int)]
        )
        cx.edit.replace(value, cx.edit.constant(graph, data, f"{value.name}_seen"))


def _declared(seen: Dim, known: str | None, symbols: Mapping[str, Dim]) -> Dim | None:
    """What to declare of a dim that was ``seen``, and declared as ``known``."""
    if isinstance(seen, int):
        return seen
    return symbols.get(seen, known)


def _symbols(found: dict[ir.Value, Seen]) -> dict[str, int | str]:
    """For each symbol that was seen, what one of its dims is declared to be: a size, or else a symbol.

    Where none is declared, or only symbols that stand for others, it is a new one.
    """
    taken = {
        dim.value for value in found for dim in value.shape or () if not isinstance(dim, int) and dim.value
    }
    pairs = [
        (dim, old)
        for value, seen in found.items()
        for dim, old in zip(seen.shape or (), value.shape or [None] * len(seen.shape or ()), strict=False)
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
