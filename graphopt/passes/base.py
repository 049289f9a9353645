"""What a pass is, and how passes are found."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, ClassVar

from graphopt import ir
from graphopt.context import Context

#: Features of models that passes provide: fused operators of the runtime, groups with native kernels, and
#: an opset that the user chose.
FUSED_OPERATORS, NATIVE_GROUPS, CHOSEN_OPSET = "fused-operators", "native-groups", "chosen-opset"


class Pass(ABC):
    """One transformation of a model.

    Subclasses are frozen dataclasses: their fields are the options that the pipeline text and
    the command line accept, and their docstring's first line is what ``graphopt passes`` shows. A pass
    without options need not be a dataclass, and one without a ``name`` is named after its class:
    ``CountRelus`` is ``count-relus``.
    A pass changes the model through ``cx.edit`` only, and asks ``cx.begin_rewrite`` before each change;
    whether it changed anything is observed, not reported.
    """

    name: ClassVar[str]
    #: What its changes are called in reports, unless they are rewrites.
    does: ClassVar[str | None] = None
    #: What other optimizers call the same thing, such as ``onnxslim:cse``; docs/peers.toml lists them.
    tags: ClassVar[tuple[str, ...]] = ()
    #: The user asked for what it does: it is never left out to mend a result.
    required: ClassVar[bool] = False
    #: What it adds to a model or ensures of it, such as :data:`FUSED_OPERATORS`.
    provides: ClassVar[frozenset[str]] = frozenset()
    #: It serves nothing but speed, and what it does depends on the device that the result is for.
    for_speed: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

    @abstractmethod
    def run(self, model: ir.Model, cx: Context) -> None:
        """Transform ``model`` in place."""

    def eager(self) -> Pass:
        """The same, but so that it does all that it can, whether it is expected to pay or not."""
        return self

    def __str__(self) -> str:
        """Pipeline text that parses back to this pass."""
        fields = options_of(type(self))
        options = ",".join(
            _option_text(field.name, getattr(self, field.name))
            for field in fields
            if getattr(self, field.name) != field.default
        )
        return f"{self.name}{{{options}}}" if options else self.name

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0].replace("``", "`")


def options_of(kind: type[Pass]) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a class of passes; none if it is no dataclass."""
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def _option_text(name: str, value: object) -> str:
    key = name.replace("_", "-")
    match value:
        case True:
            return key
        case Enum():
            return f"{key}={value.name.lower()}"
        case tuple():
            return f"{key}={'+'.join(map(str, value))}"
        case False:
            return f"{key}=false"
    return f"{key}={value}"
