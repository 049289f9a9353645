"""Split a model into chunks of consecutive nodes, which run one at a time and return their inner values.

A chunk reads inputs of the model and values that earlier chunks computed. Its size is limited by the weights
that its session maps, and by the tensors that it returns. A single node that exceeds a limit is a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from graphopt import ir
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.symbolic import TYPICAL, number, symbols
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.resource_budget import Budget
from graphopt.verification.model_parts import Region, tensors_read
from graphopt.verification.session_memory import Weights

#: Maximum size of inferred contents of shapes, in bytes; larger shapes are unknown.
_FACTS = 1 << 28
#: Estimated size of a tensor with an unknown shape, in bytes.
_UNKNOWN = 1 << 20


@dataclass(frozen=True)
class Chunk:
    """Consecutive nodes of a model.

    Attributes:
        region: the nodes, and the values that they return.
        wanted: names of the returned values that are compared.
        needed: names of the returned values that later chunks read, or that the model returns.
        ended: names of values of earlier chunks that no later chunk reads.
    """

    region: Region
    wanted: tuple[str, ...]
    needed: tuple[str, ...]
    ended: tuple[str, ...]


def chunks_of(
    model: ir.Model,
    wanted: Collection[ir.Value],
    *,
    weight_bytes: int,
    tensor_bytes: int,
    nbytes: Callable[[ir.Value], int],
) -> list[Chunk]:
    """The chunks of the main graph, in topological order.

    Args:
        model: the model.
        wanted: the values to return, in addition to those that later chunks read.
        weight_bytes: limit on the weights of a chunk.
        tensor_bytes: limit on the returned tensors of a chunk.
        nbytes: the estimated size of a value.
    """
    found: list[list[ir.Node]] = [[]]
    tensors: dict[object, ir.TensorProtocol] = {}
    weights = returned = 0
    for node in model.graph:
        more = {key: tensor for key, tensor in tensors_read([node]).items() if key not in tensors}
        added = sum(tensor.nbytes for tensor in more.values())
        size = sum(nbytes(value) for value in node.outputs if value in wanted)
        if found[-1] and (weights + added > weight_bytes or returned + size > tensor_bytes):
            found.append([])
            more = tensors_read([node])
            tensors, weights, returned = {}, 0, 0
            added = sum(tensor.nbytes for tensor in more.values())
        found[-1].append(node)
        tensors |= more
        weights, returned = weights + added, returned + size
    last = {value: number for number, nodes in enumerate(found) for node in nodes for value in ir.reads(node)}
    chunks = [_chunk(model, nodes, number, wanted, last) for number, nodes in enumerate(found)]
    return [chunk for chunk in chunks if chunk.region.outputs]


def _chunk(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    number: int,
    wanted: Collection[ir.Value],
    last: Mapping[ir.Value, int],
) -> Chunk:
    """Chunk ``number``, with the nodes ``nodes``; ``last`` has the last chunk that reads each value."""
    made = dict.fromkeys(value for node in nodes for value in node.outputs if value.name)
    needed = {value: None for value in made if value.is_graph_output() or last.get(value, -1) > number}
    returned = [value for value in made if value in wanted or value in needed]
    read = dict.fromkeys(value for node in nodes for value in ir.reads(node))
    return Chunk(
        Region(model, tuple(nodes), tuple(returned), Weights.of(tensors_read(nodes).values(), is_part=True)),
        _names(value for value in returned if value in wanted),
        _names(needed),
        _names(value for value in read if last[value] == number and value not in made),
    )


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(value.name or "" for value in values)


def estimated_sizes(model: ir.Model, sizes: Mapping[str, int]) -> Callable[[ir.Value], int]:
    """Estimates the sizes of values of ``model``, in bytes, for the ``sizes`` of dynamic dims."""
    facts = ShapeFacts(
        model, constant=ir.constant_of, version=ir.Scopes(model).version, budget=Budget(nbytes=_FACTS)
    )
    facts.infer_all()

    def nbytes(value: ir.Value) -> int:
        size = facts.nbytes(value)
        if size is None:
            return _UNKNOWN
        try:
            return max(number(size, dict.fromkeys(symbols(size), TYPICAL) | dict(sizes)), 0)
        except ZeroDivisionError:
            return _UNKNOWN

    return nbytes
