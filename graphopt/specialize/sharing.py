"""Weights that several models have in common, as one tensor."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir

#: Smaller ones are not looked at.
_SMALL = 256


def share_weights(models: Iterable[ir.Model]) -> None:
    """Let tensors of equal contents be one tensor, in all of ``models``, so that files hold them once."""
    known: dict[tuple[object, ...], ir.TensorProtocol] = {}
    storages: dict[tuple[object, ...], ir.TensorProtocol] = {}
    for model in models:
        for slot in list(ir.slots(model)):
            tensor = slot.tensor
            if tensor.nbytes < _SMALL or tensor.dtype is ir.DataType.STRING:
                continue
            storage = ir.storage_of(tensor)
            if storage not in storages:
                key = (tensor.dtype, tuple(tensor.shape.numpy()), ir.hash_of(tensor))
                storages[storage] = known.setdefault(key, tensor)
            shared = storages[storage]
            if shared is not tensor:
                slot.put(shared)
