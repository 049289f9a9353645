"""The Python interface: load, optimize, verify, run, save."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphopt import ir
from graphopt.context import Action, Context, Observer, Options
from graphopt.passes.pipeline import Instrument, Pipeline, Report
from graphopt.pipelines import registry

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Result:
    """What :func:`optimize` returns."""

    model: ir.Model
    report: Report


def load(path: PathLike, *, allow_external: Sequence[PathLike] = ()) -> ir.Model:
    """Load a model."""
    return ir.load(path, allow_external=allow_external)


def save(model: ir.Model, path: PathLike, *, external_data: bool | None = None) -> list[Path]:
    """Write a model."""
    return ir.save(model, path, external_data=external_data)


def context_for(
    model: ir.Model,
    options: Options | None = None,
    *,
    gate: Callable[[Action], bool] | None = None,
    observers: Sequence[Observer] = (),
) -> Context:
    """Everything that passes need to work on ``model``."""
    edit = ir.Editor(model)
    facts = _facts(model, edit)
    edit.listeners.append(facts)
    target, evaluator = _runtime(model)
    return Context(model, edit, facts, target, evaluator, options or Options(), gate, list(observers))


def _facts(model: ir.Model, edit: ir.Editor) -> Any:
    try:
        from graphopt.analysis.shapes import ShapeFacts
    except ImportError:
        return _Nothing()
    return ShapeFacts(model, constant=ir.constant_of, version=edit.scopes.version)


def _runtime(model: ir.Model) -> tuple[Any, Any]:
    try:
        from graphopt.runtime.evaluate import Evaluator
        from graphopt.runtime.target import Target
    except ImportError:
        return None, None
    return Target(), Evaluator(model)


class _Nothing:
    """Knows no facts: what stands in until shape facts are there."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def optimize(
    model: ir.Model, *, level: str = "O2", options: Options | None = None, instruments: Sequence[Instrument] = ()
) -> Result:
    """Optimize ``model`` in place."""
    known = registry()
    missing = {name: "not built yet" for name in ("canonicalize", "remove-expands") if name not in known.passes}
    known.planned = {**known.planned, **missing}
    pipeline = Pipeline.parse(level, known)
    report = pipeline.run(model, context_for(model, options), instruments)
    return Result(model, report)
