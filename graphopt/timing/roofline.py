"""The roofline of a run: time, operations and bytes of each kernel, and its share of the machine's peaks.

Pure functions of an onnxruntime profile, the graph that onnxruntime ran, and the peaks.
Source: Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from graphopt import ir
from graphopt.timing import ratios
from graphopt.timing.kernel_costs import KernelCost
from graphopt.timing.machine_peaks import Peaks
from graphopt.util.lazy_dataclass import dataclass

#: Share of a peak below which a kernel is far from it.
FAR = 0.5
#: Operators whose time includes the kernels of their bodies.
_CONTROL_FLOW = ("If", "Loop", "Scan")
#: Suffix of the names of events of kernels.
KERNEL_SUFFIX = "_kernel_time"
#: Share of a peak above which its measurement was disturbed.
_EXCEEDED = 1.1


@dataclass(frozen=True)
class KernelTime:
    """One kernel in one run: like a peak, the fastest of several runs.

    Attributes:
        name: name of the node that onnxruntime ran.
        originals: nodes of the original model that it computes; empty if they are unknown.
        milliseconds: time in one run, of all executions; the fastest run.
        typical_milliseconds: the median over runs, which other processes disturb.
        executions: number of executions in one run, more than one in a loop.
        type: element type of its first input.
        flops: operations in one run; ``None`` if unknown.
        bytes: size of inputs and outputs in one run; ``None`` if unknown.
        compute_milliseconds: time of the operations at the peak of multiply-adds; ``None`` if unknown.
        memory_milliseconds: time of the bytes at the bandwidth of a copy; ``None`` if unknown.
    """

    name: str
    op: str
    originals: tuple[str, ...]
    milliseconds: float
    typical_milliseconds: float
    executions: int
    type: str
    flops: int | None
    bytes: int | None
    compute_milliseconds: float | None
    memory_milliseconds: float | None

    @property
    def intensity(self) -> float | None:
        """Operations per byte; ``None`` if unknown."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def compute_share(self) -> float | None:
        """Share of the peak of multiply-adds; ``None`` if unknown."""
        return self._share(self.compute_milliseconds)

    @property
    def bandwidth_share(self) -> float | None:
        """Share of the bandwidth of a copy, above 1 for data in caches; ``None`` if unknown."""
        return self._share(self.memory_milliseconds)

    def _share(self, least: float | None) -> float | None:
        return None if least is None else least / self.milliseconds if self.milliseconds else 0.0

    @property
    def roof_milliseconds(self) -> float | None:
        """The least time by both peaks; ``None`` if one is unknown."""
        if self.compute_milliseconds is None or self.memory_milliseconds is None:
            return None
        return max(self.compute_milliseconds, self.memory_milliseconds)

    @property
    def lost_milliseconds(self) -> float | None:
        """The time beyond the least time by both peaks; ``None`` if one is unknown."""
        return (
            None if self.roof_milliseconds is None else max(0.0, self.milliseconds - self.roof_milliseconds)
        )

    @property
    def bound(self) -> str | None:
        """The peak that limits it, ``compute`` or ``memory``; ``None`` if one is unknown."""
        if self.compute_milliseconds is None or self.memory_milliseconds is None:
            return None
        return "compute" if self.compute_milliseconds > self.memory_milliseconds else "memory"

    @property
    def is_far(self) -> bool | None:
        """Whether it is far from both peaks; ``None`` if one of the shares is unknown."""
        if self.compute_share is None or self.bandwidth_share is None:
            return None
        return max(self.compute_share, self.bandwidth_share) < FAR

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "intensity": self.intensity,
            "compute_share": self.compute_share,
            "bandwidth_share": self.bandwidth_share,
            "roof_milliseconds": self.roof_milliseconds,
            "lost_milliseconds": self.lost_milliseconds,
            "bound": self.bound,
            "far": self.is_far,
        }


