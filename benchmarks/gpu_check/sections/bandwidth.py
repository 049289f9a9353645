"""The share of the bandwidth of a copy that the kernels of memory-bound patterns reach."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.gpu_check.device_copy import copier
from benchmarks.gpu_check.native import native_model, require_backend
from benchmarks.gpu_check.rows import Column, number, ratio, share
from benchmarks.gpu_check.running import BoundSession, Variant, alternate, milliseconds, speedup
from benchmarks.gpu_check.section import Bench, Measure, Outcome, Section
from benchmarks.kernel_models import PATTERNS
from graphopt.timing import ratios

#: Bytes of the main tensor, larger than the caches: of a GPU, and in a rehearsal.
_BYTES, _REHEARSED = 128 << 20, 4 << 20
#: Runs that are queued before waiting, so that the device never waits for the host.
_QUEUED = 16
_SECONDS, _BRIEFLY = 1.0, 0.1
ORIGINAL, KERNEL, COPY = "onnxruntime", "kernel", "copy"


def _items(bench: Bench) -> dict[str, Measure]:
    require_backend(bench.device)
    return {name: partial(_measure, bench, name) for name in PATTERNS}


def _measure(bench: Bench, name: str) -> Outcome:
    size, seconds, queued = _BYTES, _SECONDS, _QUEUED
    if bench.is_rehearsal:
        size, seconds, queued = _REHEARSED, _BRIEFLY, 1
    example = PATTERNS[name](size)
    kernels = native_model(example.model, bench)
    variants = {
        ORIGINAL: Variant(example.model.SerializeToString()),
        KERNEL: Variant(kernels.model, kernels.choice),
    }
    outputs = variants[ORIGINAL].session(bench.device).run(None, dict(example.feeds))
    moved = sum(array.nbytes for array in (*example.feeds.values(), *outputs))
    copy = copier(bench.device, size)
    runs: dict[str, Callable[[], object]] = {
        key: partial(BoundSession(variant, example.feeds, outputs, bench.device).run_queued, queued)
        for key, variant in variants.items()
    }
    runs[COPY] = lambda: copy(queued)
    times = alternate(runs, seconds)
    reached = [c / k * moved / (2 * size) for c, k in zip(times[COPY], times[KERNEL], strict=True)]
    figures = {
        **{f"ms {key}": milliseconds(times[key]) / queued for key in variants},
        "copy": 2 * size * queued / ratios.median(times[COPY]) / 1e9,
        "share": ratios.median(reached),
        "speedup": speedup(times, KERNEL, ORIGINAL),
    }
    return Outcome(figures)


SECTION = Section(
    "bandwidth",
    "Share of the bandwidth of a copy",
    60.0,
    (
        Column("ms onnxruntime", "onnxruntime (ms)", number(3)),
        Column("ms kernel", "kernel (ms)", number(3)),
        Column("speedup", "speedup", ratio),
        Column("copy", "copy (GB/s)", number(4)),
        Column("share", "of a copy", share),
    ),
    _items,
)
