"""The result of a verification."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from graphopt.inputs.sampling import Distribution
from graphopt.ort.session import Optimizations
from graphopt.util.tables import counted

#: The cause of what can't be compared by anyone, and is no gap in a verdict.
ORIGINAL_FAILS = "the original fails"

#: Keys of rows in JSON where they differ from the attributes' names.
_JSON_KEYS = {"distribution": "flavour"}


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        binding: sizes of the dynamic dims, in words.
        distribution: what kind of numbers was fed.
        level: onnxruntime's optimizations, ``off`` or ``default``, on both sides.
        delta: the largest difference between finite elements of any output; ``None`` where there are none
            to compare, such as where the candidate does not run.
        output: the output that is at fault, or moved most.
        ok: whether the difference is allowed.
        reason: what is wrong; where it is allowed, the excuse for a difference that is not demanded away.
        libraries: the candidate ran with its libraries of operators.
        identical: all outputs have the same bits.
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
        """A difference was found and allowed, because the original is not sure of its own result."""
        return self.ok and self.reason is not None

    @property
    def unloadable(self) -> bool:
        """onnxruntime refuses the candidate before it runs."""
        return not self.ok and _UNLOADABLE in (self.reason or "")


@dataclass(frozen=True)
class Skipped:
    """A comparison that was not made.

    Attributes:
        what: kind of numbers, and sizes of the dynamic dims.
        cause: why, in a word or two.
        detail: what there is to say besides.
    """

    what: str
    cause: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.cause}" + (f" ({self.detail})" if self.detail else "")


#: How onnxruntime's refusal of a model begins (:func:`graphopt.ort.session.create`).
_UNLOADABLE = "onnxruntime can't load the model"

#: What the user can do where no inputs were found.
INPUTS_HINT = (
    "give inputs with --input-shape NAME:1x3x224x224 or --input FILE.npz, or fix a dim with --dim NAME=SIZE"
)


def without_inputs(refusal: str, *, given: bool) -> str:
    """Why nothing can be compared: the original can't be run, or it refused the inputs that were made up.

    Args:
        refusal: what a run failed with.
        given: the user said something of the inputs.
    """
    if given or _UNLOADABLE in refusal:
        return f"the original does not run ({refusal})"
    return f"no inputs that the original accepts were found ({refusal})"


@dataclass(frozen=True)
class Verdict:
    """Whether two models are called alike and compute alike.

    Attributes:
        rows: every comparison made.
        signature: changes of the interface.
        skipped: what was not compared, each with the reason.
        unverifiable: why nothing could be compared, if so: the original does not run, or refuses all inputs
            that were tried.
        device: where the models ran.
        seconds: time spent.
        peak_bytes: memory needed on top, in this process and in the child together.
    """

    rows: tuple[Row, ...] = ()
    signature: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    unverifiable: str | None = None
    device: str = "CPU"
    seconds: float = 0.0
    peak_bytes: int = field(default=0, compare=False)

    @property
    def ok(self) -> bool:
        """No difference was found; see :attr:`unverifiable` for whether any was looked for."""
        return not self.signature and all(row.ok for row in self.rows)

    @property
    def failures(self) -> tuple[Row, ...]:
        """The comparisons that failed."""
        return tuple(row for row in self.rows if not row.ok)

    @property
    def delta(self) -> float:
        """The largest difference of finite elements for ordinary inputs, without those that are excused."""
        counted = (row for row in self.rows if row.distribution in _ORDINARY and not row.excused)
        return max((row.delta or 0.0 for row in counted), default=0.0)

    @property
    def lacks_inputs(self) -> bool:
        """Whether nothing was compared because no inputs were found, which the user may know better."""
        return self.unverifiable is not None and self.unverifiable.startswith("no inputs")

    def to_dict(self) -> dict[str, Any]:
        """For JSON, where the distribution of the inputs is the ``flavour`` of a row."""
        rows = [{_JSON_KEYS.get(key, key): value for key, value in asdict(row).items()} for row in self.rows]
        return asdict(self) | {"rows": rows}

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"Verdict(ok={self.ok}, {self.summary()})"

    def summary(self) -> str:
        """The verdict in one line."""
        if self.signature:
            more = f" (and {len(self.signature) - 1} more)" if len(self.signature) > 1 else ""
            return f"the interface changed: {self.signature[0]}{more}"
        if self.failures:
            row = self.failures[0]
            output = f"output {row.output!r}: " if row.output else ""
            where = f"{row.binding}, {row.distribution} inputs, optimizations {row.level}"
            where += ", with its library" if row.libraries else ""
            return (
                f"{output}{row.reason} ({where}; {len(self.failures)} of {len(self.rows)} comparisons failed)"
            )
        if self.unverifiable is not None:
            return f"not verified: {self.unverifiable}"
        return "; ".join((self.agreement, *self.remarks()))

    @property
    def scope(self) -> str:
        """The inputs that were compared: ``4 shapes × 4 kinds of values (26 comparisons)``."""
        shapes = counted(len({row.binding for row in self.rows}), "shape")
        kinds = counted(len({row.distribution for row in self.rows}), "kind of values", "kinds of values")
        return f"{shapes} × {kinds} ({counted(len(self.rows), 'comparison')})"

    @property
    def agreement(self) -> str:
        """How close the models are, and on how many inputs: ``bit-identical on 4 shapes × …``."""
        if all(row.identical for row in self.rows):
            return f"bit-identical on {self.scope}"
        return f"equal within {self.delta:.1e} on {self.scope}" if self.delta else f"equal on {self.scope}"

    def remarks(self) -> tuple[str, ...]:
        """How many comparisons count less: ``2 within rounding error``, ``13 skipped for time (-v)``."""
        excused = sum(row.excused for row in self.rows)
        causes = Counter(skipped.cause for skipped in self.skipped if skipped.cause != ORIGINAL_FAILS)
        found = [f"{excused} within rounding error"] if excused else []
        found += [f"{count} skipped for {cause}" for cause, count in causes.items()]
        return (*found[:-1], f"{found[-1]} (-v)") if found else ()


_ORDINARY = ("normal", "zero", "negative", "overridden")
