"""The report of one optimization, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol

from graphopt.context import Action
from graphopt.diagnostics.hint import Hint
from graphopt.instrument.file_growth import NewConstant
from graphopt.instrument.model_summary import Interface, Summary
from graphopt.instrument.report import json, text
from graphopt.instrument.report.variants import VariantReport
from graphopt.instrument.rewrite_stats import RefusalCount
from graphopt.passes.pass_records import PassRecord
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Block, Table, counted, flat, human_bytes

if TYPE_CHECKING:
    from graphopt.cost import Costs, Decision
    from graphopt.ort.session_options import SessionChoice
    from graphopt.rewrite.fused_operators import Fused
    from graphopt.rewrite.missed_fusions import Missed
    from graphopt.verification.verdict import Verdict


@dataclass(frozen=True)
class Dropped:
    """A harmful rewrite that was dropped.

    Attributes:
        owner: the rule or pass.
        node: the node that it rewrote; ``""`` if all its rewrites, or the whole pass, are dropped.
        pass_text: its pass, with options.
        reason: the failure that the rewrite causes.
        failed: whether it raised an error or did not terminate; otherwise its result differed.
    """

    owner: str
    node: str
    pass_text: str
    reason: str
    failed: bool = False

    @property
    def withheld(self) -> tuple[str, str, str]:
        """The rule or pass, node and reason, as in :attr:`graphopt.context.Options.withheld`."""
        return self.owner, self.node, "dropped as it fails" if self.failed else "dropped by verification"

    def __str__(self) -> str:
        return f"{self.owner} at {self.node}" if self.node else f"{self.owner}, everywhere"


class TuningSummary(Protocol):
    """The parts of :class:`graphopt.tuning.tuning_result.Tuning` that reports show."""

    @property
    def choice(self) -> SessionChoice | None: ...
    @property
    def removed_kernels(self) -> bool: ...
    def blocks(self) -> Iterable[Block]: ...
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, repr=False)
class Report:
    """The changes of one optimization, and the comparison of the result with the original.

    Attributes:
        pipeline: the passes, as text.
        original, optimized: figures before and after.
        interface: inputs, outputs and metadata, which do not change.
        passes: every run of a pass, in order.
        skipped: passes that the user skipped.
        rewrites: the number of nodes of each operator that each rule or pass removed; negative if it added
            nodes.
        refusals: sites that rules matched but did not rewrite, with the reasons.
        verdict: the comparison with the original, if it was made.
        next_action: the first change that ``stop_after`` did not allow.
        seconds: wall time by stage.
        file_bytes: sizes of the files before and after in bytes, external data included, if there are files.
        other_form: whether the file of the result has another format, such as JSON IR; if so, sizes are not
            comparable.
        remarks: further notes for the user, such as the reason why a device was not used.
        weight_bytes: the bytes of all weights after each pass, by index of the pass, if requested.
        made: constants of the result that the original lacks, the largest first.
        dropped: rewrites that were dropped because they made the result wrong.
        search_runs: number of runs of the pipeline for finding the dropped rewrites.
        fused: the fused operators that were written.
        missed: partial matches of fused operators, and the reasons why they were not fused.
        tuning: measurements and decisions, if the model was tuned.
        costs: the table of costs for decisions about fused operators.
        decisions: decisions by this table, and the frequency of each.
        variants: specializations for a profile.
        profiled_runs: number of runs in that profile.
        kernels: names of the native kernels of the result.
        libraries: paths of the libraries with these kernels.
        hints: hints about the model and the device.
        counters: numbers of sessions, comparisons, rewrites and others, by name.
        settings: the settings and options that produced the result
            (:class:`graphopt.recorded_settings.SettingsRecord`), as JSON; empty without a record.
        cached: the key of the stored result that was reused, with the durations of the original run; empty if
            the result was computed.
    """

    pipeline: str
    original: Summary
    optimized: Summary
    interface: Interface
    passes: list[PassRecord]
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
    tuning: TuningSummary | None = None
    costs: Costs | None = None
    decisions: Counter[Decision] = field(default_factory=Counter)
    variants: list[VariantReport] = field(default_factory=list)
    profiled_runs: int = 0
    kernels: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    hints: list[Hint] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    settings: str = ""
    cached: str = ""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"Report({self.headline()}; print(report) shows all of it)"

    def _repr_html_(self) -> str:
        from graphopt.util.html_blocks import html_of

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

    def rules(self) -> Counter[str]:
        """The number of rewrites by each rule or pass."""
        return sum((record.rewrites for record in self.passes), Counter())

    def blocks(self, verbose: int = 0, *, warned: bool = False) -> Iterator[Block]:
        """The lines and tables of the report.

        Args:
            verbose: 1 adds the passes and the most important refused rewrites; 2 adds all refused rewrites.
            warned: whether a warning named the reason why nothing was verified.
        """
        return text.blocks(self, verbose, warned=warned)

    def notes(self) -> Iterator[str]:
        """Remarks for the user, besides the figures."""
        return text.notes(self)

    def table(self) -> Table:
        """Original and optimized, side by side."""
        return text.table(self)

    def passes_table(self) -> Table:
        """Each run of a pass: its time, the figures after it, and its changes."""
        return text.passes_table(self)

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        return json.as_dict(self)

    def having(
        self,
        *,
        remarks: Iterable[str] = (),
        seconds: Mapping[str, float] | None = None,
        **changes: Any,
    ) -> Report:
        """This report with further ``remarks`` and stages, and with other values of fields."""
        all_remarks, all_seconds = [*self.remarks, *remarks], {**self.seconds, **(seconds or {})}
        return replace(self, remarks=all_remarks, seconds=all_seconds, **changes)
