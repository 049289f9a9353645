"""Rules: a pattern, and the function that builds the replacement."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable
from functools import cached_property
from types import CodeType
from typing import Any, Literal, TypeAlias

from graphopt import ir
from graphopt.context import Refusal
from graphopt.numerics import Numerics
from graphopt.ops import traits
from graphopt.rewrite.pattern import OpPattern, alternatives
from graphopt.util.argument_checks import checked
from graphopt.util.lazy_dataclass import dataclass

#: The return value of a rule's function: the replacement of the root's output (or outputs), or a refusal.
Outcome: TypeAlias = ir.Value | tuple[ir.Value | None, ...] | Refusal
#: ``fusion``: the rule replaces several nodes by one fused operator of onnxruntime.
RuleKind: TypeAlias = Literal["rewrite", "fusion"]


#: The pass that applies rules of the kind "fusion", unless they name another.
FUSION_PASS = "fuse-builtin"


@dataclass(frozen=True, eq=False)
class Rule:
    """A rewrite rule.

    Attributes:
        name: unique; used by dumps, ``--skip`` and bisect.
        patterns: alternatives; the root is the last node of the pattern.
        replace: ``replace(op, m, **arguments)`` returns the value that replaces the root's output, a tuple
            of values, or ``m.no(reason)``. The rule is refused if an output without a value, or with
            ``None``, has readers.
        numerics: the effect of the rewrite on numerical results.
        exclusive: refuse if a node outside the match reads a value inside it.
        family: the name of the module that defines the rule.
        tags: the names of equivalent rewrites in other optimizers, such as ``onnxslim:conv-bn``.
        pass_: the pass that applies the rule by default.
        kind: ``rewrite`` or ``fusion``.
        anchors: operators that indicate the pattern even if part of it is missing; for each one left in a
            model, ``explain`` reports why it was not fused.
        phase: 1, or 2 to run after the rules of phase 1 reached a fixpoint, because the result would hide
            patterns of phase 1.
        pattern: the name of the recognized function in the table of fusions, such as ``RMSNorm``. Rules that
            recognize other forms of the function, or write other operators, share the name. Empty unless the
            rule recognizes a larger pattern.
        workaround: whether the rule makes models loadable that onnxruntime fails to load
            (:mod:`graphopt.rewrite.ort_qdq_miscompilation`).
        producers: operators that compute operands. The rule is tried only at nodes with such an operand, and
            would refuse all others; empty if it does not depend on them.
        proven_exact: the result provably has the same bits for all values, because the rewrite only moves,
            repeats or drops elements, computes shapes, or applies an identity of IEEE 754 or of integers.
            Rules that compute floats in another way are not proven, even if they are ``EXACT``.
    """

    name: str
    patterns: tuple[tuple[OpPattern, tuple[str, ...]], ...]
    replace: Callable[..., Any]
    numerics: Numerics
    exclusive: bool
    family: str
    tags: tuple[str, ...]
    pass_: str = "peephole"
    kind: RuleKind = "rewrite"
    anchors: tuple[str, ...] = ()
    pattern: str = ""
    phase: int = 1
    workaround: bool = False
    producers: frozenset[str] = frozenset()
    proven_exact: bool = False

    @property
    def is_fusion(self) -> bool:
        """Whether the rule replaces several nodes by one fused operator of onnxruntime."""
        return self.kind == "fusion"

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """The variables of all patterns that are parameters of ``replace``, in order of appearance."""
        names = dict.fromkeys(name for _, names in self.patterns for name in names)
        code: CodeType = self.replace.__code__
        if code.co_flags & inspect.CO_VARKEYWORDS:
            return tuple(names)
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return tuple(name for name in names if name in parameters)

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.replace.__doc__ or "").strip().splitlines()[0].replace("``", "`")


#: Operators too common to indicate a pattern.
_COMMON = traits.VIEW | {
    *("Add", "Cast", "Concat", "Constant", "Conv", "Div", "Gather", "Gemm", "MatMul", "Mul", "Pow", "Shape"),
    *("Slice", "Split", "Sub", "Where"),
}


def _anchors(patterns: tuple[tuple[OpPattern, tuple[str, ...]], ...]) -> tuple[str, ...]:
    """The operators of ``patterns`` that are specific enough to indicate them."""
    found: dict[str, None] = {}
    for root, _ in patterns:
        for node in root.nodes:
            found |= dict.fromkeys(op_type for op_type in node.op_types if op_type not in _COMMON)
    return tuple(found)


@checked
def rule(
    *patterns: Callable[..., Any],
    numerics: Numerics,
    exclusive: bool = False,
    tags: tuple[str, ...] = (),
    kind: RuleKind = "rewrite",
    pass_: str = "",
    anchors: tuple[str, ...] | None = None,
    pattern: str = "",
    phase: int = 1,
    workaround: bool = False,
    producers: Iterable[str] = (),
    proven_exact: bool = False,
    by: str | None = None,
    fuses: bool | None = None,
    last: bool | None = None,
) -> Callable[[Callable[..., Any]], Rule]:
    """Make a :class:`Rule` of the decorated function.

    Args:
        patterns: see :mod:`graphopt.rewrite.pattern`; several if the rewrite has several forms.
            The function has a parameter for each variable that it uses; variables that the matched form
            lacks are ``None``.
        pass_: the pass that applies the rule; by default ``peephole``, or ``fuse-builtin`` for fusions.
        anchors: the operators that indicate the pattern; by default the uncommon operators of the patterns of
            a fusion.
        pattern: the name of the recognized function; by default the family of a fusion.
        producers: for patterns that accept any operands, such as ``op.Concat(xs.rest())``: the rule is tried
            only at nodes with an operand that one of these operators computes.
        proven_exact: see :class:`Rule`; requires ``EXACT``.
        by: deprecated, use ``pass_``.
        fuses: deprecated, use ``kind="fusion"``.
        last: deprecated, use ``phase=2``.
    """
    if by is not None:
        pass_ = _with_deprecated_keyword("by", by, "pass_=...", pass_, default="")
    if fuses is not None:
        kind = _with_deprecated_keyword(
            "fuses", "fusion" if fuses else "rewrite", 'kind="fusion"', kind, default="rewrite"
        )
    if last is not None:
        phase = _with_deprecated_keyword("last", 2 if last else 1, "phase=2", phase, default=1)
    built = tuple(one for pattern in patterns for one in alternatives(pattern))
    is_fusion = kind == "fusion"

    def make(function: Callable[..., Any]) -> Rule:
        family = function.__module__.rpartition(".")[2]
        return Rule(
            name=function.__name__.replace("_", "-"),
            patterns=built,
            replace=function,
            numerics=numerics,
            exclusive=exclusive,
            family=family,
            tags=tags,
            pass_=pass_ or (FUSION_PASS if is_fusion else "peephole"),
            kind=kind,
            anchors=anchors if anchors is not None else _anchors(built) if is_fusion else (),
            pattern=pattern or (family.strip("_").replace("_", " ") if is_fusion else ""),
            phase=phase,
            workaround=workaround,
            producers=frozenset(producers),
            proven_exact=proven_exact,
        )

    return make


def fusion(
    *patterns: Callable[..., Any],
    numerics: Numerics = Numerics.REASSOCIATES,
    exclusive: bool = True,
    **options: Any,
) -> Callable[[Callable[..., Any]], Rule]:
    """Make a rule of kind "fusion" of the decorated function; ``options`` as for :func:`rule`."""
    return rule(*patterns, numerics=numerics, exclusive=exclusive, kind="fusion", **options)


def _with_deprecated_keyword(old: str, value: Any, new: str, given: Any, *, default: Any) -> Any:
    """``value``, with a warning that the keyword ``old`` of :func:`rule` is replaced by ``new``.

    Raises:
        TypeError: both keywords are given, because ``given`` is not ``default``.
    """
    if given != default:
        raise TypeError(f"{old}=... and {new} of rule() exclude each other: use {new}")
    warnings.warn(f"{old}=... of rule() is deprecated: use {new}", DeprecationWarning, stacklevel=4)
    return value
