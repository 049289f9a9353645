"""An independent judge of whether a tool's result is equivalent to the original.

    python -m benchmarks.judge ORIGINAL RESULT --entry '{"inputs": …, "shape_sets": …}'

prints {"verdict": …, "max_diff": …}. It uses only onnxruntime, once with optimizations off in both sessions
and once with its defaults in both, since users run the latter and a correct graph may break under them. At
the defaults, a result may differ from the original's by as much as these optimizations change the original:
in quantized models a single rounding is a whole step.

Verdicts: `ok`, `wrong` (outputs differ), `signature` (names, types or dims changed), `refused` (onnxruntime
does not run the result), `original refused`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.inputs import Entry, make_feeds

# Tolerance for a changed order of evaluation, relative to the largest element of the output.
TOLERANCE = {"float64": 1e-8, "float32": 2e-4, "float16": 2e-2}


class Fault(Exception):
    """Raised to end a judgement with a verdict other than `ok` and its details."""

    def __init__(self, verdict: str, detail: str) -> None:
        super().__init__(detail)
        self.verdict, self.detail = verdict, detail


def judge(original: Path, result: Path, entry: Entry) -> dict[str, Any]:
    """Compare on every shape set of `entry`; `max_diff` is the largest absolute difference."""
    try:
        return {"verdict": "ok", "max_diff": _compare_models(original, result, entry)}
    except Fault as fault:
        return {"verdict": fault.verdict, "detail": fault.detail}


def _compare_models(original: Path, result: Path, entry: Entry) -> float:
    with _blame("original refused"):
        before = [_session(original, optimized) for optimized in (False, True)]
    with _blame("refused"):
        after = [_session(result, optimized) for optimized in (False, True)]
    if difference := signature_difference(before[0], after[0]):
        raise Fault("signature", difference)
    names = [value.name for value in before[0].get_outputs()]
    worst = 0.0
    for shape_set in range(len(entry["shape_sets"])):
        feeds = make_feeds(entry, shape_set)
        with _blame("original refused"):
            plain, optimized = (session.run(None, feeds) for session in before)
        with _blame("refused"):
            got_plain, got_optimized = (session.run(None, feeds) for session in after)
        for i, name in enumerate(names):
            noise = compare(plain[i], optimized[i])[1]
            for expected, got, allowed in (
                (plain[i], got_plain[i], 0.0),
                (optimized[i], got_optimized[i], noise if math.isfinite(noise) else 0.0),
            ):
                equal, diff = compare(expected, got)
                worst = max(worst, diff)
                if not equal and diff > allowed:
                    raise Fault("wrong", f"{name} by {diff:.3g} on shape set {shape_set}")
    return worst


@contextmanager
def _blame(verdict: str) -> Iterator[None]:
    """Converts any error of onnxruntime to the verdict that the model does not run."""
    try:
        yield
    except Exception as error:
        words = str(error).strip().splitlines()
        raise Fault(verdict, words[0][:300] if words else type(error).__name__) from error


def compare(a: Any, b: Any) -> tuple[bool, float]:
    """Whether two outputs agree, and their largest difference; infinite for different shapes or types."""
    if isinstance(a, list):
        if not isinstance(b, list) or len(a) != len(b):
            return False, math.inf
        results = [compare(x, y) for x, y in zip(a, b, strict=True)]
        return all(equal for equal, _ in results), max((diff for _, diff in results), default=0.0)
    if isinstance(a, dict):
        if not isinstance(b, dict) or list(a) != list(b):
            return False, math.inf
        return compare(np.array(list(a.values())), np.array(list(b.values())))
    if a is None or b is None:
        return a is b, 0.0 if a is b else math.inf
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False, math.inf
    if x.dtype.kind != "f":
        return (True, 0.0) if np.array_equal(x, y) else (False, math.inf)
    tolerance = TOLERANCE.get(x.dtype.name, 2e-2)
    x, y = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(x)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True) or not np.isfinite(y[finite]).all():
        return False, math.inf
    diff = float(np.abs(x[finite] - y[finite]).max(initial=0.0))
    scale = float(np.abs(x[finite]).max(initial=0.0))
    return diff <= tolerance * max(scale, 1e-3), diff


def signature_difference(before: Any, after: Any) -> str | None:
    """Changes of the signature: names, order, types, a changed static dim, or a fixed dynamic input dim."""
    for side, olds, news in (
        ("input", before.get_inputs(), after.get_inputs()),
        ("output", before.get_outputs(), after.get_outputs()),
    ):
        if [(v.name, v.type) for v in olds] != [(v.name, v.type) for v in news]:
            return (
                f"{side}s were {[v.name for v in olds]}, are {[v.name for v in news]}, or their types changed"
            )
        for old, new in zip(olds, news, strict=True):
            if len(old.shape or []) != len(new.shape or []):
                return f"{side} {old.name} has another rank"
            for a, b in zip(old.shape or [], new.shape or [], strict=True):
                frozen = side == "input" and not isinstance(a, int) and isinstance(b, int)
                if frozen or (isinstance(a, int) and a != b):
                    return f"{side} {old.name} was {old.shape}, is {new.shape}"
    return None


def _types(values: Any) -> str:
    return ", ".join(f"{v.name}: {v.type}" for v in values)


def _session(path: Path, optimized: bool) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> int:
    parser = argparse.ArgumentParser(description="judge a tool's result through onnxruntime")
    parser.add_argument("original", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--entry", type=json.loads, required=True, help="the manifest entry, as JSON")
    options = parser.parse_args()
    print(json.dumps(judge(options.original, options.result, options.entry)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
