"""The bits of operators that are declared independent of the position of an element, measured on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from graphopt import ir
from graphopt.rules.building_blocks import position_dependence
from graphopt.verification.output_comparison import identical
from tests.model_testing import parse
from tests.rules import rule_cases

_LENGTH = 67
_EXTREMES = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, 1e-42, -1e-42, 88.0, -90.0, 200.0, 3e4, -3e4)
_TWO = (
    "Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mul", "Sub", "Sum",
)  # fmt: skip
_ONE = ("Abs", "Neg", "Relu", "Sign", "Identity")
_FLOAT_ONE = (*_ONE, "Ceil", "Floor", "IsInf", "IsNaN", "Reciprocal", "Round", "Sqrt")
_BOOLEAN = ("Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual")
_OTHERS = {
    "Clip": "y = Clip(x, low, high)",
    "Cast": "y = Cast<to = 11>(x)",
    "DequantizeLinear": "q = Cast<to = 3>(x) y = DequantizeLinear(q, scale)",
}


def formulas() -> list[tuple[str, str]]:
    found = [(dtype, op) for dtype in ("float", "double") for op in (*_FLOAT_ONE, *_TWO, "Clip", "Cast")]
    found += [("float16", op) for op in (*_FLOAT_ONE, *_TWO, "Cast") if op not in ("IsInf", "Relu")]
    integer = [op for op in (*_ONE, *_TWO, "Clip", "Cast", "Mod") if op not in ("Relu", "Sum")]
    found += [(dtype, op) for dtype in ("int32", "int64") for op in integer]
    return [*found, ("int32", "Relu"), ("float", "DequantizeLinear")]


def model_of(dtype: str, op: str) -> Any:
    result = "bool" if op in _BOOLEAN else "double" if op == "Cast" else dtype
    low = "{-2}" if dtype.startswith("int") else "{49152}" if dtype == "float16" else "{-2.0}"  # bits of -2
    high = low.replace("-", "")
    names = "x, z" if op in (*_TWO, "Mod") else "x"
    body = _OTHERS.get(op, f"y = {op}({names})")
    text = f"""g ({dtype}[N] x, {dtype}[N] z) => ({result}[N] y)
        <{dtype} low = {low}, {dtype} high = {high}, float scale = {{0.3}}> {{ {body} }}"""
    return parse(text)


def is_independent(model: Any) -> bool:
    node = next(node for node in reversed(list(model.graph)) if node.outputs[0].name == "y")
    with rule_cases.context_for(model) as cx:

        class Facts:
            dtype = staticmethod(cx.dtype)

        return not position_dependence.depends_on_position(Facts(), node)  # type: ignore[arg-type]


def operands(dtype: np.dtype[Any], seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        extremes = np.array([info.max, info.min + 1, info.max - 1, 1, -1, 7, -7], dtype)
        values = random.integers(-1000, 1000, _LENGTH).astype(dtype)
        values[values == 0] = 3
    else:
        extremes = np.array([*_EXTREMES, np.nan, np.inf, -np.inf, np.finfo(dtype).max]).astype(dtype)
        values = (random.standard_normal(_LENGTH) * 5).astype(dtype)
    places = random.choice(_LENGTH, len(extremes), replace=False)
    values[places] = extremes
    return values


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def depends_on_tail(model: Any) -> bool:
    """Whether some element has other bits if the buffer starts or ends elsewhere, or is permuted."""
    session = onnxruntime.InferenceSession(ir.to_bytes(model), _options())
    dtype = ir.DataType(model.graph.inputs[0].dtype).numpy()
    for seed in range(8):
        feeds = {"x": operands(dtype, seed), "z": operands(dtype, seed + 100)}
        whole = session.run(None, feeds)[0]
        for start in range(18):
            for stop in (_LENGTH, _LENGTH - 1, _LENGTH - 3, start + 1):
                part = {name: np.ascontiguousarray(array[start:stop]) for name, array in feeds.items()}
                if not identical(whole[start:stop], session.run(None, part)[0]):
                    return True
    return False


@pytest.mark.parametrize(("dtype", "op"), formulas())
def test_independent_operators_have_the_same_bits_at_every_position(dtype: str, op: str) -> None:
    model = model_of(dtype, op)
    assert not (is_independent(model) and depends_on_tail(model))
    assert is_independent(model) == (op not in ("Max", "Min") or dtype.startswith("int"))


@pytest.mark.parametrize(("dtype", "op"), [("float", "Atan"), ("float", "Sin"), ("double", "Exp")])
def test_functions_are_not_independent(dtype: str, op: str) -> None:
    """Atan, Sin and Exp round the last elements of a buffer differently (onnxruntime 1.31 on x86-64)."""
    assert not is_independent(model_of(dtype, op))


def test_relu_of_halves_and_power_are_not_independent() -> None:
    assert not is_independent(parse("g (float16[N] x) => (float16[N] y) { y = Relu(x) }"))
    for dtype in ("float", "int64"):
        text = f"g ({dtype}[N] x, {dtype}[1] z) => ({dtype}[N] y) {{ y = Pow(x, z) }}"
        assert not is_independent(parse(text))


def test_an_operator_without_operands_may_depend_on_the_position() -> None:
    text = "g (float[2, 3] x) => (float[2, 3] y) { y = RandomNormal <shape = [2, 3]> () }"
    assert not is_independent(parse(text))
