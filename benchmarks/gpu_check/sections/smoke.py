"""A small network on the device: sessions of all kinds, errors, and placement."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from benchmarks.gpu_check.rows import Column, error, number
from benchmarks.gpu_check.running import (
    TOLERANCE,
    BoundSession,
    Variant,
    alternate,
    complaint,
    milliseconds,
    on_cpu,
)
from benchmarks.gpu_check.running import error as error_of
from benchmarks.gpu_check.section import Bench, Measure, NotApplicable, Outcome, Section
from benchmarks.kernel_models import Example, networks
from graphopt.ort import session

#: Tolerance with TF32: factors have 10 bits.
_TF32_TOLERANCE = 1e-2
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "TF32 off": {"use_tf32": "0"},
    "NHWC": {"prefer_nhwc": "1", "use_tf32": "0"},
    "CUDA graph": {"enable_cuda_graph": "1", "use_tf32": "0"},
}


def _items(bench: Bench) -> dict[str, Measure]:
    example = networks.cnn(size=56, widths=(64, 64))
    expected = cache(lambda: on_cpu(example.model.SerializeToString(), example.feeds))
    return {name: partial(_measure, bench, example, expected, name) for name in _OPTIONS}


def _measure(bench: Bench, example: Example, expected: Any, name: str) -> Outcome:
    options = _OPTIONS[name]
    if options and not bench.device.capabilities.tf32:
        raise NotApplicable(f"an option of the CUDA provider, not of the {bench.device}")
    variant = Variant(example.model.SerializeToString(), provider_options=options)
    # the option's own value of TF32 has precedence
    bound = BoundSession(variant, example.feeds, expected(), bench.device)
    times = alternate({name: bound}, 0.5)
    wrong = error_of(expected(), bound.outputs())
    figures = {"error": wrong, "ms": milliseconds(times[name])}
    if name == "default":
        figures |= placement(variant, bench)
    return Outcome(figures, complaint(wrong, TOLERANCE if "use_tf32" in options else _TF32_TOLERANCE))


def placement(variant: Variant, bench: Bench) -> dict[str, int]:
    """The number of nodes on the provider of the device, and on others."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    made = session.create(variant.model, device=bench.device, options=options)
    own = bench.device.capabilities.provider
    counts = {"own": 0, "others": 0}
    for part in made.get_provider_graph_assignment_info():
        counts["own" if part.ep_name == own else "others"] += len(part.get_nodes())
    return counts


SECTION = Section(
    "smoke",
    "A small network: sessions of all kinds",
    25.0,
    (
        Column("error", "error", error),
        Column("ms", "ms", number(3)),
        Column("own", "nodes on the device"),
        Column("others", "elsewhere"),
    ),
    _items,
)
