"""The base class of passes."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar

from graphopt import ir
from graphopt.context import Context

#: Features of models that passes provide: fused operators of the runtime, groups with native kernels, an
#: opset that the user chose, inputs that are declared as profile annotations describe them, and groups that
#: are specialized for annotated intermediate values.
FUSED_OPERATORS, NATIVE_GROUPS, CHOSEN_OPSET = "fused-operators", "native-groups", "chosen-opset"
SPECIALIZED_TYPES, PROFILED_GROUPS = "specialized-types", "profiled-groups"


class Pass(ABC):
    """One transformation of a model.

    Subclasses are frozen dataclasses: their fields are the options that pipeline text accepts, and the first
    line of the docstring is their summary in ``graphopt passes``. A pass without options need not be a
    dataclass, and a pass without a ``name`` is named after its class: ``CountRelus`` is ``count-relus``.

    In :meth:`run`, a pass

    - changes the model only through ``cx.edit``, which keeps facts, uses and names up to date;
    - calls ``action = cx.begin_rewrite(self.name, node)`` before each rewrite, does not change the node if
      the result is ``None``, and calls ``cx.end_rewrite(action, node, made)`` after the rewrite, so that
      bisection, repair and ``--stop-after`` work;
    - records the sources of new nodes by ``cx.edit.note_origin``, and the reason for an unchanged node by
      ``cx.refuse``;
    - reads facts from ``cx`` (``cx.shape``, ``cx.constant``, ``cx.known_ints``), and does not keep them
      across edits: the Editor invalidates the facts that an edit affects. Only code that changes the model by
      other means calls ``cx.invalidate``, which recomputes all facts;
    - keeps the contract of docs/architecture.md, and reads nothing but the model, its options and ``cx``.

    Changes are counted by the Editor, so a pass does not report whether it made any.
    """

    name: ClassVar[str]
    #: The verb for its changes in reports; by default, changes count as rewrites.
    does: ClassVar[str | None] = None
    #: The names of equivalent passes in other optimizers, such as ``onnxslim:cse``; see docs/peers.toml.
    tags: ClassVar[tuple[str, ...]] = ()
    #: Requested by the user: never disabled by repair.
    required: ClassVar[bool] = False
    #: Properties of the resulting model, such as :data:`FUSED_OPERATORS`.
    provides: ClassVar[frozenset[str]] = frozenset()
    #: Operators, in any domain, without which a model is left unchanged; empty if unknown.
    operators: ClassVar[frozenset[str]] = frozenset()
    #: In later rounds of a fixpoint, it visits only the nodes that ``cx.nodes_to_visit`` returns.
    revisits_changes: ClassVar[bool] = False
    #: Results provably have the same bits for all values: apart from applications of rules, the pass only
    #: removes, merges or reorders computations, or folds constants. It adds exceptions to
    #: :attr:`graphopt.context.Context.unproven`.
    proven_exact: ClassVar[bool] = False
    #: Its only purpose is speed, and its decisions depend on the target device.
    for_speed: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

    @abstractmethod
    def run(self, model: ir.Model, cx: Context) -> None:
        """Transform ``model`` in place."""

    def redefine(self, model: ir.Model) -> Sequence[str]:
        """Change ``model`` in place to the model that defines correct results, before any pass runs.

        The default is no change. A pass overrides it if the user requests other results than those of the
        original, as with ``freeze``: results are compared with the changed model.

        Returns:
            Remarks about the changes, for the report.
        """
        return ()

    def eager(self) -> Pass:
        """This pass, with predicted costs ignored."""
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
    """The fields of a class of passes; none if it is not a dataclass."""
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
