"""Attention agrees with a reference in double precision, at each CPU level and number of threads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper as h

from benchmarks.native_models import natives
from graphopt.errors import RuntimeFailure
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from tests.fusion.templates.built_models import (
    PIPELINE,
    Built,
    assert_special_values_agree,
    build,
    op_types,
    original_and_optimized,
)
from tests.fuzz.kernels.batches import cpu_levels

_LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True)
class Case:
    """One operator.

    Attributes:
        lengths: batch, queries, keys.
        heads, key_heads: numbers of heads.
        depth, width: sizes of the heads of keys and values.
        mask: the shape of the mask, with 1 for broadcast axes; empty for none.
        kind: values of the mask: ``float``, ``lowest`` for 0 and the lowest float, ``infinite`` for 0 and
            -infinity, or ``bool``.
        by_heads: whether keys and values of MultiHeadAttention, or all operands of Attention, have 4 axes.
    """

    op: str
    lengths: tuple[int, int, int]
    heads: int
    depth: int
    mask: tuple[int, ...] = ()
    kind: str = "float"
    by_heads: bool = False
    key_heads: int = 0
    width: int = 0
    scale: float | None = None
    causal: bool = False

    @property
    def shapes(self) -> list[tuple[int, int, int, int]]:
        """Of Q, K and V: batch, length, heads, depth."""
        batch, queries, keys = self.lengths
        shared = self.key_heads or self.heads
        return [
            (batch, queries, self.heads, self.depth),
            (batch, keys, shared, self.depth),
            (batch, keys, shared, self.width or self.depth),
        ]

    def is_by_heads(self, operand: int) -> bool:
        return self.by_heads and (self.op == "Attention" or operand > 0)


_MHA, _ATTENTION = "MultiHeadAttention", "Attention"
CASES = [
    Case(_MHA, (1, 1, 1), 1, 1),
    Case(_MHA, (2, 37, 300), 4, 64, (2, 1, 37, 300)),
    Case(_MHA, (2, 37, 300), 4, 64, (1, 4, 37, 300), "lowest", by_heads=True),
    Case(_MHA, (1, 130, 131), 2, 33, (1, 1, 130, 131), "lowest", scale=0.3, width=17),
    Case(_MHA, (2, 1, 700), 3, 64, by_heads=True),
    Case(_MHA, (1, 2, 515), 2, 40, (1, 1, 2, 515), "infinite"),
    Case(_ATTENTION, (2, 9, 31), 4, 20, (9, 31), "bool", key_heads=2),
    Case(_ATTENTION, (2, 9, 31), 4, 20, (2, 1, 9, 31), "bool", True, 1, 24),
    Case(_ATTENTION, (2, 5, 270), 6, 16, (2, 6, 5, 270), "infinite", True, 3),
    Case(_ATTENTION, (1, 300, 7), 1, 16, (1, 300, 7), scale=0.5),
    Case(_MHA, (2, 300, 300), 2, 24, causal=True),
    Case(_ATTENTION, (1, 600, 600), 4, 16, by_heads=True, key_heads=2, causal=True),
]


def _model(cases: list[Case]) -> onnx.ModelProto:
    """All cases; case N has the inputs ``qN``, ``kN``, ``vN`` and ``mN``, and dynamic lengths."""
    nodes, inputs, outputs = [], [], []
    for index, case in enumerate(cases):
        names = [f"{name}{index}" for name in "qkv"]
        for operand, (name, (_, _, heads, depth)) in enumerate(zip(names, case.shapes, strict=True)):
            length = f"length{index}" if case.causal else f"{name}_length"
            dims: list[str | int | None] = ["b", length, heads * depth]
            if case.is_by_heads(operand):
                dims = ["b", heads, length, depth]
            inputs.append(h.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
        if case.mask:
            dtype = onnx.TensorProto.BOOL if case.kind == "bool" else onnx.TensorProto.FLOAT
            dims = [1 if size == 1 else f"m{index}_{axis}" for axis, size in enumerate(case.mask)]
            inputs.append(h.make_tensor_value_info(f"m{index}", dtype, dims))
            names += ["", "", f"m{index}"] if case.op == _MHA else [f"m{index}"]
        attributes: dict[str, Any] = {} if case.scale is None else {"scale": case.scale}
        if case.causal:
            attributes["unidirectional" if case.op == _MHA else "is_causal"] = 1
        if case.op == _MHA:
            attributes["num_heads"] = case.heads
        elif not case.by_heads:
            attributes |= {"q_num_heads": case.heads, "kv_num_heads": case.key_heads or case.heads}
        domain = "com.microsoft" if case.op == _MHA else ""
        nodes.append(h.make_node(case.op, names, [f"y{index}"], domain=domain, **attributes))
        outputs.append(h.make_tensor_value_info(f"y{index}", onnx.TensorProto.FLOAT, None))
    graph = h.make_graph(nodes, "attention", inputs, outputs)
    opsets = [h.make_opsetid("", 23), h.make_opsetid("com.microsoft", 1)]
    return h.make_model(graph, opset_imports=opsets, ir_version=10)


def _feeds(cases: list[Case], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for index, case in enumerate(cases):
        for operand, (name, (b, n, heads, depth)) in enumerate(zip("qkv", case.shapes, strict=True)):
            shape = (b, heads, n, depth) if case.is_by_heads(operand) else (b, n, heads * depth)
            found[f"{name}{index}"] = rng.standard_normal(shape, dtype=np.float32)
        if case.mask:
            hidden = rng.random(case.mask) < 0.4
            value = {"lowest": _LOWEST, "infinite": np.float32(-np.inf)}.get(case.kind)
            mask = rng.standard_normal(case.mask, dtype=np.float32)
            if value is not None:
                mask = np.where(hidden, value, np.float32(0))
            found[f"m{index}"] = ~hidden if case.kind == "bool" else mask
    return found


def _reference(case: Case, feeds: dict[str, np.ndarray], index: int) -> np.ndarray:
    """The result in double precision, [batch, queries, heads, width]."""
    q, k, v = (
        feeds[f"{name}{index}"].astype(np.float64)
        if case.is_by_heads(operand)
        else feeds[f"{name}{index}"].astype(np.float64).reshape(shape).transpose(0, 2, 1, 3)
        for operand, (name, shape) in enumerate(zip("qkv", case.shapes, strict=True))
    )
    k, v = (np.repeat(each, case.heads // (case.key_heads or case.heads), axis=1) for each in (k, v))
    scores = q @ k.swapaxes(2, 3) * (case.depth**-0.5 if case.scale is None else case.scale)
    if case.mask:
        mask = feeds[f"m{index}"]
        scores = scores + (np.where(mask, 0, _LOWEST) if case.kind == "bool" else mask)
        if case.kind in ("bool", "lowest"):  # a score next to the lowest float vanishes
            scores = np.maximum(scores.astype(np.float32), _LOWEST).astype(np.float64)
    if case.causal:
        scores = np.where(np.tri(*scores.shape[2:]) > 0, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return ((exponentials / exponentials.sum(axis=-1, keepdims=True)) @ v).transpose(0, 2, 1, 3)


def _in_rows(case: Case, result: np.ndarray) -> np.ndarray:
    """A result as [batch, queries, heads, width]."""
    if case.is_by_heads(0):
        return result.transpose(0, 2, 1, 3)
    batch, queries, _ = case.lengths
    return result.reshape(batch, queries, case.heads, -1)


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    built = build(_model(CASES), len(CASES), tmp_path_factory.mktemp("attention"))
    assert not op_types(built[1]) & {_MHA, _ATTENTION}
    return built


@pytest.mark.parametrize("level", cpu_levels())
def test_results(built: Built, level: int) -> None:
    _, optimized, libraries = built
    choice = SessionChoice(libraries=libraries, cpu_level=level)
    running = {threads: session.create(optimized, threads=threads, choice=choice) for threads in (1, 2)}
    feeds = _feeds(CASES, 0)
    single, double = (session.run(running[threads], feeds) for threads in (1, 2))
    for index, (case, found) in enumerate(zip(CASES, single, strict=True)):
        expected = _reference(case, feeds, index)
        rows = _in_rows(case, found)
        assert np.array_equal(np.isnan(rows), np.isnan(expected)), case
        # Rounding errors of means of numbers with a variance of 1
        assert np.nanmax(np.abs(rows - expected)) < 3e-6, case
        assert np.array_equal(found, double[index], equal_nan=True), case


def test_errors_and_special_values_are_those_of_onnxruntime(built: Built) -> None:
    original, running = original_and_optimized(built)
    for seed, value in enumerate([None, np.nan, np.inf, -np.inf, np.float32(1e38)]):
        feeds = _feeds(CASES, seed)
        rng = np.random.default_rng(seed)
        for name, array in feeds.items():
            if value is not None and name[0] != "m":
                array.flat[rng.integers(array.size)] = value
        found, expected = session.run(running, feeds), session.run(original, feeds)
        for index, (case, one, two) in enumerate(zip(CASES, found, expected, strict=True)):
            assert_special_values_agree(one, two, (case, value))
            if value is None:
                exact = _reference(case, feeds, index)
                errors = [np.nanmax(np.abs(_in_rows(case, result) - exact)) for result in (one, two)]
                assert errors[0] <= 2 * errors[1] + 1e-7, case


def test_masks_that_hide_all_keys(tmp_path: Path) -> None:
    cases = [
        replace(case, lengths=(2, 5, 9), mask=(2, 1, 5, 9), kind=kind)
        for case in (CASES[1], CASES[8])
        for kind in ("lowest", "infinite", "bool")
        if case.op == _ATTENTION or kind != "bool"
    ]
    model = _model(cases)
    (native,) = natives([model], PIPELINE, tmp_path)
    assert len(native.groups) == len(cases)
    feeds = _feeds(cases, 0)
    for name, mask in feeds.items():
        if name[0] == "m":
            mask[1, 0, 2] = mask[0, 0, 4] = mask.min()
    expected = session.run(session.create(model.SerializeToString(), threads=1), feeds)
    found = session.run(session.create(native.model, threads=1, choice=native.choice), feeds)
    for case, one, two in zip(cases, found, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=2e-6, err_msg=str(case))


def test_empty_tensors(tmp_path: Path) -> None:
    case = Case(_MHA, (2, 3, 4), 2, 8)
    (native,) = natives([_model([case])], PIPELINE, tmp_path)
    running = session.create(native.model, threads=1, choice=native.choice)
    for lengths in ((0, 3, 4), (2, 0, 4)):
        (found,) = session.run(running, _feeds([replace(case, lengths=lengths)], 0))
        assert found.shape == (*lengths[:2], 16)


def test_other_shapes_than_declared_fail_with_a_message(tmp_path: Path) -> None:
    case = Case(_MHA, (1, 3, 4), 2, 8, (1, 1, 3, 4))
    (native,) = natives([_model([case])], PIPELINE, tmp_path)
    assert native.groups
    running = session.create(native.model, threads=1, choice=native.choice)
    wrong = _feeds([case], 0)
    wrong["m0"] = wrong["m0"][..., :3]
    with pytest.raises(RuntimeFailure, match="mask is 3 long on axis 3, 4 expected"):
        session.run(running, wrong)
