"""Limits of passes, from the settings, the options of ``optimize``, and guarantees about dims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from graphopt import config, ir
from graphopt.context import Options
from graphopt.errors import UsageError, unknown
from graphopt.numerics import Numerics
from graphopt.optimize_options import OptimizeOptions
from graphopt.ort.devices import CPU
from graphopt.passes.pipelines import registry
from graphopt.passes.unknown_names import unknown_pass_or_rule
from graphopt.util.option_table import pick_options

if TYPE_CHECKING:
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ort.devices import Device
    from graphopt.rewrite.rule import Rule


def make_options(
    settings: config.Settings,
    options: OptimizeOptions | None = None,
    *,
    device: Device | None = None,
    every_own: Sequence[Rule] = (),
) -> Options:
    """Limits of passes, from ``settings`` and ``options``.

    Args:
        settings: the current settings.
        options: the options of ``optimize``.
        device: the device for the result, if it affects the options.
        every_own: all rules of the caller, including those that are steps of the pipeline.

    Raises:
        UsageError: a pass or rule is unknown, no rule remains, or the table of costs can't be read.
    """
    settled = settings.complete_options(options or {})
    numerics = Numerics.REASSOCIATES
    if settled["exact"]:
        numerics = Numerics.EXACT
    elif settled["fast_math"]:
        numerics = Numerics.APPROXIMATES
    skip, only = frozenset(settled["skip"] or ()), frozenset(settled["only"])
    if skip or only:
        skip, only = _rule_names(settled["skip"] or (), only, every_own)
        if only and only <= skip:
            raise UsageError("no rule remains: all selected rules are skipped")
    costs = None
    if device is not None:
        from graphopt.cost.select_table import costs_for

        costs = costs_for(settings.costs, device, settings.cache_dir)
    return pick_options(
        Options,
        settled,
        numerics=numerics,
        skip=skip,
        only=only or None,
        share_buffers=tuple(settled["share_buffers"]),
        device=device or CPU,
        costs=costs,
        # the values of these fields depend on the model
        dim_ranges={},
        strict_fusion={},
        rules=(),
    )


def _rule_names(
    skip: Iterable[str], only: Iterable[str], own: Sequence[Rule]
) -> tuple[frozenset[str], frozenset[str]]:
    """``skip`` and ``only`` with families replaced by their rules; ``own`` are the caller's rules."""
    from graphopt.rules import all_rules

    passes = registry().passes
    rules = {rule.name: [rule.name] for rule in (*all_rules(), *own)}
    families: dict[str, list[str]] = {}
    for rule in (*all_rules(), *own):
        families.setdefault(rule.family, []).append(rule.name)
    names = {**families, **rules}
    for name in sorted(only):
        if name in names:
            continue
        if name in passes:
            raise UsageError(
                f"{name!r} is a pass, and only rewrite rules can be selected",
                hint=f"--passes {name} runs only that pass",
            )
        if name in registry().pipelines:
            raise unknown_pass_or_rule(name, registry(), names)
        raise unknown("rule or family of rules", name, names, "graphopt passes peephole lists all")
    for name in skip:
        if name not in passes and name not in names:
            raise unknown_pass_or_rule(name, registry(), names)
    # a pass and a family of rules may have the same name; then both are skipped
    left_out = [*skip, *(rule for name in skip for rule in names.get(name, ()))]
    return frozenset(left_out), frozenset(rule for name in only for rule in names[name])


def vouch(
    model: ir.Model,
    dims: Mapping[str, int] | None = None,
    dim_ranges: Mapping[str, tuple[int, int | None]] | None = None,
    dim_relations: Mapping[str, str] | None = None,
    options: Options | None = None,
) -> Options:
    """Declare ``dims`` and ``dim_relations`` in ``model``, in place; returns options with ``dim_ranges``.

    Raises:
        UsageError: no input has a dim of ``dims``, a dim has another fixed size, or a size is out of its
            range; or as for :func:`graphopt.inputs.dim_guarantees.relate_dims`.
    """
    from graphopt.inputs import dim_guarantees

    dim_guarantees.relate_dims(model, dim_relations or {})
    ranges = dim_guarantees.apply_dim_guarantees(model, dims or {}, dim_ranges or {})
    return replace(options or Options(), dim_ranges=ranges)


def inputs_within_ranges(
    inputs: InputOptions | None, options: Options, seed: int, *, fixed: bool = False
) -> InputOptions | None:
    """``inputs`` restricted to the ranges of ``options``; new inputs are generated from ``seed``.

    ``fixed``: whether dims of the model were also fixed.
    """
    from graphopt.inputs.feeds import InputOptions

    if not options.dim_ranges and not fixed:
        return inputs
    return replace(inputs or InputOptions(seed=seed), ranges=options.dim_ranges, vouched=fixed)
