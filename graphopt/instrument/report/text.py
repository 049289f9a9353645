"""The report of an optimization as text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from graphopt.diagnostics.record import counter_line
from graphopt.instrument.file_growth import growth_lines
from graphopt.instrument.model_summary import Interface
from graphopt.instrument.report.variants import variant_lines
from graphopt.ops import graphopt_operators
from graphopt.util.text_tables import (
    Block,
    Line,
    Table,
    counted,
    human_bytes,
    human_count,
    human_seconds,
    shortened,
)

if TYPE_CHECKING:
    from graphopt.instrument.report.report import Report
    from graphopt.verification.verdict import Verdict

#: Number of operators with a line each; the others share a line.
_LISTED = 12
#: The row of the calls of all native kernels, whose names are long. A kernel may have several calls.
_NATIVE = "calls of native kernels"
#: The pass that creates native kernels.
_GROUPS = "fuse-groups"
#: Number of refusals of rules that are listed unless all are requested.
_REFUSALS = 10
#: Number of listed reasons why nodes were not fused.
_MISSED = 3
#: Bytes of a metadata entry with recorded settings besides its value: key, tags and lengths.
_ENTRY_BYTES = 25


def blocks(report: Report, verbose: int = 0, *, warned: bool = False) -> Iterator[Block]:
    """The lines and tables of the report; arguments as for :meth:`Report.blocks`."""
    yield table(report)
    yield f"  kept      {kept(report.interface)}"
    yield from (f"  {line}" for line in _growth(report))
    for note in notes(report):
        yield f"  {note}"
    yield from _fused_operator_counts(report)
    yield from _not_fused(report)
    yield from _costs_lines(report, verbose)
    yield from (f"  {line}" for line in variant_lines(report.variants, report.profiled_runs))
    if verbose:
        yield ""
        yield passes_table(report)
        yield ""
        yield from _left_alone(report, verbose)
    if report.tuning is not None:
        yield ""
        yield from report.tuning.blocks()
    if report.verdict is not None:
        yield ""
        yield from verdict_lines(report.verdict, verbose, warned=warned)
    for hint in report.hints:
        yield from hint.lines()
    if verbose and (line := counter_line(report.counters)) is not None:
        yield line
    if report.cached:
        yield f"  cached    the result of an earlier run (graphopt cache show {report.cached[:12]})"


def _growth(report: Report) -> Iterator[str]:
    """The reasons why the file, or without files the weights, became larger."""
    before, after, (old, new) = report.original, report.optimized, report.file_bytes
    weights = after.weight_bytes - before.weight_bytes
    if report.other_form:
        return
    grown = weights if old is None or new is None else new - old - _record_bytes(report)
    functions = after.function_nodes - before.function_nodes
    yield from growth_lines(grown, weights, report.made, report.passes, before.nodes, functions)


def _record_bytes(report: Report) -> int:
    """The size of the recorded settings in the file of the result, which passes do not write."""
    has_entry = bool(report.settings) and json.loads(report.settings)["settings"]
    return len(report.settings.encode()) + _ENTRY_BYTES if has_entry else 0


def _fused_operator_counts(report: Report) -> Iterator[str]:
    """The number of each fused operator, most frequent first."""
    counts = Counter(one.op.rpartition(".")[2] for one in report.fused)
    if counts:
        yield f"  fused     {', '.join(f'{count:,} {op}' for op, count in counts.most_common())}"
    if report.kernels:
        calls = sum(report.optimized.ops.get(_operator(name), 0) for name in report.kernels)
        several = f", {counted(calls, 'call')}" if calls > len(report.kernels) else ""
        yield f"  kernels   {counted(len(report.kernels), 'native kernel')}{several}"


def _operator(kernel: str) -> str:
    """The operator of a native kernel."""
    return f"{graphopt_operators.NATIVE_DOMAIN}::{kernel}"


def _not_fused(report: Report) -> Iterator[str]:
    """The most frequent reasons why nodes were not fused."""
    counts = Counter((place.rule, place.kind) for place in report.missed)
    for (rule, kind), count in counts.most_common(_MISSED):
        yield f"  not fused {count} × {rule}: {kind}"
    if counts:
        more = f"; {counted(len(counts) - _MISSED, 'reason')} more" if len(counts) > _MISSED else ""
        native = " --fuser native" if any(rule == _GROUPS for rule, _ in counts) else ""
        yield Line(f"  (graphopt explain MODEL{native} shows where, and remedies{more})", "hint")
    if any(rule == _GROUPS for rule, _ in counts):
        races = "graphopt kernels MODEL --candidates races kernels on this machine"
        yield Line(f"  ({races}, and --tune keeps the faster ones)", "hint")


def _costs_lines(report: Report, verbose: int) -> Iterator[str]:
    """The table of costs, and with ``verbose`` its decisions."""
    if report.costs is None or not report.decisions:
        return
    if not report.costs.grids:
        yield f"  {report.costs}: the first choice of fused operators is taken everywhere"
        return
    weighed = counted(len(report.decisions), "kind of place weighed", "kinds of places weighed")
    used = sum(map(bool, report.decisions))
    left = len(report.decisions) - used
    yield f"  fused operators chosen by {report.costs}: {weighed}, {used} to fuse, {left} to leave"
    if verbose:
        yield from (f"  costs: {decision.reason}" for decision in report.decisions)


def _left_alone(report: Report, verbose: int) -> Iterator[str]:
    """The obstacles of rules that matched but did not rewrite; with ``verbose`` 2, all reasons."""
    shown = (
        report.refusals if verbose > 1 else [item for item in report.refusals if item.is_obstacle][:_REFUSALS]
    )
    for item in shown:
        yield f"  left alone {item.count} × {item.rule}: {item.reason} (such as {item.example})"
    if len(shown) < len(report.refusals):
        more = counted(len(report.refusals) - len(shown), "more reason")
        yield f"  left alone for {more} (-vv lists them)"


def notes(report: Report) -> Iterator[str]:
    """Remarks for the user, besides the figures."""
    yield from (remark for record in report.passes for remark in record.remarks)
    if report.skipped:
        yield f"skipped: {', '.join(report.skipped)}"
    for drop in report.dropped:
        where = "" if drop.failed else f" (pass {drop.pass_text})"  # the reason of a failure names the pass
        yield f"dropped: {drop}{where}: {drop.reason}"
    if "repair" in report.seconds:
        searched = counted(report.search_runs, "run of the pipeline", "runs of the pipeline")
        yield f"searched for what to drop: {searched}, {human_seconds(report.seconds['repair'])}"
    if report.next_action is not None:
        action = report.next_action
        yield f"stopped before rewrite {action.index}: {action.owner} at {action.node}"
    yield from report.remarks


def table(report: Report) -> Table:
    """Original and optimized, side by side."""
    before, after = report.original, report.optimized
    table = Table(["", "original", "optimized", "", ""], "<>>><")
    table.add("nodes", f"{before.nodes:,}", f"{after.nodes:,}", _percent(before.nodes, after.nodes))
    for name, old, new, by in _changed_ops(report):
        table.add(f"  {name}", f"{old:,}", f"{new:,}", _signed(new - old), by)
    if before.function_nodes or after.function_nodes:
        table.add("nodes in functions", f"{before.function_nodes:,}", f"{after.function_nodes:,}")
    table.add("parameters", human_count(before.parameters), human_count(after.parameters))
    old_bytes, new_bytes = report.file_bytes
    if old_bytes is not None and new_bytes is not None:
        change = "other form" if report.other_form else _percent(old_bytes, new_bytes)
        table.add("file", human_bytes(old_bytes), human_bytes(new_bytes), change)
    else:
        table.add("weights", human_bytes(before.weight_bytes), human_bytes(after.weight_bytes))
    return table


def passes_table(report: Report) -> Table:
    """Each run of a pass: its time, the figures after it, and its changes."""
    weighed = bool(report.weight_bytes)
    heads = ["", "pass", "time", "nodes", *["weights"] * weighed, "changes"]
    table = Table(heads, "><>>" + ">" * weighed + "<")
    for record in report.passes:
        weights = report.weight_bytes.get(record.index)
        size = ["" if weights is None else human_bytes(weights)] * weighed
        seconds, nodes = human_seconds(record.seconds), f"{record.nodes:,}"
        table.add(record.index, record.name, seconds, nodes, *size, record.describe(4))
    return table


def _changed_ops(report: Report) -> Iterator[tuple[str, int, int, str]]:
    """Operators whose number changed: a line for each of the largest changes, and one for the others."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys([*report.original.ops, *report.optimized.ops]):
        row = _NATIVE if name.startswith(_operator("")) else name
        groups.setdefault(row, []).append(name)
    rows = []
    for name, ops in groups.items():
        old, new = (sum(side.ops.get(op, 0) for op in ops) for side in (report.original, report.optimized))
        if old != new:
            rows.append((name, old, new, ops))
    rows.sort(key=lambda row: (-abs(row[2] - row[1]), row[0]))
    listed = rows if len(rows) <= _LISTED + 1 else rows[:_LISTED]
    for name, old, new, ops in listed:
        yield name, old, new, _credit(report, ops, old - new)
    rest = rows[len(listed) :]
    if rest:
        ops = [op for row in rest for op in row[3]]
        old, new = sum(row[1] for row in rest), sum(row[2] for row in rest)
        yield shortened([row[0] for row in rest], 2), old, new, _credit(report, ops, old - new)


