"""Map weights of a model to the names of a framework, which exporters change.

Exporters of PyTorch transpose the weights of linear layers, and then give them names such as
``onnx::MatMul_123``. Their contents identify them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from graphopt import ir
from graphopt.errors import UsageError
from graphopt.parameters.lifting import Parameters


class FrameworkName(NamedTuple):
    """The name of a weight in a framework, and whether the exporter transposed the weight."""

    name: str
    transposed: bool = False


@dataclass(frozen=True)
class NameMap:
    """Weights under other names in a framework.

    Attributes:
        names: the framework's name of each renamed or transposed weight.
        unmatched: weights whose contents no tensor of the framework has, or several.
    """

    names: Mapping[str, FrameworkName] = field(default_factory=dict)
    unmatched: tuple[str, ...] = ()

    def apply(self, parameters: Parameters) -> Parameters:
        """``parameters`` with tensors of the framework's names added under the model's names."""
        tensors = dict(parameters.tensors)
        for weight, (name, transposed) in self.names.items():
            if name not in parameters.tensors:
                continue
            tensor = parameters.tensors[name]
            if transposed:
                if len(tensor.shape) != 2:
                    raise UsageError(f"{name!r} is not a matrix, although {weight!r} is its transpose")
                tensor = _transposed(tensor, weight)
            if weight in tensors and ir.hash_of(tensors[weight]) != ir.hash_of(tensor):
                raise UsageError(f"{name!r} and {weight!r} are the same weight, with different contents")
            tensors[weight] = tensor
        return replace(parameters, tensors=tensors)


def match_names(weights: Iterable[ir.Value], framework: Parameters) -> NameMap:
    """Find each of ``weights`` in the tensors of a framework, by name and contents, or by contents alone.

    If several tensors have the contents, the weight belongs to the one whose module is a scope of the nodes
    that read the weight.
    """
    by_contents: dict[str, list[FrameworkName]] = {}
    for name, tensor in framework.tensors.items():
        by_contents.setdefault(ir.hash_of(tensor), []).append(FrameworkName(name))
        if len(tensor.shape) == 2:
            digest = ir.hash_of(_transposed(tensor, name))
            by_contents.setdefault(digest, []).append(FrameworkName(name, transposed=True))
    names: dict[str, FrameworkName] = {}
    unmatched = []
    for value in weights:
        assert value.const_value is not None
        own, found = value.name or "", by_contents.get(ir.hash_of(value.const_value), [])
        if any(other == FrameworkName(own) for other in found):
            continue
        if len({other.name for other in found}) > 1:
            found = [other for other in found if _is_in_scope(value, other.name)]
        if len({other.name for other in found}) == 1:
            names[own] = found[0]
        else:
            unmatched.append(own)
    return NameMap(names, tuple(unmatched))


def _transposed(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    return ir.Tensor(np.ascontiguousarray(tensor.numpy().T), dtype=tensor.dtype, name=name)


def _is_in_scope(value: ir.Value, name: str) -> bool:
    """Whether a node in the scope of the module with parameter ``name`` reads ``value``."""
    module = name.rpartition(".")[0]
    return any(
        ir.is_within(_module_path(ir.label(node)), module) or module in ir.noted_scopes(node)
        for node in ir.readers(value)
    )


def _module_path(label: str) -> str:
    """A node's path in the notation of parameters: ``/net/net.0/MatMul`` of PyTorch is ``net.0.MatMul``.

    A module of a Sequential has the name of the Sequential as its prefix, which precedes it as well.
    """
    scopes = label.strip("/").split("/")
    inner = [*scopes[1:], ""]
    return ".".join(
        scope for scope, next_ in zip(scopes, inner, strict=True) if not next_.startswith(f"{scope}.")
    )
