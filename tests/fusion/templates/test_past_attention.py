"""Attention with past and present keys, and GroupQueryAttention, agree with onnxruntime and double precision."""

from __future__ import annotations

from collections.abc import Iterator
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
    original_and_optimized,
)
from tests.fuzz.kernels.batches import cpu_levels

_MHA, _ATTENTION, _GROUPED = "MultiHeadAttention", "Attention", "GroupQueryAttention"


@dataclass(frozen=True)
class Case:
    """One operator with a past of keys and values, and present ones as results.

    Attributes:
        lengths: batch, queries, length of the past; ``None`` for no past.
        heads: numbers of heads of the queries, and of the keys and values.
        mask: whether a mask of floats is added.
        by_heads: whether operands of Attention have 4 axes.
        causal: whether keys after a query are hidden.
        used: the last key of each batch, for GroupQueryAttention; empty for all keys.
        total: ``total_sequence_length``; ``None`` for the past and the queries.
        turned: pairs that a rotary embedding turns; 0 for none.
        packed: whether queries, keys and values of GroupQueryAttention are one operand.
        attributes: of the node.
    """

    op: str
    lengths: tuple[int, int, int | None]
    heads: tuple[int, int]
    depth: int
    mask: bool = False
    by_heads: bool = False
    causal: bool = False
    used: tuple[int, ...] = ()
    total: int | None = None
    turned: int = 0
    packed: bool = False
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def keys(self) -> int:
        """``total_sequence_length``, or the length of past and new keys."""
        return self.lengths[1] + (self.lengths[2] or 0) if self.total is None else self.total

    def attribute(self, name: str, default: Any) -> Any:
        return dict(self.attributes).get(name, default)


CASES = [
    Case(_MHA, (2, 1, 300), (3, 3), 64),
    Case(_MHA, (2, 3, 5), (2, 2), 24, mask=True),
    Case(_MHA, (1, 130, 7), (2, 2), 33, causal=True),
    Case(_MHA, (2, 4, 0), (2, 2), 16),
    Case(_ATTENTION, (2, 1, 515), (4, 2), 32, attributes=(("softcap", 3.0),)),
    Case(_ATTENTION, (2, 5, 9), (6, 3), 20, mask=True, by_heads=True, attributes=(("softcap", 2.0),)),
    Case(_ATTENTION, (1, 40, 300), (4, 2), 16, causal=True),
    Case(_ATTENTION, (2, 7, None), (4, 4), 16, by_heads=True, causal=True),
    Case(_GROUPED, (2, 1, 300), (8, 2), 64),
    Case(_GROUPED, (2, 1, 20), (4, 2), 32, used=(5, 18), total=19, turned=16),
    Case(_GROUPED, (1, 1, 40), (2, 1), 16, used=(17,), total=18),
    Case(_GROUPED, (2, 40, 0), (4, 1), 32, turned=8, attributes=(("rotary_interleaved", 1),)),
    Case(_GROUPED, (1, 9, 300), (6, 2), 16, attributes=(("softcap", 2.0), ("scale", 0.4))),
    Case(_GROUPED, (1, 9, 600), (6, 2), 16, attributes=(("local_window_size", 5),)),
    Case(_GROUPED, (2, 6, None), (4, 2), 16, used=(2, 5), packed=True, turned=8),
    Case(_GROUPED, (2, 6, None), (4, 2), 16, used=(2, 5), attributes=(("local_window_size", 2),)),
]


def _rotary(case: Case) -> list[str]:
    return ["cos", "sin"] if case.turned else []


def _node(case: Case, index: int) -> onnx.NodeProto:
    past = ["pk", "pv"] if case.lengths[2] is not None else ["", ""]
    attributes = dict(case.attributes)
    operands = ["q", "k", "v"]
    if case.op == _MHA:
        operands += ["", "", "m" if case.mask else "", *past]
        attributes |= {"num_heads": case.heads[0]} | ({"unidirectional": 1} if case.causal else {})
    elif case.op == _ATTENTION:
        operands += ["m" if case.mask else "", *past]
        attributes |= {"is_causal": 1} if case.causal else {}
        if not case.by_heads:
            attributes |= {"q_num_heads": case.heads[0], "kv_num_heads": case.heads[1]}
    else:
        if case.packed:
            operands[1:] = ["", ""]
        operands += [*past, "used", "total", *_rotary(case)]
        attributes |= {"num_heads": case.heads[0], "kv_num_heads": case.heads[1]}
        attributes |= {"do_rotary": 1} if case.turned else {}
    names = [f"{name}{index}" if name else "" for name in operands]
    results = [f"{name}{index}" for name in ("y", "ok", "ov")]
    domain = "" if case.op == _ATTENTION else "com.microsoft"
    return h.make_node(case.op, names, results, domain=domain, **attributes)


