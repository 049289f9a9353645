"""Weights that several models have in common, as one tensor."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir

#: Smaller ones are not looked at.
_SMALL = 256


def share_initializers(models: Iterable[ir.Model]) -> None:
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


def lift_shared_initializers(model: ir.Model) -> None:
    """Let weights that several branches hold be weights of the whole, which the file then holds once.

    onnxruntime packs those less well that a branch reads from outside.
    """
    edit = ir.Editor(model)
    places: dict[tuple[object, ...], list[ir.Value]] = {}
    for graph in ir.with_bodies(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if graph is not model.graph and tensor is not None and tensor.nbytes >= _SMALL:
                places.setdefault(ir.storage_of(tensor), []).append(value)
    for values in places.values():
        tensor = values[0].const_value
        if len(values) < 2 or tensor is None:
            continue
        weight = edit.constant(model.graph, tensor, values[0].name or "weight")
        for value in values:
            edit.replace(value, weight)
            edit.remove_initializer(value)
