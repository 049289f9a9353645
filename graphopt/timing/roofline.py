"""The roofline of a run: time, operations and bytes of each kernel, and its share of the machine's peaks.

Pure functions of an onnxruntime profile, the graph that onnxruntime ran, and the peaks.
Source: Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from graphopt import ir
from graphopt.analysis.cost import NodeCost, cost_of, has_formula
from graphopt.timing import ratios

#: Share of a peak below which a kernel is far from it.
FAR = 0.5
#: Operators whose time includes the kernels of their bodies.
_CONTROL_FLOW = ("If", "Loop", "Scan")
#: Bytes per element, by the name of the type in a profile.
_BYTES = {
    "float": 4, "double": 8, "float16": 2, "bfloat16": 2, "int64": 8, "uint64": 8, "int32": 4, "uint32": 4,
    "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Peaks:
    """The measured peaks of a machine.

    Attributes:
        flops: operations per second by element type; a multiply-add is two.
        bandwidth: bytes read and written per second by a copy in memory.
    """

    flops: Mapping[str, float]
    bandwidth: float


@dataclass(frozen=True)
class KernelTime:
    """One kernel in one run (median over several runs).

    Attributes:
        name: name of the node that onnxruntime ran.
        originals: nodes of the original model that it computes; empty if they are unknown.
        milliseconds: time in one run, of all executions.
        executions: number of executions in one run, more than one in a loop.
        flops: operations in one run; ``None`` if unknown.
        bytes: size of inputs and outputs in one run; ``None`` if unknown.
        compute_share: share of the peak of multiply-adds; ``None`` if unknown.
        bandwidth_share: share of the bandwidth of a copy, above 1 for data in caches; ``None`` if unknown.
    """

    name: str
    op: str
    originals: tuple[str, ...]
    milliseconds: float
    executions: int
    flops: int | None
    bytes: int | None
    compute_share: float | None
    bandwidth_share: float | None

    @property
    def intensity(self) -> float | None:
        """Operations per byte; ``None`` if unknown."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def bound(self) -> str | None:
        """The nearer peak, ``compute`` or ``memory``; ``None`` if one of the shares is unknown."""
        if self.compute_share is None or self.bandwidth_share is None:
            return None
        return "compute" if self.compute_share > self.bandwidth_share else "memory"

    @property
    def is_far(self) -> bool | None:
        """Whether it is far from both peaks; ``None`` if one of the shares is unknown."""
        if self.compute_share is None or self.bandwidth_share is None:
            return None
        return max(self.compute_share, self.bandwidth_share) < FAR

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "intensity": self.intensity, "bound": self.bound, "far": self.is_far}


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

    def share(self, kernels: Iterable[KernelTime]) -> float:
        """The share of ``kernels`` in the time of all kernels."""
        return sum(kernel.milliseconds for kernel in kernels) / (self.milliseconds or 1.0)

    @property
    def far_share(self) -> float:
        """Share of the time in kernels that are far from both peaks."""
        return self.share(kernel for kernel in self.kernels if kernel.is_far)

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
            "peaks": {"flops": dict(self.peaks.flops), "bandwidth": self.peaks.bandwidth},
            "milliseconds": self.milliseconds,
            "far_share": self.far_share,
            "unknown_share": self.unknown_share,
            "operators": {
                op: {"kernels": len(kernels), "share": self.share(kernels)}
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
) -> Roofline:
    """The roofline of the runs in ``events``, without the first run.

    Args:
        model: name of the model.
        events: events of onnxruntime's profile; times in microseconds.
        nodes: the nodes that onnxruntime ran, by name; nodes of ambiguous names are missing.
        originals: original nodes by the name of such a node.
        peaks: peaks of the machine.
    """
    kernels = [
        event
        for event in events
        if event.get("cat") == "Node"
        and event["name"].endswith("_kernel_time")
        and event["args"].get("op_name") not in _CONTROL_FLOW
    ]
    runs = [event for event in events if event.get("name") == "model_run"]
    by_run: list[dict[tuple[str, str], list[Mapping[str, Any]]]] = []
    for run in runs[1:] or runs:
        found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for event in kernels:
            if run["ts"] <= event["ts"] <= run["ts"] + run["dur"]:
                key = event["name"].removesuffix("_kernel_time"), event["args"].get("op_name", "")
                found.setdefault(key, []).append(event)
        by_run.append(found)
    result = []
    for (name, op), last in (by_run[-1] if by_run else {}).items():
        times = [sum(event["dur"] for event in found.get((name, op), ())) for found in by_run]
        seconds = ratios.median(times) / 1e6
        flops, size, types = _sum([_cost(nodes.get(name), event) for event in last])
        result.append(
            KernelTime(
                name,
                op,
                originals.get(name, ()),
                seconds * 1e3,
                len(last),
                flops,
                size,
                _ratio(flops, seconds, peaks.flops.get(types)),
                _ratio(size, seconds, peaks.bandwidth),
            )
        )
    return Roofline(model, peaks, tuple(sorted(result, key=lambda kernel: -kernel.milliseconds)))


