"""Look up passes and rules by import path: ``package.module:name``."""

from __future__ import annotations

import importlib
from typing import Any

from graphopt.errors import UsageError, raised_at

_NAMED = "name it as package.module:Class; modules are searched for in PYTHONPATH"


def import_object(path: str) -> Any:
    """The object at ``path``, a module and a name within it.

    Raises:
        UsageError: the module can't be imported, or has no such name.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"pass {path}: {error}", hint=_NAMED) from error
    except (Exception, SystemExit) as error:  # the imported module may raise any exception
        origin = raised_at(error)
        at = f" at {origin}" if origin else ""
        cause = f"{type(error).__name__}: {error}"
        raise UsageError(f"pass {path}: importing {module_name} fails{at}: {cause}") from error
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise UsageError(f"pass {path}: module {module_name} has no {name or 'class named'}")
    return found