@dataclass(frozen=True)
class Roofline:
    """The kernels of one model, the slowest first, without If, Loop and Scan themselves."""

    model: str
    peaks: Peaks
    kernels: tuple[KernelTime, ...]

    @property
    def milliseconds(self) -> float:
        """Time of all kernels in one run."""
        return sum(kernel.milliseconds for kernel in self.kernels)

    @property
    def typical_milliseconds(self) -> float:
        """The sum of the medians over runs."""
        return sum(kernel.typical_milliseconds for kernel in self.kernels)

    def share(self, kernels: Iterable[KernelTime]) -> float:
        """The share of ``kernels`` in the time of all kernels."""
        return sum(kernel.milliseconds for kernel in kernels) / (self.milliseconds or 1.0)

    @property
    def lost_milliseconds(self) -> float:
        """The time beyond the least time by both peaks, of kernels whose least time is known."""
        return sum(kernel.lost_milliseconds or 0.0 for kernel in self.kernels)

    @property
    def far(self) -> list[KernelTime]:
        """The kernels that are far from both peaks, those with the most lost time first."""
        found = [kernel for kernel in self.kernels if kernel.is_far]
        return sorted(found, key=lambda kernel: -(kernel.lost_milliseconds or 0.0))

    @property
    def exceeds_peaks(self) -> bool:
        """Whether a kernel is faster than the measured peak of products, so that the peak is too low."""
        return any((kernel.compute_share or 0.0) > _EXCEEDED for kernel in self.kernels)

    @property
    def far_share(self) -> float:
        """Share of the time in kernels that are far from both peaks."""
        return self.share(self.far)

    @property
    def unknown_share(self) -> float:
        """Share of the time in kernels whose share of a peak is unknown."""
        return self.share(kernel for kernel in self.kernels if kernel.is_far is None)

    def by_operator(self) -> dict[str, list[KernelTime]]:
        """The kernels of each operator, the operator with the most time first."""
        found: dict[str, list[KernelTime]] = {}
        for kernel in self.kernels:
            found.setdefault(kernel.op, []).append(kernel)
        return dict(sorted(found.items(), key=lambda item: -sum(one.milliseconds for one in item[1])))

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "peaks": self.peaks.to_dict(),
            "milliseconds": self.milliseconds,
            "typical_milliseconds": self.typical_milliseconds,
            "lost_milliseconds": self.lost_milliseconds,
            "far_share": self.far_share,
            "unknown_share": self.unknown_share,
            "operators": {
                op: {
                    "kernels": len(kernels),
                    "share": self.share(kernels),
                    "lost_milliseconds": sum(one.lost_milliseconds or 0.0 for one in kernels),
                }
                for op, kernels in self.by_operator().items()
            },
            "kernels": [kernel.to_dict() for kernel in self.kernels],
        }


def roofline(
    model: str,
    events: Sequence[Mapping[str, Any]],
    nodes: Mapping[str, ir.Node],
    originals: Mapping[str, tuple[str, ...]],
    peaks: Peaks,
    groups: Mapping[str, ir.Function] | None = None,
) -> Roofline:
    """The roofline of the runs in ``events``, without the first run.

    Args:
        model: name of the model.
        events: events of onnxruntime's profile; times in microseconds.
        nodes: the nodes that onnxruntime ran, by name; nodes of ambiguous names are missing.
        originals: original nodes by the name of such a node.
        peaks: peaks of the machine.
        groups: functions that run as one kernel, by name.
    """
    by_run = _kernels_by_run(events)
    result = []
    for (name, op), last in (by_run[-1] if by_run else {}).items():
        times = [sum(event["dur"] for event in found[name, op]) for found in by_run if (name, op) in found]
        cost = KernelCost.sum_of([KernelCost.of(nodes.get(name), event, groups or {}) for event in last])
        result.append(
            KernelTime(
                name,
                op,
                originals.get(name, ()),
                min(times) / 1e3,
                ratios.median(times) / 1e3,
                len(last),
                cost.type,
                cost.flops,
                cost.bytes,
                _milliseconds(cost.flops, peaks.of_type(cost.type)),
                _milliseconds(cost.bytes, peaks.bandwidth.rate),
            )
        )
    return Roofline(model, peaks, tuple(sorted(result, key=lambda kernel: -kernel.milliseconds)))


def kernel_events(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The events of kernels, without those of If, Loop and Scan themselves."""
    return [
        event
        for event in events
        if event.get("cat") == "Node"
        and event["name"].endswith(KERNEL_SUFFIX)
        and event["args"].get("op_name") not in _CONTROL_FLOW
    ]


def kernel_name(event: Mapping[str, Any]) -> tuple[str, str]:
    """The name and the operator of the node whose kernel ``event`` is about."""
    return event["name"].removesuffix(KERNEL_SUFFIX), event["args"].get("op_name", "")


def _kernels_by_run(
    events: Sequence[Mapping[str, Any]],
) -> list[dict[tuple[str, str], list[Mapping[str, Any]]]]:
    """The events of each kernel, by name and operator, in each run but the first."""
    kernels = kernel_events(events)
    runs = [event for event in events if event.get("name") == "model_run"]
    by_run: list[dict[tuple[str, str], list[Mapping[str, Any]]]] = []
    for run in runs[1:] or runs:
        found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for event in kernels:
            if run["ts"] <= event["ts"] <= run["ts"] + run["dur"]:
                found.setdefault(kernel_name(event), []).append(event)
        by_run.append(found)
    return by_run


def _milliseconds(amount: int | None, rate: float | None) -> float | None:
    """The time for ``amount`` at ``rate`` per second."""
    if amount == 0:
        return 0.0
    return None if amount is None or not rate else amount / rate * 1e3
