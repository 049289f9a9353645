"""Time the steps of split models alternately, in the fresh processes of benchmarks.split."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.split_joint import Split
from graphopt.errors import RuntimeFailure
from graphopt.ort import session

Feeds = dict[str, np.ndarray]


class Step:
    """Runs both models of a split, in sessions of their own."""

    def __init__(self, forward: bytes, backward: bytes, feeds: Feeds, threads: int) -> None:
        import onnxruntime

        self._forward, self._backward = (
            session.create(data, threads=threads) for data in (forward, backward)
        )
        self._feeds = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()}
        self._outputs = [item.name for item in self._forward.get_outputs()]
        self._inputs = [item.name for item in self._backward.get_inputs()]
        self._gradients = [item.name for item in self._backward.get_outputs()]

    def run(self) -> dict[str, Any]:
        """Outputs and gradients by name."""
        found = self._forward.run_with_ort_values(self._outputs, self._feeds)
        known = {**self._feeds, **dict(zip(self._outputs, found, strict=True))}
        taken = {name: known[name] for name in self._inputs}
        gradients = self._backward.run_with_ort_values(self._gradients, taken)
        return {
            **dict(zip(self._outputs, found, strict=True)),
            **dict(zip(self._gradients, gradients, strict=True)),
        }


def race(
    splits: dict[str, tuple[bytes, bytes]], feeds: Feeds, rounds: int, threads: int, turn: int
) -> dict[str, list[float]]:
    """Seconds of steps by split, one per round; ``turn`` selects the first."""
    names = list(splits)
    names = names[turn % len(names) :] + names[: turn % len(names)]
    steps = {name: Step(*splits[name], feeds, threads) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for index in range(-2, rounds):
        for name in names if index % 2 else reversed(names):
            begin = time.perf_counter()
            steps[name].run()
            if index >= 0:
                times[name].append(time.perf_counter() - begin)
    return times


#: Tolerance of a split's results, relative to the largest element, and a lower bound of that element:
#: onnxruntime keeps float16 values in float32 between nodes, but not between models.
_ROUNDING = {"float16": (1e-2, 1.0), "float32": (1e-4, 1e-3), "float64": (1e-10, 1e-3)}


def difference(found: Split, feeds: Mapping[str, Any]) -> tuple[str, str]:
    """Compare a split with its joint graph: ``equal``, ``rounding``, ``different`` or ``broken``; a reason.

    Bits are compared without onnxruntime's optimizations, which may fuse the two models differently.
    """
    verdict = "equal"
    for level in ("off", "default"):
        try:
            expected = run_model(found.joint.model, feeds, level)
        except RuntimeFailure as error:
            return "unfit", error.message
        try:
            forward = run_model(found.forward, feeds, level)
            known = {**feeds, **forward}
            takes = [value.name for value in found.backward.graph.inputs if value.name in known]
            actual = {**forward, **run_model(found.backward, {name: known[name] for name in takes}, level)}
        except RuntimeFailure as error:
            return "broken", error.message
        for name, value in expected.items():
            reason = _differs(value, actual[name])
            if reason == "rounding" and level == "off":
                verdict = "rounding"
            elif reason not in ("", "rounding"):
                return "different", f"{name}: {reason} ({level})"
    return verdict, ""


def same_results(expected: Mapping[str, Any], run: Callable[[], Mapping[str, Any]]) -> tuple[str, str]:
    """Compare ``expected`` with the results of ``run``; see :func:`difference`."""
    try:
        actual = run()
    except RuntimeFailure as error:
        return "broken", error.message
    verdict = "equal"
    for name, value in expected.items():
        reason = _differs(value, actual[name])
        if reason == "rounding":
            verdict = "rounding"
        elif reason:
            return "different", f"{name}: {reason}"
    return verdict, ""


def run_model(model: ir.Model, feeds: Mapping[str, Any], level: Any) -> dict[str, Any]:
    """The outputs of ``model``, at a level of onnxruntime's optimizations."""
    running = session.create(ir.to_bytes(model), optimizations=level, threads=1)
    names = [value.name or "" for value in model.graph.outputs]
    own = {value.name for value in model.graph.inputs}
    fed = {name: value for name, value in feeds.items() if name in own}
    return dict(zip(names, session.run(running, fed, names), strict=True))


def _differs(a: Any, b: Any) -> str:
    """The first difference between two results, or ``rounding``, or nothing."""
    if isinstance(a, list):
        parts = [_differs(x, y) for x, y in zip(a, b, strict=True)]
        return next((part for part in parts if part not in ("", "rounding")), max(parts, default=""))
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{b.dtype}{list(b.shape)} for {a.dtype}{list(a.shape)}"
    if a.tobytes() == b.tobytes() or a.dtype.kind not in "fc":
        return "" if np.array_equal(a, b) or a.tobytes() == b.tobytes() else "other numbers"
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "not finite in other places"
    off = np.abs(a[finite].astype(float) - b[finite]).max(initial=0)
    allowed, least = _ROUNDING[a.dtype.name]
    scale = max(np.abs(a[finite]).max(initial=0), least)
    return "rounding" if off <= allowed * scale else f"off by {off / scale:.1e}"
