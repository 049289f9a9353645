"""Profile a session, and map the nodes that onnxruntime ran to the nodes of the model."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from graphopt import ir, publish
from graphopt.inputs import run_once
from graphopt.inputs.feeds import InputOptions
from graphopt.ort.session import Source
from graphopt.process.child import Child
from graphopt.timing.alternating_runs import Setup, output_shapes, runner
from graphopt.timing.bench import Bench
from graphopt.timing.roofline import Peaks, Roofline, roofline
from graphopt.timing.roofline_peaks import peaks_of
from graphopt.util.disk_store import Store

#: Number of profiled runs, after one that does not count.
_PROFILED = 7
#: Wall-clock seconds for the process.
_PATIENCE = 600.0
#: Suffix of the nodes that replace others by the blocked layout; before it is the name of the replaced output
#: (onnxruntime, nchwc_transformer.cc).
_BLOCKED = "_nchwc"


def bench_rooflines(
    bench: Bench, inputs: InputOptions, store: Store, *, besides: Collection[str] = ()
) -> list[Roofline]:
    """The rooflines of the models of ``bench`` on the same inputs, without the models ``besides``.

    Raises:
        RuntimeFailure: a model does not run.
        ResourceLimit: the measured peaks can't be stored.
    """
    first = bench.contestants[0].model
    assert first is not None, "the original is loaded"
    trial = run_once.try_out(first, inputs, device=bench.device, typical=True)
    shapes = output_shapes(list(trial.outputs.values()))
    setup = Setup(trial.feeds, shapes, bench.device, bench.threads, choices=bench.choices)
    peaks = peaks_of(store, bench.threads)
    return [
        measure_roofline(one.name, one.path, one.model, setup, peaks)
        for one in bench.contestants
        if one.name not in besides
    ]


def measure_roofline(
    name: str, source: Source, model: ir.Model | None, setup: Setup, peaks: Peaks
) -> Roofline:
    """The roofline of a model in a session as users create it, in a fresh process.

    Args:
        name: its name in ``setup``.
        source: its file.
        model: the loaded model with provenance; ``None`` if original nodes are unknown.

    Raises:
        RuntimeFailure: the model does not run.
    """
    with publish.ScratchFolder() as folder:
        with Child(preload=["onnxruntime", "graphopt.timing.profiled_kernels"], fresh=True) as child:
            events = child.call(profile, source, setup, name, folder, timeout=_PATIENCE)
        ran = ir.load(folder / "ran.onnx")
        nodes = _in_order(ran, events) or _by_name(ran)
        originals = {} if model is None else map_to_originals(nodes, model)
        return roofline(name, events, nodes, originals, peaks)


def profile(source: Source, setup: Setup, name: str, folder: Path) -> list[dict[str, Any]]:
    """The events of a profile; the graph that ran is written to ``ran.onnx`` in ``folder``."""
    made = setup.eager().session(
        source, name, profile=str(folder / "profile"), optimized=str(folder / "ran.onnx")
    )
    run = runner(made, setup)  # includes the first run
    for _ in range(_PROFILED):
        run()
    events: list[dict[str, Any]] = json.loads(Path(made.end_profiling()).read_text(encoding="utf-8"))
    return events


def map_to_originals(ran: dict[str, ir.Node], model: ir.Model) -> dict[str, tuple[str, ...]]:
    """Names of the original nodes, by the name of a node that onnxruntime ran.

    A node computes the nodes of ``model`` between its inputs and its outputs, which keep their names. Where
    they do not, only the node that computes the output is named; without such a node, the node is missing.
    """
    producers = {
        output.name: node
        for graph in ir.graphs_of(model)
        for node in graph
        for output in node.outputs
        if output.name
    }
    # values of the blocked layout, by the name of the value that they replace
    renamed = {
        node.outputs[0].name: name.removesuffix(_BLOCKED)
        for name, node in ran.items()
        if name.endswith(_BLOCKED) and node.outputs
    }
    for node in ran.values():  # in the order of the graph
        if node.op_type == "ReorderInput":
            source = node.inputs[0]
            if source is not None:
                renamed[node.outputs[0].name] = renamed.get(source.name, source.name or "")
    found = {}
    for name, node in ran.items():
        inputs = {renamed.get(value.name, value.name) for value in node.inputs if value is not None}
        outputs = [renamed.get(value.name, value.name) for value in node.outputs]
        ends = [producers[value] for value in outputs if value in producers]
        if not ends:
            continue
        covered = _between(inputs, ends)
        sources = ends if covered is None else covered
        found[name] = tuple(dict.fromkeys(origin for one in sources for origin in ir.origins(one)))
    return found


def _between(inputs: set[str | None], ends: list[ir.Node]) -> list[ir.Node] | None:
    """The nodes from values named in ``inputs`` to ``ends``; ``None`` if they read another model input."""
    found = dict.fromkeys(ends)
    queue = list(ends)
    while queue:
        for value in queue.pop().inputs:
            if value is None or value.name in inputs or ir.constant_of(value) is not None:
                continue
            producer = value.producer()
            if producer is None:
                return None
            if producer not in found:
                found[producer] = None
                queue.append(producer)
    return list(reversed(found))


def _in_order(model: ir.Model, events: list[dict[str, Any]]) -> dict[str, ir.Node]:
    """The nodes by their names in the profile, which has names for unnamed nodes too.

    onnxruntime runs and writes nodes in the same order. Empty if the operators of the last run differ from
    those of the graph, for instance because a body ran, or if names repeat.
    """
    begin = max((event["ts"] for event in events if event.get("name") == "model_run"), default=0)
    last = sorted(
        (
            event
            for event in events
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= begin
        ),
        key=lambda event: event["ts"],
    )
    nodes = list(model.graph)
    if [event["args"].get("op_name") for event in last] != [node.op_type for node in nodes]:
        return {}
    names = [event["name"].removesuffix("_kernel_time") for event in last]
    return dict(zip(names, nodes, strict=True)) if len(set(names)) == len(names) else {}


def _by_name(model: ir.Model) -> dict[str, ir.Node]:
    """The nodes by name, without those that share a name."""
    found: dict[str, ir.Node] = {}
    repeated: dict[str, None] = {}
    for graph in ir.graphs_of(model):
        for node in graph:
            name = node.name or ""
            if name in found:
                repeated[name] = None
            found[name] = node
    return {name: node for name, node in found.items() if name not in repeated}
