"""Comparison in parts of models that do not fit into memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import graphopt
from benchmarks.generated_decoder import Shape, write
from graphopt import ir
from graphopt.ort.model_runs import SessionMemory
from graphopt.verification.model_parts import split_in_parts
from graphopt.verification.part_comparison import _joined
from graphopt.verification.session_memory import MemoryPlan, Room, Weights
from graphopt.verification.verdict import Row
from graphopt.verification.verifier import Verifier
from tests.ort.build import parse

SHAPE = Shape(layers=3, hidden=64, inner=128, heads=4, cached_heads=2, words=96)
#: Bytes of the weights of one layer.
LAYER = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64)


def fits(weights: Weights) -> bool:
    """Whether weights have at most the size of one layer, with its neighbours outside of layers."""
    return weights.total <= LAYER + 2 * 64 * 97


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(SHAPE, tmp_path_factory.mktemp("decoder") / "model.onnx")


@pytest.fixture(scope="module")
def optimized(decoder: Path) -> ir.Model:
    return graphopt.optimize(decoder, verify=False)[0]


@pytest.fixture
def too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every model too large for a session as a whole."""
    monkeypatch.setattr(Room, "fits", lambda room, weights: fits(weights))
    plan = MemoryPlan(1 << 31, SessionMemory(True), "running it needs about 30 GB", Room(1 << 31))
    monkeypatch.setattr(MemoryPlan, "of", lambda model, limit: plan)


def test_parts_contain_all_nodes_of_both_models(decoder: Path, optimized: ir.Model) -> None:
    original = ir.load(decoder)
    parts = split_in_parts(original, optimized, fits)
    assert parts is not None and len(parts) >= SHAPE.layers
    for model, regions in (
        (original, [part.original for part in parts]),
        (optimized, [part.candidate for part in parts]),
    ):
        covered = {node for region in regions for node in region.nodes}
        assert covered == {node for node in model.graph if any(map(ir.is_read, node.outputs))}
        assert all(fits(region.weights) for region in regions)
    names = [name for part in parts for name in part.names]
    assert len(names) == len(set(names)) and {value.name for value in original.graph.outputs} <= set(names)


def test_models_without_cuts_that_fit_have_no_parts(decoder: Path) -> None:
    original = ir.load(decoder)
    assert split_in_parts(original, original, lambda weights: weights.total < LAYER / 8) is None


@pytest.mark.usefixtures("too_large")
def test_a_decoder_is_compared_in_parts(decoder: Path, optimized: ir.Model) -> None:
    with Verifier(decoder, seconds=4) as verifier:
        assert verifier.refusal is None
        verdict = verifier.verify(optimized)
    assert verdict.ok and verdict.unverifiable is None and verdict.rows, verdict.summary()
    assert {row.level for row in verdict.rows} == {"off"}
    left_out = [str(skipped) for skipped in verdict.skipped if skipped.cause == "memory"]
    assert left_out[0].startswith("runs of whole models: memory (running it needs about 30 GB; compared in ")
    assert left_out[1] == "default sessions: memory (parts run without optimizations)"
    assert left_out[2] == "dims of size 0: memory (parts run on sizes of at least 1)"
    assert "huge" not in {row.distribution for row in verdict.rows}, "inexact rewrites may overflow elsewhere"


@pytest.mark.usefixtures("too_large")
def test_estimated_time_limits_comparisons_in_parts(decoder: Path, optimized: ir.Model) -> None:
    with Verifier(decoder, seconds=1000, work=1e-9) as verifier:
        verdict = verifier.verify(optimized)
    kinds = [row.distribution for row in verdict.rows]
    assert verdict.ok and set(kinds) == {"normal", "zero", "special"} and len(kinds) == 4
    assert "time" in {skipped.cause for skipped in verdict.skipped}


def test_a_part_that_is_not_compared_leaves_no_result_but_faults() -> None:
    row = Row("", "normal", "off", 0.0, "y", True, identical=True)
    faulty = replace(row, ok=False, reason="it differs")
    assert _joined(row, None, "in part 2") is None
    assert _joined(faulty, None, "in part 2") is faulty
    assert _joined(row, faulty, "in part 2") == replace(faulty, reason="it differs in part 2")


@pytest.mark.usefixtures("too_large")
@pytest.mark.parametrize("layer", range(SHAPE.layers))
def test_a_fault_in_one_layer_is_found_in_its_part(decoder: Path, optimized: ir.Model, layer: int) -> None:
    faulty = ir.clone(optimized)
    name = f"model.layers.{layer}.mlp.down_proj.weight"
    value = faulty.graph.initializers[name]
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy() * np.float16(1.5), name=name)
    original = ir.load(decoder)
    parts = split_in_parts(original, faulty, fits)
    assert parts is not None
    (number,) = [
        number
        for number, part in enumerate(parts, 1)
        if any(read.name == name for node in part.original.nodes for read in node.inputs if read)
    ]
    with Verifier(decoder, seconds=1) as verifier:
        verdict = verifier.verify(faulty)
        feeds = verifier.feeds(verdict.failures[0])
    assert feeds is not None and "input_ids" in feeds
    assert not verdict.ok
    assert f"in part {number} of {len(parts)}, which computes" in (verdict.failures[0].reason or "")


@pytest.mark.usefixtures("too_large")
def test_random_models_are_not_compared_in_parts() -> None:
    model = parse("g (float[4] x) => (float[4] y) { r = RandomNormalLike(x) y = Add(x, r) }")
    with Verifier(model) as verifier:
        assert verifier.verify(model).unverifiable == "running it needs about 30 GB" == verifier.refusal


def test_cuts_have_all_values_that_depend_on_large_weights() -> None:
    model = parse(
        """g (float[2, 4] x) => (float[2, 4] y)
        <float[4, 4] v = {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}, float[4, 4] w = {4,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}>
        { a = MatMul(x, v) b = Relu(a) c = Neg(a) d = Abs(x) e = Mul(b, c) f = Add(e, d) y = MatMul(f, w) }"""
    )
    parts = split_in_parts(model, model, lambda weights: weights.total <= 64)
    assert parts is not None and [part.names for part in parts] == [("f",), ("y",)]
    without = parse(
        """g (float[2, 4] x) => (float[2, 4] y)
        <float[4, 4] v = {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}, float[4, 4] w = {4,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}>
        { a2 = MatMul(x, v) b2 = Relu(a2) c = Neg(a2) e2 = Mul(b2, c) d = Abs(x) f2 = Add(d, e2)
          y = MatMul(f2, w) }"""
    )
    assert split_in_parts(model, without, lambda weights: weights.total <= 64) is None
