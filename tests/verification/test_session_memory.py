"""Memory limits of sessions."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from graphopt.errors import ResourceLimit
from graphopt.ort import loadable_model
from graphopt.ort.model_runs import SessionMemory
from graphopt.verification.session_memory import MemoryPlan, Weights
from graphopt.verification.verifier import Verifier
from tests.ort.build import parse

GIB = 1 << 30
SINGLE = SessionMemory(is_single=True)


def weighty(*sizes: int, dtype: ir.DataType = ir.DataType.FLOAT16) -> ir.Model:
    """A model that declares weights of this number of bytes, without contents."""
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    for index, nbytes in enumerate(sizes):
        shape = ir.Shape([nbytes * 8 // dtype.bitwidth])
        tensor = ir.ExternalTensor("w", 0, nbytes, dtype, shape=shape, name=f"w{index}")
        model.graph.register_initializer(ir.Value(name=f"w{index}", const_value=tensor))
    return model


@pytest.mark.parametrize(
    ("weights", "available", "mappings", "single", "optimizes", "fits"),
    [
        ([0], GIB, None, False, True, True),
        ([GIB], 16 * GIB, None, False, True, True),
        ([GIB], 6 * GIB, None, True, True, True),
        ([GIB // 8] * 8, 2 * GIB, None, True, False, True),
        ([GIB // 8] * 8, 2 * GIB, GIB, True, False, False),
        ([GIB], 2 * GIB, None, True, False, False),
    ],
)
def test_sessions_depend_on_weights_and_available_memory(
    weights: list[int], available: int, mappings: int | None, single: bool, optimizes: bool, fits: bool
) -> None:
    plan = MemoryPlan.of(weighty(*weights), 2 * GIB, available, mappings)
    assert (plan.sessions.is_single, plan.sessions.off_only is None, plan.refusal is None) == (
        single,
        optimizes,
        fits,
    )
    assert plan.limit is not None and plan.limit <= available + sum(weights)


def test_refusals_name_the_least_memory_that_suffices() -> None:
    plan = MemoryPlan.of(weighty(GIB), 2 * GIB, 2 * GIB)
    assert plan.refusal == "running it needs about 5.43 GB of memory, 2.15 GB available"
    plan = MemoryPlan.of(weighty(*[GIB // 8] * 8), 2 * GIB, 2 * GIB, GIB)
    assert plan.refusal == "running it needs about 1.74 GB of memory, 1.07 GB available"


def test_packed_copies_of_weights_need_memory() -> None:
    halves, bytes_ = weighty(*[GIB // 16] * 32), weighty(*[GIB // 16] * 32, dtype=ir.DataType.UINT8)
    plans = [MemoryPlan.of(model, 2 * GIB, 2 * GIB).sessions for model in (halves, bytes_)]
    assert [plan.prepacks for plan in plans] == [True, False]


def test_a_model_that_does_not_fit_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    with Verifier(model) as judge:
        assert judge.verify(model).unverifiable is None
    monkeypatch.setattr(
        MemoryPlan, "of", lambda model, limit: MemoryPlan(GIB, SINGLE, "running it needs more")
    )
    monkeypatch.setattr(loadable_model.Artifact, "_write", None)  # and its weights are not written
    with Verifier(model) as judge:
        assert "running it needs more" in (judge.verify(model).unverifiable or "")


def test_one_process_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    other = parse("g (float[N] x) => (float[N] y) { z = Abs(x) y = Neg(z) }")
    monkeypatch.setattr(MemoryPlan, "of", lambda model, limit: MemoryPlan(GIB, SINGLE))
    with Verifier(model) as judge:
        assert judge.verify(model).ok and not judge.verify(other).ok
        assert judge.feeds(judge.verify(model).rows[0])["x"].dtype == np.float32


def test_only_one_case_has_a_default_session_if_sessions_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    monkeypatch.setattr(MemoryPlan, "of", lambda model, limit: MemoryPlan(GIB, SINGLE))
    with Verifier(model) as judge:
        verdict = judge.verify(model)
        levels = [row.level for row in verdict.rows]
        assert levels.count("default") == 1 and levels.count("off") > 1
        assert "further default sessions: memory (one session fits at a time)" in map(str, verdict.skipped)


def test_without_memory_for_default_sessions_others_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    other = parse("g (float[N] x) => (float[N] y) { z = Abs(x) y = Neg(z) }")
    lean = SessionMemory(True, False, "a default session needs more")
    monkeypatch.setattr(MemoryPlan, "of", lambda model, limit: MemoryPlan(GIB, lean))
    with Verifier(model) as judge:
        verdict = judge.verify(model)
        assert verdict.ok and {row.level for row in verdict.rows} == {"off"}
        assert "default sessions: memory (a default session needs more)" in map(str, verdict.skipped)
        assert not judge.verify(other).ok


def test_small_models_need_little_memory() -> None:
    small = MemoryPlan.of(weighty(1 << 20), None, 70 << 20)
    assert small.refusal is None and small.sessions.off_only is None
    assert MemoryPlan.of(weighty(1 << 20), None, 50 << 20).refusal is not None


def test_weights_in_the_serialized_model_exist_twice() -> None:
    sizes = [1 << 20] * 64
    whole = Weights.of(_tensors(weighty(*sizes)))
    part = Weights.of(_tensors(weighty(*sizes)), is_part=True)
    assert whole.off_bytes - part.off_bytes == 2 * sum(sizes)
    large = Weights.of(_tensors(weighty(*[1 << 20] * 256)))
    assert large.off_bytes == part.off_bytes


def test_narrow_weights_are_converted_to_float32() -> None:
    wide, narrow = (
        Weights.of(_tensors(weighty(1 << 20, dtype=dtype)), is_part=True).widest
        for dtype in (ir.DataType.FLOAT, ir.DataType.INT4)
    )
    assert (wide, narrow) == (1 << 20, 8 << 20)


def _tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    return [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]


def test_require_verified_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import graphopt

    refused = MemoryPlan(GIB, SINGLE, "running it needs more")
    monkeypatch.setattr(MemoryPlan, "of", lambda model, limit: refused)
    model = ir.to_bytes(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"))
    with pytest.raises(ResourceLimit, match="not verified: running it needs more") as caught:
        graphopt.optimize(model, require_verified=True)
    assert "free memory, or raise its limit" in (caught.value.hint or "")
