"""Outputs of executors against those of the original model, for mixed inputs from several threads.

    python -m benchmarks.executor_agreement DIR --only 'loop|gpt2' --calls 200 --threads 8

Each executor profiles the shapes of intermediate values, too (`watch="shapes"`), and is called in random
order with all sets of shapes, each with several values. Further sets of shapes are derived from those of
the recipe: a size that varies is replaced everywhere by 1 or by one less, if the original runs for it.
Without onnxruntime's optimizations (level `off`) and with bit-exact passes, outputs must be identical.
Weights are not prepacked at this level, because kernels for prepacked weights add in another order. With
the other settings (level `default`), outputs must agree within the verifier's tolerance, or differ by at
most as much as those of the original differ between the levels. Specializations are not verified. The exit
status is 1 if an output differs, a call or a specialization fails, or a thread does not end.
"""

from __future__ import annotations

import functools
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import graphopt
from benchmarks import doc_tables, measured_models
from benchmarks.inputs import Entry, Feeds, make_feeds
from benchmarks.unpacked_weights import UnpackedLibraries
from graphopt import ExecutorOptions, ir
from graphopt.errors import GraphoptError, RuntimeFailure
from graphopt.executor.executor import Executor
from graphopt.executor.plan_cache import ModelSource
from graphopt.fusion.kernel_library import Libraries
from graphopt.ir import to_proto
from graphopt.numerics import Numerics
from graphopt.ops.graphopt_operators import guarded_branch
from graphopt.ort.model_runs import Runs
from graphopt.verification.output_comparison import Tolerance, compare, identical, largest_deviations

Level = Literal["off", "default"]


@dataclass(frozen=True)
class Setting:
    """The level of onnxruntime's optimizations, arguments of `graphopt.compile`, and the pipelines."""

    level: Level
    arguments: Mapping[str, Any]
    pipelines: Literal["preset", "jit"] = "preset"


#: The settings of the executors, by name.
SETTINGS = {
    "O1": Setting("off", {"pipeline": "O1"}),
    "O3": Setting("default", {"pipeline": "O3"}),
    "O1, guarded groups": Setting(
        "off", {"pipeline": "O1", "post_passes": ["guard-groups{cost=0}", "lower-fallbacks"]}
    ),
    "plan-optimized": Setting("default", {"pipeline": "plan-optimized"}),
    "jit": Setting("default", {}, "jit"),
    "jit, exact": Setting("off", {"exact": True}, "jit"),
}
#: The libraries of sessions at each level.
LIBRARIES: dict[Level, Libraries] = {"off": UnpackedLibraries(), "default": Libraries()}
#: Options of the executors that are tried, by description.
WAYS = {
    "static:2,dynamic:10": ExecutorOptions(strategy="static:2,dynamic:10", wait=None, watch="shapes"),
    "dynamic:4, background": ExecutorOptions(strategy="dynamic:4", compile="background", watch="shapes"),
    "static:6, at most 2 plans": ExecutorOptions(
        strategy="static:6", wait=None, most_plans=2, watch="shapes"
    ),
    "static:1,dynamic:2, at most 1 plan, background": ExecutorOptions(
        strategy="static:1,dynamic:2", compile="background", most_plans=1, watch="shapes"
    ),
}
#: Maximum number of sets of shapes of a model.
MOST_SETS = 8
#: Sets of values for each set of shapes.
VALUES = 4
#: Number of parts of the calls; after each part, specializations in the background are completed.
ROUNDS = 5
#: Seconds after which a thread counts as stuck.
PATIENCE = 900.0


@dataclass(frozen=True)
class Reference:
    """Inputs, and the outputs of the original at both levels."""

    feeds: Feeds
    outputs: Mapping[Level, list[Any]]

    def difference(self, level: Level, found: Mapping[str, Any]) -> tuple[float, str | None]:
        """The largest difference of ``found``, and the fault, if any."""
        expected, actual = self.outputs[level], list(found.values())
        if level == "off":
            return (0.0, None) if identical(expected, actual) else (float("inf"), "bits differ")
        slack = largest_deviations(self.outputs["off"], expected)
        tolerance = Tolerance.of(Numerics.REASSOCIATES)
        outcome = compare(expected, actual, tolerance, slack=[x if np.isfinite(x) else 0.0 for x in slack])
        return outcome.delta, outcome.reason


