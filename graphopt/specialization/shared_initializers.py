"""Share equal weights between models, and between the branches of one model."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir

#: Minimum size of a shared weight, in bytes.
_SMALL = 256


def share_initializers(models: Iterable[ir.Model]) -> None:
    """Replace tensors of equal contents in ``models`` by one tensor, which files then contain once."""
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
    """Move weights that several branches contain to the main graph, so that the file contains them once.

    The drawback: onnxruntime prepacks fewer weights if a branch captures them.
    """
    edit = ir.Editor(model)
    by_storage: dict[tuple[object, ...], list[ir.Value]] = {}
    for graph in ir.with_bodies(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if graph is not model.graph and tensor is not None and tensor.nbytes >= _SMALL:
                by_storage.setdefault(ir.storage_of(tensor), []).append(value)
    for values in by_storage.values():
        tensor = values[0].const_value
        if len(values) < 2 or tensor is None:
            continue
        weight = edit.constant(model.graph, tensor, values[0].name or "weight")
        for value in values:
            edit.replace(value, weight)
            edit.remove_initializer(value)
