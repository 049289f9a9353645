"""Pipelines with the step specialize-types specialize annotated inputs themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.profile import Profile
from graphopt.specialization.build_variants import Specialization
from tests.cli.conftest import Invoke
from tests.cli.conftest import invoke as invoke  # noqa: PLC0414
from tests.model_testing import parse
from tests.specialization.recording_passes import Look

#: Shape arithmetic that a known N makes unnecessary.
SHAPES = """
g (float[N,4] x, float[N,4] w) => (float[A,B] y, int64[2,M] found) {
  s = Shape(x)
  two = Constant <value_ints = [2]> ()
  half = Constant <value_ints = [-1]> ()
  size = ReduceProd <keepdims = 1> (s)
  a = Div(size, two)
  shape = Concat <axis = 0> (a, two)
  z = Add(x, w)
  y = Reshape(z, shape)
  found = NonZero(x)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    graphopt.save(parse(SHAPES), path)
    return path


def _feeds(rows: int) -> dict[str, np.ndarray]:
    x = np.arange(4.0 * rows, dtype=np.float32).reshape(rows, 4)
    return {"x": x, "w": x + 1}


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[], list[str]]:
    """The lines that :class:`Look` has written."""
    return lambda: (tmp_path / "seen.txt").read_text().splitlines()


@pytest.mark.parametrize("sizes", [(3, 3), (3, 5)])
def test_pre_passes_observe_annotations_and_post_passes_types(
    model: Path, tmp_path: Path, lines: Callable[[], list[str]], sizes: tuple[int, ...]
) -> None:
    profile = graphopt.record_profile(model, [_feeds(size) for size in sizes])
    look = [Look(str(tmp_path / "seen.txt"))]
    found = graphopt.api.specialize(
        model, Specialization(profile), pipeline="profiling", pre_passes=look, post_passes=look
    )
    assert lines()[:2] == ["found [N,4]"] * 2  # the general model
    assert lines()[2:4] == ["found,w,x [N,4]", "found [3,4]"]
    assert found.report.verdict is not None and found.report.verdict.ok
    for size in (*sizes, 2):
        expected = graphopt.run(model, _feeds(size))
        actual = graphopt.run(found.model or found.general, _feeds(size))
        np.testing.assert_array_equal(actual["y"], expected["y"])


def test_passes_of_the_command_line_observe_annotations_and_types(
    invoke: Invoke, model: Path, tmp_path: Path, lines: Callable[[], list[str]]
) -> None:
    graphopt.record_profile(model, [_feeds(3), _feeds(3)]).write(tmp_path / "p.json")
    look = f"tests.specialization.recording_passes:Look{{file={tmp_path / 'seen.txt'}}}"
    done = invoke(
        "optimize", model, "-o", tmp_path / "o.onnx", "--pipeline", "profiling", "--profile", tmp_path / "p.json",
        "--pre-pass", look, "--post-pass", look,
    )  # fmt: skip
    assert done.status == 0, done.err
    assert {"found,w,x [N,4]", "found [3,4]"} <= set(lines())


@pytest.mark.parametrize("strategy", ["static:1", "dynamic:1"])
def test_passes_of_plans_observe_annotations_and_types(
    tmp_path: Path, lines: Callable[[], list[str]], strategy: str
) -> None:
    look = [Look(str(tmp_path / "seen.txt"))]
    executor = graphopt.compile(
        parse(SHAPES),
        ExecutorOptions(strategy=strategy, wait=None),
        pipeline="profiling",
        pre_passes=look,
        post_passes=look,
    )
    for _ in range(3):
        outputs = executor(_feeds(3))
        np.testing.assert_array_equal(outputs["y"], graphopt.run(parse(SHAPES), _feeds(3))["y"])
    assert executor.last_plan == strategy.replace(":", "-"), executor.debug_state()
    shape = "[3,4]" if strategy == "static:1" else "[N,4]"
    assert lines() == ["nothing [N,4]", "nothing [N,4]", "w,x [N,4]", f"nothing {shape}"]


def test_equal_sizes_of_a_dynamic_variant_are_respected_by_its_verification() -> None:
    """The variant declares the dims of the original, but its inputs must satisfy the guard."""
    text = "g (float[N] x, float[M] y, int64[1] n) => (float[K] z) { z = Expand(x, n) }"
    profile = graphopt.record_profile(
        parse(text),
        [{"x": np.ones(k, np.float32), "y": np.ones(k, np.float32), "n": np.array([k])} for k in (3, 5)],
    )
    found = graphopt.api.specialize(parse(text), Specialization(profile), pipeline="profiling", strict=True)
    assert found.report.variants


def test_gradients_of_profiles_and_executors_choose_the_path(
    invoke: Invoke, model: Path, tmp_path: Path
) -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { t = Sin(x) u = Exp(t) y = Cos(u) }"
    graphopt.save(parse(text), model)
    p = tmp_path / "p.json"
    for options, has_groups in ((("--requires-grad", "x"), True), ((), False)):
        assert invoke("profile", model, "--input-shape", "x:3x4", *options, "-o", p).status == 0
        done = invoke(
            "optimize", model, "-o", tmp_path / "o.onnx", "--pipeline", "profiling", "--profile", p, "--force"
        )
        assert done.status == 0, done.err
        groups = [key for key in ir.load(tmp_path / "o.onnx").functions if key[0] == "graphopt.autodiff"]
        assert bool(groups) == has_groups
        assert ("optimized for gradients, because 'x' requires one" in done.out) == has_groups
    assert Profile.read(p).requires_grad == {}
    x = np.ones((3, 4), np.float32)
    for wanted in ((), ("x",)):
        executor = graphopt.compile(
            parse(text), ExecutorOptions(requires_grad=wanted, wait=None), pipeline="profiling"
        )
        outputs = [executor({"x": x})["y"] for _ in range(3)]
        np.testing.assert_allclose(outputs[2], graphopt.run(parse(text), {"x": x})["y"], rtol=1e-6)
        groups = [key for key in executor.graph_for({"x": x}).functions if key[0] == "graphopt.autodiff"]
        assert bool(groups) == bool(wanted)
        if wanted:
            _, pullback = executor.vjp({"x": x})
            assert pullback({"y": np.ones((3, 4), np.float32)})["x"].shape == (3, 4)