@dataclass
class Agreement:
    """The calls of one executor.

    Attributes:
        calls, hits, misses: numbers of calls: all, on specializations, and on plans without a guard.
        plans, evicted: numbers of specializations, present and evicted.
        guards: number of guarded groups in the present specializations.
        nested_hits, nested_misses: how often the assumptions of guarded groups held or not.
        watched: number of watched intermediate values.
        largest: the largest difference of an output.
        faults: different outputs, failures and stuck threads.
    """

    model: str
    setting: str
    way: str
    calls: int = 0
    hits: int = 0
    misses: int = 0
    plans: int = 0
    evicted: int = 0
    guards: int = 0
    nested_hits: int = 0
    nested_misses: int = 0
    watched: int = 0
    largest: float = 0.0
    faults: list[str] = field(default_factory=list)


def references(model: ir.Model | Path, inputs: Sequence[Feeds]) -> list[Reference]:
    """The inputs for which the original runs, with its outputs."""
    source = str(model) if isinstance(model, Path) else to_proto(model).SerializeToString()
    runs = {level: Runs(source, threads=1, choice=found.choice) for level, found in LIBRARIES.items()}
    found = []
    for feeds in inputs:
        try:
            outputs = {level: runs[level].run(level, feeds) for level in LIBRARIES}
        except RuntimeFailure:
            continue
        found.append(Reference(feeds, outputs))
    return found


def inputs_of(entry: Entry) -> Iterator[Feeds]:
    """Inputs of all sets of shapes of a manifest entry, and of sets derived from them."""
    sets = [*entry["shape_sets"]]
    for shapes in entry["shape_sets"]:
        sets += [one for one in _derived(shapes, entry["shape_sets"]) if one not in sets]
    for index in range(min(len(sets), MOST_SETS)):
        for seed in range(VALUES):
            yield make_feeds({**entry, "shape_sets": sets}, index, seed)


