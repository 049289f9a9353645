"""Native kernels of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.compiler.environment import Environment
from graphopt.errors import RuntimeFailure
from graphopt.model_arguments import ModelLike, PathLike
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    from graphopt.fusion.kernel_inventory import Inventory
    from graphopt.ort.devices import Device
    from graphopt.tuning.kernel_candidates import KernelCandidates


@checked
def list_kernels(env: Environment, model: ModelLike) -> Inventory:
    """The native kernels of a model; for a model without groups, those that ``fuser="native"`` would create.

    >>> found = list_kernels("model.onnx")                               # doctest: +SKIP
    >>> [(group.name, group.calls) for group in found.groups]            # doctest: +SKIP
    [('sigmoid_mul_add_0c5e1f3a77b2', 12)]
    >>> print(found.source())                                            # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.

    Raises:
        InvalidModel: the description of its groups is malformed.
    """
    from graphopt.fusion.kernel_inventory import Inventory

    return Inventory.of(env.load(model), env.settings, env.target)


@checked
def build_kernels(
    env: Environment,
    model: ModelLike,
    path: PathLike,
    progress: Callable[[float | None, str], None] | None = None,
) -> Inventory:
    """Build the library with the native kernels of a model, and write it to ``path``.

    >>> build_kernels("model.onnx", "model.kernels.so")                  # doctest: +SKIP
    >>> options = onnxruntime.SessionOptions()                           # doctest: +SKIP
    >>> options.register_custom_ops_library("./model.kernels.so")        # doctest: +SKIP

    Args:
        model: a model with native groups (``optimize(…, fuser="native")``), in any form.
        path: the file for the library.
        progress: called with the completed fraction.

    Raises:
        UsageError: the model has no groups; or ``path`` can't be written, or has another suffix.
        UnsupportedModel: none of the groups has a kernel.
        NoCompiler: no C compiler was found.
        RuntimeFailure: the compiler fails.
    """
    found = list_kernels(env, model)
    found.build(Path(path), progress)
    return found


@checked
def race_kernels(
    env: Environment,
    model: ModelLike,
    *,
    budget: float = 60.0,
    threads: int | None = None,
    fresh: bool = False,
    progress: Callable[[float | None, str], None] | None = None,
) -> KernelCandidates:
    """Race the native kernels of a model, one by one, against onnxruntime's kernels of the same nodes.

    Results are stored: a group that was raced before, in this or another model, is not raced again.

    >>> found = race_kernels("model.onnx", threads=1)                    # doctest: +SKIP
    >>> [(item.subject.group, item.result.winner) for item in found.raced]  # doctest: +SKIP
    [('sigmoid_mul_add_0c5e1f3a77b2', 'kernel')]

    Args:
        model: a model in any form. Without native groups, all groups that ``fuser="native"`` may create are
            raced, also those that it does not create by predicted costs.
        budget: seconds for the races.
        threads: threads inside one operator; by default one per core.
        fresh: race again, even if the store has results.
        progress: called with the spent share of the budget, and the current race.

    Raises:
        RuntimeFailure: the device can't be used, the model does not run on the inputs, or the compiler fails.
        InvalidModel: the description of its groups is malformed.
    """
    from graphopt.fusion.kernel_library import Toolchain
    from graphopt.inputs import run_once
    from graphopt.tuning.kernel_candidates import KernelRacer, propose_candidates

    report = progress or (lambda share, text: None)
    device = _device_to_race(env)
    original = env.load(model)
    report(None, "looking for groups")
    proposed, ungrouped = propose_candidates(original, env.settings)
    report(None, "looking for inputs")
    feeds = run_once.try_out(original, env.inputs, device=device, typical=True).feeds
    report(None, "building kernels")
    toolchain = Toolchain(env.settings, device, tuple(env.options["instruments"]))
    racer = KernelRacer(toolchain, threads, fresh)
    found = racer.race(proposed, [feeds], budget, lambda text, spent: report(min(spent, 1.0), text))
    if found.failure is not None and not found.raced:
        raise RuntimeFailure(f"no kernel was built: {found.failure}")
    return replace(found, ungrouped=ungrouped)


def _device_to_race(env: Environment) -> Device:
    """The device of a race; raises RuntimeFailure if it can't be used."""
    try:
        return env.device
    except RuntimeFailure as failure:
        hint = "a race runs kernels; without a race, graphopt kernels lists them on any machine"
        raise RuntimeFailure(failure.message, hint=hint) from failure
