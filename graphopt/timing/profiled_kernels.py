"""Profile a session, and map the nodes that onnxruntime ran to the nodes of the model."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from graphopt import ir, publish
from graphopt.inputs import run_once
from graphopt.inputs.feeds import InputOptions
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN
from graphopt.ort.session import Source
from graphopt.process.child import Child
from graphopt.timing.alternating_runs import Setup, output_shapes, runner
from graphopt.timing.bench import Bench
from graphopt.timing.machine_peaks import Peaks
from graphopt.timing.original_nodes import map_to_originals
from graphopt.timing.roofline import Roofline, roofline
from graphopt.timing.roofline_peaks import peaks_of
from graphopt.util.disk_store import Store
from graphopt.util.lazy_dataclass import dataclass

#: Minimum and maximum number of profiled runs, after one that does not count.
_LEAST_RUNS, _MOST_RUNS = 7, 50
#: Seconds after which only the minimum number of runs is completed.
_SECONDS = 0.5
#: Wall-clock seconds for the process.
_PATIENCE = 600.0


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
    profiles = [
        Profile.of(one.name, one.path, one.model, setup)
        for one in bench.contestants
        if one.name not in besides
    ]
    found = [one.roofline(peaks_of(store, bench.threads)) for one in profiles]
    if any(one.exceeds_peaks for one in found):
        peaks = peaks_of(store, bench.threads, again=True)
        found = [one.roofline(peaks) for one in profiles]
    return found


@dataclass(frozen=True)
class Profile:
    """The profile of a model.

    Attributes:
        name: name of the model.
        events: the events of onnxruntime's profile.
        nodes: the nodes that onnxruntime ran, by name; nodes of ambiguous names are missing.
        originals: original nodes by the name of such a node.
        groups: functions that may run as one kernel, by name.
    """

    name: str
    events: list[dict[str, Any]]
    nodes: dict[str, ir.Node]
    originals: dict[str, tuple[str, ...]]
    groups: dict[str, ir.Function]

    @classmethod
    def of(cls, name: str, source: Source, model: ir.Model | None, setup: Setup) -> Profile:
        """Profile a model in a session as users create it, in a fresh process.

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
        functions = {} if model is None else model.functions
        groups = {key[1]: function for key, function in functions.items() if key[0] == NATIVE_DOMAIN}
        return cls(name, events, nodes, originals, groups)

    def roofline(self, peaks: Peaks) -> Roofline:
        """The roofline relative to ``peaks``."""
        return roofline(self.name, self.events, self.nodes, self.originals, peaks, self.groups)


def profile(source: Source, setup: Setup, name: str, folder: Path) -> list[dict[str, Any]]:
    """The events of a profile; the graph that ran is written to ``ran.onnx`` in ``folder``."""
    made = setup.eager().session(
        source, name, profile=str(folder / "profile"), optimized=str(folder / "ran.onnx")
    )
    run = runner(made, setup)  # includes the first run
    begin, runs = time.perf_counter(), 0
    while runs < _LEAST_RUNS or (runs < _MOST_RUNS and time.perf_counter() - begin < _SECONDS):
        run()
        runs += 1
    events: list[dict[str, Any]] = json.loads(Path(made.end_profiling()).read_text(encoding="utf-8"))
    return events


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
