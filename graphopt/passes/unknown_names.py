"""Errors for unknown names of passes, pipelines and rules, with hints for names of another kind."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.errors import UsageError, unknown
from graphopt.passes.registry import Registry

#: Values of options that choose pipelines, with an example of each option.
_VALUES = {
    "preset": "graphopt run MODEL --inputs FOLDER --pipelines preset",
    "jit": "graphopt run MODEL --inputs FOLDER --pipelines jit",
    "none": "graphopt optimize MODEL --fuser none",
    "ort": "graphopt optimize MODEL --fuser ort",
    "builtin": "graphopt optimize MODEL --fuser builtin",
}


def unknown_step(name: str, registry: Registry) -> UsageError:
    """The error for a step of a pipeline that is neither a pass nor a pipeline."""
    from graphopt.rules import all_rules

    if any(name in (rule.name, rule.family) for rule in all_rules()):
        return UsageError(
            f"{name!r} names rewrite rules, not a pass",
            hint=f"--passes peephole --only {name} runs them; --skip {name} leaves them out",
        )
    if name.endswith(".py"):
        return UsageError(
            f"{name!r} is a file: name your own passes as module:Class",
            hint=f"use {name.removesuffix('.py')}:Class",
        )
    known = [*registry.passes, *registry.pipelines]
    return _value_of_option(name, "a pass or pipeline") or unknown(
        "pass or pipeline", name, known, "graphopt passes and graphopt pipelines list all"
    )


def unknown_pass_or_rule(name: str, registry: Registry, rules: Iterable[str]) -> UsageError:
    """The error for a name that is neither a pass, nor a rule or a family in ``rules``."""
    if name in registry.pipelines:
        return UsageError(
            f"{name!r} is a pipeline, not a pass or rule",
            hint=f"graphopt pipelines show {name} lists its passes",
        )
    return _value_of_option(name, "a pass or rule") or unknown(
        "pass or rule", name, [*registry.passes, *rules], "graphopt passes lists all"
    )


def _value_of_option(name: str, kind: str) -> UsageError | None:
    """The error if ``name`` is a value of an option, not a ``kind``; ``None`` for other names."""
    if name not in _VALUES:
        return None
    option = _VALUES[name].split()[-2]
    return UsageError(f"{name!r} is a value of {option}, not {kind}", hint=_VALUES[name])
