"""specialize-types: the inputs of the model are taken to be what was seen of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import autodiff
from graphopt.passes.base import Pass
from graphopt.profile.notes import is_note, noted
from graphopt.profile.seen import Seen

#: Metadata of an input that was specialized: the dims that it declared before, as JSON.
DECLARED = f"{autodiff.PROFILE}declared"


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
        symbols = dict(_symbols(found))
        for value, seen in found.items():
            cx.edit.forget(value, is_note)
            if seen.shape is not None and isinstance(value.type, ir.TensorType):
                old = value.shape
                dims = None if old is None else [dim if isinstance(dim, int) else dim.value for dim in old]
                value.metadata_props[DECLARED] = json.dumps(dims)
                value.shape = ir.Shape(
                    [
                        known if isinstance(known, int) and known > 0 else symbols.get(dim, dim)
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


def _symbols(found: dict[ir.Value, Seen]) -> Iterator[tuple[int | str, int | str]]:
    """For each symbol that was seen, what one of its dims is declared to be: a size, or else a symbol.

    Where none is declared, or only symbols that stand for others, it is a new one.
    """
    taken = {
        dim.value for value in found for dim in value.shape or () if not isinstance(dim, int) and dim.value
    }
    named: dict[int | str, int | str] = {}
    pairs = [
        (dim, old)
        for value, seen in found.items()
        for dim, old in zip(seen.shape or (), value.shape or [None] * len(seen.shape or ()), strict=False)
        if isinstance(dim, str)
    ]
    named.update({dim: old for dim, old in pairs if isinstance(old, int) and old > 0})
    for dim, old in pairs:
        if dim in named:
            continue
        name = None if old is None or isinstance(old, int) else old.value
        if name is None or name in ir.ANONYMOUS_DIMS or name in named.values():
            name = next(text for text in _fresh(dim) if text not in taken)
        taken.add(name)
        named[dim] = name
    yield from named.items()


def _fresh(hint: str) -> Iterator[str]:
    yield hint
    yield from (f"{hint}_{count}" for count in range(1, 10_000))
