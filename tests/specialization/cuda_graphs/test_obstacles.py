"""The reasons why a model can't be captured, without a GPU."""

from __future__ import annotations

import pytest

from graphopt.ort.devices import CPU, Device
from graphopt.specialization.cuda_graphs.obstacles import copy_in, obstacles
from tests.model_testing import parse

CUDA = Device("cuda")
PLAIN = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x)\n y = Exp(a) }"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PLAIN, None),
        (
            """g (float[N,2,4] x, float[N,2,4] k) => (float[N,2,4] y, float[N,2,4] z) <float[4] s = {1, 1, 1, 1}> {
               y, mean, deviation, z = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 1e-5>(x, k, s)
            }""",
            None,
        ),
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
    assert next(obstacles(parse(text), CUDA), None) == reason


def test_copies_have_the_node_on_the_cpu() -> None:
    copied = "g (float[2,2] x) => (float[2,2] y) { [d] a = Det(x)\n y = Add(x, a) }"
    assert list(obstacles(parse(copied), CUDA)) == []  # onnxruntime decides about copies
    assert copy_in(parse(copied), CUDA) == (
        "Det 'd' runs on the CPU (CUDA has no kernel of Det), and 'a' is copied"
    )
    assert copy_in(parse(PLAIN), CUDA) is None
    sizes = "g (float[N,4] x, float[4] z) => (float[N,4] y) { s = Shape(x)\n y = Expand(z, s) }"
    assert copy_in(parse(sizes), CUDA) is None


def test_copies_to_the_cpu() -> None:
    text = "g (float[2,2] x) => (float y) { a = Relu(x)\n [d] y = Det(a) }"
    assert copy_in(parse(text), CUDA) == (
        "Det 'd' runs on the CPU (CUDA has no kernel of Det), and 'a' is copied"
    )


def test_the_cpu_has_no_graphs() -> None:
    assert list(obstacles(parse(PLAIN), CPU)) == [
        "the device is the CPU, and CUDA graphs are for NVIDIA GPUs"
    ]


def test_all_reasons_are_listed() -> None:
    text = "g (string[N] s, float[N] x) => (int64[1,M] y, string[N] t) { y = NonZero(x)\n t = Identity(s) }"
    assert len(list(obstacles(parse(text), CUDA))) == 3
