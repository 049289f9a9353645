"""The cost of guards: on the host, in a bundle or an executor, and as nodes of a model.

    python -m benchmarks.guards --docs docs/specialize.md

Host: a call of the compiled guards of a bundle; only the last guard holds. Model: the additional time of a
run with an If around the model, a Relu of a few elements, whose guard holds. Both are measured alternately,
in one process and on one thread; the fastest round is reported, since other load only adds time. Needs no
models.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import graphopt
from benchmarks import doc_tables, measured_models
from graphopt import ir
from graphopt.ort import session
from graphopt.ort.devices import CPU
from graphopt.profile import Guard, ValueProfile
from graphopt.specialization.compiled_guards import compile_guards
from graphopt.specialization.variant_branch import Branch
from graphopt.specialization.versioned_model import build_versioned_model

#: Numbers of inputs that a guard checks.
COUNTS = (1, 3, 10)
#: The sizes that a guard checks of each input, with a label.
KINDS: dict[str, tuple[int | str, ...]] = {"all sizes": (2, 2), "equality of all sizes": ("s", "s")}


def guard_of(count: int, kind: str) -> Guard:
    """A guard on `count` inputs."""
    return Guard({f"x{index}": ValueProfile("tensor(float)", KINDS[kind]) for index in range(count)})


def feeds_of(count: int) -> dict[str, np.ndarray]:
    """Inputs that pass it."""
    return {f"x{index}": np.ones((2, 2), np.float32) for index in range(count)}


def general_model(count: int) -> ir.Model:
    """A trivial model with inputs of dynamic sizes."""
    inputs = ", ".join(f"float[A{index}, B{index}] x{index}" for index in range(count))
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[A0, B0] y) {{ y = Relu(x0) }}'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnxtxt"
        path.write_text(text)
        return graphopt.load_model(path)


def in_turns(calls: Mapping[str, Callable[[], Any]], rounds: int, times: int) -> dict[str, float]:
    """Microseconds of a call of each, in the fastest of `rounds` rounds of `times` calls."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for number in range(rounds):
        order = list(calls.items())
        for name, call in order if number % 2 else reversed(order):
            begin = time.perf_counter()
            for _ in range(times):
                call()
            found[name].append((time.perf_counter() - begin) / times * 1e6)
    return {name: min(took) for name, took in found.items()}


def on_the_host(guards: list[Guard], feeds: Mapping[str, np.ndarray], rounds: int, times: int) -> float:
    """Microseconds to choose between `guards`."""
    choose = compile_guards(guards)
    assert choose(feeds) == len(guards) - 1
    return in_turns({"choose": lambda: choose(feeds)}, rounds, times)["choose"]


def in_a_model(guard: Guard, feeds: dict[str, np.ndarray], rounds: int, times: int) -> float:
    """Additional microseconds of a run with `guard` and its If."""
    general = general_model(len(feeds))
    guarded = build_versioned_model(general, [Branch("static-1", guard, general_model(len(feeds)))])
    calls = {}
    for name, model in {"general": general, "guarded": guarded}.items():
        made = session.create(ir.to_bytes(model), device=CPU, threads=1)
        calls[name] = lambda made=made: made.run(None, feeds)
    took = in_turns(calls, rounds, times)
    return took["guarded"] - took["general"]


def measure(rounds: int, times: int = 1000) -> list[dict[str, Any]]:
    """All figures."""
    found = []
    for kind in KINDS:
        for count in COUNTS:
            guard, feeds = guard_of(count, kind), feeds_of(count)
            never = Guard({**guard.inputs, "x0": ValueProfile("tensor(float)", (9, 9))})
            found.append(
                {
                    "inputs": count,
                    "kind": kind,
                    "host": on_the_host([guard], feeds, rounds, times),
                    "fourth": on_the_host([never] * 3 + [guard], feeds, rounds, times),
                    "model": in_a_model(guard, feeds, rounds, times),
                }
            )
    return found


def table(found: list[dict[str, Any]]) -> str:
    """The figures as Markdown."""
    header = ["inputs", "checks", "host (µs)", "host, fourth guard (µs)", "in a model, with its If (µs)"]
    rows = [
        [row["inputs"], row["kind"], *(f"{row[key]:.1f}" for key in ("host", "fourth", "model"))]
        for row in found
    ]
    return "\n".join([doc_tables.markdown_table(header, rows), "", f"On {doc_tables.machine()}, one thread."])


def main() -> int:
    """Measure, print the table, and insert it into documents."""
    parser = measured_models.arguments(__doc__ or "", models=False)
    parser.add_argument(
        "--rounds", type=int, default=41, help="rounds, of which the fastest is reported (default: 41)"
    )
    options = parser.parse_args()
    found = measure(options.rounds)
    facts = {"machine": doc_tables.machine(), "versions": doc_tables.versions(options.peer_python)}
    doc_tables.publish(options, "guards", table(found), facts | {"guards": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
