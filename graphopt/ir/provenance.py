"""Provenance: the original nodes that each node replaces, and the rules and passes responsible.

Provenance is stored in the metadata of nodes, in graphopt's private namespace. Cloning, outlining and
inlining preserve it; saving strips it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import NAMESPACE
from graphopt.util.lazy_dataclass import dataclass

_ORIGIN = NAMESPACE + "origin"
_BY = NAMESPACE + "by"
_MAKERS = NAMESPACE + "makers"
_ABSORBED = NAMESPACE + "absorbed"
_STEPS = NAMESPACE + "steps"
_FUSED = NAMESPACE + "fused"
_SEPARATOR, _FIELD = "\n", "\t"
#: A backslash or a line break in a recorded name.
_ESCAPE = re.compile(r"\\([\\n])")
#: Metadata of torch.onnx: the paths of the modules that contain a node, and the operator's name.
_NAME_SCOPES = "pkg.torch.onnx.name_scopes"
#: Maximum number of recorded origins, and of recorded steps, of a node.
_KEPT, _KEPT_STEPS = 256, 256


@dataclass(frozen=True)
class DerivationStep:
    """A derivation that contributed to a node.

    Attributes:
        number: its index among all derivations of the run.
        stage: the pass.
        by: the rule or pass that derived the nodes.
    """

    number: int
    stage: str
    by: str


def origins(node: onnx_ir.Node) -> tuple[str, ...]:
    """Names of the original nodes that ``node`` replaces; its own name if it is original."""
    recorded = node.metadata_props.get(_ORIGIN)
    if recorded is not None:
        return _names(recorded)
    return (label(node),)


def created_by(node: onnx_ir.Node) -> str | None:
    """The rule or pass that created ``node``; ``None`` for an original node."""
    return node.metadata_props.get(_BY)


def _recorded(names: Iterable[str]) -> str:
    """``names`` in their recorded form: one per line, with backslashes and line breaks escaped."""
    names = list(names)
    text = _SEPARATOR.join(names)
    if "\\" not in text and text.count(_SEPARATOR) < max(len(names), 1):  # no name needs escapes
        return text
    return _SEPARATOR.join(name.replace("\\", "\\\\").replace(_SEPARATOR, "\\n") for name in names)


def _names(recorded: str) -> tuple[str, ...]:
    """The names in their recorded form ``recorded``."""
    lines = recorded.split(_SEPARATOR)
    if "\\" not in recorded:
        return tuple(lines)
    return tuple(_ESCAPE.sub(lambda found: found[1].replace("n", _SEPARATOR), line) for line in lines)


def makers(node: onnx_ir.Node) -> tuple[str, ...]:
    """The rules and passes that contributed to ``node``, in order, :func:`created_by` last."""
    recorded = node.metadata_props.get(_MAKERS)
    return tuple(recorded.split(_SEPARATOR)) if recorded else ()


def derivation_steps(node: onnx_ir.Node) -> tuple[DerivationStep, ...]:
    """The derivations that contributed to ``node``, in order; none for an original node."""
    recorded = node.metadata_props.get(_STEPS)
    found = (line.split(_FIELD) for line in recorded.split(_SEPARATOR)) if recorded else ()
    return tuple(DerivationStep(int(number), stage, by) for number, stage, by in found)


def mark_fused(node: onnx_ir.Node) -> None:
    """Record that ``node`` is a fused operator, rather than a node that prepares its operands."""
    node.metadata_props[_FUSED] = "1"


def is_fused(node: onnx_ir.Node) -> bool:
    """Whether ``node`` is a fused operator that a rule created."""
    return _FUSED in node.metadata_props


def derive(
    nodes: Iterable[onnx_ir.Node], sources: Sequence[onnx_ir.Node], by: str, stage: str = "", number: int = 0
) -> None:
    """Record that the rule or pass ``by`` derived ``nodes`` from ``sources``.

    Args:
        nodes, sources, by: the derivation.
        stage: the current pass.
        number: the index of the derivation among all derivations of the run.
    """
    names = dict.fromkeys(name for source in sources for name in origins(source))
    earlier = dict.fromkeys(maker for source in sources for maker in makers(source) if maker != by)
    text, contributors = _recorded(list(names)[:_KEPT]), _SEPARATOR.join([*list(earlier)[:_KEPT], by])
    steps = _joined(sources, DerivationStep(number, stage, by))
    others = dict.fromkeys(name for source in sources for name in absorbed(source) if name not in names)
    for node in nodes:
        node.metadata_props[_STEPS] = steps
        if others:
            node.metadata_props[_ABSORBED] = _recorded(list(others)[:_KEPT])
        node.metadata_props[_MAKERS] = contributors
        node.metadata_props[_ORIGIN] = text
        node.metadata_props[_BY] = by


def _joined(nodes: Iterable[onnx_ir.Node], last: DerivationStep) -> str:
    """The steps of ``nodes``, in order, followed by the step ``last``, in their recorded form."""
    added = f"{last.number}{_FIELD}{last.stage}{_FIELD}{last.by}"
    recorded = dict.fromkeys(text for node in nodes if (text := node.metadata_props.get(_STEPS)) is not None)
    if not recorded:
        return added
    if len(recorded) == 1:  # fast path: a node may absorb many nodes one by one
        (text,) = recorded
        kept = text.partition(_SEPARATOR)[2] if text.count(_SEPARATOR) + 1 == _KEPT_STEPS else text
        return f"{kept}{_SEPARATOR}{added}"
    lines = dict.fromkeys(line for text in recorded for line in text.split(_SEPARATOR))
    return _SEPARATOR.join([*sorted(lines, key=_number)[1 - _KEPT_STEPS :], added])


def _number(line: str) -> int:
    """The number of a step in its recorded form."""
    return int(line.partition(_FIELD)[0])


def absorbed(node: onnx_ir.Node) -> tuple[str, ...]:
    """Names of other original nodes whose results ``node`` computes: duplicates, and removed views."""
    recorded = node.metadata_props.get(_ABSORBED)
    return _names(recorded) if recorded else ()


def absorb(node: onnx_ir.Node, other: onnx_ir.Node, by: str, stage: str, number: int) -> None:
    """Record that an output of ``node`` replaces an output of ``other``, although it is not derived from it.

    The other arguments are those of :func:`derive`.
    """
    own = dict.fromkeys([*origins(node), *absorbed(node)])
    added = [name for name in (*origins(other), *absorbed(other)) if name not in own]
    if added:
        node.metadata_props[_ABSORBED] = _recorded([*absorbed(node), *added][:_KEPT])
        node.metadata_props[_STEPS] = _joined([node, other], DerivationStep(number, stage, by))


def folded_from(value: onnx_ir.Value) -> tuple[str, ...]:
    """Names of the original nodes that were folded into the constant ``value``; none if it is original."""
    recorded = value.metadata_props.get(_ORIGIN)
    return _names(recorded) if recorded else ()


def record_folding(value: onnx_ir.Value, node: onnx_ir.Node) -> None:
    """Record that the constant ``value``, possibly of a Constant node, replaces an output of ``node``."""
    operands = (name for operand in node.inputs if operand is not None for name in folded_from(operand))
    names = dict.fromkeys([*operands, *origins(node)])
    value.metadata_props[_ORIGIN] = text = _recorded(list(names)[:_KEPT])
    constant = value.producer()
    if constant is not None:
        constant.metadata_props[_ORIGIN] = text


def record_origin(node: onnx_ir.Node, names: Iterable[str]) -> None:
    """Record that ``node`` replaces the original nodes ``names``."""
    node.metadata_props[_ORIGIN] = _recorded(dict.fromkeys(names))


def keep_origin(node: onnx_ir.Node) -> None:
    """Record the origin of ``node`` before it is renamed or moved to another graph."""
    if _ORIGIN not in node.metadata_props:
        record_origin(node, (label(node),))


def origins_within(node: onnx_ir.Node, call: onnx_ir.Node) -> tuple[str, ...]:
    """The origins of a node of a function when ``call`` is inlined.

    The result is the recorded origins, or the path of the node, such as ``call/node``.
    """
    if _ORIGIN in node.metadata_props:
        return origins(node)
    return (f"{origins(call)[0]}/{label(node).lstrip('/')}",)


def is_within(name: str, scope: str) -> bool:
    """Whether the node ``name`` is ``scope``, or inside it.

    >>> is_within("/layer.0/attn/MatMul", "/layer.0"), is_within("/layer.0/attn/MatMul", "/layer.0/at")
    (True, False)
    """
    if name == scope:
        return True
    inner = scope.rstrip("/.")
    return bool(inner) and name.startswith((f"{inner}/", f"{inner}."))


def noted_scopes(node: onnx_ir.Node) -> tuple[str, ...]:
    """The scopes that PyTorch's exporter recorded for ``node``, outermost first."""
    try:
        scopes = ast.literal_eval(node.metadata_props.get(_NAME_SCOPES, "[]"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    return tuple(scope for scope in scopes if isinstance(scope, str)) if isinstance(scopes, list) else ()


def label(node: onnx_ir.Node) -> str:
    """The name of ``node`` in messages: its own, or its operator and first output."""
    if node.name:
        return node.name
    output = next((value.name for value in node.outputs if value.name), "")
    return f"{node.op_type}({output})"
