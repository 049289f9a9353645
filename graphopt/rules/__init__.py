"""Rewrite rules, one file a family. Each is found by walking this package."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from graphopt.rewrite.rule import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of this package, families and rules in the order of their names and places."""
    found: list[Rule] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found += [item for item in vars(module).values() if isinstance(item, Rule) and item.family == info.name]
    return tuple(found)
