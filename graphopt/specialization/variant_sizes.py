"""The size of each variant of a model or a bundle: nodes, own and shared weights, session memory."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphopt import ir
from graphopt.errors import GraphoptError
from graphopt.inputs.feeds import InputOptions
from graphopt.inputs.run_once import try_out
from graphopt.ort.devices import Device
from graphopt.ort.loadable_model import Artifact
from graphopt.process.child import Child
from graphopt.profile import Guard
from graphopt.specialization.bundle.loaded_bundle import Bundle
from graphopt.specialization.bundle.names import GENERAL_NAME
from graphopt.specialization.variant_records import VariantRecord
from graphopt.timing.alternating_runs import Setup
from graphopt.timing.footprint import measure
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Item:
    """The size of a variant, or of the general model.

    Attributes:
        name: its name.
        nodes: its number of nodes.
        shared: size of the weights shared with others, in bytes.
        own: size of its other weights, in bytes.
        guard: its assumptions; ``None`` for the general model.
        runs: the number of profiled runs that use the variant.
        session_bytes: memory of its session after a few runs, in bytes; ``None`` if not measured.
    """

    name: str
    nodes: int
    shared: int
    own: int
    guard: Guard | None = None
    runs: int | None = None
    session_bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.name,
            "nodes": self.nodes,
            "runs": self.runs,
            "guard": None if self.guard is None else self.guard.to_dict(),
            "shared_bytes": self.shared,
            "own_bytes": self.own,
            "session_bytes": self.session_bytes,
        }


def variant_sizes_of_bundle(bundle: Bundle) -> list[Item]:
    """The variants of ``bundle`` in order, then the general model.

    Raises:
        InvalidModel: a model is damaged.
    """
    models = {name: bundle.model(name) for name in bundle.names}
    weights = {name: _weights(_initializers(ir.graphs_of(model))) for name, model in models.items()}
    nodes = {name: ir.count_nodes(model.graph) for name, model in models.items()}
    return _items(list(bundle.manifest.variants), nodes, weights)


def variant_sizes_of_model(model: ir.Model, plan: list[VariantRecord]) -> list[Item]:
    """The variants in the branches of ``model``, in order, then the general model."""
    graphs: dict[str, ir.Graph] = {}
    graph = model.graph
    for planned in plan:
        node = next((node for node in graph if node.name == f"guarded_{planned.name}"), None)
        if node is None or {"then_branch", "else_branch"} - node.attributes.keys():
            continue  # the If was removed by an optimization, or renamed by another tool
        graphs[planned.name] = node.attributes["then_branch"].as_graph()
        graph = node.attributes["else_branch"].as_graph()
    graphs[GENERAL_NAME] = graph
    nodes = {name: ir.count_nodes(graph) for name, graph in graphs.items()}
    weights = {
        name: _weights([*_initializers(ir.with_bodies(graph)), *ir.captures(graph)])
        for name, graph in graphs.items()
    }
    found = [record for record in plan if record.name in graphs]
    return _items(found, nodes, weights) if found else []


def measured(items: Iterable[Item], bundle: Bundle, device: Device) -> list[Item]:
    """``items`` with session memory, except for models that fail on generated inputs."""
    found = []
    for item in items:
        try:
            bytes_ = session_bytes(bundle.model(item.name), bundle.path(item.name), device)
        except GraphoptError:
            found.append(item)
        else:
            found.append(replace(item, session_bytes=bytes_))
    return found


def session_bytes(model: ir.Model, path: Path, device: Device) -> int:
    """The memory, in bytes, of a session of a model after runs on generated inputs, in a separate process.

    Args:
        path: the file of ``model``.

    Raises:
        RuntimeFailure: the model fails.
    """
    trial = try_out(model, InputOptions(), device=device, typical=True)
    with contextlib.ExitStack() as stack:
        artifact = Artifact(path if ir.codec_of(path).ort_reads else model)
        stack.callback(artifact.close)
        child = stack.enter_context(Child(preload=["onnxruntime", "graphopt.timing.footprint"], fresh=True))
        return child.call(measure, artifact.source, Setup(trial.feeds, device=device), "the model")[1]


def _initializers(graphs: Iterable[ir.Graph]) -> Iterator[ir.Value]:
    return (value for graph in graphs for value in graph.initializers.values())


def _weights(values: Iterable[ir.Value]) -> dict[tuple[object, ...], int]:
    """The size of each distinct weight in ``values``, in bytes, by type, shape and contents."""
    tensors = (value.const_value for value in values)
    return {
        (tensor.dtype, tuple(tensor.shape.numpy()), ir.hash_of(tensor)): tensor.nbytes
        for tensor in tensors
        if tensor is not None
    }


def _items(
    plan: list[VariantRecord], nodes: Mapping[str, int], weights: Mapping[str, dict[tuple[object, ...], int]]
) -> list[Item]:
    users = Counter(key for found in weights.values() for key in found)
    records = {record.name: record for record in plan}
    items = []
    for name, found in weights.items():
        shared = sum(size for key, size in found.items() if users[key] > 1)
        record = records.get(name)
        guard, runs = (None, None) if record is None else (record.guard, record.runs)
        items.append(Item(name, nodes[name], shared, sum(found.values()) - shared, guard, runs))
    return items
