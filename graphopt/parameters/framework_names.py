"""Map weights of a model to the names of a framework, which exporters change.

Exporters of PyTorch transpose the weights of linear layers, and then give them names such as
``onnx::MatMul_123``. They also combine the weights of recurrent layers (:mod:`.recurrent_weights`). Their
contents identify them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple

import numpy as np

from graphopt import ir
from graphopt.errors import UsageError
from graphopt.parameters.lifting import Parameters
from graphopt.parameters.recurrent_weights import RecurrentName, recurrent_names
from graphopt.util.lazy_dataclass import dataclass


class FrameworkName(NamedTuple):
    """The name of a weight in a framework, and whether the exporter transposed the weight."""

    name: str
    transposed: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.name,)

    def to_json(self) -> list[Any]:
        return [self.name, self.transposed]

    def arrange(self, contents: Mapping[str, ir.TensorProtocol], weight: str) -> ir.TensorProtocol:
        """The tensor as ``weight``; raises UsageError unless it has two axes to exchange."""
        tensor = contents[self.name]
        if not self.transposed:
            return tensor
        if len(tensor.shape) != 2:
            raise UsageError(f"{self.name!r} is not a matrix, although {weight!r} is its transpose")
        return ir.Tensor(np.ascontiguousarray(tensor.numpy().T), dtype=tensor.dtype, name=weight)


def name_from_json(entry: Any) -> FrameworkName | RecurrentName:
    """The inverse of ``to_json``; raises ValueError, TypeError or KeyError for other data."""
    if isinstance(entry, dict):
        return RecurrentName.from_json(entry)
    name, transposed = entry
    return FrameworkName(str(name), bool(transposed))


@dataclass(frozen=True)
class NameMap:
    """Weights under other names in a framework.

    Attributes:
        names: the framework's name, or names, of each renamed or rearranged weight.
        unmatched: weights without exactly one counterpart in the framework.
    """

    names: Mapping[str, FrameworkName | RecurrentName] = field(default_factory=dict)
    unmatched: tuple[str, ...] = ()

    def apply(self, parameters: Parameters) -> Parameters:
        """``parameters`` with tensors of the framework's names added under the model's names."""
        tensors = dict(parameters.tensors)
        for weight, source in self.names.items():
            missing = [name for name in source.tensors if name not in parameters.tensors]
            if len(missing) == len(source.tensors):
                continue
            if missing:
                raise UsageError(
                    f"{weight!r} consists of {', '.join(source.tensors)}; {missing[0]!r} is not given"
                )
            tensor, name = source.arrange(parameters.tensors, weight), source.name
            if weight in tensors and ir.hash_of(tensors[weight]) != ir.hash_of(tensor):
                raise UsageError(f"{name!r} and {weight!r} are the same weight, with different contents")
            tensors[weight] = tensor
        return replace(parameters, tensors=tensors)


def match_names(weights: Iterable[ir.Value], framework: Parameters) -> NameMap:
    """Find each of ``weights`` in the tensors of a framework, by name and contents, or by contents alone.

    If several tensors have the contents, the weight belongs to the one whose module is a scope of the nodes
    that read the weight.

    Raises:
        UsageError: none of the weights is found.
    """
    weights = list(weights)
    by_contents: dict[str, list[FrameworkName | RecurrentName]] = {}
    sources: list[FrameworkName | RecurrentName] = [*_names(framework), *recurrent_names(framework.tensors)]
    for source in sources:
        digest = ir.hash_of(source.arrange(framework.tensors, source.name))
        by_contents.setdefault(digest, []).append(source)
    names: dict[str, FrameworkName | RecurrentName] = {}
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
    if len(unmatched) == len(weights):
        raise UsageError(
            "no weight of the model has the contents of a tensor of the framework",
            hint="give the weights with which the model was exported; update-weights accepts new ones",
        )
    return NameMap(names, tuple(unmatched))


def _names(framework: Parameters) -> Iterator[FrameworkName]:
    for name, tensor in framework.tensors.items():
        yield FrameworkName(name)
        if len(tensor.shape) == 2:
            yield FrameworkName(name, transposed=True)


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
