"""The functions of variants that become branches of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.fusion.group_functions import add_groups
from graphopt.model_arguments import copy
from graphopt.specialization.variant_branch import Branch


def add_functions(model: ir.Model, branches: Sequence[Branch]) -> list[Branch]:
    """Add copies of the functions of ``branches`` to ``model``; returns branches that call the copies.

    A function has a new name if ``model`` has a different function of the same name.
    """
    found = []
    for branch in branches:
        branch = _with_distinct_names(branch, model)
        for key, function in branch.model.functions.items():
            if key not in model.functions:
                model.functions[key] = ir.clone_function(function)
        found.append(branch)
    add_groups(model, [branch.model for branch in found])
    return found


def _with_distinct_names(branch: Branch, model: ir.Model) -> Branch:
    """``branch``, in which functions of the same name as in ``model`` have the same contents."""
    known, own = ir.function_fingerprints(model), ir.function_fingerprints(branch.model)
    conflicts = [key for key, digest in own.items() if known.get(key, digest) != digest]
    if not conflicts:
        return branch
    renamed = copy(branch.model)
    edit = ir.Editor(renamed)
    calls: dict[tuple[str, str, str], list[ir.Node]] = {key: [] for key in conflicts}
    for graph in ir.graphs_of(renamed):
        for node in graph:
            if node.op_identifier() in calls:
                calls[node.op_identifier()].append(node)
    taken = {key[:2] for key in (*known, *own)}
    for key in conflicts:
        domain, name, _ = key
        base = f"{name}_{branch.name.replace('-', '_')}"
        candidates = (base if number == 0 else f"{base}_{number}" for number in range(len(taken) + 1))
        fresh = next(text for text in candidates if (domain, text) not in taken)
        taken.add((domain, fresh))
        edit.rename_function(renamed.functions[key], calls[key], fresh)
    return replace(branch, model=renamed)
