"""Measure the runs of an original and its result for the report page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from graphopt import ir, publish
from graphopt.compiler.environment import Environment
from graphopt.fusion.kernel_library import libraries_for

if TYPE_CHECKING:
    from graphopt.inputs.feeds import InputOptions
    from graphopt.page.run_time import RunTime
    from graphopt.timing.alternating_runs import RaceLimits
    from graphopt.timing.bench import Advance


def measure_runs(
    env: Environment,
    models: Mapping[str, ir.Model],
    inputs: InputOptions | None = None,
    *,
    threads: int | None = None,
    limits: RaceLimits | None = None,
    advance: Advance = lambda done, text: None,
) -> RunTime:
    """Time ``models`` alternately on the device, and profile each.

    Args:
        models: the models by name, the original first; they are not changed.
        inputs: the inputs; by default generated for the original.
        threads: threads inside one operator; by default onnxruntime's choice.
        limits: the extent of the measurement; by default that of ``graphopt bench``.
        advance: called with the completed fraction and the current work.

    Raises:
        UsageError: the inputs do not fit the original.
        RuntimeFailure: the original does not run.
        ResourceLimit: the disk is full.
    """
    from graphopt.inputs.feeds import InputOptions
    from graphopt.page.run_time import measure_run_time
    from graphopt.timing.alternating_runs import RaceLimits
    from graphopt.timing.bench import Bench, Contestant

    with publish.ScratchFolder() as folder:
        contestants = []
        for number, (name, model) in enumerate(models.items()):
            choice = libraries_for(model, env.settings, env.device).choice
            path = folder / f"{number}.onnx"
            ir.save(model, path)
            # the file has no provenance, so that kernels are joined to the nodes of the model itself
            contestants.append(Contestant.of(name, path, ir.load(path), choice))
        bench = Bench(contestants, env.device, threads, limits=limits or RaceLimits())
        given = InputOptions.parse((), (), env.settings.seed) if inputs is None else inputs
        return measure_run_time(bench, given, env.store, advance)
