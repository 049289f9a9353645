"""Run time: latencies, kernels by scope and operator, memory over time, and the roofline."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt.page.block_html import html_of_blocks
from graphopt.page.run_time import RunTime
from graphopt.page.run_time_data import run_time_data
from graphopt.page.section import PageSource, Section
from graphopt.timing.roofline import Roofline
from graphopt.util.text_tables import Block, Line, Table, counted

#: Number of operators in the table of each model.
_OPERATORS = 12


def build(source: PageSource) -> Section | None:
    """The section; ``None`` if nothing was measured."""
    if source.run_time is None:
        return None
    data = run_time_data(source.run_time, source.graphs)
    return Section("run-time", "Run time", 40, html_of_blocks(_blocks(source)), data)


def _blocks(source: PageSource) -> Iterator[Block]:
    assert source.run_time is not None
    yield from _measured(source.run_time)
    if source.command and not source.models:  # the summary, which shows the command, is about models
        yield Line("Command", "title")
        yield source.command


def _measured(found: RunTime) -> Iterator[Block]:
    timing, band = found.result.timing, found.result.timing.band
    threads = "onnxruntime's threads" if found.threads is None else counted(found.threads, "thread")
    yield f"onnxruntime {found.version} on {found.device}, {threads}, inputs {found.result.shapes}"
    table = Table(["model", "p50", "p90", "p99", "of the original", "", "kernels"], "<>>>><>")
    for row in found.result.rows:
        if row.speed is None:
            table.add(row.name, "", "", "", "", row.failure or "", "")
            continue
        speed, runs = row.speed, found.runs.get(row.name)
        ratio, conclusion = "", ""
        if speed.comparison is not None:
            around = speed.comparison.spread
            ratio = f"{speed.comparison.ratio:.3f} ({around.low:.3f} to {around.high:.3f})"
            conclusion = speed.comparison.conclusion
        kernels = "" if runs is None else f"{len(runs.roofline.kernels):,}"
        times = (f"{value:.3f} ms" for value in (speed.p50, speed.p90, speed.p99))
        table.add(row.name, *times, ratio, conclusion, kernels)
    yield table
    yield (
        f"The original compared with itself: {band.low:.3f} to {band.high:.3f}, by"
        f" {counted(timing.processes, 'process', 'processes')}; ratios inside this band are noise."
    )
    for name, runs in found.runs.items():
        yield Line(f"{name}: time by operator", "title")
        yield _operators(runs.roofline)
        yield from _islands(found, name)


def _operators(roofline: Roofline) -> Table:
    """The time of each operator, the largest first; the others share a row."""
    table = Table(["operator", "kernels", "time", "share"], "<>>>")
    groups = list(roofline.by_operator().items())
    rest = [one for _, kernels in groups[_OPERATORS:] for one in kernels]
    if rest:
        groups = [*groups[:_OPERATORS], (f"{len(groups) - _OPERATORS} others", rest)]
    for op, kernels in groups:
        total = sum(one.milliseconds for one in kernels)
        table.add(op, f"{len(kernels):,}", f"{total:.3f} ms", f"{roofline.share(kernels):.1%}")
    return table


def _islands(found: RunTime, name: str) -> Iterator[Block]:
    """The time of copies, and of kernels on the CPU in a session on another device."""
    runs = found.runs[name]
    if found.device.capabilities.is_host:
        return
    copies = [one for one in runs.roofline.kernels if one.op.startswith("Memcpy")]
    outside = [
        one
        for one in runs.roofline.kernels
        if one not in copies and runs.providers[one.name] == "CPUExecutionProvider"
    ]
    for label, kernels in (("copies between devices", copies), ("kernels on the CPU", outside)):
        total = sum(one.milliseconds for one in kernels)
        yield f"{label}: {len(kernels):,}, {total:.3f} ms, {runs.roofline.share(kernels):.1%} of the time"
