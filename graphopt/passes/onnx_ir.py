"""onnx-ir: passes written for onnx-ir, and passes and rules of the user by import path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import UsageError
from graphopt.ir.io.interoperability import PassBase, take_over
from graphopt.passes.base import Pass
from graphopt.passes.import_paths import import_object
from graphopt.passes.registry import make

#: Names of the passes that run a pass or rule of the caller, given by their option ``path``.
BY_PATH = ("onnx-ir", "own-rule")
_PASSES = (
    "a pass is a subclass of graphopt.passes.base.Pass or of onnx_ir.passes.PassBase,"
    " or a rule decorated with graphopt.rewrite.rule"
)


@dataclass(frozen=True)
class OnnxIrPass(Pass):
    """Run a pass written for onnx-ir.

    It changes the model without the Editor, so all facts about the model are then computed again.

    Attributes:
        path: the import path of the pass: ``package.module:Class``.
    """

    name: ClassVar[str] = "onnx-ir"
    path: str = ""

    def made(self) -> Callable[[ir.Model], Any]:
        """The pass of onnx-ir."""
        found = import_object(self.path)
        _check_constructor(found, self.path)
        result: Callable[[ir.Model], Any] = found()
        return result

    def run(self, model: ir.Model, cx: Context) -> None:
        """Run the pass, and analyze the model again.

        Raises:
            Exception: any exception of the pass.
        """
        made = self.made()
        first = next(iter(model.graph), None)
        action = cx.begin_rewrite(self.name, first) if first is not None else None
        if action is None or first is None:
            return
        ir.read(*model.graph.initializers.values())  # the pass may read any of them
        result = made(model)
        if result.model is not model:
            take_over(model, result.model)
        if result.modified or result.model is not model:
            cx.invalidate(self.name)
            cx.end_rewrite(action, first, [])


@dataclass(frozen=True)
class GivenOnnxIrPass(OnnxIrPass):
    """Run a pass object written for onnx-ir.

    Attributes:
        given: the object.
    """

    given: PassBase | None = None

    @classmethod
    def of(cls, given: PassBase) -> GivenOnnxIrPass:
        """The pass that runs ``given``."""
        return cls(f"{type(given).__module__}:{type(given).__qualname__}", given)

    def made(self) -> Callable[[ir.Model], Any]:
        """The object."""
        assert self.given is not None
        return self.given

    def __str__(self) -> str:
        return f"{self.name}{{path={self.path}}}"


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
    _check_constructor(kind, path, [key for key, _ in options])
    if isinstance(kind, type) and issubclass(kind, Pass) and not inspect.isabstract(kind):
        return make(kind, path, options)
    if isinstance(kind, type) and issubclass(kind, PassBase):
        if options:
            raise UsageError(f"pass {path} of onnx-ir takes no options")
        return OnnxIrPass(path)
    raise _neither(path, kind)


def _neither(path: str, found: object) -> UsageError:
    """The error for ``found``, the object at ``path``, which is neither a pass nor a rule."""
    name = "class" if isinstance(found, type) else type(found).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    return UsageError(f"{path!r} is {article} {name}, neither a pass nor a rule", hint=_PASSES)


def _check_constructor(found: object, path: str, given: Collection[str] = ()) -> None:
    """Check that ``found``, the object at ``path``, can be called with the keywords ``given``.

    Raises:
        UsageError: ``found`` is not callable, or requires further arguments.
    """
    if not callable(found):
        raise _neither(path, found)
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError as error:  # builtins may have no signature
        raise _neither(path, found) from error
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (0, 1, 3)
        and parameter.name not in given
    ]
    if required:
        raise UsageError(f"pass {path} can't be made without arguments: {', '.join(required)}")
