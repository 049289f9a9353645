"""Look up objects by import path, ``package.module:name``, and check that they can be passes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection
from typing import Any

from graphopt.errors import UsageError, raised_at

_NAMED = "name it as package.module:Class; modules are searched for in PYTHONPATH"
_PASSES = (
    "a pass is a subclass of graphopt.passes.base.Pass or of onnx_ir.passes.PassBase,"
    " or a rule decorated with graphopt.rewrite.rule"
)


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


def not_a_pass(path: str, found: object) -> UsageError:
    """The error for ``found``, the object at ``path``, which is neither a pass nor a rule."""
    name = "class" if isinstance(found, type) else type(found).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    return UsageError(f"{path!r} is {article} {name}, neither a pass nor a rule", hint=_PASSES)


def check_constructor(found: object, path: str, given: Collection[str] = ()) -> None:
    """Check that ``found``, the object at ``path``, can be called with the keywords ``given``.

    Raises:
        UsageError: ``found`` is not callable, or requires further arguments.
    """
    if not callable(found):
        raise not_a_pass(path, found)
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError as error:  # builtins may have no signature
        raise not_a_pass(path, found) from error
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (0, 1, 3)
        and parameter.name not in given
    ]
    if required:
        raise UsageError(f"pass {path} can't be made without arguments: {', '.join(required)}")
