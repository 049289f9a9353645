"""Guarded groups of generated graphs return the bits of the original, whatever the profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.context import Options
from graphopt.errors import GraphoptError
from graphopt.inputs.feeds import InputOptions
from graphopt.model_arguments import copy
from graphopt.numerics import Numerics
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import annotate
from graphopt.specialization.guard_counts import count_guards
from graphopt.specialization.instrumented_runs import InstrumentedRuns
from graphopt.transforms.profile.instrument import Watch
from tests.fuzz.graphs.run import model_of
from tests.model_testing import run_pipeline

#: Operators whose results differ from run to run.
_RANDOM = ("Random", "Bernoulli", "Multinomial", "Dropout")


def _changed(values: Mapping[str, ValueProfile], random: Random) -> dict[str, ValueProfile]:
    """``values`` with symbols and wrong sizes in place of some sizes."""

    def dim(size: int | str) -> int | str:
        other = random.choice([size, size, f"s{size}", "same", int(size) + 1])
        return other if random.random() < 0.5 else size

    return {
        name: profile if not profile.shape else replace(profile, shape=tuple(map(dim, profile.shape)))
        for name, profile in values.items()
    }


def _runs(model: ir.Model, seed: int) -> list[tuple[dict[str, Any], dict[str, ValueProfile]]]:
    """Feeds with which ``model`` runs, with the profiles of its values."""
    found = []
    for number in range(3):
        try:
            with InstrumentedRuns(model, watch=Watch.ALL) as runs:
                run = runs.run_generated(InputOptions(seed=seed + number))
        except GraphoptError:
            continue
        found.append((dict(run.feeds), dict(run.observed.values)))
    return found


def _guards_of(seed: int) -> int:
    """Check the guarded groups of one graph, for an exact and for a changed profile; returns their number."""
    model = ir.from_proto(model_of(seed)[0])
    if any(word in node.op_type for graph in ir.graphs_of(model) for node in graph for word in _RANDOM):
        return 0
    runs, total = _runs(model, seed), 0
    for values in (runs[0][1], _changed(runs[0][1], Random(seed))) if runs else ():
        guarded = copy(model)
        annotate(guarded, values)
        pipeline = f"guard-groups{{cost=0,pin={'true' if seed % 2 else 'false'}}},lower-fallbacks,dce"
        run_pipeline(guarded, pipeline, Options(numerics=Numerics.EXACT))
        counted = count_guards(guarded)
        total += 0 if counted is None else len(counted.counter.counts)
        for feeds, _ in runs if counted is not None else ():
            expected, actual = (graphopt.run(one, feeds, optimizations="off") for one in (model, guarded))
            for name, array in expected.items():
                _check(array, actual[name])
    return total


def _check(expected: Any, actual: Any) -> None:
    if isinstance(expected, np.ndarray) and expected.dtype != object:
        assert actual.shape == expected.shape and actual.tobytes() == expected.tobytes()
    else:
        assert str(actual) == str(expected)


@pytest.mark.parametrize("chunk", range(3))
def test_guarded_groups_of_random_graphs(chunk: int) -> None:
    assert sum(map(_guards_of, range(3000 + chunk, 3225, 3))) > 0


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_guarded_groups_of_more_random_graphs(chunk: int) -> None:
    assert sum(map(_guards_of, range(chunk, 1000, 10))) > 0
