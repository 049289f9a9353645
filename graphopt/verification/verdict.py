"""The result of a verification, as data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, field
from typing import Any

from graphopt.inputs.value_generator import Distribution
from graphopt.ort.session import Optimizations
from graphopt.util.html_blocks import html_of
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Block, Table, counted

#: The cause of comparisons that are impossible for every candidate, and therefore are not gaps in a verdict.
ORIGINAL_FAILS = "the original fails"

#: The cause of comparisons that are unnecessary, because every rewrite is proven to preserve all bits.
PROVEN_EXACT = "proven exact"

#: Keys of rows in JSON where they differ from the attributes' names.
_JSON_KEYS = {"distribution": "flavour"}


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        binding: sizes of the dynamic dims, in words.
        distribution: distribution of the inputs.
        level: onnxruntime's optimizations in both sessions, ``off`` or ``default``.
        delta: the largest difference between finite elements of any output; ``None`` without such elements,
            for example if the candidate does not run.
        output: the output with the largest fault, or else the largest difference.
        ok: whether the difference is allowed.
        reason: the fault; if ``ok``, the excuse for a difference beyond the tolerance.
        libraries: whether the candidate ran with its operator libraries.
        identical: whether all outputs have the same bits.
    """

    binding: str
    distribution: Distribution
    level: Optimizations
    delta: float | None
    output: str
    ok: bool
    reason: str | None = None
    libraries: bool = False
    identical: bool = False

    @property
    def excused(self) -> bool:
        """Whether a difference beyond the tolerance is allowed because the original is ill-conditioned."""
        return self.ok and self.reason is not None

    @property
    def unloadable(self) -> bool:
        """Whether onnxruntime can't load the candidate."""
        return not self.ok and _UNLOADABLE in (self.reason or "")

    @property
    def identity(self) -> tuple[str, str, str]:
        """The inputs and the optimization level."""
        return self.binding, self.distribution, self.level


def agree_in_every_bit(rows: Sequence[Row]) -> bool:
    """Whether all comparisons succeed, and those of sessions without optimizations agree in every bit."""
    return bool(rows) and all(row.ok and (row.identical or row.level != "off") for row in rows)


@dataclass(frozen=True)
class Skipped:
    """A comparison that was not made.

    Attributes:
        what: distribution of the inputs, and sizes of the dynamic dims.
        cause: the reason in a word or two.
        detail: further explanation.
        distribution: the distribution of the inputs, if the comparison has one.
    """

    what: str
    cause: str
    detail: str = ""
    distribution: Distribution | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.cause}" + (f" ({self.detail})" if self.detail else "")


#: First words of the error for a model that onnxruntime can't load (:func:`graphopt.ort.session.create`).
_UNLOADABLE = "onnxruntime can't load the model"
#: First words of the error if no process can be started (:class:`graphopt.process.child.NoProcess`).
_NO_PROCESS = "no child process could be started"

#: Hint for the case that no valid inputs were found.
INPUTS_HINT = (
    "give inputs with --input-shape NAME:1x3x224x224 or --input FILE.npz, or fix a dim with --dim NAME=SIZE"
)


def without_inputs(refusal: str, *, given: bool) -> str:
    """The reason why nothing can be compared: the original does not run, or not on generated inputs.

    Args:
        refusal: the error of a run.
        given: whether the user specified inputs.
    """
    if given or _UNLOADABLE in refusal or _NO_PROCESS in refusal:
        return f"the original does not run ({refusal})"
    return f"no inputs that the original accepts were found ({refusal})"


@dataclass(frozen=True)
class GroupComparison:
    """The comparison of the versions of a guarded group, on inputs that satisfy its assumptions.

    Attributes:
        group: the name of its first result.
        comparisons: the number of comparisons.
        reason: the fault, or the reason why nothing was compared; ``None`` if the versions agree.
        ok: whether no difference was found.
    """

    group: str
    comparisons: int
    reason: str | None = None
    ok: bool = True

    def __str__(self) -> str:
        return f"the guarded group of {self.group}: {self.reason or counted(self.comparisons, 'comparison')}"


