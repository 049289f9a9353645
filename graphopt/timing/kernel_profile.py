"""Profile a session, and map the nodes that onnxruntime ran to the nodes of the model."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from graphopt import ir, publish
from graphopt.errors import MEMORY_HINT, SystemExhausted, exhausted
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN
from graphopt.ort.session import ModelInFolder, Source
from graphopt.process.child import Child
from graphopt.timing.alternating_runs import Setup, runner
from graphopt.timing.function_calls import give_calls_own_functions, nodes_within
from graphopt.timing.machine_peaks import Peaks
from graphopt.timing.original_nodes import map_to_originals
from graphopt.timing.roofline import Roofline, kernel_events, kernel_name, roofline
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import onnx

#: Minimum and maximum number of profiled runs, after one that does not count.
_LEAST_RUNS, _MOST_RUNS = 7, 50
#: Seconds after which only the minimum number of runs is completed.
_SECONDS = 0.5
#: Wall-clock seconds for the process.
_PATIENCE = 600.0


@dataclass(frozen=True)
class KernelProfile:
    """The profile of a model.

    Attributes:
        name: name of the model.
        events: the events of onnxruntime's profile.
        nodes: the nodes that onnxruntime ran, by name in ``events``; nodes of ambiguous names are missing.
        originals: original nodes by the name of such a node.
        groups: functions that may run as one kernel, by name.
    """

    name: str
    events: list[dict[str, Any]]
    nodes: dict[str, ir.Node]
    originals: dict[str, tuple[str, ...]]
    groups: dict[str, ir.Function]

    @classmethod
    def of(cls, name: str, source: Source, model: ir.Model | None, setup: Setup) -> KernelProfile:
        """Profile a model in a session as users create it, in a fresh process.

        Args:
            name: its name in ``setup``.
            source: its file.
            model: the loaded model with provenance; ``None`` if original nodes are unknown.

        Raises:
            RuntimeFailure: the model does not run.
            SystemExhausted: memory does not suffice.
        """
        with publish.ScratchFolder() as folder:
            with Child(preload=["onnxruntime", "graphopt.timing.kernel_profile"], fresh=True) as child:
                doing = f"profiling {name}"
                events = child.call(profile, source, setup, name, folder, timeout=_PATIENCE, doing=doing)
            # onnxruntime keeps the paths of data files, which are relative to the folder of the source
            proto = _parsed((folder / "ran.onnx").read_bytes(), f"the optimized graph of {name}")
            assert proto is not None, "onnxruntime wrote a model"
            ran = ir.from_proto(proto, base_dir=_folder(source))
        nodes = _by_name(ran, events)
        originals = {} if model is None else map_to_originals(nodes, model)
        functions = {} if model is None else model.functions
        groups = {key[1]: function for key, function in functions.items() if key[0] == NATIVE_DOMAIN}
        return cls(name, events, nodes, originals, groups)

    def roofline(self, peaks: Peaks) -> Roofline:
        """The roofline relative to ``peaks``."""
        return roofline(self.name, self.events, self.nodes, self.originals, peaks, self.groups)


def profile(source: Source, setup: Setup, name: str, folder: Path) -> list[dict[str, Any]]:
    """The events of a profile; the graph that ran is written to ``ran.onnx`` in ``folder``."""
    made = setup.eager().session(
        _named(source, name), name, profile=str(folder / "profile"), optimized=str(folder / "ran.onnx")
    )
    run = runner(made, setup)  # includes the first run
    begin, runs = time.perf_counter(), 0
    while runs < _LEAST_RUNS or (runs < _MOST_RUNS and time.perf_counter() - begin < _SECONDS):
        run()
        runs += 1
    events: list[dict[str, Any]] = json.loads(Path(made.end_profiling()).read_text(encoding="utf-8"))
    return events


def _folder(source: Source) -> Path | None:
    """The folder of the data files of ``source``; ``None`` if it has none."""
    if isinstance(source, ModelInFolder):
        return Path(source.folder)
    return None if isinstance(source, bytes) else Path(source).parent.absolute()


def _named(source: Source, name: str) -> Source:
    """``source`` with unique names of all nodes, which onnxruntime's graph and profile then share.

    Nodes with unique names keep them; the others are called ``MatMul.3``, unlike ``MatMul_3``, the name in a
    profile of a node without a name. Each call of a function has its own function. Nothing else changes, and
    weights in data files stay there. Models in onnxruntime's own format are returned as they are.

    Args:
        source: a model that onnxruntime loads.
        name: its name in messages.

    Raises:
        SystemExhausted: memory does not suffice.
    """
    proto = _parsed(source if isinstance(source, bytes) else Path(source).read_bytes(), name)
    if proto is None:
        return source
    functions = (node for function in proto.functions for node in function.node)
    nodes = list(nodes_within([*proto.graph.node, *functions]))
    known = Counter(node.name for node in nodes)
    numbers = count()
    for node in nodes:
        if not node.name or known[node.name] > 1:
            node.name = next(text for n in numbers if (text := f"{node.op_type}.{n}") not in known)
    give_calls_own_functions(proto)
    named, folder = proto.SerializeToString(), _folder(source)
    return named if folder is None else ModelInFolder(named, os.fspath(folder), data_bytes=0)


def _parsed(data: bytes, name: str) -> onnx.ModelProto | None:
    """The model ``data``; ``None`` if it is not in ONNX's format. Raises SystemExhausted."""
    import onnx

    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError as error:
        if (limit := exhausted(error)) is not None:
            raise SystemExhausted(f"{limit} to read {name}", hint=MEMORY_HINT) from error
        return None


def _by_name(model: ir.Model, events: Sequence[Mapping[str, Any]]) -> dict[str, ir.Node]:
    """The nodes by their names in ``events``, in the order of the graph; without those that share a name."""
    nodes = [node for graph in ir.graphs_of(model) for node in graph]
    known = Counter(node.name for node in nodes)
    unnamed = _names_of_unnamed(model, nodes, events)
    found: dict[str, ir.Node] = {}
    for node in nodes:
        name = node.name or unnamed.get(node)
        if name and known[name] <= 1:
            found[name] = node
    return found


def _names_of_unnamed(
    model: ir.Model, nodes: Sequence[ir.Node], events: Sequence[Mapping[str, Any]]
) -> dict[ir.Node, str]:
    """The names in ``events`` of nodes without names, which onnxruntime inserts.

    A profile contains the operator and the number of such a node, as in ``Exp_6``. The main graph is saved in
    the order of execution, so the nodes of one operator are in the order of their first events. Operators
    with unnamed nodes in bodies are left out.
    """
    named = {node.name for node in nodes if node.name}
    names: dict[str, dict[str, None]] = {}
    for event in sorted(kernel_events(events), key=lambda event: float(event["ts"])):
        name, op = kernel_name(event)
        if name not in named and name.startswith(f"{op}_"):
            names.setdefault(op, {})[name] = None
    unnamed: dict[str, list[ir.Node]] = {}
    for node in nodes:
        if not node.name:
            unnamed.setdefault(node.op_type, []).append(node)
    return {
        node: name
        for op, found in unnamed.items()
        if len(found) == len(names.get(op, ())) and all(node.graph is model.graph for node in found)
        for node, name in zip(found, names[op], strict=True)
    }
