"""Lift parameters to inputs, and unlift inputs to parameters.

The counterpart of lifting and unlifting in torch.export.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from graphopt import ir
from graphopt.errors import UsageError
from graphopt.parameters.check_folded_constants import check_folded_constants
from graphopt.parameters.constant_nodes_to_initializers import constants_to_initializers
from graphopt.parameters.selection import PARAMS, chosen
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.ort_array_conversion import native
from graphopt.util.parse_values import split_names


@dataclass
class Parameters:
    """Tensors by name.

    Attributes:
        tensors: the tensors, in order.
        tied: for each tensor that shares the memory or file contents of an earlier one, the name of that one.
        metadata: the metadata of a ``.safetensors`` file.
    """

    tensors: dict[str, ir.TensorProtocol] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The size of the tensors in bytes, counting tied tensors once."""
        return sum(tensor.nbytes for name, tensor in self.tensors.items() if name not in self.tied)


@dataclass(frozen=True)
class Unlifted:
    """The result of :func:`unlift`.

    Attributes:
        placed: names of inputs and initializers with new contents.
        unused: names that the model does not have.
        open: names of the remaining inputs.
    """

    placed: list[str]
    unused: list[str]
    open: list[str]


def parameters_of(model: ir.Model, which: str | Iterable[str] = PARAMS) -> Parameters:
    """The contents of initializers; see :func:`graphopt.parameters.selection.chosen`."""
    found = Parameters()
    first: dict[tuple[object, ...], str] = {}
    for value in chosen(model, which):
        tensor, name = value.const_value, value.name or ""
        assert tensor is not None
        found.tensors[name] = tensor
        same = first.setdefault(ir.storage_of(tensor), name)
        if same != name:
            found.tied[name] = same
    return found


def lift(model: ir.Model, which: str | Iterable[str] = PARAMS) -> Parameters:
    """Convert initializers and Constant nodes to the last inputs of ``model``; returns their contents.

    Raises:
        UsageError: an initializer does not exist, or an optimization merged it with an equal one.
    """
    names = split_names(which)
    constants_to_initializers(model, names, weights=PARAMS in names)
    found = parameters_of(model, which)
    edit = ir.Editor(model)
    for name in found.tensors:
        others = [other for other in ir.merged_into(model.graph.initializers[name]) if other != name]
        if others:
            raise UsageError(
                f"the parameter {name!r} was merged with {others[0]!r}, which had the same contents",
                hint="lift the parameters of the original, and optimize the result",
            )
    for name in found.tensors:
        edit.to_input(model.graph.initializers[name])
    return found


def unlift(model: ir.Model, parameters: Parameters) -> Unlifted:
    """Convert inputs of ``model`` to initializers, and replace the contents of initializers, by name.

    Raises:
        UsageError: a tensor has another shape or element type than the input or initializer, the model has
            none of the names, or it contains constants folded from an initializer whose contents would
            change. The model is unchanged.
    """
    check_folded_constants(model, parameters.tensors)
    constants_to_initializers(model, parameters.tensors)
    own = {value.name or "": value for value in [*model.graph.inputs, *model.graph.initializers.values()]}
    found = {name: parameters.tensors[name] for name in own if name in parameters.tensors}
    if not found:
        there, here = next(iter(parameters.tensors), "nothing"), next(iter(own), "nothing")
        raise UsageError(
            "no tensor has the name of an input or initializer of the model",
            hint=f"the file has {there!r} and so on, the model {here!r}",
        )
    for name, tensor in found.items():
        check_fits(own[name], tensor)
    edit = ir.Editor(model)
    for name, tensor in found.items():
        edit.to_initializer(own[name], tensor)
    update_record(model, parameters.tensors)
    unused = [name for name in parameters.tensors if name not in own]
    left = [value.name or "" for value in model.graph.inputs if not value.is_initializer()]
    return Unlifted(list(found), unused, left)


def check_fits(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Raise UsageError if ``tensor`` has another shape or element type than ``value``."""
    known = value.const_value
    dtype, shape = (value.dtype, value.shape) if known is None else (known.dtype, known.shape)
    if dtype is not None and dtype != tensor.dtype:
        wanted, given = _element(dtype), _element(tensor.dtype)
        raise UsageError(f"{value.name!r} is {wanted}, and the tensor {given}", hint=f"cast it to {wanted}")
    sizes = tensor.shape.numpy()
    dims = sizes if shape is None else tuple(shape)
    pairs = zip(dims, sizes, strict=False)
    if len(dims) != len(sizes) or any(isinstance(dim, int) and dim != size for dim, size in pairs):
        transposed = tuple(dims) == tuple(reversed(sizes))
        raise UsageError(
            f"{value.name!r} is {_shape_text(dims)}, and the tensor {_shape_text(sizes)}",
            hint="transpose it: exporters transpose weights of linear layers" if transposed else None,
        )


def _element(dtype: ir.DataType) -> str:
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


def _shape_text(dims: Iterable[object]) -> str:
    shape = [str(dim) for dim in dims]
    return f"[{shape[0]}]" if len(shape) == 1 else "x".join(shape) or "a scalar"


def update_record(model: ir.Model, tensors: Mapping[str, ir.TensorProtocol]) -> None:
    """Update the digests of initializers in the record of folded constants.

    This includes inputs that became initializers: the constants folded from them become part of the record
    again.
    """
    record = ir.fold_record(model)
    if not record.digests:
        return
    # a tensor without an initializer was folded into constants, which were also replaced
    contents = dict(tensors)
    for name, value in model.graph.initializers.items():
        if name not in record.derived and value.const_value is not None:
            contents[name] = value.const_value
    digests = {
        name: ir.digest_of(contents[name]) if name in contents else digest
        for name, digest in record.digests.items()
    }
    ir.keep_record(model, replace(record, digests=digests))


def as_parameters(tensors: Mapping[str, Any]) -> Parameters:
    """Parameters of numpy arrays or tensors by name.

    Raises:
        UsageError: ONNX has no such element type.
    """
    found = Parameters()
    for name, data in tensors.items():
        data = native(data, name)
        try:
            found.tensors[name] = ir.tensor(data, name=name)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{name!r} can't be a tensor: {error}") from error
    return found
