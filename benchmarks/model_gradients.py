"""Gradients of whole models, differentiated group by group and as a whole.

    python -m benchmarks.model_gradients DIR --only 'gpt2|lstm' --docs docs/gradients.md

All inputs and parameters that the float outputs depend on are differentiated, for random cotangents, on
each set of shapes. Both joint graphs run without onnxruntime's optimizations. The verdicts: `equal` (all
bits), `rounding`, `different`, `broken` (the graph by group does not run); `refused` with the reason if
there is no gradient by either way; `partial` if only the gradients by group exist: members without a
gradient are omitted there. The exit status is 1 if a verdict is `different` or `broken`.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import doc_tables, measured_models
from benchmarks.inputs import make_feeds
from benchmarks.measured_models import Case
from benchmarks.split_step import run_model, same_results
from graphopt import ir
from graphopt.autodiff.differentiate_by_group import ByGroup
from graphopt.autodiff.joint_graph import Joint, differentiate
from graphopt.autodiff.rule_registry import IncompleteGradient
from graphopt.errors import GraphoptError, RuntimeFailure
from graphopt.ops import traits
from graphopt.ort.model_runs import Runs

#: Verdicts from the worst to the best.
_ORDER = ("broken", "different", "rounding", "equal")


@dataclass(frozen=True)
class Outcome:
    """The comparison of one model.

    Attributes:
        gradients, groups: numbers of gradients, and of differentiated groups.
        excluded: number of members without a gradient.
    """

    model: str
    verdict: str
    reason: str = ""
    gradients: int = 0
    groups: int = 0
    excluded: int = 0


def compare(name: str, model: ir.Model, inputs: list[Mapping[str, Any]]) -> Outcome:
    """Differentiate ``model`` in both ways, and compare the results for all ``inputs``."""
    runs = Runs(ir.to_bytes(model), threads=1)
    values = [dict(zip(_outputs(model), runs.run("off", feeds), strict=True)) for feeds in inputs]
    real = [key for key in _outputs(model) if getattr(values[0][key], "dtype", np.dtype(object)).kind == "f"]
    by, found = ByGroup(minimum=1), list[Joint | str]()
    for way in (None, by):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", IncompleteGradient)
                found.append(differentiate(model, real, "all", by=way))
        except GraphoptError as error:
            found.append(error.message)
    whole, grouped = found
    if isinstance(grouped, str):
        verdict = "refused" if isinstance(whole, str) else "different"
        return Outcome(name, verdict, grouped)
    facts: dict[str, Any] = {
        "gradients": len(grouped.gradients),
        "groups": len(by.groups),
        "excluded": len(grouped.excluded),
    }
    if isinstance(whole, str):
        return Outcome(name, _runs(grouped, inputs, values), whole, **facts)
    if not all(traits.is_deterministic(node, {}) for node in whole.model.graph):
        return Outcome(name, "random", "", **facts)
    verdicts = []
    for feeds, known in zip(inputs, values, strict=True):
        fed = {**feeds, **_cotangents(whole, known)}
        try:
            expected = run_model(whole.model, fed, "off")
        except RuntimeFailure as error:
            return Outcome(name, "refused", error.message, **facts)
        verdicts.append(same_results(expected, partial(run_model, grouped.model, fed, "off")))
    return Outcome(name, *min(verdicts, key=lambda one: _ORDER.index(one[0])), **facts)


def _outputs(model: ir.Model) -> list[str]:
    return [value.name or "" for value in model.graph.outputs]


def _cotangents(joint: Joint, values: Mapping[str, Any]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        taker: np.asarray(random.standard_normal(values[name].shape), values[name].dtype)
        for name, taker in joint.cotangents.items()
    }


def _runs(joint: Joint, inputs: list[Mapping[str, Any]], values: list[dict[str, Any]]) -> str:
    """``partial`` if all results are finite where the outputs are."""
    for feeds, known in zip(inputs, values, strict=True):
        try:
            found = run_model(joint.model, {**feeds, **_cotangents(joint, known)}, "off")
        except RuntimeFailure:
            return "broken"
        if not all(np.isfinite(found[name]).all() for name in joint.gradients.values()):
            return "different"
    return "partial"


def table(outcomes: list[Outcome]) -> str:
    """One line for each model, and the number of each verdict."""
    rows = [[one.model, one.verdict, one.gradients, one.groups, one.excluded, one.reason] for one in outcomes]
    counts = Counter(one.verdict for one in outcomes)
    header = ["model", "verdict", "gradients", "groups", "omitted", "reason"]
    text = ", ".join(f"{verdict} {count}" for verdict, count in sorted(counts.items()))
    return f"{doc_tables.markdown_table(header, rows)}\n\n{len(outcomes)} models: {text}."


def _outcome(case: Case) -> Outcome:
    inputs = [make_feeds(case.entry, index) for index in range(len(case.entry["shape_sets"]))]
    try:
        return compare(case.name, ir.load(case.path), list(inputs))
    except GraphoptError as error:
        return Outcome(case.name, "refused", error.message)


def main() -> int:
    """Compare all models, print the table, and insert it into documents."""
    options = measured_models.arguments(__doc__ or "").parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in measured_models.progress(measured_models.cases(options, Path(scratch))):
            outcomes.append(_outcome(case))
            print(f"  {outcomes[-1]}", file=sys.stderr, flush=True)
    doc_tables.publish(options, "model-gradients", table(outcomes), {"models": [*map(asdict, outcomes)]})
    return int(any(one.verdict in ("different", "broken") for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
