"""The candidates for the nodes of native groups as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphopt.util.text_tables import Block, Line, Table, beginning, counted, shortened

if TYPE_CHECKING:
    from graphopt.tuning.kernel_candidates import KernelCandidates, RacedCalls
    from graphopt.tuning.race_kernels import RaceResult

#: Characters of the sizes of a group, number of reasons, and of nodes with a reason, shown without -v.
_SIZES, _REASONS, _NODES = 36, 6, 3
#: Number of races that a minute suffices for, approximately.
_RACES_PER_MINUTE = 20


def candidate_blocks(found: KernelCandidates, verbose: int) -> Iterator[Block]:
    """The races, the groups that were not raced, and the reasons for nodes without a group."""
    yield f"  raced for {found.where}"
    yield f"  inputs {'; '.join(found.inputs)}"
    if found.raced:
        yield _table(found.raced, verbose)
        yield _summary(found)
        yield from _unmeasured(found)
    else:
        yield "  no native groups were raced"
    yield from _reasons("not raced", found.excluded, verbose)
    yield from _reasons("no kernel for", found.ungrouped, verbose)


def _table(raced: tuple[RacedCalls, ...], verbose: int) -> Table:
    table = Table(
        ["group", "calls", "inputs", "onnxruntime (ms)", "kernel (ms)", "ratio", "band", "winner", "result"],
        "<><>>>><<",
    )
    for item in raced:
        subject, result = item.subject, item.result
        sizes = ", ".join(one.replace(",", "×") for one in subject.types)
        times = [f"{seconds * 1e3:.3g}" for seconds in result.seconds.values()] or ["–", "–"]
        ratio, band = "–", ""
        if (measurement := result.measurement) is not None and measurement.failure is None:
            ratio, band = (
                f"{measurement.ratio:.2f}",
                f"{measurement.band.low:.2f} … {measurement.band.high:.2f}",
            )
        shown = sizes if verbose else beginning(sizes, _SIZES)
        table.add(
            subject.group,
            len(subject.calls),
            shown,
            *times,
            ratio,
            band,
            result.winner or "–",
            _outcome(result),
        )
    return table


def _outcome(result: RaceResult) -> str:
    """The conclusion about the kernel, as a sentence that names it."""
    verb = {"slower": "the kernel is ", "faster": "the kernel is ", "seems": "the kernel "}
    return verb.get(result.reason.partition(" ")[0], "") + result.reason


def _summary(found: KernelCandidates) -> str:
    results = [item.result for item in found.raced]
    won = sum(result.winner == "kernel" for result in results)
    stored = sum(result.is_stored for result in results)
    measured = sum(result.measurement is not None for result in results)
    text = f"  {won} of {counted(measured, 'race')} won by kernels"
    return f"{text}; {stored} from the store (--fresh races again)" if stored else text


def _unmeasured(found: KernelCandidates) -> Iterator[Line]:
    """A sufficient budget, if the time did not suffice for some races."""
    late = sum(item.result.measurement is None for item in found.raced)
    if late:
        minutes = math.ceil(len(found.raced) / _RACES_PER_MINUTE) + 1
        groups = f"{counted(late, 'group')} {'was' if late == 1 else 'were'} not measured"
        yield Line(f"  ({groups}: --budget {minutes}m leaves time for that)", "hint")


def _reasons(head: str, reasons: dict[str, str], verbose: int) -> Iterator[str]:
    """The nodes by reason; the most frequent reasons first."""
    nodes: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        nodes.setdefault(reason, []).append(node)
    ordered = sorted(nodes.items(), key=lambda item: -len(item[1]))
    shown = ordered if verbose else ordered[:_REASONS]
    for reason, labels in shown:
        yield f"  {head} {shortened(labels, len(labels) if verbose else _NODES)}: {reason}"
    if len(shown) < len(ordered):
        yield f"  and {counted(len(ordered) - len(shown), 'reason')} more (-v lists all)"
