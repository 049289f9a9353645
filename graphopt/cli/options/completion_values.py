"""Values that the shell completes: names of passes, rules, pipelines, settings and devices.

Each function has the signature of ``shell_complete`` of a click parameter. Names are looked up only when the
shell requests completions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from graphopt.util.cuda_options import CUDA_OPTIONS

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _listed(names: Callable[[], Iterable[str]], before: str = ",") -> Complete:
    """Completes the last of several names, which any character of ``before`` separates."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        start = 1 + max((incomplete.rfind(sign) for sign in before), default=-1)
        found = [name for name in dict.fromkeys(names()) if name.startswith(incomplete[start:])]
        return [incomplete[:start] + name for name in found]

    return complete


def _graphs() -> list[str]:
    from graphopt.instrument.graph_text import ALL_GRAPHS, GRAPHS

    return [*GRAPHS, ALL_GRAPHS]


def _passes() -> list[str]:
    from graphopt.passes.pipelines import registry

    return sorted(registry().passes)


def _rules() -> list[str]:
    from graphopt.rules import all_rules

    rules = all_rules()
    return [*sorted({rule.family for rule in rules}), *sorted(rule.name for rule in rules)]


def _patterns() -> list[str]:
    from graphopt.rules import all_rules

    return sorted({name for rule in all_rules() if rule.is_fusion for name in (rule.family, rule.name)})


def _pipelines() -> list[str]:
    from graphopt.passes.pipelines import PIPELINES

    return list(PIPELINES)


def _settings() -> list[str]:
    from graphopt import config

    return [f"{name.replace('_', '-')}=" for name in config.Settings.__dataclass_fields__]


def _tools() -> list[str]:
    from graphopt.timing.other_optimizers import PEERS

    return ["original", *PEERS]


passes = _listed(_passes)
rules = _listed(_rules)
passes_and_rules = _listed(lambda: [*_passes(), *_rules()])
patterns = _listed(_patterns)
#: Pipeline text: names of pipelines and passes, also within parentheses.
pipeline_text = _listed(lambda: [*_pipelines(), *_passes()], before=",(")
log_spec = _listed(lambda: [*_passes(), *_rules(), *_graphs()], before=":>")
settings = _listed(_settings, before="")
devices = _listed(lambda: ["auto", "cpu", "cuda"], before="")
cuda_options = _listed(lambda: [f"{name}=" for name in CUDA_OPTIONS], before="")
tools = _listed(_tools)
