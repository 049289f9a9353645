"""Native kernels on the device against onnxruntime on the CPU, without fusion."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.gpu_check.native import native_model, require_backend
from benchmarks.gpu_check.rows import Column, error, number
from benchmarks.gpu_check.running import TOLERANCE, Feeds, Variant, complaint, on_cpu, on_device
from benchmarks.gpu_check.running import error as error_of
from benchmarks.gpu_check.section import Bench, Measure, Outcome, Section
from benchmarks.kernel_models import NETWORKS, PATTERNS, Example
from graphopt import publish
from graphopt.ort import session
from graphopt.ort.devices import Device

#: Bytes of the main tensor of a pattern.
_BYTES = 256 << 10
#: Patterns of integers and bytes have no rounding errors.
_EXACT = ("byte_chain", "int_chain", "long_chain")


def _items(bench: Bench) -> dict[str, Measure]:
    require_backend(bench.device)
    makers: dict[str, Callable[[], Example]] = {
        name: partial(make, _BYTES) for name, make in PATTERNS.items()
    }
    if not bench.is_rehearsal:
        makers |= NETWORKS
    return {name: partial(_measure, bench, name, make) for name, make in makers.items()}


def _measure(bench: Bench, name: str, make: Callable[[], Example]) -> Outcome:
    example, device = make(), bench.device
    tolerance = 0.0 if name in _EXACT else TOLERANCE
    native = native_model(example.model, bench)
    expected = on_cpu(example.model.SerializeToString(), example.feeds)
    variant = Variant(native.model, native.choice)
    wrong = error_of(expected, on_device(variant, example.feeds, expected, device))
    ran = operators_run(variant, example.feeds, device)
    missing = sorted(set(native.groups) - ran)
    figures = {"groups": len(native.groups), "error": wrong}
    names = f"ran as nodes: {', '.join(missing)}" if missing else ""
    return Outcome(figures, "; ".join(filter(None, (complaint(wrong, tolerance), names))))


def operators_run(variant: Variant, feeds: Feeds, device: Device) -> set[str]:
    """The names of the operators that the provider of ``device`` ran, from a profile of onnxruntime."""
    with publish.ScratchFolder() as folder:
        made = variant.session(device, profile=str(folder / "profile"))
        session.run(made, dict(feeds))
        events = json.loads(Path(made.end_profiling()).read_text(encoding="utf-8"))
    own = device.capabilities.provider
    ran = [event["args"] for event in events if event.get("cat") == "Node"]
    return {found["op_name"] for found in ran if found.get("provider") == own and "op_name" in found}


SECTION = Section(
    "kernels",
    "Native kernels, compared with onnxruntime on the CPU",
    70.0,
    (
        Column("groups", "kernels"),
        Column("error", "error", error),
        Column("seconds", "s", number(2)),
    ),
    _items,
)
