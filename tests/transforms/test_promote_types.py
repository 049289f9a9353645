"""promote-types: nodes without a kernel for their type run on the device, with equal results."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from graphopt import ir
from graphopt.context import Options
from graphopt.ort import session
from graphopt.ort.devices import Device
from graphopt.placement import predict
from tests.model_testing import agree, ops, parse, run_pipeline
from tests.placement.conftest import PlaceModels, libraries, place  # noqa: F401

CUDA = Options(device=Device("cuda"))
_CONSTANTS = """
    <int32 low = {1}, int32 high = {5}, int64[4] pads = {0, 1, 1, 0}, int32 seven = {7}, int32[1] depth = {6},
     float[2] values = {-1.0, 1.0}, int8 byte = {3}, int64[2] twice = {2, 1}, bool no = {0}>
"""
#: Inputs and outputs, nodes, and the operators of the result. Abs, Neg and Add run on CUDA.
_CASES = {
    "Clip": (
        "(int32[N, 4] x) => (int32[N, 4] y)",
        "a = Neg(x) b = Clip(a, low, high) y = Neg(b)",
        ["Neg", "Cast", "Clip", "Cast", "Neg"],
    ),
    "Pad": (
        "(int32[N, 4] x) => (int32[M, K] y)",
        "a = Neg(x) b = Pad(a, pads, seven) y = Neg(b)",
        ["Neg", "Cast", "Pad", "Cast", "Neg"],
    ),
    "OneHot": (
        "(int64[N] x) => (float[N, 6] y)",
        "a = Neg(x) b = OneHot(a, depth, values) y = Neg(b)",
        ["Neg", "OneHot", "Neg"],
    ),
    "ArgMax": (
        "(int32[N, 4] x) => (int64[M] y)",
        "a = Neg(x) b = ArgMax<axis = 1, keepdims = 0>(a) y = Neg(b)",
        ["Neg", "Cast", "ArgMax", "Neg"],
    ),
    "Equal": (
        "(int8[N, 4] x) => (bool[N, 4] y)",
        "a = Neg(x) b = Equal(a, byte) y = Not(b)",
        ["Neg", "Cast", "Equal", "Not"],
    ),
    "Tile": (
        "(bool[N, 4] x) => (bool[M, 4] y)",
        "a = Not(x) b = Tile(a, twice) y = Not(b)",
        ["Not", "Cast", "Tile", "Cast", "Not"],
    ),
    "two in a row": (
        "(int32[N, 4] x) => (int32[M, K] y)",
        "a = Neg(x) b = Pad(a, pads) c = Clip(b, low) y = Neg(c)",
        ["Neg", "Cast", "Pad", "Cast", "Cast", "Clip", "Cast", "Neg"],
    ),
}


def model(name: str) -> ir.Model:
    ports, nodes, _ = _CASES[name]
    return parse(f"g {ports} {_CONSTANTS} {{ {nodes} }}")


def promoted(model: ir.Model, pipeline: str = "promote-types") -> ir.Model:
    run_pipeline(model, pipeline, CUDA)
    return model


@pytest.mark.parametrize("name", _CASES)
def test_promoted_nodes_run_on_the_device_and_return_equal_bits(name: str) -> None:
    result = promoted(model(name))
    assert ops(result) == _CASES[name][2]
    placed = predict(result)
    assert (placed.on_cpu, placed.copies) == ((), ())
    assert agree(model(name), result, sizes=(3, 1, 2))


def test_promoted_clips_are_right_for_large_numbers() -> None:
    """onnxruntime clips int64 on the CPU as if numbers from 2³¹ on were negative."""
    result = promoted(
        parse("""g (int64[N] x) => (int64[N] y) <uint32 high = {4294967294}> {
            a = Cast<to = 12>(x)
            b = Clip(a, , high)
            y = Cast<to = 7>(b) }""")
    )
    assert ops(result) == ["Cast", "Cast", "Clip", "Cast", "Cast"]
    numbers = np.array([0, 1, 2**31 - 1, 2**31 + 5, 2**32 - 2, 2**32 - 1, 7, 9])
    (found,) = session.run(session.create(ir.to_bytes(result)), {"x": numbers})
    assert np.array_equal(found, np.minimum(numbers, 2**32 - 2))


def test_sessions_place_promoted_nodes_on_the_device(place: PlaceModels) -> None:  # noqa: F811
    for name, found in place({name: promoted(model(name)) for name in _CASES}).items():
        assert Counter(node[3] for node in found["nodes"]) == {True: len(_CASES[name][2])}, (name, found)
        assert found["copies"] == []


@pytest.mark.parametrize("name", _CASES)
def test_presets_keep_promoted_nodes(name: str) -> None:
    result = promoted(model(name), "O3")
    assert predict(result).on_cpu == ()
    again = ops(result)
    assert ops(promoted(result, "O3")) == again


@pytest.mark.parametrize(
    ("ports", "nodes"),
    [
        # only an input and an output, which a session copies in any case
        ("(int32[N, 4] x) => (int32[N, 4] y)", "y = Clip(x, low, high)"),
        # another operator on the CPU computes its operand
        (
            "(float[4, 4] x) => (int32[N] y)",
            "d = Det(x) i = Cast<to = 8>(d) j = Cast<to = 6>(i) b = Clip(j, low) y = Neg(b)",
        ),
        # another operator on the CPU reads its result
        (
            "(int32[N, 4] x) => (string[N, 4] y, int32[N, 4] z)",
            "a = Neg(x) z = Clip(a, low) y = Cast<to = 8>(z)",
        ),
        # it only computes with sizes
        (
            "(float[N, 4] x) => (int32[K] y)",
            "s = Shape(x) i = Cast<to = 6>(s) y = Clip(i, low)",
        ),
        # the provider refuses an attribute
        (
            "(int32[N, 4] x) => (int64[N, 1] y)",
            "a = Neg(x) b = ArgMax<axis = 1, select_last_index = 1>(a) y = Neg(b)",
        ),
        # no wider type has a kernel
        ("(int64[N, 4] x) => (int64[M, K] y)", "a = Neg(x) b = Pad(a, pads) y = Neg(b)"),
    ],
)
def test_nodes_that_would_need_other_copies_are_not_promoted(ports: str, nodes: str) -> None:
    before = parse(f"g {ports} {_CONSTANTS} {{ {nodes} }}")
    expected = ops(before)
    assert ops(promoted(before)) == expected


@pytest.mark.parametrize("name", _CASES)
def test_nothing_changes_on_the_cpu(name: str) -> None:
    result = model(name)
    expected = ops(result)
    run_pipeline(result, "promote-types")
    assert ops(result) == expected


def test_runs_for_the_cpu_import_no_placement() -> None:
    code = (
        "import sys, graphopt, onnx.parser\n"
        "text = '<ir_version: 8, opset_import: [\"\": 17]> g (float[N] x) => (float[N] y) { y = Neg(x) }'\n"
        "graphopt.optimize(onnx.parser.parse_model(text), pipeline='promote-types', device='cpu', verify=False)\n"
        "print([name for name in sys.modules if name.startswith('graphopt.placement')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_bodies_are_promoted() -> None:
    text = """
        g (int32[N] x, int64 n) => (int32[N] y) <int32 low = {1}>
        {
            y = Loop(n, , x) <body = b (int64 i, bool c, int32[N] a) => (bool d, int32[N] e)
                { d = Identity(c) f = Neg(a) h = Clip(f, low) e = Neg(h) }>
        }
    """
    result = promoted(parse(text))
    assert predict(result).on_cpu == ()
    assert agree(parse(text), result, sizes=(3, 1, 2))
