"""Rules: a pattern, and the function that builds what stands for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from graphopt import ir
from graphopt.context import Refusal
from graphopt.numerics import Numerics
from graphopt.ops import traits
from graphopt.rewrite.pattern import OpPattern, alternatives
from graphopt.util.arguments import checked

#: What a rule's function returns: what stands for the root's output (or outputs), or why not.
Outcome: TypeAlias = ir.Value | tuple[ir.Value | None, ...] | Refusal


@dataclass(frozen=True, eq=False)
class Rule:
    """A rewrite rule.

    Attributes:
        name: unique; what dumps, ``--skip`` and bisect call it.
        patterns: any of them may match; the root is the last node of the pattern.
        replace: ``replace(op, m, **variables)`` returns the value that stands for the root's
            output, or a tuple of values, or ``m.no(reason)``. The place stays as it is where something
            reads an output for which there is no value, or ``None``.
        numerics: what the rewrite does to the numbers.
        exclusive: refuse where somebody else reads a value inside the pattern.
        family: the module it stands in.
        tags: what other optimizers call the same thing, such as ``onnxslim:conv-bn``.
        by: the pass that applies it by default.
        anchors: operators that tell of the pattern even where not all of it is there; where one is left,
            ``explain`` tells why.
        last: applied when the other rules of its pass find no more, since they would not know its result
            for a part of what they look for.
        pattern: what it recognizes, such as ``RMSNorm``, for the table of what is recognized in which
            dialect; rules that do the same for other forms or targets share one. Empty for rules that
            recognize nothing larger.
        heals: it makes a model load that onnxruntime does not load (:mod:`graphopt.rewrite.qdq_propagation`).
    """

    name: str
    patterns: tuple[tuple[OpPattern, tuple[str, ...]], ...]
    replace: Callable[..., Any]
    numerics: Numerics
    exclusive: bool
    family: str
    tags: tuple[str, ...]
    by: str = "peephole"
    anchors: tuple[str, ...] = ()
    pattern: str = ""
    last: bool = False
    heals: bool = False

    @property
    def fuses(self) -> bool:
        """Whether it puts one operator of the runtime in the place of many nodes."""
        return self.by == "fuse-builtin" and bool(self.pattern)

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The variables of all patterns, in order of appearance."""
        return tuple(dict.fromkeys(name for _, names in self.patterns for name in names))

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.replace.__doc__ or "").strip().splitlines()[0].replace("``", "`")


#: Operators that tell of no pattern, since they are in most of them.
_COMMON = traits.VIEW | {
    *("Add", "Cast", "Concat", "Constant", "Conv", "Div", "Gather", "Gemm", "MatMul", "Mul", "Pow", "Shape"),
    *("Slice", "Split", "Sub", "Where"),
}


def _anchors(patterns: tuple[tuple[OpPattern, tuple[str, ...]], ...]) -> tuple[str, ...]:
    """The operators of ``patterns`` that tell of them."""
    found: dict[str, None] = {}
    for root, _ in patterns:
        for node in root.nodes:
            found |= dict.fromkeys(op_type for op_type in node.op_types if op_type not in _COMMON)
    return tuple(found)


@checked()
def rule(
    *patterns: Callable[..., Any],
    numerics: Numerics,
    exclusive: bool = False,
    tags: tuple[str, ...] = (),
    fuses: bool = False,
    by: str = "peephole",
    anchors: tuple[str, ...] | None = None,
    pattern: str = "",
    last: bool = False,
    heals: bool = False,
) -> Callable[[Callable[..., Any]], Rule]:
    """Make a :class:`Rule` of the decorated function.

    Args:
        patterns: see :mod:`graphopt.rewrite.pattern`; several when one rewrite has several forms.
            Variables that a form lacks are passed as ``None``.
        fuses: it is applied by ``fuse-builtin``.
        by: else, the pass that applies it.
        anchors: by default the operators of the patterns that are not in everybody's.
        pattern: by default the family, for rules that fuse.
    """
    built = tuple(one for pattern in patterns for one in alternatives(pattern))

    def make(function: Callable[..., Any]) -> Rule:
        family = function.__module__.rpartition(".")[2]
        name = function.__name__.replace("_", "-")
        telling = anchors if anchors is not None else _anchors(built) if fuses else ()
        recognized = pattern or (family.strip("_").replace("_", " ") if fuses else "")
        return Rule(
            name,
            built,
            function,
            numerics,
            exclusive,
            family,
            tags,
            "fuse-builtin" if fuses else by,
            telling,
            recognized,
            last,
            heals,
        )

    return make
