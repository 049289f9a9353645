"""CUDA graphs of executors and bundles: on, off, the reasons, and the counter, with providers of the CPU.

A capability makes the CPU a device with CUDA graphs, and the option ``enable_cuda_graph``, which its provider
lacks, is recorded instead of passed on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.diagnostics.record import Record
from graphopt.errors import RuntimeFailure, UsageError
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.ort import devices, preflight
from graphopt.ort.devices import CPU, Device
from graphopt.specialization.cuda_graphs import graph_trial
from graphopt.specialization.cuda_graphs.captured_graphs import GraphOptions
from graphopt.specialization.cuda_graphs.graph_switch import SKIPS, GraphSwitch, refusal
from tests.cli.conftest import Invoke, invoke, small  # noqa: F401
from tests.model_testing import parse

CUDA = Device("cuda")
PLAIN = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x)\n y = Exp(a) }"
LOOKING = "g (float[N] x) => (int64[1,M] y) { y = NonZero(x) }"
COPIED = "g (float[2,2] x) => (float[2,2] y) { [d] a = Det(x)\n y = Add(x, a) }"
_ON = GraphOptions()


def _create(options: Mapping[str, str]) -> Any:
    from graphopt import ir
    from graphopt.ort import session

    return session.create(ir.to_bytes(parse(PLAIN)), threads=1)


def test_without_a_request_nothing_is_counted() -> None:
    record = Record(set())
    _, graphs = GraphSwitch(None, record).session(_create, lambda: parse(PLAIN), CUDA)
    assert graphs is None and record.counters == {} and record.hints == []


def test_a_model_that_can_be_captured() -> None:
    record = Record(set())
    seen: list[Mapping[str, str]] = []

    def create(options: Mapping[str, str]) -> Any:
        seen.append(options)
        return _create(options)

    switch = GraphSwitch(_ON, record)
    _, graphs = switch.session(create, lambda: parse(PLAIN), CUDA)
    assert graphs is not None and seen == [{"enable_cuda_graph": "1"}]
    assert switch.reason is None and record.counters == {}


def test_the_counter_counts_always_and_the_hint_needs_a_gpu() -> None:
    for device, hints in ((CPU, 0), (CUDA, 1)):
        record = Record(set())
        switch = GraphSwitch(_ON, record)
        _, graphs = switch.session(_create, lambda: parse(LOOKING), device)
        assert graphs is None and record.counters == {SKIPS: 1} and len(record.hints) == hints
    assert record.hints[0].message == (
        "CUDA graphs are off: the shape of 'y', the result of NonZero, depends on data"
    )


def test_onnxruntime_refuses() -> None:
    record = Record(set())

    def create(options: Mapping[str, str]) -> Any:
        if options:
            raise RuntimeFailure("nodes are on the CPU")
        return _create(options)

    _, graphs = GraphSwitch(_ON, record).session(create, lambda: parse(PLAIN), CUDA)
    assert graphs is None and record.counters == {SKIPS: 1}
    assert record.hints[0].message == "CUDA graphs are off: onnxruntime rejects them: nodes are on the CPU"


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (
            "as all compute graph nodes have not been partitioned to the CUDAExecutionProvider",
            "Det 'd' runs on the CPU (CUDA has no kernel of Det), and 'a' is copied",
        ),
        (
            "as the model has control flow nodes which can't be supported by CUDAExecutionProvider",
            "onnxruntime finds control flow in the model",
        ),
    ],
)
def test_refusals_of_onnxruntime_in_words(rest: str, reason: str) -> None:
    text = "This session cannot use the graph capture feature as requested by the user "
    failure = RuntimeFailure(f"onnxruntime can't load the model: {text} {rest}")
    assert refusal(failure, parse(COPIED), CUDA) == reason


def test_refusals_of_models_that_only_onnxruntime_reads() -> None:
    failure = RuntimeFailure("This session cannot use the graph capture feature")
    assert refusal(failure, None, CUDA) == "onnxruntime copies tensors between the CPU and the GPU"


def test_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from graphopt import ir

    tried: list[Mapping[str, str]] = []
    source = ir.to_bytes(parse(PLAIN))
    assert graph_trial.trial_refusal(source, None, CPU) is None
    assert graph_trial.trial_refusal(b"no model", None, CPU) is None  # its runs report that

    def load(source: bytes, device: Device, choice: Any, options: Mapping[str, str]) -> None:
        tried.append(options)
        if options or source == b"no model":
            raise RuntimeFailure("no graphs")

    monkeypatch.setattr(graph_trial, "_load_in_child", load)
    assert graph_trial.trial_refusal(source, None, CUDA) == "onnxruntime rejects them: no graphs"
    assert tried == [{"enable_cuda_graph": "1"}, {}]
    assert graph_trial.trial_refusal(b"no model", None, CUDA) is None


def test_a_reason_of_the_forward_model_is_one_of_the_backward_model() -> None:
    record = Record(set())
    forward = GraphSwitch(_ON, record)
    backward = forward.derived(after=forward)
    _, graphs = backward.session(_create, lambda: parse(PLAIN), CUDA)
    assert graphs is not None
    forward.session(_create, lambda: parse(LOOKING), CUDA)
    _, graphs = backward.session(_create, lambda: parse(PLAIN), CUDA)
    assert graphs is None and record.counters == {SKIPS: 2}
    assert record.hints[-1].message == (
        "CUDA graphs are off: the forward model runs without: "
        "the shape of 'y', the result of NonZero, depends on data"
    )


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Mapping[str, str]]]:
    """The CPU with CUDA graphs; yields the provider options of sessions."""
    able = dataclasses.replace(CPU.capabilities, captures_graphs=True)
    monkeypatch.setitem(devices._CAPABILITIES, "cpu", able)
    seen: list[Mapping[str, str]] = []
    create = preflight.create

    def recording(*arguments: Any, provider_options: Mapping[str, str] | None = None, **more: Any) -> Any:
        seen.append(provider_options or {})
        return create(*arguments, **more)

    monkeypatch.setattr(preflight, "create", recording)
    yield seen


def test_an_executor_replays(capturing: list[Mapping[str, str]]) -> None:
    options = ExecutorOptions(cuda_graph=True, depth=0)
    executor = graphopt.compile(parse(PLAIN), options, device="cpu")
    for factor in (1, -2, 3):
        x = np.full((2, 4), factor, np.float32)
        np.testing.assert_allclose(executor({"x": x})["y"], np.exp(np.maximum(x, 0)), rtol=1e-6)
    assert capturing == [{"enable_cuda_graph": "1"}]
    assert executor.debug_state().counters == {"cuda-graph captures": 1, "cuda-graph replays": 1}


def test_an_executor_runs_bound_values(capturing: list[Mapping[str, str]]) -> None:
    import onnxruntime

    executor = graphopt.compile(parse(PLAIN), ExecutorOptions(cuda_graph=True, depth=0), device="cpu")
    for factor in (1, 2, 3):
        x = np.full((2, 4), factor, np.float32)
        found = executor.run_bound({"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)})
        np.testing.assert_allclose(found["y"].numpy(), np.exp(x), rtol=1e-6)
    assert executor.debug_state().counters["cuda-graph replays"] == 1


def test_gradients(capturing: list[Mapping[str, str]]) -> None:
    executor = graphopt.compile(
        parse(PLAIN), ExecutorOptions(cuda_graph=True, depth=0), device="cpu", verify=False
    )
    x = np.full((2, 4), 0.5, np.float32)
    for _ in range(3):
        _, pullback = executor.vjp({"x": x}, ["x"])
        np.testing.assert_allclose(pullback({"y": np.ones_like(x)})["x"], np.exp(x), rtol=1e-6)
    assert executor.debug_state().counters["cuda-graph captures"] == 2


def test_executors_on_the_cpu_only_count() -> None:
    executor = graphopt.compile(parse(PLAIN), ExecutorOptions(cuda_graph=True, depth=0), device="cpu")
    executor({"x": np.ones((2, 4), np.float32)})
    state = executor.debug_state()
    assert state.counters == {SKIPS: 1} and state.hints == ()


def test_bundles(tmp_path: Path, capturing: list[Mapping[str, str]]) -> None:
    from graphopt.specialization.build_variants import Specialization

    profile = graphopt.record_profile(parse(PLAIN), [{"x": np.ones((2, 4), np.float32)}] * 2)
    found = graphopt.specialize(parse(PLAIN), Specialization(profile), bundle=True)
    graphopt.save_bundle(found, tmp_path / "b")
    bundle = graphopt.Bundle(tmp_path / "b", device="cpu", cuda_graph=True, check_sizes=True)
    for factor in (1, 2, 3):
        x = np.full((2, 4), factor, np.float32)
        np.testing.assert_allclose(bundle.run({"x": x})["y"], np.exp(x), rtol=1e-6)
    assert bundle.record.counters == {"cuda-graph captures": 1, "cuda-graph replays": 1}
    with pytest.raises(UsageError, match="axis 1, the model declares 4"):
        bundle.run({"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize("arguments", [("run",), ("bench",)])
def test_commands_on_the_cpu(invoke: Invoke, small: Path, arguments: tuple[str, ...]) -> None:  # noqa: F811
    outcome = invoke(*arguments, small, "--cuda-graph", "--device", "cpu")
    assert outcome.status == 2 and "--cuda-graph is for CUDA, and the models run on the CPU" in outcome.err


def test_invalid_options() -> None:
    for options, words in (
        ({"cuda_graph": 1}, "cuda_graph must be True or False"),
        ({"most_graphs": 0}, "most_graphs must be an integer of at least 1"),
        ({"static_inputs": "x"}, "static_inputs must be a tuple of names"),
    ):
        with pytest.raises(UsageError, match=words):
            ExecutorOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'w'"):
        graphopt.compile(parse(PLAIN), ExecutorOptions(static_inputs=("w",)))
