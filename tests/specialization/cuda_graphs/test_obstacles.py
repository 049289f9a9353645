"""The reasons why a model can't be captured, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from graphopt.ort.devices import CPU, Device
from graphopt.specialization.cuda_graphs.obstacles import obstacles
from tests.model_testing import parse

CUDA = Device("cuda")
PLAIN = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x)\n y = Exp(a) }"


def _all(*key: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PLAIN, None),
        (
            """g (bool c, float[2] x) => (float[2] y) {
               [choice] y = If (c) <then_branch = a () => (float[2] p) { p = Exp(x) }, else_branch = b () => (float[2] q) { q = Relu(x) }>
            }""",
            "If 'choice' is control flow",
        ),
        (
            "g (float[N] x) => (int64[1,M] y) { y = NonZero(x) }",
            "the shape of 'y', the result of NonZero, depends on data",
        ),
        (
            "g (float[N,4] x) => (float[N,4] y) { [r] n = RandomNormalLike(x)\n y = Add(x, n) }",
            "RandomNormalLike 'r' draws random numbers",
        ),
        ("g (string[N] x) => (string[N] y) { y = Identity(x) }", "the input 'x' is no tensor of numbers"),
        (
            "g (float[N] x) => (seq(float[N]) y) { y = SequenceConstruct(x) }",
            "the output 'y' is no tensor of numbers",
        ),
        (
            "g (bfloat16[N] x) => (bfloat16[N] y) { y = Identity(x) }",
            "the input 'x' has the element type bfloat16, which numpy lacks",
        ),
    ],
)
def test_reasons(text: str, reason: str | None) -> None:
    assert next(obstacles(parse(text), CUDA, _all), None) == reason


def test_operators_without_kernels() -> None:
    missing = lambda op, *rest: op != "Exp"  # noqa: E731
    assert list(obstacles(parse(PLAIN.replace("y = Exp", "[e] y = Exp")), CUDA, missing)) == [
        "Exp 'e' has no kernel on the device"
    ]
    shapes = parse("g (float[N,4] x) => (int64[2] s, float[N,4] y) { s = Shape(x)\n y = Relu(x) }")
    assert list(obstacles(shapes, CUDA, lambda op, *rest: op != "Shape")) == []


def test_operators_without_kernels_for_their_types() -> None:
    def of_floats(op: str, domain: str, version: int, dtype: str | None) -> bool:
        return op != "Exp" or dtype in (None, "float")

    text = PLAIN.replace("y = Exp", "[e] y = Exp")
    assert list(obstacles(parse(text), CUDA, of_floats)) == []
    assert list(obstacles(parse(text.replace("float[", "double[")), CUDA, of_floats)) == [
        "Exp 'e' has no kernel on the device for double"
    ]


def test_the_cpu_has_no_graphs() -> None:
    assert list(obstacles(parse(PLAIN), CPU)) == [
        "the device is the CPU, and CUDA graphs are for NVIDIA GPUs"
    ]


def test_all_reasons_are_listed() -> None:
    text = "g (string[N] s, float[N] x) => (int64[1,M] y, string[N] t) { y = NonZero(x)\n t = Identity(s) }"
    assert len(list(obstacles(parse(text), CUDA, _all))) == 3
