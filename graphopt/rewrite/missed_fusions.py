"""Fusions that were not made: for each anchor of a pattern, the nearest pattern and its first mismatch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.ops import graphopt_operators
from graphopt.rewrite.compiled_pattern import Bindings, compiled
from graphopt.rewrite.match import Match
from graphopt.rewrite.neighborhood import (
    find_value,
    near_private_producers,
    near_readers,
    private_views,
    sharing_hint,
)
from graphopt.rewrite.partial_match import PartialMatch, PartialMatcher, display_name, paths_to
from graphopt.rewrite.pattern import OpPattern
from graphopt.rewrite.replacement_builder import Builder
from graphopt.rewrite.rule import Rule
from graphopt.rewrite.rule_application import try_rule
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Missed:
    """A fusion that was not made.

    Attributes:
        rule: the nearest rule, by the number of matching nodes.
        anchor: the node that indicates the pattern.
        matched, nodes: the number of matching nodes, and of nodes in the rule's pattern.
        reason: the first condition that failed.
        kind: the reason without names of nodes and values.
        value: the name of the value for which the condition failed.
        about: type, shape and source of that value.
        hint: a remedy, if one is known.
        origins: the names of the original nodes involved, the anchor's first.
    """

    rule: str
    anchor: str
    matched: int
    nodes: int
    reason: str
    kind: str
    value: str | None
    about: str | None
    hint: str | None
    origins: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def nearest_to(nodes: Iterable[ir.Node], rules: Iterable[Rule], cx: Context) -> Missed | None:
    """The best partial match around one of ``nodes``, however small; ``None`` without a match."""
    rules = list(rules)
    found = [
        candidate
        for node in nodes
        if not node.domain
        for rule in rules
        for candidate in _candidates(rule, node, cx, dict.fromkeys((*rule.anchors, node.op_type)), near=False)
    ]
    best = max(found, key=lambda candidate: (candidate.is_indicated, candidate.nearness()), default=None)
    return None if best is None else best.as_missed(cx)


def missed_in(model: ir.Model, rules: Sequence[Rule], cx: Context) -> Iterator[Missed]:
    """For each remaining anchor, the rule with the best partial match, if one is close."""
    seekers: dict[str, list[Rule]] = {}
    withheld_rules = frozenset(owner for owner, node, _ in cx.options.withheld if not node)
    for rule in rules:
        for anchor in rule.anchors if rule.name not in withheld_rules else ():
            seekers.setdefault(anchor, []).append(rule)
    names = frozenset(rule.name for rule in rules)
    reported: dict[Rule, dict[ir.Node, None]] = {}
    withheld: dict[ir.Node, Rule] = {}
    for candidate in _withheld_in(model, rules, cx):
        withheld |= dict.fromkeys(candidate.partial.nodes.values(), candidate.rule)
        yield candidate.as_missed(cx)
    for graph in graphs_without_kernels(model):
        for node in list(graph):
            if node.domain or node.op_type not in seekers:
                continue
            if withheld and (node in withheld or _leads_to(withheld, node)):
                continue
            found = [
                candidate
                for rule in seekers[node.op_type]
                for candidate in _candidates(rule, node, cx, rule.anchors)
            ]
            if ir.created_by(node) in names:  # the match may be part of a larger pattern
                made = ir.makers(node)
                found = [
                    candidate for candidate in found if candidate.refusal and candidate.rule.name not in made
                ]
            best = max(found, key=_Candidate.nearness, default=None)
            if best is not None and node not in reported.setdefault(best.rule, {}):
                reported[best.rule] |= dict.fromkeys(best.partial.nodes.values())
                yield best.as_missed(cx)


def weighed_against(model: ir.Model, missed: Iterable[Missed], cx: Context) -> Iterator[Missed]:
    """Fusions rejected by the table of costs, except those in ``missed``.

    A fusion is listed only if all its values are still in ``model``.
    """
    known = {(candidate.rule, candidate.value) for candidate in missed}
    values = {
        value.name: value
        for graph in graphs_without_kernels(model)
        for node in graph
        for value in node.outputs
        if value.name
    }
    for (owner, names), decision in cx.weighed.items():
        left = [values[name] for name in names if name in values]
        if decision or owner in cx.options.skip or len(left) < len(names) or (owner, names[0]) in known:
            continue
        nodes = [node for value in left if (node := value.producer()) is not None]
        yield Missed(
            rule=owner,
            anchor=display_name(nodes[0]),
            matched=len(nodes),
            nodes=len(nodes),
            reason=decision.reason,
            kind=decision.reason,
            value=left[0].name,
            about=describe(left[0], cx),
            hint=decision.hint,
            origins=tuple(dict.fromkeys(name for node in nodes for name in ir.origins(node))),
        )


def graphs_without_kernels(model: ir.Model) -> Iterator[ir.Graph]:
    """The graphs of ``model`` except groups with native kernels, whose nodes are fused."""
    inside = {
        function.graph
        for key, function in model.functions.items()
        if key[0] == graphopt_operators.NATIVE_DOMAIN
    }
    return (graph for graph in ir.graphs_of(model) if graph not in inside)


@dataclass(frozen=True)
class _Candidate:
    """A pattern, and its partial match around an anchor."""

    rule: Rule
    pattern: OpPattern
    anchor: ir.Node
    partial: PartialMatch
    refusal: Refusal | None = None
    between: tuple[ir.Node, ...] = ()

    @property
    def is_indicated(self) -> bool:
        """Whether the anchor indicates the rule."""
        return self.anchor.op_type in self.rule.anchors

    def nearness(self) -> tuple[int, bool, float]:
        """A sort key, greater for better matches."""
        matched = len(self.partial.nodes)
        return matched, self.refusal is not None, matched / len(self.pattern.nodes)

    def as_missed(self, cx: Context) -> Missed:
        """The match as a report entry."""
        nodes = [self.anchor, *self.between, *self.partial.nodes.values()]
        if self.refusal is None:
            gap = self.partial.gaps[0]
            reason, kind, value, hint = gap.reason, gap.kind, gap.value, gap.hint
            nodes += [] if gap.node is None else [gap.node]
        else:
            reason, kind, hint = self.refusal.reason, self.refusal.reason, self.refusal.hint
            value = find_value(self.refusal.value, nodes)
            if hint is None and value is not None and self.refusal.shared:
                hint = sharing_hint(value)
        nodes += [*near_private_producers(self.anchor), *private_views(self.partial.nodes.values())]
        origins = dict.fromkeys(name for node in dict.fromkeys(nodes) for name in ir.origins(node))
        return Missed(
            self.rule.name,
            display_name(self.anchor),
            len(self.partial.nodes),
            len(self.pattern.nodes),
            reason,
            kind,
            value.name if value is not None else self.refusal.value if self.refusal else None,
            None if value is None else describe(value, cx),
            hint,
            tuple(origins),
        )


def _withheld_in(model: ir.Model, rules: Sequence[Rule], cx: Context) -> Iterator[_Candidate]:
    """The sites where withheld rules would rewrite, each node once."""
    reasons = {(owner, node): why for owner, node, why in cx.options.withheld}
    owners = frozenset(owner for owner, _ in reasons)
    covered = dict[ir.Node, None]()
    for rule in (rule for rule in rules if rule.name in owners):
        for graph in graphs_without_kernels(model):
            for root in list(graph):
                why = reasons.get((rule.name, ""), reasons.get((rule.name, ir.label(root))))
                found = None if why is None else _applies(rule, root, cx)
                if (
                    why is None
                    or found is None
                    or any(node in covered for node in found.partial.nodes.values())
                ):
                    continue
                covered |= dict.fromkeys(found.partial.nodes.values())
                yield replace(found, refusal=Refusal(rule.name, ir.label(root), why))


def _leads_to(withheld: dict[ir.Node, Rule], anchor: ir.Node) -> bool:
    """Whether ``anchor`` indicates a rule that was withheld at a nearby reader of its results."""
    nearby = (withheld[node] for node in near_readers(anchor) if node in withheld)
    return any(anchor.op_type in rule.anchors for rule in nearby)


def _applies(rule: Rule, root: ir.Node, cx: Context) -> _Candidate | None:
    """The alternative of ``rule`` that rewrites ``root``, if any."""
    for pattern, _ in rule.patterns:
        found = compiled(pattern).match(root, cx)
        if found is not None and _refused(rule, root, *found, cx) is None:
            return _Candidate(rule, pattern, root, PartialMatch(found[1], (), found[0]))
    return None


def _candidates(
    rule: Rule, anchor: ir.Node, cx: Context, anchors: Iterable[str], *, near: bool = True
) -> list[_Candidate]:
    """Partial matches of ``rule`` around ``anchor``: the refused alternatives, or those with mismatches."""
    candidates = list(_forms(rule, anchor, cx, tuple(anchors), near=near))
    return [candidate for candidate in candidates if candidate.refusal is not None] or candidates


def _forms(
    rule: Rule, anchor: ir.Node, cx: Context, anchors: tuple[str, ...], *, near: bool
) -> Iterator[_Candidate]:
    """Partial matches of each alternative of ``rule`` around ``anchor``; with ``near``, only close ones."""
    search = PartialMatcher(cx)
    for pattern, _ in rule.patterns:
        paths = list(paths_to(pattern, anchors))
        for path in paths:
            root, partial = search.around(path, anchor)
            found = None if root is None else compiled(pattern).match(root, cx)
            if found is not None and root is not None and anchor in found[1].values():
                partial = PartialMatch(found[1], (), found[0])
                if (refusal := _refused(rule, root, *found, cx)) is not None:
                    yield _Candidate(rule, pattern, anchor, partial, refusal)
            elif partial.gaps and (not near or _is_near(pattern, partial)):
                yield _Candidate(rule, pattern, anchor, partial)
        if not paths:
            yield from _around(rule, pattern, anchor, cx)


def _is_near(pattern: OpPattern, partial: PartialMatch) -> bool:
    return len(partial.nodes) >= 2 and len(pattern.nodes) <= 2 * len(partial.nodes)


def _around(rule: Rule, pattern: OpPattern, anchor: ir.Node, cx: Context) -> Iterator[_Candidate]:
    """Refusals of ``rule`` about values of the anchor, if the pattern does not contain the anchor."""
    before = [value.producer() for value in anchor.inputs if value is not None]
    sources = [value for node in before if node is not None for value in node.inputs]
    names = {value.name for value in (*anchor.inputs, *anchor.outputs, *sources) if value is not None}
    # a match at the farthest reader covers the most nodes
    for root, between in reversed(near_readers(anchor).items()):
        found = compiled(pattern).match(root, cx)
        refusal = None if found is None else _refused(rule, root, *found, cx)
        if found is not None and refusal is not None and refusal.value in names:
            yield _Candidate(rule, pattern, anchor, PartialMatch(found[1], (), found[0]), refusal, between)
            return


def _refused(
    rule: Rule, root: ir.Node, bindings: Bindings, nodes: dict[OpPattern, ir.Node], cx: Context
) -> Refusal | None:
    """The refusal of ``rule`` for a match of its pattern, if any."""
    builder = Builder(cx, root)
    try:
        result = try_rule(rule, Match(rule.name, root, nodes, cx), bindings, builder)
    except Exception as error:
        if not cx.is_blocked(rule.name, root):
            raise
        return Refusal(rule.name, ir.label(root), f"blocked, because it fails: {type(error).__name__}")
    finally:
        builder.discard()
    return result if isinstance(result, Refusal) else None


def describe(value: ir.Value, cx: Context) -> str:
    """Type, shape and source of ``value``: ``f32[B, 1, 1, T], an input``."""
    dtype, shape, producer = cx.dtype(value), cx.shape(value), value.producer()
    if ir.constant_of(value) is not None:
        number = ir.scalar_of(value)
        source = "a constant" if number is None else f"the constant {number}"
    else:
        source = "an input" if producer is None else f"computed by {display_name(producer)}"
    return f"{ir.type_text(dtype, shape)}, {source}"
