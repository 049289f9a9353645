"""Measurements as tables, lines and drawings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from graphopt.cli.views.latency_drawing import Bar, bars
from graphopt.timing.ratios import LEAST_PROCESSES
from graphopt.util.text_tables import Block, Table, counted

if TYPE_CHECKING:
    from graphopt.timing.alternating_runs import RaceLimits
    from graphopt.timing.bench import Bench, Result, Row
    from graphopt.timing.compare_speed import Timing
    from graphopt.timing.ratios import Band

_HOTTEST = 10
#: Upper end of the band of a model against itself, above which the machine was busy.
_BUSY = 1.1
#: Factor by which a repetition exceeds the rounds or the seconds of a measurement.
_LONGER = 2
#: The definitions of columns, whose figures may differ.
_RATIO = "of the fastest runs of each round, median of the processes; p50, p90 and p99: of all runs"


def blocks(result: Result, bench: Bench, *, hot: bool) -> Iterator[Block]:
    """One table, and remarks below it."""
    first, timing = result.rows[0].name, result.timing
    effort = f"{timing.rounds} interleaved rounds in {counted(timing.processes, 'process', 'processes')}"
    yield f"  {_where(bench)}, inputs {result.shapes}, {effort}"
    columns = ["", "p50 ms", "p90", "p99", "ratio", "", "nodes", "session s", "peak MB"]
    table = Table(columns, "<>>><<>>>")
    for row in result.rows:
        table.add(*_cells(row))
    yield table
    if len(result.rows) > 1:
        yield f"  ratio: to {first}, {_RATIO}"
    yield f"  {first} against itself: {_range(timing.band)}; differences within this band are noise"
    yield from (f"  {line}" for line in contradictions(result))
    for name, choice in bench.choices.items():
        yield f"  session options of {name}: {choice}"
    yield from (f"  {line}" for line in remarks(result))
    if hot:
        yield from _hot(result)


def remarks(result: Result) -> list[str]:
    """Failures, differences between outputs, and the devices of nodes unless all run on the CPU."""
    lines = [f"{row.name}: {row.failure}" for row in result.rows if row.failure]
    outcomes = {row.name: row.outcome for row in result.rows if row.outcome is not None}
    suffix = " (TF32 off)" if result.exact_products else ""
    wrong = {name: outcome.reason for name, outcome in outcomes.items() if outcome.reason}
    lines += [f"{name}: outputs differ: {reason}{suffix}" for name, reason in wrong.items()]
    if outcomes and not wrong:
        delta = max(outcome.delta for outcome in outcomes.values())
        lines.append(f"outputs agree: max |Δ| {delta:.1e}{suffix}" if delta else f"outputs are equal{suffix}")
    return lines + [line for row in result.rows if (line := _placement(row))]


def contradictions(result: Result) -> Iterator[str]:
    """The models whose latencies and ratios disagree about which model is faster, beyond the noise."""
    first, band = result.rows[0], result.timing.band
    for row in result.rows[1:]:
        if first.speed is None or row.speed is None or row.speed.comparison is None:
            continue
        latencies, ratio = row.speed.p50 / first.speed.p50, row.speed.comparison.ratio
        if latencies not in band and (latencies - 1) * (ratio - 1) <= 0:
            yield (
                f"{row.name}: p50 is {latencies:.2f} times that of {first.name}, unlike the ratio: the runs"
                " were disturbed (repeat on an idle machine, or with more --processes)"
            )


def next_steps(result: Result, limits: RaceLimits) -> Iterator[str]:
    """The next steps if the measurement permits no claim about speed."""
    compared = [row.speed.comparison for row in result.rows if row.speed is not None]
    found = {one.conclusion for one in compared if one is not None}
    timing, high = result.timing, result.timing.band.high
    if "too few processes" in found:
        needed = math.ceil(timing.seconds / timing.processes * LEAST_PROCESSES)
        options = [f"--processes {LEAST_PROCESSES}"] if limits.processes < LEAST_PROCESSES else []
        options += [f"--seconds {needed}"] if needed > limits.seconds else []
        yield f"a claim requires at least {LEAST_PROCESSES} processes: use {' '.join(options)}"
    if "no difference" in found and high > _BUSY:
        remedy = f"use {_longer(timing, limits)}an idle machine"
        yield f"other processes disturb runs by up to {high - 1:.0%}: {remedy}"


def _longer(timing: Timing, limits: RaceLimits) -> str:
    """The option that extends the measurement, followed by "or"; empty if it ended because it was precise."""
    if timing.seconds > limits.seconds:
        return f"--seconds {math.ceil(_LONGER * limits.seconds)}, or "
    if timing.rounds == limits.rounds * timing.processes:
        return f"--rounds {_LONGER * limits.rounds}, or "
    return ""


def drawing(results: Sequence[Result]) -> str:
    """All latencies as SVG."""
    groups = []
    for result in results:
        group = []
        for row in result.rows:
            if row.speed is None:
                continue
            compared, note = row.speed.comparison, ""
            if compared is not None:
                note = f"× {compared.ratio:.2f}, {compared.conclusion}"
            conclusion = None if compared is None else compared.conclusion
            group.append(Bar(row.name, row.speed.p50, row.speed.p90, note, conclusion))
        groups.append((result.shapes, group))
    return bars(groups)


def _where(bench: Bench) -> str:
    threads = "" if bench.threads is None else f" ({counted(bench.threads, 'thread')})"
    flags = "".join(f", {key}={value}" for key, value in bench.all_provider_options.items())
    return f"{bench.device}{threads}, onnxruntime {bench.version}{flags}"


def _cells(row: Row) -> list[str]:
    nodes = "–" if row.nodes is None else f"{row.nodes:,}"
    if row.speed is None or row.footprint is None:
        return [row.name, "–", "–", "–", "–", "failed", nodes, "–", "–"]
    times = [_milliseconds(value) for value in (row.speed.p50, row.speed.p90, row.speed.p99)]
    compared, ratio, conclusion = row.speed.comparison, "1.00", ""
    if compared is not None:
        ratio, conclusion = f"{compared.ratio:.2f}  ({_range(compared.spread)})", compared.conclusion
    cost = row.footprint
    digits = 2 if cost.session_seconds >= 0.0995 else 3
    session, peak = f"{cost.session_seconds:.{digits}f}", f"{cost.peak_bytes / 1e6:.0f}"
    return [row.name, *times, ratio, conclusion, nodes, session, peak]


def _range(band: Band) -> str:
    return f"{band.low:.2f} … {band.high:.2f}"


def _milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _placement(row: Row) -> str | None:
    if row.footprint is None:
        return None
    placement = row.footprint.placement
    if set(placement.nodes) <= {"CPU"}:
        return None
    where = ", ".join(f"{count} on {provider}" for provider, count in sorted(placement.nodes.items()))
    return f"{row.name}: nodes {where}; {placement.copies} Memcpy in each run"


def _hot(result: Result) -> Iterator[Block]:
    for row in result.rows:
        if row.footprint is None:
            continue
        yield f"  {row.name}: kernels of one run, under the profiler"
        table = Table(["  operator", "provider", "kernels", "ms", "share"], "<<>>>")
        for op in row.footprint.placement.hot[:_HOTTEST]:
            table.add(f"  {op.op}", op.provider, f"{op.nodes:g}", f"{op.milliseconds:.3f}", f"{op.share:.0%}")
        yield table
