"""Groups of native kernels for the search, by the results of their races.

A call whose kernel loses its race is reverted. The others are confirmed in the whole model, because a
kernel also changes its surroundings: between convolutions, onnxruntime keeps a blocked layout, which kernels
break. So the calls of one connected run of convolutions are one group for the search. All other winners are
one group, and calls that were not raced are grouped by function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from graphopt import ir
from graphopt.fusion.blocked_layout import CONVOLUTIONS
from graphopt.ops import graphopt_operators, traits
from graphopt.rewrite.rewrite_filter import RewriteSite
from graphopt.tuning.kernel_candidates import KernelCandidates
from graphopt.tuning.measurements import ALONE, Finding
from graphopt.tuning.race_kernels import RaceResult
from graphopt.tuning.search_space import Group
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

#: Largest ratio of a race that is won clearly: these calls of a run are a separate group.
_CLEAR = 0.7


@dataclass(frozen=True)
class KernelGroups:
    """The calls of kernels in a model.

    Attributes:
        groups: the groups to confirm in the whole model.
        lost: findings about the calls that lost their races.
    """

    groups: tuple[Group, ...]
    lost: tuple[Finding, ...] = ()

    @property
    def off(self) -> frozenset[str]:
        """The rewrites of the lost calls."""
        return frozenset(owner for finding in self.lost for owner in finding.reverted)


@dataclass(eq=False)
class _Call:
    """A call, its rewrite, and the results of its races; none if it was not raced."""

    node: ir.Node
    site: RewriteSite
    results: list[RaceResult] = field(default_factory=list)

    @property
    def is_raced(self) -> bool:
        return any(result.measurement is not None for result in self.results)

    @property
    def ratio(self) -> float:
        """The largest ratio of its races."""
        return max(result.measurement.ratio for result in self.results if result.measurement is not None)


def kernel_groups(
    model: ir.Model, sites: Mapping[str, RewriteSite], candidates: KernelCandidates
) -> KernelGroups:
    """The groups of the calls in ``model``.

    Args:
        sites: the rewrite that created each call, by name of the call's first output.
        candidates: the races of the calls.
    """
    calls = _calls(model, sites, candidates)
    lost = frozenset(candidates.losers())
    losers = [call for call in calls if _output(call.node) in lost]
    winners = [call for call in calls if call not in losers and call.is_raced]
    others = [call for call in calls if not call.is_raced]
    runs = _convolution_runs(model, winners)
    inside = {call for run in runs for call in run}
    raced: dict[str, list[_Call]] = {}
    if single := [call for call in winners if call not in inside]:
        raced[f"{counted(len(_functions(single)), 'kernel')} that won alone"] = single
    for run in runs:
        for part, text in _by_clearness(run):
            raced.setdefault(f"{_run_name(part)} that won alone{text}", []).extend(part)
    unraced: dict[str, list[_Call]] = {}
    for call in others:
        unraced.setdefault(call.node.op_type, []).append(call)
    groups = [
        *(_group(name, members, raced=True) for name, members in raced.items()),
        *(_group(name, members, raced=False) for name, members in unraced.items()),
    ]
    return KernelGroups(tuple(groups), tuple(_findings(losers)))


def _calls(model: ir.Model, sites: Mapping[str, RewriteSite], candidates: KernelCandidates) -> list[_Call]:
    """The calls in all graphs that a rewrite created."""
    results: dict[str, list[RaceResult]] = {}
    for item in candidates.raced:
        for output in item.subject.outputs:
            results.setdefault(output, []).append(item.result)
    return [
        _Call(node, sites[_output(node)], results.get(_output(node), []))
        for graph in ir.graphs_of(model)
        for node in graph
        if node.domain == graphopt_operators.NATIVE_DOMAIN and _output(node) in sites
    ]


def _output(call: ir.Node) -> str:
    return call.outputs[0].name or ""


def _group(name: str, calls: Sequence[_Call], *, raced: bool) -> Group:
    owners = tuple(dict.fromkeys(str(call.site) for call in calls))
    return Group(name, owners, len(calls), speed=True, whole=True, raced=raced, functions=_functions(calls))


def _functions(calls: Sequence[_Call]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(call.node.op_type for call in calls))


def _findings(losers: Sequence[_Call]) -> Iterator[Finding]:
    """One finding for each function with lost calls; its measurement is that of the slowest."""
    by_function: dict[str, list[_Call]] = {}
    for call in losers:
        by_function.setdefault(call.node.op_type, []).append(call)
    for name, calls in by_function.items():
        worst = max(calls, key=lambda call: call.ratio)
        result = max(
            (one for one in worst.results if one.measurement is not None),
            key=lambda one: one.measurement.ratio if one.measurement is not None else 0.0,
        )
        owners = tuple(dict.fromkeys(str(call.site) for call in calls))
        reason = (
            result.reason if result.measurement and result.measurement.failure else f"{result.reason} {ALONE}"
        )
        yield Finding(name, len(calls), result.measurement, False, reason, owners)


# Runs of convolutions -----------------------------------------------------------------------------


def _convolution_runs(model: ir.Model, winners: Sequence[_Call]) -> list[list[_Call]]:
    """The calls with convolutions, by connected run: no other compute-bound node is between them."""
    functions = {key[1]: function for key, function in model.functions.items()}
    chosen = {call.node: call for call in winners if _has_convolution(functions.get(call.node.op_type))}
    root = {node: node for node in model.graph}

    def find(node: ir.Node) -> ir.Node:
        while root[node] is not node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    connecting = [node for node in model.graph if node in chosen or _connects(node)]
    inside = set(connecting)
    for node in connecting:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer in inside and producer is not None:
                root[find(node)] = find(producer)
    runs: dict[ir.Node, list[_Call]] = {}
    for node, call in chosen.items():
        if node in root:  # others are in bodies
            runs.setdefault(find(node), []).append(call)
    return list(runs.values())


def _has_convolution(function: ir.Function | None) -> bool:
    return function is not None and any(node.op_type in CONVOLUTIONS for node in function)


def _connects(node: ir.Node) -> bool:
    """Whether convolutions before and after ``node`` belong to one run."""
    is_native = node.domain == graphopt_operators.NATIVE_DOMAIN
    return not is_native and node.op_type not in traits.COMPUTE_BOUND and node.op_type != "Constant"


def _by_clearness(run: Sequence[_Call]) -> Iterator[tuple[list[_Call], str]]:
    """The calls that won clearly, and the others."""
    clear = [call for call in run if call.ratio <= _CLEAR]
    rest = [call for call in run if call.ratio > _CLEAR]
    for part, text in ((clear, ", clearly"), (rest, "")):
        if part:
            yield part, text if clear and rest else ""


def _run_name(run: Sequence[_Call]) -> str:
    """A name by the functions of a run; equal runs have equal names."""
    names = sorted(call.node.op_type for call in run)
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
