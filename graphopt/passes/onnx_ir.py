"""onnx-ir: one pass written for onnx-ir, by import path or as an object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.ir.io.interoperability import PassBase, move_contents
from graphopt.passes.base import Pass
from graphopt.passes.import_paths import check_constructor, import_object
from graphopt.util.lazy_dataclass import dataclass


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
        check_constructor(found, self.path)
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
        ir.read(*model.graph.initializers.values())  # the pass may read any initializer
        result = made(model)
        if result.model is not model:
            move_contents(model, result.model)
        if result.modified or result.model is not model:
            cx.edit.return_copies()
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