def _ratio(amount: int | None, seconds: float, peak: float | None) -> float | None:
    if amount == 0:
        return 0.0
    return None if amount is None or not peak or not seconds else amount / seconds / peak


def _sum(costs: Sequence[tuple[int | None, int | None, str]]) -> tuple[int | None, int | None, str]:
    """The sum of the costs of all executions, and the element type of the first."""
    flops, sizes = [cost[0] for cost in costs], [cost[1] for cost in costs]
    known = None if None in flops else sum(filter(None, flops))
    return known, None if None in sizes else sum(filter(None, sizes)), costs[0][2]


def _cost(node: ir.Node | None, event: Mapping[str, Any]) -> tuple[int | None, int | None, str]:
    """Operations, bytes and element type of one execution, by the shapes of the run."""
    inputs, outputs = (
        [next(iter(one.items())) for one in event["args"].get(key, ()) if one]
        for key in ("input_type_shape", "output_type_shape")
    )
    if node is not None:
        inputs = _with_packed_constants(node, inputs)
    known = all(kind in _BYTES for kind, _ in [*inputs, *outputs])
    size = sum(math.prod(dims) * _BYTES[kind] for kind, dims in [*inputs, *outputs]) if known else None
    kind = next((kind for kind, _ in [*inputs, *outputs]), "")
    kind = "int8" if kind == "uint8" else kind
    if node is None or not has_formula(node):
        return None, size, kind
    facts = _RunFacts(node, inputs, outputs)
    cost: NodeCost | None = cost_of(node, facts) if facts.is_complete else None
    return None if cost is None or not isinstance(cost.flops, int) else cost.flops, size, kind


def _with_packed_constants(
    node: ir.Node, inputs: Sequence[tuple[str, list[int]]]
) -> list[tuple[str, list[int]]]:
    """``inputs`` with the constants that onnxruntime packed at creation, which the profile lacks.

    Constants have their shapes in the graph; the remaining inputs have them in the profile, in order.
    """
    named = [value for value in node.inputs if value is not None and value.name]
    if len(named) == len(inputs):
        return list(inputs)
    rest, found = list(inputs), []
    for value in named:
        constant = ir.constant_of(value)
        if constant is not None:
            own = constant.dtype.name.lower(), list(constant.shape.numpy())
            if rest and rest[0] == own:
                del rest[0]
            found.append(own)
        elif rest:
            found.append(rest.pop(0))
    return found if not rest and len(found) == len(named) else list(inputs)


class _RunFacts:
    """Shapes of the values of one node in one run."""

    def __init__(
        self, node: ir.Node, inputs: Sequence[tuple[str, list[int]]], outputs: Sequence[tuple[str, list[int]]]
    ) -> None:
        self._found: dict[ir.Value, tuple[str, list[int]]] = {}
        self.is_complete = True
        for values, shapes in ((node.inputs, inputs), (node.outputs, outputs)):
            named = [value for value in values if value is not None and value.name]
            # absent outputs and inputs may be missing in the profile: then positions are unknown
            self.is_complete &= len(named) == len(shapes)
            self._found |= dict(zip(named, shapes, strict=False))

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        found = self._found.get(value)
        return None if found is None else tuple(found[1])

    def nbytes(self, value: ir.Value) -> int | None:
        found = self._found.get(value)
        return None if found is None else math.prod(found[1]) * _BYTES.get(found[0], 1)