def _credit(report: Report, ops: Sequence[str], removed: int) -> str:
    """The first two rules or passes that removed (or added) nodes of ``ops``, and whether others did."""
    sign = 1 if removed > 0 else -1
    by: Counter[str] = Counter()
    for op_type in ops:
        for owner, count in report.rewrites.get(op_type, {}).items():
            by[owner] += sign * count
    first = [(owner, count) for owner, count in by.most_common(2) if count > 0]
    parts = [f"{owner} ×{count}" if count > 1 else owner for owner, count in first]
    return ", ".join(parts if sum(count for _, count in first) == abs(removed) else [*parts, "others"])


def not_verified(verdict: Verdict) -> str:
    """A statement that nothing could be compared, without the message of onnxruntime."""
    return f"not verified: {(verdict.unverifiable or '').partition(' (')[0]}"


def verdict_lines(verdict: Verdict | None, verbose: int = 0, *, warned: bool = False) -> Iterator[Line]:
    """The verdict, if there is one: the agreement, then device, time and memory, and minor remarks.

    Args:
        verbose: also a line for each minor remark about a comparison.
        warned: whether a warning named the reason why nothing was verified.
    """
    if verdict is None:
        return
    if not verdict.ok:
        yield Line(f"  differs   {verdict.summary()}", "bad")
    elif verdict.unverifiable is not None:
        yield Line(f"  {not_verified(verdict) if warned else verdict.summary()}", "caution")
    else:
        yield Line(f"  verified  {verdict.agreement}", "good")
    yield Line(f"            {'; '.join((cost(verdict), *verdict.remarks()))}")
    yield from (Line(f"  {line}") for line in details(verdict) if verbose)


