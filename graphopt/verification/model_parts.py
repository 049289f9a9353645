"""Cut two models at the same values into parts that fit into memory one at a time.

A *cut* is a set of values that exist under one name in both models. Nodes after the cut depend on the large
weights before it only through these values. Passes keep the name of a value only if its contents are equal
(:mod:`graphopt.ir.editor`). A part computes the values of the next cut, and the outputs before it, from the
values of earlier cuts and the inputs of the model. Cheap computations from the inputs, such as masks, are
repeated in each part that reads them.

If all parts agree on the original's values, the models agree: every node that an output depends on is in a
part, and each part starts at values that an earlier part compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from graphopt import ir
from graphopt.errors import ResourceLimit
from graphopt.ort.loadable_model import beside_data
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.session_memory import Weights

#: Maximum size of tensors outside of files in a part that refers to data files, in bytes.
_MAX_EMBEDDED = 1 << 30
#: Weights are large if they have more than this share of all weights' bytes.
_LARGE = 1e-3


@dataclass(frozen=True)
class Region:
    """The nodes of one model that compute the results of a part.

    Attributes:
        model: the model.
        nodes: its nodes, in topological order.
        outputs: the results.
        weights: the bytes of the weights that the nodes read.
    """

    model: ir.Model
    nodes: tuple[ir.Node, ...]
    outputs: tuple[ir.Value, ...]
    weights: Weights

    @classmethod
    def of(cls, model: ir.Model, names: Sequence[str], known: Mapping[str, None]) -> Region:
        """The region that computes the values ``names`` from the values ``known`` and inputs of ``model``."""
        values = _named(model)
        outputs = tuple(values[name] for name in names)
        pending = list(outputs)
        wanted = dict.fromkeys(pending)
        found: dict[ir.Node, None] = {}
        while pending:
            node = pending.pop().producer()
            if node is None or node in found:
                continue
            found[node] = None
            for value in ir.reads(node):
                if value not in wanted and value.name not in known:
                    wanted[value] = None
                    pending.append(value)
        nodes = tuple(node for node in model.graph if node in found)
        return cls(model, nodes, outputs, Weights.of(tensors_read(nodes).values(), is_part=True))

    def graph_inputs(self) -> list[ir.Value]:
        """The values that the region reads and does not compute, except constants."""
        computed = {value for node in self.nodes for value in node.outputs}
        read = [value for node in self.nodes for value in ir.reads(node)] + list(self.outputs)
        return [v for v in dict.fromkeys(read) if v not in computed and ir.constant_of(v) is None]

    def to_model(self, types: Mapping[str, ir.TypeProtocol]) -> ir.Model:
        """The region as a model; ``types`` has the types of its inputs without a declared type."""

        def declare(value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
            return types.get(value.name or "") or value.type, None

        graph = ir.extract(self.nodes, self.outputs, self.graph_inputs(), declare=declare)
        graph.name = "part"
        return ir.model_of(graph, self.model)

    def to_source(self, types: Mapping[str, ir.TypeProtocol]) -> bytes:
        """The region for onnxruntime, with references to the data files of the model.

        Raises:
            ResourceLimit: it has too many weights outside of files.
        """
        model = self.to_model(types)
        found = beside_data(model, _MAX_EMBEDDED)
        try:
            return ir.to_bytes(model) if found is None else found[0]
        except ResourceLimit as error:
            raise ResourceLimit("a part has more than 2 GB of weights outside of files") from error


def types_of(values: Mapping[str, Any]) -> dict[str, ir.TypeProtocol]:
    """The types of the arrays and sequences among ``values``; an empty sequence has the type float32."""
    found: dict[str, ir.TypeProtocol] = {}
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        dtypes = [
            ir.DataType.from_numpy(one.dtype)
            for one in items
            if hasattr(one, "dtype") and one.dtype != object
        ]
        if isinstance(value, list) and len(dtypes) == len(items):
            found[name] = ir.SequenceType(ir.TensorType(dtypes[0] if dtypes else ir.DataType.FLOAT))
        elif dtypes:
            found[name] = ir.TensorType(dtypes[0])
    return found


@dataclass(frozen=True)
class Part:
    """A part of both models.

    Attributes:
        names: the results that are compared.
        original, candidate: the nodes that compute them.
    """

    names: tuple[str, ...]
    original: Region
    candidate: Region


def split_in_parts(
    original: ir.Model, candidate: ir.Model, fits: Callable[[Weights], bool]
) -> list[Part] | None:
    """The parts of both models, in topological order; ``None`` if some part does not fit.

    Args:
        original, candidate: models with the same outputs.
        fits: whether a session with such weights fits into memory.
    """
    cuts = _cuts(original, {name for name in _named(candidate) if name}, fits)
    if cuts is None:
        return None
    parts, known = [], dict[str, None]()
    for names in cuts:
        regions = [Region.of(model, names, known) for model in (original, candidate)]
        if not all(fits(region.weights) for region in regions):
            return None
        parts.append(Part(names, *regions))
        known |= dict.fromkeys(names)
    return parts


def _cuts(model: ir.Model, shared: set[str], fits: Callable[[Weights], bool]) -> list[tuple[str, ...]] | None:
    """The results of each part: values of cuts at ``shared`` names, and outputs of the model.

    Each part ends where the fewest values that depend on large weights are still read, and among such ends at
    the last one that memory permits.
    """
    nodes, outputs = list(model.graph), list(model.graph.outputs)
    place = {node: index for index, node in enumerate(nodes)}
    last = {value: index for index, node in enumerate(nodes) for value in ir.reads(node)}
    crossing = _crossing(model, nodes, last)
    found: list[tuple[str, ...]] = []
    done = dict[str, None]()

    def close(begin: int, end: int, values: Iterable[str]) -> None:
        """End the part that consists of the nodes from ``begin`` up to, but excluding, ``end``."""
        ended = [value.name or "" for value in outputs if begin <= _index(value, place) < end]
        names = tuple(name for name in dict.fromkeys([*ended, *values]) if name not in done)
        done.update(dict.fromkeys(names))
        found.append(names)

    begin, index = 0, 0
    best: int | None = None
    tensors: dict[object, ir.TensorProtocol] = {}
    while index < len(nodes):
        tensors |= tensors_read([nodes[index]])
        if not fits(Weights.of(tensors.values(), is_part=True)):
            if best is None:
                return None
            close(begin, best + 1, crossing[best])
            begin = index = best + 1
            best, tensors = None, {}
            continue
        values = crossing[index]
        if values and shared.issuperset(values) and (best is None or len(values) <= len(crossing[best])):
            best = index
        index += 1
    close(begin, len(nodes) + 1, ())
    return [names for names in found if names]


def _crossing(
    model: ir.Model, nodes: Sequence[ir.Node], last: Mapping[ir.Value, int]
) -> list[tuple[str, ...]]:
    """For each node, the values that depend on large weights, exist after it, and are read later."""
    large = _LARGE * ir.initializer_bytes(model)
    heavy: dict[ir.Value, None] = {}
    alive: dict[ir.Value, None] = {}
    found = []
    for index, node in enumerate(nodes):
        read = ir.reads(node)
        weights = (ir.constant_of(value) for value in read)
        if any(value in heavy for value in read) or any(w is not None and w.nbytes > large for w in weights):
            heavy |= dict.fromkeys(node.outputs)
            alive |= {value: None for value in node.outputs if last.get(value, -1) > index}
        for value in read:
            if last[value] == index:
                alive.pop(value, None)
        found.append(tuple(value.name or "" for value in alive))
    return found


def _index(value: ir.Value, place: Mapping[ir.Node, int]) -> int:
    """The position of the producer of ``value``; the end if it has none, as an input."""
    node = value.producer()
    return len(place) if node is None else place[node]


def _named(model: ir.Model) -> dict[str, ir.Value]:
    """The results of nodes of the main graph, and its outputs, by name."""
    values = [value for node in model.graph for value in node.outputs]
    return {value.name: value for value in (*values, *model.graph.outputs) if value.name}


def tensors_read(nodes: Iterable[ir.Node]) -> dict[object, ir.TensorProtocol]:
    """The constants that ``nodes`` and their bodies read, by storage."""
    found: dict[object, ir.TensorProtocol] = {}
    for node in nodes:
        inner = [reader for body in ir.bodies(node) for reader in ir.walk_nodes(body)]
        for value in (*ir.reads(node), *(value for reader in inner for value in ir.reads(reader))):
            tensor = ir.constant_of(value)
            if tensor is not None:
                found[ir.storage_of(tensor)] = tensor
    return found
