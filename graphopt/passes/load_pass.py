"""Load passes and rules of callers by import path: ``package.module:name``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from graphopt.errors import UsageError
from graphopt.ir.io.interoperability import PassBase
from graphopt.passes.base import Pass
from graphopt.passes.import_paths import check_constructor, import_object, not_a_pass
from graphopt.passes.onnx_ir import OnnxIrPass
from graphopt.passes.registry import make

#: Names of the passes that run a pass or rule of the caller, given by their option ``path``.
BY_PATH = ("onnx-ir", "own-rule")


def load_pass(path: str, options: Iterable[tuple[str, str]] = ()) -> Pass:
    """The pass at ``package.module:name``, or a pass that applies the rule of that name.

    Args:
        path: the import path of a pass of graphopt or onnx-ir, or of a rule.
        options: options as text, by name, for a pass of graphopt.

    Raises:
        UsageError: the object does not exist, it is neither a pass nor a rule, or an option does not fit.
    """
    from graphopt.passes.own_rule import OwnRule
    from graphopt.rewrite.rule import Rule

    options, kind = tuple(options), import_object(path)
    if isinstance(kind, Rule):
        if options:
            raise UsageError(f"rule {path} takes no options")
        return OwnRule(path)
    check_constructor(kind, path, [key for key, _ in options])
    if isinstance(kind, type) and issubclass(kind, Pass) and not inspect.isabstract(kind):
        return make(kind, path, options)
    if isinstance(kind, type) and issubclass(kind, PassBase):
        if options:
            raise UsageError(f"pass {path} of onnx-ir takes no options")
        return OnnxIrPass(path)
    raise not_a_pass(path, kind)