@dataclass(frozen=True)
class Verdict:
    """Whether two models have the same interface and compute the same results.

    Attributes:
        rows: all comparisons.
        signature: changes of the interface.
        skipped: comparisons not made, with reasons.
        unverifiable: reason if nothing could be compared: the original does not run, accepts none of the
            inputs that were tried, or fails in repeated runs.
        device: the device that ran the models.
        seconds: wall-clock seconds spent.
        peak_bytes: additional peak memory, in this process and in children together.
        general_rows: comparisons of the candidate with the general versions of all guarded groups.
        groups: comparisons of the specialized with the general version of each guarded group.
    """

    rows: tuple[Row, ...] = ()
    signature: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    unverifiable: str | None = None
    device: str = "CPU"
    seconds: float = 0.0
    peak_bytes: int = field(default=0, compare=False)
    general_rows: tuple[Row, ...] = ()
    groups: tuple[GroupComparison, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no difference was found; see :attr:`unverifiable` for whether anything was compared."""
        rows = (*self.rows, *self.general_rows)
        same = all(row.ok for row in rows) and all(group.ok for group in self.groups)
        return same and not self.signature

    @property
    def failures(self) -> tuple[Row, ...]:
        """The comparisons that failed."""
        return tuple(row for row in self.rows if not row.ok)

    @property
    def delta(self) -> float:
        """The largest difference of finite elements for ordinary inputs, not counting excused differences."""
        counted = (row for row in self.rows if row.distribution in _ORDINARY and not row.excused)
        return max((row.delta or 0.0 for row in counted), default=0.0)

    @property
    def lacks_inputs(self) -> bool:
        """Whether nothing was compared because no valid inputs were found; the user may provide them."""
        return self.unverifiable is not None and self.unverifiable.startswith("no inputs")

    def to_dict(self) -> dict[str, Any]:
        """For JSON, where the distribution of the inputs is the ``flavour`` of a row."""
        rows = [{_JSON_KEYS.get(key, key): value for key, value in asdict(row).items()} for row in self.rows]
        return asdict(self) | {"rows": rows}

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"Verdict(ok={self.ok}, {self.summary()})"

    def _repr_html_(self) -> str:
        return html_of(self.blocks())

    def blocks(self) -> Iterator[Block]:
        """The verdict, a table of all comparisons, and those that were not made."""
        yield self.summary()
        table = Table(["sizes", "values", "optimizations", "|Δ|", "result"], "<<<><")
        for row in (*self.rows, *self.general_rows):
            delta = "" if row.delta is None else f"{row.delta:.1e}"
            result = "bit-identical" if row.identical else row.reason or ("equal" if row.ok else "differs")
            table.add(row.binding, row.distribution, row.level, delta, result)
        if table.rows:
            yield table
        yield from map(str, self.groups)
        yield from (f"skipped: {skipped}" for skipped in self.skipped)

    def summary(self) -> str:
        """The verdict in one line."""
        if self.signature:
            more = f" (and {len(self.signature) - 1} more)" if len(self.signature) > 1 else ""
            return f"the interface changed: {self.signature[0]}{more}"
        for subject, rows in (
            ("", self.rows),
            ("with the general versions of guarded groups, ", self.general_rows),
        ):
            failures = [row for row in rows if not row.ok]
            if not failures:
                continue
            row = max(failures, key=_severity)
            output = f"output {row.output!r}: " if row.output else ""
            where = f"{row.binding}, {row.distribution} inputs, optimizations {row.level}"
            where += ", with its library" if row.libraries else ""
            return (
                f"{subject}{output}{row.reason} ({where}; {len(failures)} of {len(rows)} comparisons failed)"
            )
        for group in self.groups:
            if not group.ok:
                return str(group)
        if self.unverifiable is not None:
            return f"not verified: {self.unverifiable}"
        return "; ".join((self.agreement, *self.remarks()))

    @property
    def scope(self) -> str:
        """The extent of the comparison: ``26 comparisons of 4 shapes and 4 kinds of values``."""
        shapes = counted(len({row.binding for row in self.rows}), "shape")
        kinds = counted(len({row.distribution for row in self.rows}), "kind of values", "kinds of values")
        return f"{counted(len(self.rows), 'comparison')} of {shapes} and {kinds}"

    @property
    def agreement(self) -> str:
        """The agreement of the models and the scope: ``bit-identical in 26 comparisons of …``.

        In default sessions, onnxruntime may replace nodes of one model by operators that round differently.
        """
        if not self.rows:
            return "nothing was compared"
        if all(row.identical for row in self.rows):
            return f"bit-identical in {self.scope}"
        without = [row for row in self.rows if row.level == "off"]
        same = ", bit-identical with optimizations off" if without and agree_in_every_bit(without) else ""
        return f"equal{f' within {self.delta:.1e}' if self.delta else ''} in {self.scope}{same}"

    def remarks(self) -> tuple[str, ...]:
        """Counts of limited comparisons: ``2 within rounding error``, ``13 skipped for time (-v)``."""
        excused = sum(row.excused for row in self.rows)
        causes = Counter(skipped.cause for skipped in self.skipped)
        causes.pop(ORIGINAL_FAILS, None)
        found = [f"{excused} within rounding error"] if excused else []
        if causes.pop(PROVEN_EXACT, None):
            found.append("all rewrites proven exact, other values left out")
        found += [f"{count} skipped for {cause}" for cause, count in causes.items()]
        if self.groups:
            compared = sum(group.reason is None for group in self.groups)
            found.append(
                f"{compared} of {counted(len(self.groups), 'guarded group')} compared in both versions"
            )
        return (*found[:-1], f"{found[-1]} (-v)") if found else ()


def _severity(row: Row) -> tuple[bool, bool, float]:
    """The order of failures: those to run, then differences for ordinary inputs, then larger differences."""
    return row.delta is None, row.distribution in _ORDINARY, row.delta or 0.0


_ORDINARY = ("normal", "zero", "negative", "overridden")
