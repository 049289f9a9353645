"""The memory of a run over time, by the shapes of its values and their live ranges.

Pure functions of an onnxruntime profile and the graph that onnxruntime ran.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

from graphopt import ir
from graphopt.timing.kernel_costs import ELEMENT_BYTES
from graphopt.timing.roofline import KERNEL_SUFFIX
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class MemoryStep:
    """The live values while one kernel runs.

    Attributes:
        kernel: the name of the node.
        milliseconds: the start of the kernel, from the start of the run.
        bytes: the size of all live values, including the inputs and outputs of the kernel, without weights
            and inputs of the model.
    """

    kernel: str
    milliseconds: float
    bytes: int


def memory_over_time(
    events: Sequence[Mapping[str, Any]], nodes: Mapping[str, ir.Node], returned: Collection[str]
) -> list[MemoryStep]:
    """The live bytes at each kernel of the last run, in the order in which the kernels end.

    A value is live from the end of the kernel that computes it to the end of the last one that reads it, and
    outputs of the model are live to the end. Values that share a buffer count separately, so that the result
    is an upper bound of the memory of activations. A value that is computed repeatedly, in a loop, has one
    live range for each computation. Outputs of kernels whose nodes are unknown are live in their own step.

    Args:
        events: events of onnxruntime's profile; times in microseconds.
        nodes: the nodes that onnxruntime ran, by name.
        returned: names of outputs of the model.
    """
    runs = [event for event in events if event.get("name") == "model_run"]
    if not runs:
        return []
    begin, end = runs[-1]["ts"], runs[-1]["ts"] + runs[-1]["dur"]
    steps = sorted(
        (event for event in events if _is_kernel(event) and begin <= event["ts"] <= end),
        key=lambda event: float(event["ts"] + event["dur"]),
    )
    changes = [0] * (len(steps) + 1)
    live: dict[str, tuple[int, int, int]] = {}  # first step, last step so far, bytes

    def close(first: int, last: int, size: int) -> None:
        changes[first] += size
        changes[last + 1] -= size

    names = [event["name"].removesuffix(KERNEL_SUFFIX) for event in steps]
    for step, (name, event) in enumerate(zip(names, steps, strict=True)):
        node = nodes.get(name)
        if node is not None:
            for value in ir.reads(node):
                if value.name in live:
                    first, _, size = live[value.name]
                    live[value.name] = first, step, size
        for output, size in _outputs(node, event):
            if output in live:
                close(*live[output])
            live[output or f"\0{step}"] = step, step, size
    for name, (first, last, size) in live.items():
        close(first, len(steps) - 1 if name in returned else last, size)
    sizes = accumulate(changes[:-1])
    return [
        MemoryStep(name, (event["ts"] - begin) / 1e3, size)
        for name, event, size in zip(names, steps, sizes, strict=True)
    ]


def _is_kernel(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "Node" and event["name"].endswith(KERNEL_SUFFIX)


def _outputs(node: ir.Node | None, event: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The names of the outputs of a kernel, and their bytes; one nameless sum if names are unknown."""
    sizes = [
        math.prod(dims) * ELEMENT_BYTES.get(kind, 1)
        for one in event["args"].get("output_type_shape", ())
        for kind, dims in one.items()
    ]
    names = [] if node is None else [value.name for value in node.outputs if value.name]
    if len(names) == len(sizes):
        return list(zip(names, sizes, strict=True))
    return [(names[0] if names else "", sum(sizes))] if sizes else []