def _feeds(cases: list[Case], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for index, case in enumerate(cases):
        batch, queries, past = case.lengths
        heads, shared = case.heads
        for name, count in (("q", heads), ("k", shared), ("v", shared)):
            shape: tuple[int, ...] = (batch, queries, count * case.depth)
            if case.by_heads:
                shape = (batch, count, queries, case.depth)
            elif case.packed:
                shape = (batch, queries, (heads + 2 * shared) * case.depth)
            if name == "q" or not case.packed:
                found[f"{name}{index}"] = rng.standard_normal(shape, dtype=np.float32)
        if past is not None:
            for name in ("pk", "pv"):
                shape = (batch, shared, past, case.depth)
                found[f"{name}{index}"] = rng.standard_normal(shape, dtype=np.float32)
        if case.mask:
            shape = (batch, 1, queries, case.keys)
            found[f"m{index}"] = rng.standard_normal(shape, dtype=np.float32)
        if case.op == _GROUPED:
            found[f"used{index}"] = np.array(case.used or [case.keys - 1] * batch, np.int32)
            found[f"total{index}"] = np.array(case.keys, np.int32)
            angles = rng.uniform(-3, 3, (case.keys, case.turned)).astype(np.float32)
            if case.turned:
                found |= {f"cos{index}": np.cos(angles), f"sin{index}": np.sin(angles)}
    return found


def _model(cases: list[Case]) -> onnx.ModelProto:
    """All cases, of dynamic lengths; case N has inputs and results whose names end in N."""
    inputs = []
    for name, array in _feeds(cases, 0).items():
        index = "".join(filter(str.isdigit, name))
        kind = name.removesuffix(index)
        dims: list[Any] = [f"{name}_{axis}" for axis in range(array.ndim)]
        case = cases[int(index)]
        if kind in "qkv":
            dims = ["b", f"length{index}", array.shape[2]]
            if case.by_heads:
                dims = ["b", array.shape[1], f"length{index}", array.shape[3]]
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs.append(h.make_tensor_value_info(name, dtype, dims))
    nodes = [_node(case, index) for index, case in enumerate(cases)]
    outputs = [
        h.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for node in nodes for name in node.output
    ]
    graph = h.make_graph(nodes, "attention", inputs, outputs)
    opsets = [h.make_opsetid("", 23), h.make_opsetid("com.microsoft", 1)]
    return h.make_model(graph, opset_imports=opsets, ir_version=10)


def _by_heads(array: np.ndarray, heads: int) -> np.ndarray:
    array = array.astype(np.float64)
    if array.ndim == 4:
        return array
    return array.reshape(*array.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _turn(case: Case, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """``x`` [heads, positions, depth], rotated by the angles of its positions."""
    pairs = case.turned
    first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    if case.attribute("rotary_interleaved", 0):
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    found = x.copy()
    found[..., first] = x[..., first] * cos - x[..., second] * sin
    found[..., second] = x[..., first] * sin + x[..., second] * cos
    return found


def _reference(case: Case, feeds: dict[str, np.ndarray], index: int) -> Iterator[np.ndarray]:
    """The result [batch, heads, queries, depth], and the present, in double precision."""
    given = {
        name.removesuffix(str(index)): array for name, array in feeds.items() if name.endswith(str(index))
    }
    heads, shared = case.heads
    batch, queries, past = given["q"].shape[0], case.lengths[1], case.lengths[2] or 0
    if case.packed:
        whole = _by_heads(given["q"], heads + 2 * shared)
        q, k, v = np.split(whole, [heads, heads + shared], axis=1)
    else:
        q, k, v = (
            _by_heads(given[name], count) for name, count in (("q", heads), ("k", shared), ("v", shared))
        )
    queries = q.shape[2]
    size = max(case.keys, past) if case.op == _GROUPED else past + queries
    keys, values = (np.zeros((batch, shared, size, case.depth)) for _ in range(2))
    result = np.zeros(q.shape)
    cap, window = case.attribute("softcap", 0.0), case.attribute("local_window_size", 0)
    for b in range(batch):
        used = int(given["used"][b]) + 1 if case.op == _GROUPED else past + queries
        old = used - queries if case.op == _GROUPED and case.keys != queries else past
        old = 0 if case.op == _GROUPED and case.keys == queries else old
        turned = [k[b], q[b]]
        if case.turned:
            place = slice(old, old + queries)
            turned = [_turn(case, x, given["cos"][place], given["sin"][place]) for x in turned]
        if old:
            keys[b, :, :old], values[b, :, :old] = given["pk"][b, :, :old], given["pv"][b, :, :old]
        keys[b, :, old : old + queries], values[b, :, old : old + queries] = turned[0], v[b]
        for head in range(heads):
            one, two = keys[b, head * shared // heads], values[b, head * shared // heads]
            scores = turned[1][head] @ one.T * case.attribute("scale", case.depth**-0.5)
            if cap:
                scores = cap * np.tanh(scores / cap)
            if case.mask:
                scores += given["m"][b, 0]
            place, key = np.arange(queries)[:, None] + old, np.arange(size)
            hidden = np.broadcast_to(key >= used, scores.shape)
            if case.causal or case.op == _GROUPED:
                end = np.minimum(place + 1, used)
                hidden = (key >= end) | (window > 0) & (key < place + 1 - window)
            largest = np.where(hidden, -np.inf, scores).max(axis=-1, keepdims=True)
            weights = np.where(hidden, 0, np.exp(scores - np.where(np.isfinite(largest), largest, 0)))
            sums = weights.sum(axis=-1, keepdims=True)
            result[b, head] = weights / np.where(sums == 0, 1, sums) @ two
    yield from (result, keys, values)


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(_model(CASES), len(CASES), tmp_path_factory.mktemp("attention"))


@pytest.mark.parametrize("level", cpu_levels())
def test_results(built: Built, level: int) -> None:
    _, optimized, libraries = built
    choice = SessionChoice(libraries=libraries, cpu_level=level)
    feeds = _feeds(CASES, 0)
    single, double = (
        session.run(session.create(optimized, threads=threads, choice=choice), feeds) for threads in (1, 2)
    )
    assert all(map(np.array_equal, single, double))
    for index, case in enumerate(CASES):
        result, *present = single[3 * index : 3 * index + 3]
        expected, *stored = _reference(case, feeds, index)
        # Rounding errors of means of numbers with a variance of 1
        assert np.abs(_by_heads(result, case.heads[0]) - expected).max() < 3e-6, case
        for one, two in zip(present, stored, strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-6 if case.turned else 0, err_msg=str(case))


@pytest.mark.parametrize("value", [None, np.nan, np.inf, -np.inf, np.float32(1e38)])
def test_errors_and_special_values_are_those_of_onnxruntime(built: Built, value: float | None) -> None:
    original, running = original_and_optimized(built)
    feeds = _feeds(CASES, 1)
    rng = np.random.default_rng(2)
    for name, array in feeds.items():
        # onnxruntime's GroupQueryAttention loses scores of NaN, dependent on their places
        case = CASES[int("".join(filter(str.isdigit, name)))]
        is_lost = case.op == _GROUPED and "v" not in name and np.isnan(value or 0)
        if value is not None and array.size and name[0] in "qkvp" and not is_lost:
            array.flat[rng.integers(array.size)] = value
    found, expected = session.run(running, feeds), session.run(original, feeds)
    for index, case in enumerate(CASES):
        for one, two in zip(*(each[3 * index : 3 * index + 3] for each in (found, expected)), strict=True):
            assert_special_values_agree(one, two, case)
        if value is None:
            exact = next(_reference(case, feeds, index))
            errors = [
                np.abs(_by_heads(each[3 * index], case.heads[0]) - exact).max() for each in (found, expected)
            ]
            assert errors[0] <= 2 * errors[1] + 1e-7, case


@pytest.mark.parametrize(
    ("index", "lengths"), [(0, (0, 1, 300)), (0, (2, 0, 5)), (3, (2, 0, 0)), (3, (2, 4, 0))]
)
def test_empty_tensors(built: Built, index: int, lengths: tuple[int, int, int]) -> None:
    model, optimized, libraries = built
    cases = [replace(case, lengths=lengths) if at == index else case for at, case in enumerate(CASES)]
    feeds = _feeds(cases, 0)
    expected = session.run(session.create(model.SerializeToString(), threads=1), feeds)
    running = session.create(optimized, threads=1, choice=SessionChoice(libraries=libraries))
    found = session.run(running, feeds)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("used8", np.array([0, 301], np.int32), "seqlens_k contains 301, which is out of range"),
        ("used8", np.array([-1, 5], np.int32), "seqlens_k contains -1, which is out of range"),
        ("used10", np.array([41], np.int32), "seqlens_k contains 41, which is out of range"),
        ("total8", np.array(700, np.int32), "total_sequence_length is 700, with 300 past and 1 new keys"),
        ("used8", np.zeros(3, np.int32), "seqlens_k is 3 long on axis 0, 2 expected"),
        ("total11", np.array(41, np.int32), "total_sequence_length is 41, with 0 past and 40 new keys"),
        ("cos11", np.ones((40, 4), np.float32), "cos_cache is 4 long on axis 1, a multiple of 8 expected"),
        ("cos11", np.ones((39, 8), np.float32), "sin_cache is 40 long on axis 0, 39 expected"),
        ("pk0", np.zeros((2, 3, 299, 64), np.float32), "past_value is 300 long on axis 2, 299 expected"),
        ("pk0", np.zeros((2, 2, 300, 64), np.float32), "past_key is 2 long on axis 1, 3 expected"),
        ("pv4", np.zeros((1, 2, 515, 32), np.float32), "past_value is 1 long on axis 0, 2 expected"),
        ("m1", np.zeros((2, 1, 1, 8), np.float32), "mask is 1 long on axis 2, 3 expected"),
        ("m1", np.zeros((2, 1, 3, 1), np.float32), "mask is 1 long on axis 3, 8 expected"),
        ("m5", np.zeros((2, 1, 5, 13), np.float32), "mask is 13 long on axis 3, 14 expected"),
    ],
)
def test_operands_that_onnxruntime_rejects_fail_with_a_message(
    built: Built, name: str, value: np.ndarray, message: str
) -> None:
    model, optimized, libraries = built
    feeds = _feeds(CASES, 0) | {name: value}
    with pytest.raises(RuntimeFailure):
        session.run(session.create(model.SerializeToString(), threads=1), feeds)
    running = session.create(optimized, threads=1, choice=SessionChoice(libraries=libraries))
    with pytest.raises(RuntimeFailure, match=message):
        session.run(running, feeds)


def test_past_and_present_may_share_memory(tmp_path: Path) -> None:
    case = Case(_GROUPED, (1, 1, 40), (2, 1), 16, used=(17,), total=18)
    model = _model([case])
    (native,) = natives([model], PIPELINE, tmp_path)
    feeds = _feeds([case], 0)
    expected = session.run(session.create(model.SerializeToString(), threads=1), feeds)
    running = session.create(native.model, threads=1, choice=native.choice)
    import onnxruntime

    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    binding = running.io_binding()
    for name, one in values.items():
        binding.bind_ortvalue_input(name, one)
    binding.bind_output("y0")
    binding.bind_ortvalue_output("ok0", values["pk0"])
    binding.bind_ortvalue_output("ov0", values["pv0"])
    running.run_with_iobinding(binding)
    result, keys, _ = binding.copy_outputs_to_cpu()
    np.testing.assert_allclose(result, expected[0], rtol=0, atol=3e-6)
    assert np.array_equal(keys[:, :, :18], expected[1][:, :, :18])
    assert np.array_equal(keys[:, :, 18:], feeds["pk0"][:, :, 18:])
