"""Rooflines as tables of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphopt.util.text_tables import Block, Table

if TYPE_CHECKING:
    from graphopt.timing.roofline import Roofline

#: Number of operators and kernels in the tables.
_LISTED = 10
#: Share of the peak of products above which its measurement was disturbed.
_EXCEEDED = 1.1
#: Characters of a name.
_NAME = 24


def roofline_blocks(found: Roofline) -> Iterator[Block]:
    """The operators, the slowest kernels, and the share of time far from both peaks."""
    peaks = ", ".join(f"{kind} {value / 1e9:.0f}" for kind, value in found.peaks.flops.items())
    yield f"  {found.model}: {found.milliseconds:.3f} ms in kernels of one run, under the profiler"
    yield f"  peaks: GFLOP/s of products: {peaks}; copy {found.peaks.bandwidth / 1e9:.1f} GB/s"
    operators = Table(["  operator", "kernels", "ms", "share", "far from both"], "<>>>>")
    for op, kernels in list(found.by_operator().items())[:_LISTED]:
        spent = sum(kernel.milliseconds for kernel in kernels)
        far = found.share(kernel for kernel in kernels if kernel.is_far)
        share = found.share(kernels)
        operators.add(f"  {_short(op)}", str(len(kernels)), f"{spent:.3f}", f"{share:.0%}", f"{far:.0%}")
    yield operators
    table = Table(["  node", "operator", "ms", "FLOP/B", "compute", "copy", "bound"], "<<>>>>>")
    for one in found.kernels[:_LISTED]:
        name = one.originals[-1] if one.originals else f"? {one.name}"
        more = f" +{len(one.originals) - 1}" if len(one.originals) > 1 else ""
        intensity = "?" if one.intensity is None else f"{one.intensity:.1f}"
        shares = [_percent(one.compute_share), _percent(one.bandwidth_share)]
        cells = [_short(one.op, 14), f"{one.milliseconds:.3f}", intensity, *shares, one.bound or "?"]
        table.add(f"  {_short(name, _NAME - len(more))}{more}", *cells)
    yield table
    if any((one.compute_share or 0) > _EXCEEDED for one in found.kernels):
        yield "  kernels exceed the measured peak of products, which other processes disturbed;"
        yield "  after `graphopt cache clear peaks`, the peaks are measured again"
    far, unknown = found.far_share, found.unknown_share
    yield f"  {far:.0%} of the time is below 50 % of both peaks, {unknown:.0%} unknown"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"


def _short(text: str, width: int = _NAME) -> str:
    return text if len(text) <= width else f"…{text[1 - width :]}"
