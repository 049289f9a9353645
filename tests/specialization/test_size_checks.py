"""``--check-sizes``: the number, the shapes and the addresses of inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import graphopt
from graphopt import ir
from graphopt.errors import UsageError
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.ir.signature import Signature
from graphopt.specialization.size_checks import SizeChecks
from tests.cli.conftest import Invoke, invoke, small  # noqa: F401
from tests.model_testing import parse

_MODEL = "g (float[N,4] x, float[N,4] z, float[4] w) => (float[N,4] y) { a = Mul(x, w)\n y = Add(a, z) }"


def _feeds(**changes: Any) -> dict[str, Any]:
    shapes = {"x": (2, 4), "z": (2, 4), "w": (4,)}
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()} | changes


def _checks(*static: str) -> SizeChecks:
    return SizeChecks(Signature.of(parse(_MODEL)), static)


@pytest.mark.parametrize(
    ("changes", "words", "hint"),
    [
        (
            {"x": np.ones((2, 4, 1), np.float32)},
            "the input 'x' has 3 axes, the model declares 2",
            "declared shape: N, 4",
        ),
        (
            {"x": np.ones((2, 3), np.float32)},
            "the input 'x' has size 3 on axis 1, the model declares 4",
            "declared shape: N, 4",
        ),
        (
            {"z": np.ones((3, 4), np.float32)},
            "the input 'z' has size 3 on axis 0, and 'x' has 2 for the same dim 'N'",
            "pass inputs with one size for 'N'",
        ),
        ({"q": np.ones(1)}, "the model has 3 inputs, 4 given: the model has no input 'q'", "inputs: x, z, w"),
    ],
)
def test_faults(changes: dict[str, Any], words: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        _checks().check(_feeds(**changes))
    assert raised.value.message == words and "\n" not in words
    assert raised.value.hint == hint


def test_missing_inputs() -> None:
    feeds = _feeds()
    del feeds["w"]
    with pytest.raises(UsageError, match="the model has 3 inputs, 2 given: 'w' is missing"):
        _checks().check(feeds)


def test_values_of_onnxruntime() -> None:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32))
    with pytest.raises(UsageError, match="size 3 on axis 1"):
        _checks().check(_feeds(x=value))


def test_static_inputs_keep_their_address() -> None:
    checks, feeds = _checks("w"), _feeds()
    for rows in (2, 3):
        other = np.ones((rows, 4), np.float32)
        checks.check({**feeds, "x": other, "z": other})
    with pytest.raises(
        UsageError, match=r"static input 'w' is at address 0x\w+, and was at 0x\w+ in the first run"
    ):
        checks.check({**feeds, "w": feeds["w"].copy()})
    with pytest.raises(UsageError, match="'v'"):
        _checks("v")


def test_an_executor_checks_before_the_run() -> None:
    options = ExecutorOptions(check_sizes=True, static_inputs=("w",), depth=0)
    executor = graphopt.compile(parse(_MODEL), options, device="cpu")
    feeds = _feeds()
    executor(feeds)
    executor(feeds)
    for changes in ({"w": feeds["w"].copy()}, {"z": np.ones((3, 4), np.float32)}):
        with pytest.raises(UsageError):
            executor({**feeds, **changes})
    assert executor.debug_state().runs == 2
    graphopt.compile(parse(_MODEL), ExecutorOptions(depth=0), device="cpu")(
        {**feeds, "w": feeds["w"].copy()}
    )  # not checked by default


def test_run_refuses_sizes_that_only_broadcasting_permits(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    onnx.save(ir.to_proto(parse(_MODEL)), tmp_path / "m.onnx")
    for rows, status in ((2, 0), (1, 2)):
        np.savez(tmp_path / "i.npz", **_feeds(z=np.ones((rows, 4), np.float32)))
        words = ("run", tmp_path / "m.onnx", "--inputs", tmp_path / "i.npz")
        assert invoke(*words).status == 0
        outcome = invoke(*words, "--check-sizes")
        assert outcome.status == status
        assert ("and 'x' has 2 for the same dim 'N'" in outcome.err) == (status != 0)


def test_bench_accepts_declared_sizes(invoke: Invoke, small: Path) -> None:  # noqa: F811
    arguments = ("--processes", "1", "--rounds", "1", "--check-sizes")
    assert invoke("bench", small, *arguments).status == 0


def test_sizes_are_checked_before_the_first_run(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    """onnxruntime itself would refuse these sizes, with a message that names no input."""
    text = "g (float[N, 2] a, float[N, 2] b) => (float[N, 2] c) { c = Add(a, b) }"
    graphopt.save(parse(text), tmp_path / "m.onnx")
    assert invoke("compile", tmp_path / "m.onnx", "-o", tmp_path / "m.gopt", "--no-verify").status == 0
    shapes = ("--input-shape", "a:2x2", "--input-shape", "b:3x2")
    assert "for the same dim" not in invoke("run", tmp_path / "m.onnx", *shapes).err
    for command in ("run", "bench"):
        for name in ("m.onnx", "m.gopt"):
            done = invoke(command, tmp_path / name, *shapes, "--check-sizes")
            assert done.status == 2, done.err
            assert "the input 'b' has size 3 on axis 0, and 'a' has 2 for the same dim 'N'" in done.err
