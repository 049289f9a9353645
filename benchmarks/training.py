"""Training steps compared with eager torch on the CPU: losses from equal initial values, and times.

    python -m benchmarks.training                          needs torch
    python -m benchmarks.training --docs docs/training.md  rebuild the tables

Each measurement is the median step of a fresh process. Processes alternate; ratios are those of neighbours.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.doc_tables import machine, markdown_table, publish
from benchmarks.measured_models import arguments
from benchmarks.measured_tools import ROOT
from benchmarks.training_models import TASKS, Feeds, Task, weights

#: Number of steps to compare.
STEPS = 50
_WARM_UP = 10
_FUSERS = {"graphopt": None, "native": "native"}
#: After so long, a process measures no more than 50 steps.
_SECONDS = 3
#: graphopt without and with native kernels, and eager torch.
_BY = ("graphopt", "native", "torch")


def by_graphopt(task: Task, threads: int, fuser: str | None = None) -> Callable[[Feeds], float]:
    """A function that does a step through onnxruntime, and returns the loss."""
    import graphopt
    from graphopt import ir

    model = ir.from_proto(task.model())
    step = graphopt.train_step(model, task.loss, task.optimizer, fuser=fuser, **task.settings)
    return graphopt.Trainer(step, device="cpu", threads=threads).step


def by_torch(task: Task, threads: int) -> Callable[[Feeds], float]:
    """The same through torch."""
    import torch

    torch.set_num_threads(threads)
    loss_of, parameters = task.module(weights(task.model()))
    settings = dict(task.settings)
    clip_norm = settings.pop("clip_norm", None)
    settings["lr"] = settings.pop("learning_rate")
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[task.optimizer]
    optimizer = kind(parameters.values(), **settings)

    def step(feeds: Feeds) -> float:
        optimizer.zero_grad()
        loss = loss_of(*map(torch.from_numpy, feeds.values()))
        loss.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(parameters.values()), clip_norm)
        optimizer.step()
        return float(loss.detach())

    return step


def work(name: str, by: str, threads: int, steps: int) -> dict[str, Any]:
    """The losses of some steps, and the median time of a step in ms without the first few."""
    task = TASKS[name]
    step = by_torch(task, threads) if by == "torch" else by_graphopt(task, threads, _FUSERS[by])
    losses, times = [], []
    for feeds in task.batches(steps):
        begin = time.perf_counter()
        losses.append(step(feeds))
        times.append(time.perf_counter() - begin)
        if len(times) >= STEPS and sum(times) > _SECONDS:
            break
    return {"losses": losses, "ms": 1e3 * statistics.median(times[_WARM_UP:])}


def _worked(name: str, by: str, threads: int, steps: int) -> dict[str, Any]:
    """The same in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.training", "--work", name, by, str(threads), str(steps)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare_losses(name: str) -> dict[str, Any]:
    """How far the losses of 50 steps from the same start are apart."""
    found = {by: _worked(name, by, 1, STEPS)["losses"] for by in _BY}
    theirs = found["torch"]
    apart = [
        abs(one - other) / abs(other) for by in _FUSERS for one, other in zip(found[by], theirs, strict=True)
    ]
    last = {by: losses[-1] for by, losses in found.items()}
    return {"name": name, "first": theirs[0], **last, "apart": max(apart)}


def compare_times(name: str, threads: int, rounds: int, steps: int) -> dict[str, Any]:
    """The times of both, and the ratios of processes that ran one after the other."""
    times: dict[str, list[float]] = {by: [] for by in _BY}
    for number in range(rounds):
        for by in _BY[:: 1 if number % 2 == 0 else -1]:
            times[by].append(_worked(name, by, threads, steps)["ms"])
    ratios = {
        by: sorted(one / other for one, other in zip(times[by], times["torch"], strict=True))
        for by in _FUSERS
    }
    return {
        "name": name,
        "threads": threads,
        **{by: statistics.median(found) for by, found in times.items()},
        "ratios": {by: statistics.median(found) for by, found in ratios.items()},
        "ranges": {by: [found[0], found[-1]] for by, found in ratios.items()},
    }


def main() -> None:
    parser = arguments(__doc__ or "", models=False)
    parser.add_argument("--only", default="", help="only tasks whose name begins so")
    parser.add_argument("--threads", default="1,2", help="numbers of threads")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each")
    parser.add_argument("--steps", type=int, default=1000, help="the most steps in each process")
    parser.add_argument("--work", nargs=4, help="do the work of one process")
    options = parser.parse_args()
    if options.work:
        name, by, threads, steps = options.work
        print(json.dumps(work(name, by, int(threads), int(steps))))
        return
    names = [name for name in TASKS if name.startswith(options.only)]
    losses = [compare_losses(name) for name in names]
    times = [
        compare_times(name, int(threads), options.rounds, options.steps)
        for name in names
        for threads in options.threads.split(",")
    ]
    text = markdown_table(
        [
            "50 steps",
            "first loss",
            "last, torch",
            "graphopt",
            "native kernels",
            "largest relative difference",
        ],
        [
            [
                item["name"],
                *(f"{item[key]:.5f}" for key in ("first", "torch", *_FUSERS)),
                f"{item['apart']:.1e}",
            ]
            for item in losses
        ],
    )
    text += "\n\n" + markdown_table(
        ["step of", "threads", "torch, ms", "graphopt, ms", "ratio", "native kernels, ms", "ratio", "range"],
        [
            [
                item["name"],
                str(item["threads"]),
                f"{item['torch']:.2f}",
                f"{item['graphopt']:.2f}",
                f"{item['ratios']['graphopt']:.2f}",
                f"{item['native']:.2f}",
                f"{item['ratios']['native']:.2f}",
                " … ".join(f"{bound:.2f}" for bound in item["ranges"]["native"]),
            ]
            for item in times
        ],
    )
    import onnxruntime
    import torch

    versions = f"onnxruntime {onnxruntime.__version__}, torch {torch.__version__}"
    text += f"\n\n{machine()}, shared with other work, {versions}"
    publish(options, "training", text, {"losses": losses, "times": times})


if __name__ == "__main__":
    main()