def _derived(shapes: Mapping[str, Any], all_sets: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """``shapes`` with one of the sizes that vary replaced."""

    def dims(one: Mapping[str, Any]) -> dict[tuple[str, int], int]:
        sizes = {name: shape["shape"] if isinstance(shape, dict) else shape for name, shape in one.items()}
        return {(name, axis): size for name, shape in sizes.items() for axis, size in enumerate(shape)}

    tables = [dims(one) for one in all_sets]
    varying = {
        place for table in tables for place in table if len({other.get(place) for other in tables}) > 1
    }
    own = dims(shapes)
    for size in sorted({own[place] for place in varying if place in own}):
        for new in {1, size - 1} - {size, 0}:
            changed = {}
            for name, shape in shapes.items():
                sizes = shape["shape"] if isinstance(shape, dict) else shape
                sizes = [
                    new if old == size and (name, axis) in varying else old for axis, old in enumerate(sizes)
                ]
                changed[name] = {**shape, "shape": sizes} if isinstance(shape, dict) else sizes
            yield changed


def executor_of(model: ir.Model | Path, options: ExecutorOptions, setting: Setting) -> Executor:
    """An executor whose plans run with onnxruntime's optimizations at the level of ``setting``."""
    options = replace(options, pipelines=setting.pipelines)
    compiled = graphopt.compile(model, options, threads=1, verify=False, **setting.arguments)
    factory, level = compiled._factory, setting.level
    host = replace(factory.host, optimizations=level, libraries=lambda _: LIBRARIES[level])
    return Executor(ModelSource(model), replace(factory, host=host), options)


def check(
    name: str,
    model: ir.Model | Path,
    cases: Sequence[Reference],
    setting: str,
    way: str,
    *,
    calls: int = 200,
    threads: int = 8,
) -> Agreement:
    """Call an executor from several threads, and compare all outputs."""
    executor = executor_of(model, WAYS[way], SETTINGS[setting])
    found = Agreement(name, setting, way)
    lock = threading.Lock()

    def work(order: Sequence[int]) -> None:
        for index in order:
            case = cases[index]
            try:
                largest, fault = case.difference(SETTINGS[setting].level, executor.run(case.feeds))
            except GraphoptError as error:
                largest, fault = 0.0, f"failed: {error}"
            with lock:
                found.calls += 1
                found.largest = max(found.largest, largest)
                if fault is not None:
                    shapes = {name: np.shape(array) for name, array in case.feeds.items()}
                    found.faults.append(f"{shapes} on {executor.last_plan}: {fault}")

    order = np.random.default_rng(0).integers(0, len(cases), calls).tolist()
    for number in range(ROUNDS):
        part = order[number::ROUNDS]
        _join([functools.partial(work, part[first::threads]) for first in range(threads)], found)
        executor.wait()
    state = executor.debug_state()
    found.misses, found.hits = state.misses, state.runs - state.misses
    found.nested_hits, found.nested_misses = state.nested_hits, state.nested_misses
    found.plans, found.evicted, found.watched = state.compiled, state.evicted, state.watched
    models = [plan.model for plan in executor._specializer._plans.plans]
    found.guards = sum(
        guarded_branch(node) is not None for one in models for node in ir.walk_nodes(one.graph)
    )
    found.faults += [*(f"not specialized: {failure}" for failure in state.failures), *state.remarks]
    return found


def _join(work: Sequence[Callable[[], None]], found: Agreement) -> None:
    """Run functions in threads; a thread that ends by an error or not at all is a fault."""

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # a bug: the other threads go on
            found.faults.append(f"a thread ended with {type(error).__name__}: {error}")

    running = [threading.Thread(target=guarded, args=(one,), daemon=True) for one in work]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(PATIENCE)
        if thread.is_alive():
            found.faults.append(f"a thread did not end within {PATIENCE:.0f} s")


def table(results: Sequence[Agreement]) -> str:
    """One line for each model and level; cells are hits + misses by way."""
    rows = []
    for name, setting in dict.fromkeys((one.model, one.setting) for one in results):
        by_way = {one.way: one for one in results if (one.model, one.setting) == (name, setting)}
        counts = [f"{by_way[way].hits} + {by_way[way].misses}" if way in by_way else "" for way in WAYS]
        largest = max(one.largest for one in by_way.values())
        faults = sum(len(one.faults) for one in by_way.values())
        difference = "identical" if largest == 0 else f"{largest:.0e}"
        guards = max(one.guards for one in by_way.values())
        nested = [
            sum(one.nested_hits for one in by_way.values()),
            sum(one.nested_misses for one in by_way.values()),
        ]
        row = [name, setting, *counts, guards, f"{nested[0]} + {nested[1]}" if any(nested) else ""]
        rows.append([*row, f"{faults} faults" if faults else difference])
    header = ["hits + misses", "pipeline", *WAYS, "guarded groups", "nested", "largest difference"]
    calls = sum(one.calls for one in results)
    note = f"{calls:,} calls, on {doc_tables.machine()}."
    return "\n".join([doc_tables.markdown_table(header, rows), "", note])


def main() -> int:
    """Check all models, print the table, and insert it into documents."""
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument("--calls", type=int, default=200, help="calls of each executor (default: 200)")
    parser.add_argument("--threads", type=int, default=8, help="threads that call it (default: 8)")
    parser.add_argument("--settings", default="", metavar="RE", help="only settings whose name matches")
    options = parser.parse_args()
    results: list[Agreement] = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in measured_models.progress(measured_models.cases(options, Path(scratch))):
            cases = references(case.path, list(inputs_of(case.entry)))
            for setting in filter(re.compile(options.settings).search, SETTINGS):
                for way in WAYS:
                    found = check(
                        *(case.name, case.path, cases, setting, way),
                        calls=options.calls,
                        threads=options.threads,
                    )
                    results.append(found)
                    print(
                        f"  {setting}, {way}: {found.hits} + {found.misses}, {found.guards} guards,"
                        f" nested {found.nested_hits} + {found.nested_misses}",
                        file=sys.stderr,
                        flush=True,
                    )
                    for fault in dict.fromkeys(found.faults):
                        print(f"    {fault}", file=sys.stderr, flush=True)
    facts = {"machine": doc_tables.machine(), "versions": doc_tables.versions(options.peer_python)}
    doc_tables.publish(
        options, "executor-agreement", table(results), facts | {"runs": [*map(asdict, results)]}
    )
    return int(any(one.faults or one.hits + one.misses != one.calls for one in results))


if __name__ == "__main__":
    sys.exit(main())
