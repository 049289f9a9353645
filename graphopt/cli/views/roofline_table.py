"""Rooflines as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphopt.util.text_tables import Block, Table, counted

if TYPE_CHECKING:
    from graphopt.timing.machine_peaks import Peak, Peaks
    from graphopt.timing.roofline import KernelTime, Roofline

#: Number of operators and kernels in the tables, and of names in the last lines.
_LISTED = 10
_NAMED = 3
#: Share of the time below which the last lines omit an operator.
_LEAST_SHARE = 0.005


def peak_lines(peaks: Peaks) -> Iterator[Block]:
    """The measured peaks, and the spread of the repetitions."""
    level = "" if peaks.level is None else f", x86-64-v{peaks.level}"
    yield f"  peaks of {peaks.processor}{level} (repetitions: slowest, median, fastest):"
    for kind, peak in peaks.flops.items():
        yield f"    {kind:<8} {_rates(peak)} GFLOP/s in products"
    yield f"    {'copy':<8} {_rates(peaks.bandwidth)} GB/s"


def roofline_blocks(found: Roofline) -> Iterator[Block]:
    """The operators, the slowest kernels, and the kernels that are far from both peaks."""
    median = f"(median {found.typical_milliseconds:.3f})"
    yield f"  {found.model}: {found.milliseconds:.3f} ms in kernels of one run {median}"
    operators = Table(["  operator", "kernels", "ms", "share", "far from both", "ms lost"], "<>>>>>")
    for op, kernels in list(found.by_operator().items())[:_LISTED]:
        spent = sum(kernel.milliseconds for kernel in kernels)
        lost = sum(kernel.lost_milliseconds or 0.0 for kernel in kernels)
        far, share = found.share(kernel for kernel in kernels if kernel.is_far), found.share(kernels)
        cells = [f"{spent:.3f}", f"{share:.0%}", f"{far:.0%}", f"{lost:.3f}"]
        operators.add(f"  {op}", str(len(kernels)), *cells)
    yield operators
    table = Table(["  node", "operator", "ms", "MFLOP", "MB", "compute", "copy", "bound"], "<<>>>>>>")
    for one in found.kernels[:_LISTED]:
        amounts = [_number(one.flops), _number(one.bytes)]
        shares = [_percent(one.compute_share), _percent(one.bandwidth_share)]
        cells = [one.op, f"{one.milliseconds:.3f}", *amounts, *shares, one.bound or "?"]
        table.add(f"  {_label(one)}", *cells)
    yield table
    yield from _summary(found)


def _summary(found: Roofline) -> Iterator[str]:
    """The operators with most of the time, and the kernels with most of the lost time."""
    shares = {op: found.share(kernels) for op, kernels in found.by_operator().items()}
    largest = [f"{op} {share:.0%}" for op, share in shares.items() if share >= _LEAST_SHARE][:_NAMED]
    unknown = f", {_percent(found.unknown_share)} unknown" if found.unknown_share >= _LEAST_SHARE else ""
    yield f"  time: {', '.join(largest)}; {found.far_share:.0%} below 50 % of both peaks{unknown}"
    if found.far:
        more = f", {_NAMED} of them:" if len(found.far) > _NAMED else ":"
        yield f"  {counted(len(found.far), 'kernel')} far from both peaks, the most lost time first{more}"
    for one in found.far[:_NAMED]:
        yield f"    {_label(one)} ({one.op}): {one.lost_milliseconds or 0:.3f} ms lost"
    if found.exceeds_peaks:
        yield "  kernels exceed the measured peak of products, also after a second measurement: either other"
        yield "  processes disturbed it, or a kernel has fewer operations than its formula"


def _rates(peak: Peak) -> str:
    return " … ".join(f"{rate / 1e9:.1f}" for rate in (peak.low, peak.typical, peak.rate))


def _label(one: KernelTime) -> str:
    """The last original node, and the number of the others; ``?`` and its own name if they are unknown."""
    name = one.originals[-1] if one.originals else f"? {one.name}"
    more = f" +{len(one.originals) - 1}" if len(one.originals) > 1 else ""
    return f"{name}{more}"


def _number(amount: int | None) -> str:
    """Millions, with three digits."""
    return "?" if amount is None else f"{amount / 1e6:.0f}" if amount >= 1e8 else f"{amount / 1e6:.3g}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"
