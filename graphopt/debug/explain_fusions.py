"""explain: the fusions in a model, and the reasons for nodes that are not fused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.context import Context, Options, context_for
from graphopt.debug.explain_groups import PASS, explain_groups
from graphopt.errors import UsageError, unknown
from graphopt.model_arguments import copy
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipeline_steps import Step
from graphopt.passes.pipelines import registry
from graphopt.placement.check_placement import check_placement
from graphopt.placement.explain_placement import PlacementExplanation, explain_placement
from graphopt.placement.predict import predict
from graphopt.rewrite.fused_operators import native_in
from graphopt.rewrite.fusion_explanation import Explanation, explain
from graphopt.rewrite.missed_fusions import nearest_to, weighed_against
from graphopt.rewrite.rule import Rule
from graphopt.rules import admitted_fusions, all_rules
from graphopt.transforms.fusion.fuse_builtin import FuseBuiltin

#: The pattern that selects the placement.
PLACEMENT = "placement"
_PRESET = "O3"


def explain_fusions(
    model: ir.Model,
    options: Options,
    patterns: Sequence[str] = (),
    *,
    node: str | None = None,
    before: Sequence[Step] = (),
    native: bool = False,
    check: bool = False,
) -> Explanation:
    """Run ``-O3`` over ``model``, in place, up to the fusion of operators, and explain the fusions.

    For a device with its own memory, also explain the placement, under the pattern ``placement``.

    Args:
        patterns: only rules with these names or families.
        node: only the node of this name, in ``model`` or made by a pass, or the nodes in this scope; if no
            pattern matches these nodes partially, the best partial match is explained.
        before: passes that run first.
        native: also explain the groups of native kernels; ``fuse-groups`` is then a pattern.
        check: compare the placement with that of a session, which requires the device.

    Raises:
        UsageError: no fusion rule has a name in ``patterns``, or no node has the name ``node``.
    """
    names = frozenset[str]() if node is None else frozenset(map(ir.label, _within(model, node)))
    known = [] if node is None or names else _names(model)
    groups = placement = None
    if native and (not patterns or PASS in patterns):
        groups = explain_groups(copy(model), options, before)
    placed = not options.device.capabilities.is_host
    if placed and (not patterns or PLACEMENT in patterns):
        differences = tuple(check_placement(model, options.device)) if check else None
        placement = replace(_placement(copy(model), options, before, node), differences=differences)
    _check_available(patterns, native=native, placed=placed)
    others = [pattern for pattern in patterns if pattern not in (PASS, PLACEMENT)]
    rules = chosen_rules(options, others) if others or not patterns else []
    steps = Pipeline.parse(_PRESET, registry()).steps
    end = next(index for index, step in enumerate(steps) if isinstance(step, FuseBuiltin))
    with context_for(model, options) as cx:
        Pipeline((*before, *steps[: end + 1])).run(model, cx)
        found = explain(model, admitted_fusions(options), cx, about=rules)
        weighed = weighed_against(model, found.missed, cx)
        if patterns:
            owners = frozenset(rule.name for rule in rules)
            weighed = (place for place in weighed if place.rule in owners)
        else:
            found = replace(found, fused=(*found.fused, *(() if native else native_in(model))))
        found = replace(found, missed=(*found.missed, *weighed))
        found = replace(found, placement=placement)
        if groups is not None:
            found = replace(
                found, fused=(*found.fused, *groups.fused), missed=(*found.missed, *groups.missed)
            )
        if node is None:
            return found
        made = (name for new in _within(model, node) for name in ir.origins(new))
        names = names or frozenset(made)
        if not names:
            raise _unknown_scope(node, known)
        return _about(found, names, node, model, rules, cx)


def _check_available(patterns: Sequence[str], *, native: bool, placed: bool) -> None:
    """Check that the options fit the patterns that are not rules.

    Raises:
        UsageError: a pattern requires another option.
    """
    if PASS in patterns and not native:
        raise UsageError(f"the pattern {PASS!r} is for native kernels", hint="add --fuser native")
    if PLACEMENT in patterns and not placed:
        raise UsageError(
            f"the pattern {PLACEMENT!r} is for CUDA, and the target is the CPU",
            hint="add --device cuda, which need not be present",
        )


def _placement(
    model: ir.Model, options: Options, before: Sequence[Step], node: str | None
) -> PlacementExplanation:
    """The placement of ``model``, which is modified; only of the nodes in the scope ``node``, if given."""
    device = options.device
    original = predict(model, device)
    with context_for(model, options) as cx:
        Pipeline((*before, *Pipeline.parse(_PRESET, registry()).steps)).run(model, cx)
    found = explain_placement(str(device), original, predict(model, device))
    return found if node is None else found.within(node)


def chosen_rules(options: Options, patterns: Sequence[str] = ()) -> list[Rule]:
    """The fusion rules that ``options`` and ``patterns`` admit."""
    names = [name for rule in all_rules() if rule.is_fusion for name in (rule.family, rule.name)]
    for pattern in patterns:
        if pattern not in names:
            known = [*names, PASS, PLACEMENT]
            raise unknown("pattern", pattern, known, "graphopt passes fuse-builtin lists all")
    return [
        rule
        for rule in admitted_fusions(options)
        if not patterns or rule.name in patterns or rule.family in patterns
    ]


def names_within(model: ir.Model, scope: str) -> frozenset[str]:
    """Names of the nodes called ``scope``, or within ``scope`` by their names or the exporter's metadata.

    Raises:
        UsageError: no node has the name ``scope``, or belongs to it.
    """
    found = frozenset(map(ir.label, _within(model, scope)))
    if not found:
        raise _unknown_scope(scope, _names(model))
    return found


def _within(model: ir.Model, scope: str) -> Iterator[ir.Node]:
    for graph in ir.graphs_of(model):
        for node in graph:
            if ir.is_within(ir.label(node), scope) or scope in ir.noted_scopes(node):
                yield node


def _names(model: ir.Model) -> list[str]:
    """Names of nodes and of their scopes."""
    nodes = [node for graph in ir.graphs_of(model) for node in graph]
    return [name for node in nodes for name in (ir.label(node), *ir.noted_scopes(node))]


def _unknown_scope(scope: str, names: Iterable[str]) -> UsageError:
    return unknown("node or scope", scope, names, "graphopt dump shows all nodes")


def _about(
    explanation: Explanation,
    names: frozenset[str],
    scope: str,
    model: ir.Model,
    rules: Sequence[Rule],
    cx: Context,
) -> Explanation:
    """The part of ``explanation`` about the nodes ``names``, or the nodes in ``scope``; never empty."""

    def concerns(origins: Iterable[str]) -> bool:
        return any(name in names or ir.is_within(name, scope) for name in origins)

    fused = tuple(one for one in explanation.fused if concerns(one.origins))
    missed = tuple(one for one in explanation.missed if concerns(one.origins))
    if not fused and not missed:
        nodes = (node for graph in ir.graphs_of(model) for node in graph if concerns(ir.origins(node)))
        nearest = nearest_to(nodes, rules, cx)
        missed = () if nearest is None else (nearest,)
    return replace(explanation, fused=fused, missed=missed)