def cost(verdict: Verdict) -> str:
    """The runtime, device, time and memory of a verification: ``onnxruntime, CPU, 0.3 s, peak +82 MB``."""
    spent = f"{human_seconds(verdict.seconds)}, peak +{human_bytes(verdict.peak_bytes)}"
    return f"onnxruntime, {verdict.device}, {spent}"


def details(verdict: Verdict) -> Iterator[str]:
    """Excused differences and skipped comparisons, a line each."""
    for row in verdict.rows:
        if row.excused:
            where = f"{row.distribution} inputs at {row.binding}, optimizations {row.level}"
            yield f"within rounding error: {where}, |Δ| {row.delta or 0.0:.1e}: {row.reason}"
    yield from (f"skipped: {skipped}" for skipped in verdict.skipped)
    yield from map(str, verdict.groups)


def kept(interface: Interface) -> str:
    """One phrase about an interface: ``3 inputs, 2 outputs, dynamic B, S, metadata``."""
    required = len(interface.ports("required"))
    parts = [counted(required, "input"), counted(len(interface.signature.outputs), "output")]
    if interface.symbols:
        more = ", …" if len(interface.symbols) > 6 else ""
        parts.append(f"dynamic {', '.join(interface.symbols[:6])}{more}")
    overridable = len(interface.ports("overridable"))
    if overridable:
        parts.append(counted(overridable, "overridable initializer"))
    if interface.metadata:
        parts.append("metadata")
    return ", ".join(parts)


def _percent(old: int, new: int) -> str:
    if not old or old == new:
        return ""
    change = 100 * (new - old) / old
    digits = 0 if abs(change) >= 0.95 else 1
    return f"{'−' if change < 0 else '+'}{abs(change):.{digits}f} %"


def _signed(number: int) -> str:
    return f"{'−' if number < 0 else '+'}{abs(number):,}" if number else ""
