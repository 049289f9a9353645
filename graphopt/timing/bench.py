"""Measurements of models that compute the same: time, memory, placement, results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.errors import (
    ResourceLimit,
    RuntimeFailure,
    SystemExhausted,
    UsageError,
    VerificationFailed,
)
from graphopt.inputs import run_once
from graphopt.inputs.feeds import InputOptions
from graphopt.numerics import Numerics
from graphopt.ort.devices import Device
from graphopt.ort.session_options import SessionChoice, recommended
from graphopt.ort.target import Target
from graphopt.timing.alternating_runs import RaceLimits, Setup, output_shapes
from graphopt.timing.compare_speed import Speed, Timing, compare_speed
from graphopt.timing.footprint import Footprint, footprint
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.numeric_traits import coarsest_of
from graphopt.verification.output_comparison import Outcome, compare
from graphopt.verification.tolerances import Tolerance

#: Number of processes that measure session creation and memory of each model.
_MOST = 3

Advance = Callable[[float | None, str], None]


@dataclass(frozen=True)
class Contestant:
    """A model to be measured.

    Attributes:
        name: name in reports.
        model: the loaded model, for its signature; ``None`` if only onnxruntime can read it.
        nodes: number of nodes of its graph and bodies, without Constant.
        failure: reason if there is no model.
        choice: session options that it needs.
    """

    name: str
    path: Path
    model: ir.Model | None = None
    nodes: int | None = None
    failure: str | None = None
    choice: SessionChoice = field(default_factory=SessionChoice)

    @classmethod
    def of(
        cls, name: str, path: Path, model: ir.Model | None, choice: SessionChoice | None = None
    ) -> Contestant:
        """A contestant with its nodes counted."""
        nodes = None if model is None else ir.count_nodes(model.graph)
        return cls(name, path, model, nodes, choice=choice or SessionChoice())


@dataclass(frozen=True)
class Row:
    """One model's figures; only ``failure`` if it failed.

    Attributes:
        outcome: comparison of its outputs with the original's; ``None`` for the original.
    """

    name: str
    nodes: int | None = None
    speed: Speed | None = None
    footprint: Footprint | None = None
    outcome: Outcome | None = None
    failure: str | None = None

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "nodes": self.nodes}
        if self.failure is not None or self.speed is None or self.footprint is None:
            return {**found, "error": self.failure}
        speed = asdict(self.speed)
        comparison = speed.pop("comparison") or {}
        found["milliseconds"] = {key: speed[key] for key in ("p50", "p90", "p99")}
        found |= {"runs": speed["runs"], "ratios": list(speed["ratios"])}
        if comparison:
            found |= {"ratio": comparison["ratio"], "conclusion": comparison["conclusion"]}
            found["spread"] = [comparison["spread"]["low"], comparison["spread"]["high"]]
        found |= {"session_seconds": self.footprint.session_seconds, "peak_bytes": self.footprint.peak_bytes}
        found["placement"] = asdict(self.footprint.placement)
        if self.outcome is not None:
            delta = self.outcome.delta if np.isfinite(self.outcome.delta) else None
            found["difference"] = {"max": delta, "reason": self.outcome.reason}
        return found


@dataclass(frozen=True)
class Result:
    """Models measured on the same inputs, the original first.

    Attributes:
        shapes: the inputs' shapes, as text.
        exact_products: whether outputs were compared with TF32 off, although TF32 was on for the times.
    """

    shapes: str
    rows: list[Row]
    timing: Timing
    exact_products: bool

    def to_dict(self) -> dict[str, Any]:
        timing = self.timing
        return {
            "inputs": self.shapes,
            "processes": timing.processes,
            "rounds": timing.rounds,
            "seconds": timing.seconds,
            "band": [timing.band.low, timing.band.high],
            "twin": list(timing.twin),
            "models": [row.to_dict() for row in self.rows],
        }


@dataclass(frozen=True)
class SharedBuffers:
    """Timed runs that write outputs over inputs; later runs read the outputs of earlier runs.

    Attributes:
        sources: by name of an output, the input that the output overwrites.
        run_once: checks and runs a model in this way; arguments are the model, its inputs, and ``choice``,
            the session options.
    """

    sources: Mapping[str, str]
    run_once: Callable[..., object]


@dataclass(frozen=True)
class Bench:
    """Measures models; the first one is the original.

    Args:
        device: the device; its sessions are timed with onnxruntime's default for TF32
            (:attr:`graphopt.ort.devices.Device.timed`).
        threads: threads inside one operator; by default onnxruntime's choice.
        provider_options: additional options of the provider, for timed sessions only.
        heeds_choices: use the session options that a model recommends.
        shared: outputs written over inputs, if any.
        check: checks the inputs of each model before its runs, if requested; raises UsageError.
    """

    contestants: Sequence[Contestant]
    device: Device
    threads: int | None = None
    provider_options: Mapping[str, str] = field(default_factory=dict)
    limits: RaceLimits = field(default_factory=RaceLimits)
    heeds_choices: bool = True
    shared: SharedBuffers | None = None
    check: Callable[[ir.Model, Mapping[str, Any]], None] | None = None

    @property
    def choices(self) -> dict[str, SessionChoice]:
        """The session options by model name: required options, and recommended ones if enabled."""
        found = {one.name: one.choice for one in self.contestants}
        for one in self.contestants:
            if self.heeds_choices and one.model is not None:
                found[one.name] = recommended(one.model, self.device) | one.choice
        return {name: choice for name, choice in found.items() if not choice.plain}

    @property
    def all_provider_options(self) -> dict[str, str]:
        """The options of the provider in timed sessions; empty for the CPU."""
        return self.device.timed.provider_options(self.provider_options)

    @property
    def version(self) -> str:
        """onnxruntime's version."""
        return Target(self.device).version

    def facts(self) -> dict[str, Any]:
        """The settings common to all tables, for JSON."""
        return {
            "device": str(self.device),
            "threads": self.threads,
            "onnxruntime": self.version,
            "provider_options": self.all_provider_options,
            **({} if self.shared is None else {"shared_buffers": dict(self.shared.sources)}),
            "session_options": {name: choice.to_dict() for name, choice in self.choices.items()},
        }

    def run(self, inputs: InputOptions, advance: Advance = lambda done, text: None) -> Result:
        """Measure all models on inputs that suit the original.

        Raises:
            UsageError: the inputs do not fit the original.
            RuntimeFailure: the original does not run.
        """
        original = self.contestants[0]
        assert original.model is not None, "the original is loaded"
        advance(None, "looking for inputs")
        check = None if self.check is None else partial(self.check, original.model)
        exact = self.device.exact
        trial = run_once.try_out(original.model, inputs, device=exact, typical=True, check=check)
        shapes = output_shapes(list(trial.outputs.values()))
        options = dict(self.provider_options)
        share = {} if self.shared is None else self.shared.sources
        setup = Setup(
            trial.feeds, shapes, self.device.timed, self.threads, options, choices=self.choices, share=share
        )
        footprints, failures = self._footprints(setup, advance)
        running = {one.name: one.path for one in self.contestants if one.name in footprints}
        timing = compare_speed(running, setup, self.limits, lambda done: advance(done, ", ".join(running)))
        tolerance = Tolerance.of(Numerics.REASSOCIATES, coarsest_of(original.model))
        expected = footprints[original.name].outputs
        rows = []
        for one in self.contestants:
            cost = footprints.get(one.name)
            outcome = None
            if cost is not None and one is not original:
                outcome = compare(expected, cost.outputs, tolerance, nonfinite="set")
            rows.append(
                Row(one.name, one.nodes, timing.speeds.get(one.name), cost, outcome, failures.get(one.name))
            )
        return Result(format_shapes(trial.feeds), rows, timing, self._exact_products)

    @property
    def _exact_products(self) -> bool:
        """Whether outputs are compared with TF32 off, independently of the timed runs: TF32 hides faults."""
        return self.device.timed.has_tf32

    def _footprints(self, setup: Setup, advance: Advance) -> tuple[dict[str, Footprint], dict[str, str]]:
        """The footprints of the models that run, and the errors of the other models."""
        checked = replace(setup.eager(), device=self.device.exact)
        found: dict[str, Footprint] = {}
        failures: dict[str, str] = {}
        for number, one in enumerate(self.contestants):
            advance(None, f"memory and placement of {one.name}")
            try:
                if one.failure is not None:
                    raise RuntimeFailure(one.failure)
                if self.check is not None and one.model is not None:
                    self.check(one.model, setup.feeds)
                if self.shared is not None:
                    if one.model is None:
                        raise RuntimeFailure("its buffers can't be checked")
                    self.shared.run_once(one.model, setup.feeds, choice=self.choices.get(one.name))
                processes = min(_MOST, self.limits.processes)
                found[one.name] = footprint(one.path, setup, checked, processes, one.name)
            except (RuntimeFailure, ResourceLimit, UsageError, VerificationFailed) as failure:
                if number == 0 and isinstance(failure, SystemExhausted):
                    raise SystemExhausted(f"{one.name}: {failure.message}", hint=failure.hint) from failure
                if number == 0:
                    raise
                failures[one.name] = str(failure)
        return found, failures


def graph_options(device: Device, requested: bool) -> dict[str, str]:
    """The option of the provider for CUDA graphs, if they are ``requested``.

    Raises:
        UsageError: they are requested, but the models run on the CPU.
    """
    if requested and not device.capabilities.captures_graphs:
        raise UsageError(
            "--cuda-graph is for CUDA, and the models run on the CPU",
            hint="use --device cuda on a machine with CUDA, or omit the flag",
        )
    return {"enable_cuda_graph": "1"} if requested else {}


def format_shapes(feeds: Mapping[str, Any]) -> str:
    """The shapes of the inputs, as text."""
    words = [f"{name} {list(value.shape)}" for name, value in feeds.items() if isinstance(value, np.ndarray)]
    shown = ", ".join(words[:4])
    return (shown + f", … {len(words) - 4} more" if len(words) > 4 else shown) or "none"
