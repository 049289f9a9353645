# mypy: implicit-reexport
"""Rewrite rules, one file per family, found by walking this package.

Other packages add rules through entry points of the groups ``graphopt.rules`` and
``graphopt.decompositions``, which name modules.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache

from graphopt.context import Options
from graphopt.errors import UsageError
from graphopt.rewrite.rule import FUSION_PASS, Rule
from graphopt.util.entry_points import extensions


@cache
def all_rules() -> tuple[Rule, ...]:
    """All rules: by family name, then in the order of the file. Rules of other packages come last."""
    found: list[Rule] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found += [
            item for item in vars(module).values() if isinstance(item, Rule) and item.family == info.name
        ]
    for module in extensions("graphopt.rules"):
        found += [item for item in vars(module).values() if isinstance(item, Rule)]
    return (*found, *extension_decompositions())


@cache
def extension_decompositions() -> tuple[Rule, ...]:
    """Decompositions of other packages, which the pass ``decompose`` applies by default.

    Raises:
        UsageError: a rule is for another pass.
    """
    modules = extensions("graphopt.decompositions")
    found = [item for module in modules for item in vars(module).values() if isinstance(item, Rule)]
    for rule in found:
        if rule.pass_ != "decompose":
            raise UsageError(
                f"the rule {rule.name!r} of the entry points graphopt.decompositions is for the pass"
                f" {rule.pass_}",
                hint='rule(…, pass_="decompose"), or the entry points graphopt.rules',
            )
    return tuple(found)


def admitted_rules(options: Options, families: Sequence[str] = (), *, pass_: str = "peephole") -> list[Rule]:
    """The rules that ``options`` allow; if ``families`` are given, only theirs.

    Args:
        pass_: the pass that applies them.
    """
    return [
        rule
        for rule in (*all_rules(), *options.rules)
        if rule.pass_ == pass_
        and rule.numerics <= options.numerics
        and options.permits(rule.name)
        and (not families or rule.family in families)
    ]


def admitted_fusions(options: Options) -> list[Rule]:
    """The rules that write fused operators and that ``options`` allow."""
    return admitted_rules(options, pass_=FUSION_PASS)


def fusing_rules(options: Options) -> list[Rule]:
    """The rules that write fused operators: the ones that ``options`` allow, and the others."""
    admitted = admitted_fusions(options)
    withheld = frozenset(owner for owner, _, _ in options.withheld)
    known = (*all_rules(), *options.rules)
    more = [rule for rule in known if rule.is_fusion and rule.name in withheld and rule not in admitted]
    return [*admitted, *more]
