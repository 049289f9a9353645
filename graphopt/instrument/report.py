"""The report of one optimization, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from graphopt.context import Action
from graphopt.instrument.growth import NewConstant, growth_lines
from graphopt.instrument.notebook import html_of
from graphopt.instrument.stats import RefusalCount
from graphopt.instrument.summary import Interface, Summary
from graphopt.instrument.variants import VariantReport, variant_lines
from graphopt.ops import dialects
from graphopt.passes.instrumentation import PassRecord
from graphopt.util.tables import (
    Block,
    Line,
    Table,
    counted,
    flat,
    human_bytes,
    human_count,
    human_seconds,
    shortened,
)

if TYPE_CHECKING:
    from graphopt.cost import Costs, Decision
    from graphopt.rewrite.explain import Fused, Missed
    from graphopt.tuning.result import Tuning
    from graphopt.verification.verdict import Verdict

#: Operators listed by themselves; the others share a line.
_LISTED = 12
#: The row of all native kernels, whose names are long.
_NATIVE = "native kernels"
#: Reasons of rules that are told unless all are asked for.
_REFUSALS = 10
#: Reasons why something was not fused that are told.
_MISSED = 3


@dataclass(frozen=True)
class Dropped:
    """A rewrite that was left out because it did harm.

    Attributes:
        owner: the rule or pass.
        node: the node that it rewrote; ``""`` where all its rewrites, or the whole pass, are left out.
        pass_text: the pass that it was part of.
        reason: what it did.
        failed: it raised an error or did not end; else what came of it was not the same.
    """

    owner: str
    node: str
    pass_text: str
    reason: str
    failed: bool = False

    @property
    def withheld(self) -> tuple[str, str, str]:
        """Rule or pass, node, and why it is left out, for :attr:`graphopt.context.Options.withheld`."""
        return self.owner, self.node, "dropped as it fails" if self.failed else "dropped by verification"

    def __str__(self) -> str:
        return f"{self.owner} at {self.node}" if self.node else f"{self.owner}, everywhere"


@dataclass(repr=False)
class Report:
    """What was done to a model, and whether it still computes the same.

    Attributes:
        pipeline: the passes, as text.
        original, optimized: figures before and after.
        interface: how the model is called, which stayed as it was.
        passes: every run of a pass, in order.
        planned: steps of the pipeline that are not built yet and were left out.
        skipped: passes that the user left out.
        rewrites: for each operator, how many of its nodes each rule or pass removed; negative where it
            added more.
        refusals: places that rules matched but left alone, with the reasons.
        verdict: the comparison with the original, if it was made.
        next_action: the first change that ``stop_after`` did not allow.
        seconds: wall time by stage.
        file_bytes: sizes of the files before and after, external data included, where there are files.
        other_form: the file afterwards is of another form, such as JSON IR, so that sizes tell little.
        remarks: what else the user should know, such as why a device was not used.
        weight_bytes: by index of the pass, bytes of all weights after it, where they were added up.
        made: constants of the result that the original lacks, the largest first.
        dropped: rewrites that were left out because the result was wrong with them.
        search_runs: runs of the pipeline that it took to find them.
        fused: the fused operators that were written.
        missed: places that are almost what becomes a fused operator, and why they did not.
        tuning: what was measured and decided, if it was tuned.
        costs: the table that decided about fused operators.
        decisions: what it decided, and how often it was asked.
        variants: specializations that a profile called for.
        profiled_runs: how many runs that profile is of.
        kernels: names of the native kernels that go with the result.
        libraries: paths of the libraries that they are in.
    """

    pipeline: str
    original: Summary
    optimized: Summary
    interface: Interface
    passes: list[PassRecord]
    planned: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    rewrites: dict[str, Counter[str]] = field(default_factory=dict)
    refusals: list[RefusalCount] = field(default_factory=list)
    verdict: Verdict | None = None
    next_action: Action | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    file_bytes: tuple[int | None, int | None] = (None, None)
    other_form: bool = False
    remarks: list[str] = field(default_factory=list)
    weight_bytes: dict[int, int] = field(default_factory=dict)
    made: list[NewConstant] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    search_runs: int = 0
    fused: list[Fused] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)
    tuning: Tuning | None = None
    costs: Costs | None = None
    decisions: Counter[Decision] = field(default_factory=Counter)
    variants: list[VariantReport] = field(default_factory=list)
    profiled_runs: int = 0
    kernels: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"Report({self.headline()}; print(report) shows all of it)"

    def _repr_html_(self) -> str:
        return html_of(self.blocks())

    def headline(self) -> str:
        """Figures and verdict in a few words: ``nodes 248 → 143, weights 12 MB → 11 MB, verified``."""
        before, after = self.original, self.optimized
        old, new = human_bytes(before.weight_bytes), human_bytes(after.weight_bytes)
        checked = "not verified"
        if self.verdict is not None and self.verdict.unverifiable is None:
            checked = "verified" if self.verdict.ok else "not the same"
        dropped = f", {counted(len(self.dropped), 'rewrite')} dropped" if self.dropped else ""
        return f"nodes {before.nodes:,} → {after.nodes:,}, weights {old} → {new}, {checked}{dropped}"

    def lines(self, verbose: int = 0, *, warned: bool = False) -> Iterator[str]:
        """The report as text; arguments as for :meth:`blocks`."""
        return flat(self.blocks(verbose, warned=warned), "  ")

    def blocks(self, verbose: int = 0, *, warned: bool = False) -> Iterator[Block]:
        """The lines and tables of the report.

        Args:
            verbose: 1 adds the passes and the most important rewrites that were not made, 2 all of these.
            warned: a warning named the reason why nothing was verified.
        """
        yield self.table()
        yield f"  kept      {kept(self.interface)}"
        yield from (f"  {line}" for line in self._growth())
        for note in self.notes():
            yield f"  {note}"
        yield from self._fused()
        yield from self._not_fused()
        yield from self._costs_lines(verbose)
        yield from (f"  {line}" for line in variant_lines(self.variants, self.profiled_runs))
        if verbose:
            yield ""
            yield self.passes_table()
            yield ""
            yield from self._left_alone(verbose)
        if self.tuning is not None:
            yield ""
            yield from self.tuning.blocks()
        if self.verdict is not None:
            yield ""
            yield from verdict_lines(self.verdict, verbose, warned=warned)

    def _growth(self) -> Iterator[str]:
        """The reasons why the file, or without files the weights, became larger."""
        before, after, (old, new) = self.original, self.optimized, self.file_bytes
        weights = after.weight_bytes - before.weight_bytes
        if self.other_form:
            return
        grown = weights if old is None or new is None else new - old
        functions = after.function_nodes - before.function_nodes
        yield from growth_lines(grown, weights, self.made, self.passes, before.nodes, functions)

    def _fused(self) -> Iterator[str]:
        """How many of each fused operator there are, most frequent first."""
        counts = Counter(one.op.rpartition(".")[2] for one in self.fused)
        if counts:
            yield f"  fused     {', '.join(f'{count:,} {op}' for op, count in counts.most_common())}"
        if self.kernels:
            yield f"  kernels   {counted(len(self.kernels), 'native kernel')}"

    def _not_fused(self) -> Iterator[str]:
        """The most frequent reasons why places did not become fused operators."""
        counts = Counter((place.rule, place.kind) for place in self.missed)
        for (rule, kind), count in counts.most_common(_MISSED):
            yield f"  not fused {count} × {rule}: {kind}"
        if counts:
            more = f"; {counted(len(counts) - _MISSED, 'reason')} more" if len(counts) > _MISSED else ""
            yield Line(f"  (graphopt explain shows where, and remedies{more})", "hint")

    def _left_alone(self, verbose: int) -> Iterator[str]:
        """Why rules left places alone: where something stood in the way, and with ``verbose`` 2 all."""
        shown = self.refusals if verbose > 1 else [item for item in self.refusals if item.telling][:_REFUSALS]
        for item in shown:
            yield f"  left alone {item.count} × {item.rule}: {item.reason} (such as {item.example})"
        if len(shown) < len(self.refusals):
            more = counted(len(self.refusals) - len(shown), "more reason")
            yield f"  left alone for {more} (-vv lists them)"

    def notes(self) -> Iterator[str]:
        """What the user should know besides the figures."""
        if self.planned:
            yield f"not built yet: {', '.join(self.planned)}"
        yield from (remark for record in self.passes for remark in record.remarks)
        if self.skipped:
            yield f"skipped: {', '.join(self.skipped)}"
        for drop in self.dropped:
            where = "" if drop.failed else f" (pass {drop.pass_text})"  # or the reason names it
            yield f"dropped: {drop}{where}: {drop.reason}"
        if "repair" in self.seconds:
            searched = counted(self.search_runs, "run of the pipeline", "runs of the pipeline")
            yield f"searched for what to drop: {searched}, {human_seconds(self.seconds['repair'])}"
        if self.next_action is not None:
            action = self.next_action
            yield f"stopped before rewrite {action.index}: {action.owner} at {action.node}"
        yield from self.remarks

    def table(self) -> Table:
        """Original and optimized, side by side."""
        before, after = self.original, self.optimized
        table = Table(["", "original", "optimized", "", ""], "<>>><")
        table.add("nodes", f"{before.nodes:,}", f"{after.nodes:,}", _percent(before.nodes, after.nodes))
        for name, old, new, by in self._changed_ops():
            table.add(f"  {name}", f"{old:,}", f"{new:,}", _signed(new - old), by)
        if before.function_nodes or after.function_nodes:
            table.add("nodes in functions", f"{before.function_nodes:,}", f"{after.function_nodes:,}")
        table.add("parameters", human_count(before.parameters), human_count(after.parameters))
        old_bytes, new_bytes = self.file_bytes
        if old_bytes is not None and new_bytes is not None:
            change = "other form" if self.other_form else _percent(old_bytes, new_bytes)
            table.add("file", human_bytes(old_bytes), human_bytes(new_bytes), change)
        else:
            table.add("weights", human_bytes(before.weight_bytes), human_bytes(after.weight_bytes))
        return table

    def _changed_ops(self) -> Iterator[tuple[str, int, int, str]]:
        """Operators whose number changed: the largest changes by themselves, the others together."""
        groups: dict[str, list[str]] = {}
        for name in dict.fromkeys([*self.original.ops, *self.optimized.ops]):
            groups.setdefault(_NATIVE if name.startswith(f"{dialects.NATIVE_DOMAIN}::") else name, []).append(
                name
            )
        rows = []
        for name, ops in groups.items():
            old, new = (sum(side.ops.get(op, 0) for op in ops) for side in (self.original, self.optimized))
            if old != new:
                rows.append((name, old, new, ops))
        rows.sort(key=lambda row: (-abs(row[2] - row[1]), row[0]))
        listed = rows if len(rows) <= _LISTED + 1 else rows[:_LISTED]
        for name, old, new, ops in listed:
            yield name, old, new, self._credit(ops, old - new)
        rest = rows[len(listed) :]
        if rest:
            ops = [op for row in rest for op in row[3]]
            old, new = sum(row[1] for row in rest), sum(row[2] for row in rest)
            yield shortened([row[0] for row in rest], 2), old, new, self._credit(ops, old - new)

    def _credit(self, ops: Sequence[str], removed: int) -> str:
        """Who removed nodes of operators, or added some: the first two, and whether there is more to it."""
        sign = 1 if removed > 0 else -1
        by: Counter[str] = Counter()
        for op_type in ops:
            for owner, count in self.rewrites.get(op_type, {}).items():
                by[owner] += sign * count
        first = [(owner, count) for owner, count in by.most_common(2) if count > 0]
        parts = [f"{owner} ×{count}" if count > 1 else owner for owner, count in first]
        return ", ".join(parts if sum(count for _, count in first) == abs(removed) else [*parts, "others"])

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        names = list(dict.fromkeys([*self.original.ops, *self.optimized.ops]))
        return {
            "pipeline": self.pipeline,
            "original": {**self.original.to_dict(), "file_bytes": self.file_bytes[0]},
            "optimized": {**self.optimized.to_dict(), "file_bytes": self.file_bytes[1]},
            "ops": {
                name: [self.original.ops.get(name, 0), self.optimized.ops.get(name, 0)] for name in names
            },
            "interface": self.interface.to_dict(),
            "passes": [self._record_dict(record) for record in self.passes],
            "rewrites": {owner: count for owner, count in self.rules().most_common()},
            "planned": self.planned,
            "skipped": self.skipped,
            "made_constants": [made.to_dict() for made in self.made],
            "dropped": [asdict(drop) for drop in self.dropped],
            "search_runs": self.search_runs,
            "fused": [one.to_dict() for one in self.fused],
            "kernels": list(self.kernels),
            "missed": [place.to_dict() for place in self.missed],
            "refusals": [refused.to_dict() for refused in self.refusals],
            "remarks": self.remarks,
            "costs": self._costs_dict(),
            "variants": [told.to_dict() for told in self.variants],
            "tuning": None if self.tuning is None else self.tuning.to_dict(),
            "stopped_before": asdict(self.next_action) if self.next_action else None,
            "verification": None if self.verdict is None else verdict_dict(self.verdict),
            "seconds": self.seconds,
        }

    def _costs_dict(self) -> dict[str, Any] | None:
        """The table of costs that was asked, and what it said; none if it was not asked."""
        if self.costs is None or not self.decisions:
            return None
        decisions = [{**asdict(decision), "asked": count} for decision, count in self.decisions.items()]
        return {"name": self.costs.name, "where": self.costs.where, "decisions": decisions}

    def _costs_lines(self, verbose: int) -> Iterator[str]:
        """The table of costs that was asked, and with ``verbose`` what it said."""
        if self.costs is None or not self.decisions:
            return
        if not self.costs.grids:
            yield f"  {self.costs}: the first choice of fused operators is taken everywhere"
            return
        weighed = counted(len(self.decisions), "kind of place weighed", "kinds of places weighed")
        used = sum(map(bool, self.decisions))
        left = len(self.decisions) - used
        yield f"  fused operators chosen by {self.costs}: {weighed}, {used} to fuse, {left} to leave"
        if verbose:
            yield from (f"  costs: {decision.reason}" for decision in self.decisions)

    def passes_table(self) -> Table:
        """Each run of a pass: time, what was left after it, what it did."""
        table = Table(["", "pass", "time", "nodes", "weights", "changes"], "><>>><")
        for record in self.passes:
            rules = record.describe(4)
            weights = self.weight_bytes.get(record.index)
            table.add(
                record.index,
                record.name,
                human_seconds(record.seconds),
                f"{record.nodes:,}",
                "" if weights is None else human_bytes(weights),
                rules,
            )
        return table

    def _record_dict(self, record: PassRecord) -> dict[str, Any]:
        return {
            **vars(record),
            "changes": dict(record.changes),
            "rewrites": dict(record.rewrites),
            "weight_bytes": self.weight_bytes.get(record.index),
        }

    def rules(self) -> Counter[str]:
        """How often each rule or pass rewrote something."""
        return sum((record.rewrites for record in self.passes), Counter())


def not_verified(verdict: Verdict) -> str:
    """That nothing could be compared, in short: without what onnxruntime said."""
    return f"not verified: {(verdict.unverifiable or '').partition(' (')[0]}"


def verdict_dict(verdict: Verdict) -> dict[str, Any]:
    """A verdict for JSON; nothing is called equal where nothing could be compared."""
    equal = verdict.ok and verdict.unverifiable is None
    return {"equal": equal, "summary": verdict.summary(), "max_delta": verdict.delta, **verdict.to_dict()}


def verdict_lines(verdict: Verdict, verbose: int = 0, *, warned: bool = False) -> Iterator[Line]:
    """The verdict in two lines: the agreement, then device, time and memory, and what counts less.

    Args:
        verbose: also a line for each comparison that counts less.
        warned: a warning named the reason why nothing was verified.
    """
    if not verdict.ok:
        yield Line(f"  differs   {verdict.summary()}", "bad")
    elif verdict.unverifiable is not None:
        yield Line(f"  {not_verified(verdict) if warned else verdict.summary()}", "caution")
    else:
        yield Line(f"  verified  {verdict.agreement}", "good")
    yield Line(f"            {'; '.join((cost(verdict), *verdict.remarks()))}")
    yield from (Line(f"  {line}") for line in details(verdict) if verbose)


def cost(verdict: Verdict) -> str:
    """Where a verification ran, and its time and memory: ``onnxruntime, CPU, 0.3 s, peak +82 MB``."""
    spent = f"{human_seconds(verdict.seconds)}, peak +{human_bytes(verdict.peak_bytes)}"
    return f"onnxruntime, {verdict.device}, {spent}"


def details(verdict: Verdict) -> Iterator[str]:
    """What was excused and what was not compared, a line each."""
    for row in verdict.rows:
        if row.excused:
            where = f"{row.distribution} inputs at {row.binding}, optimizations {row.level}"
            yield f"within rounding error: {where}, |Δ| {row.delta or 0.0:.1e}: {row.reason}"
    yield from (f"skipped: {skipped}" for skipped in verdict.skipped)


def kept(interface: Interface) -> str:
    """One phrase about an interface: ``3 inputs, 2 outputs, dynamic B, S, metadata``."""
    required = len(interface.ports("required"))
    parts = [counted(required, "input"), counted(len(interface.signature.outputs), "output")]
    if interface.symbols:
        parts.append(
            "dynamic " + ", ".join(interface.symbols[:6]) + (", …" if len(interface.symbols) > 6 else "")
        )
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
