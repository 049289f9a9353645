"""What the oracle found."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphopt.runtime.samples import Flavour
from graphopt.runtime.session import Optimizations


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        binding: sizes of the dynamic dims, in words.
        flavour: what kind of numbers was fed.
        level: onnxruntime's optimizations, ``off`` or ``default``, on both sides.
        delta: the largest difference between finite elements of any output.
        output: the output that is at fault, or moved most.
        ok: whether the difference is allowed.
        reason: what is wrong, or a remark.
    """

    binding: str
    flavour: Flavour
    level: Optimizations
    delta: float
    output: str
    ok: bool
    reason: str | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether two models are called alike and compute alike.

    Attributes:
        rows: every comparison made.
        signature: changes of the interface.
        skipped: what was not compared, each with the reason.
        unverifiable: why nothing could be compared, if so: the original does not run.
        device: where the models ran.
        seconds: time spent.
        peak_bytes: memory needed on top, in this process and in the child together.
    """

    rows: tuple[Row, ...] = ()
    signature: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
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
        """The largest finite difference seen where inputs were ordinary numbers."""
        return max((row.delta for row in self.rows if row.flavour in _ORDINARY and row.ok), default=0.0)

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """The verdict in one line."""
        if self.signature:
            more = f" (and {len(self.signature) - 1} more)" if len(self.signature) > 1 else ""
            return f"the interface changed: {self.signature[0]}{more}"
        if self.failures:
            row = self.failures[0]
            output = f"output {row.output!r}: " if row.output else ""
            where = f"{row.binding}, {row.flavour} inputs, optimizations {row.level}"
            return (
                f"{output}{row.reason} ({where}; {len(self.failures)} of {len(self.rows)} comparisons failed)"
            )
        if self.unverifiable is not None:
            return f"not verified: {self.unverifiable}"
        bindings = _counted(len({row.binding for row in self.rows}), "shape binding")
        flavours = _counted(len({row.flavour for row in self.rows}), "input")
        return f"equal on {bindings} x {flavours} (max |delta| {self.delta:.1e}, onnxruntime, {self.device})"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_ORDINARY = ("normal", "zero", "negative", "overridden")
