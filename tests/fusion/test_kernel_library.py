"""The library of a model, and its use by runs, verification, repair and executors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import api, config, ir
from graphopt.cli.main import main
from graphopt.errors import NoCompiler, NotFused, UsageError, VerificationFailed
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.fusion.backends.c import CBackend
from graphopt.fusion.group_functions import groups_of
from graphopt.fusion.kernel_inventory import writing_library
from graphopt.fusion.kernel_library import Libraries, are_missing, libraries_for
from graphopt.ops import graphopt_operators
from graphopt.ort.devices import Device
from tests.fusion.backends.c.runtime.samples import compiled
from tests.fusion.models import TWO, grouped, spoil
from tests.model_testing import parse

FEEDS = {
    "x": np.linspace(-3, 3, 128, dtype=np.float32).reshape(2, 64),
    "w": np.eye(64, dtype=np.float32),
    "b": np.linspace(1, 2, 64, dtype=np.float32),
}


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def calls(model: ir.Model) -> int:
    return sum(node.domain == graphopt_operators.NATIVE_DOMAIN for node in model.graph)


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: object, **more: object) -> Path:
        raise NoCompiler("there is no C compiler for native kernels", hint="install one")

    monkeypatch.setattr(CBackend, "build", none)


def test_models_without_groups_and_devices_without_kernels_have_no_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = config.current()
    assert libraries_for(parse(TWO), settings) == Libraries()
    monkeypatch.setattr("graphopt.fusion.backend.discover", lambda package: {})
    assert libraries_for(grouped(), settings, Device("cuda")) == Libraries()


@compiled
def test_library_is_rebuilt_from_the_model(tmp_path: Path) -> None:
    settings = config.current()
    told: list[str] = []
    found = libraries_for(grouped(), settings, progress=lambda done, text: told.append(text))
    assert len(found.paths) == 1 and len(found.kernels) == 2 and not found.remarks and told
    told.clear()
    assert libraries_for(grouped(), settings, progress=lambda done, text: told.append(text)) == found
    assert not told, "it is in the store"
    assert Path(found.paths[0]).is_relative_to(tmp_path / "cache")


def test_failed_builds_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config.current()
    model = grouped()
    without_compiler(monkeypatch)
    (remark,) = libraries_for(model, settings).remarks
    assert (
        remark
        == "2 kernels not built, onnxruntime runs the nodes: there is no C compiler for native kernels (install one)"
    )
    (function, *_) = model.functions.values()
    next(node for node in function if node.op_type == "Mul").op_type = "Sub"
    assert "its contents do not match its name" in libraries_for(model, settings).remarks[0]
    model.metadata_props[graphopt_operators.KERNEL_SIGNATURES] = "{"
    assert "can't be read" in libraries_for(model, settings).remarks[0]


@compiled
def test_runs_use_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain = grouped(), api.run(parse(TWO), FEEDS)["y"]
    np.testing.assert_allclose(api.run(model, FEEDS)["y"], plain, rtol=1e-5)
    spoil(monkeypatch, "sigmoid", "Tanh")  # the fault becomes visible
    assert np.abs(api.run(model, FEEDS)["y"] - plain).max() > 0.1
    np.testing.assert_allclose(api.run(model, FEEDS, libraries=())["y"], plain, rtol=1e-5)
    verdict = api.verify(parse(TWO), model)
    assert not verdict.ok and "with its library" in verdict.summary()
    assert api.verify(parse(TWO), model, libraries=()).ok


@compiled
def test_a_wrong_kernel_is_found_and_its_group_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "sigmoid", "Tanh")
    model, report = api.optimize(parse(TWO), fuser="native")
    assert [(drop.owner, drop.node) for drop in report.dropped] == [("fuse-groups", "Sigmoid(s)")]
    assert calls(model) == 1 and [name[:8] for name in report.kernels] == ["mat_mul_"]
    assert report.verdict is not None and report.verdict.ok
    with pytest.raises(VerificationFailed, match="with its library"):
        api.optimize(parse(TWO), fuser="native", strict=True)


@compiled
def test_a_wrong_kernel_is_found_by_bisection_and_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, kept = tmp_path / "m.onnx", tmp_path / "kept"
    ir.save(parse(TWO), path)
    spoil(monkeypatch, "sigmoid", "Tanh")
    assert main(["bisect", str(path), "--fuser", "native", "-o", str(kept)], {}) == 1
    assert "fuse-groups at Sigmoid(s)" in capsys.readouterr().out
    assert main(["replay", str(kept)], {}) == 1
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["replay", str(kept)], {}) == 0


def test_model_is_written_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    model, report = api.optimize(parse(TWO), fuser="native")
    assert calls(model) == 2 and report.kernels == report.libraries == ()
    assert "2 kernels not built" in report.remarks[0]
    np.testing.assert_allclose(api.run(model, FEEDS)["y"], api.run(parse(TWO), FEEDS)["y"], rtol=1e-5)


def test_strict_fusion_fails_without_a_built_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    with pytest.raises(NotFused, match=r"its kernel is missing: 2 kernels not built.*no C compiler"):
        api.optimize(parse(TWO), fuser="native", strict_fusion=["Sin(t)"])


def test_a_fuser_and_a_pipeline_exclude_each_other() -> None:
    with pytest.raises(graphopt.errors.UsageError, match="exclude each other"):
        api.optimize(parse(TWO), fuser="native", pipeline="O1")


# Kernels in the Python API ------------------------------------------------------------------------


def test_kernels_lists_groups() -> None:
    found = graphopt.list_kernels(grouped())
    assert not found.proposed and [group.calls for group in found.groups] == [1, 1]
    assert all(group.name in found.source() for group in found.groups)
    assert graphopt.list_kernels(parse(TWO)).proposed
    nothing = parse("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    for model in (nothing, parse(TWO)):
        with pytest.raises(UsageError, match="no native groups") as caught:
            graphopt.build_kernels(model, "k.so")
        assert "--fuser native" in (caught.value.hint or "")
    assert repr(found) == "<Inventory: 2 groups, 2 kernels>"


def test_build_kernels_checks_the_target(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs the suffix"):
        graphopt.build_kernels(grouped(), tmp_path / "k.txt")
    source = tmp_path / "made.so"
    source.write_bytes(b"")
    with pytest.raises(UsageError) as caught, writing_library(source, tmp_path / "none" / "k.so"):
        pass
    assert caught.value.hint == f"mkdir -p {tmp_path / 'none'}"


def test_proposed_kernels_are_those_of_the_fuser() -> None:
    """The normalization becomes an operator of onnxruntime that includes the bias."""
    model = parse("""g (float[N,64] x, float[64] b) => (float[N,64] y) <float e = {0.00001}, float two = {2.0}> {
        m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean <axes = [-1]> (p)
        a = Add(v, e) r = Sqrt(a) n = Div(d, r) s = Sin(n) y = Mul(s, b)
    }""")
    _, report = api.optimize(model, fuser="native")
    found = graphopt.list_kernels(model)
    assert found.proposed and [group.name for group in found.groups] == list(report.kernels)
    asis = groups_of(graphopt.partition(model, "fusion").outlined())
    assert [group.name for group in found.groups] != [group.name for group in asis]


def test_missing_groups_are_reported() -> None:
    nothing = parse("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    _, report = api.optimize(nothing, fuser="native")
    assert any(note.startswith("no native groups: ") for note in report.notes())
    _, report = api.optimize(nothing, pipeline="O3")
    assert not any(note.startswith("no native groups") for note in report.notes())
    _, report = api.optimize(nothing, fuser="native", skip=["fuse-groups"])
    assert not any(note.startswith("no native groups") for note in report.notes())


@compiled
def test_build_kernels_writes_a_library(tmp_path: Path) -> None:
    path = tmp_path / "k.so"
    graphopt.build_kernels(grouped(), path)
    assert path.stat().st_size > 1000 and [file.name for file in tmp_path.glob("*.so")] == ["k.so"]
    assert not list(tmp_path.glob(".*"))
    found = api.run(grouped(), FEEDS, libraries=[str(path)])["y"]
    np.testing.assert_allclose(found, api.run(parse(TWO), FEEDS)["y"], rtol=1e-5)


# Executors ----------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("compile", ["blocking", "background"])
def test_executors_use_kernels_in_all_plans(compile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = api.run(parse(TWO), FEEDS)["y"]
    with graphopt.fuser("native"):
        options = ExecutorOptions(graphopt.FusionStrategy.parse("static:1,dynamic:1"), compile=compile)  # type: ignore[arg-type]
        executor = graphopt.compile(parse(TWO), options)
    assert calls(executor.graph_for(FEEDS)) == 2
    for _ in range(2):
        np.testing.assert_allclose(executor.run(FEEDS)["y"], expected, rtol=1e-5)
        executor.wait()
    executor.run(FEEDS)
    assert executor.last_plan == "static-1"
    static = graphopt.last_executed_optimized_graph()
    assert static.metadata_props[graphopt_operators.KERNEL_SIGNATURES].count("f32[2,64]") > 0
    wide = {**FEEDS, "x": np.ones((5, 64), np.float32)}
    for _ in range(2):
        executor.run(wide)
        executor.wait()
    executor.run(wide)
    assert executor.last_plan == "dynamic-1"
    assert "d0" in executor.graph_for(wide).metadata_props[graphopt_operators.KERNEL_SIGNATURES]
    state = executor.debug_state()
    assert not state.remarks and all(len(plan.kernels) == 2 for plan in state.plans if plan.hits)
    assert "nodes, 2 native kernels" in str(state)


@compiled
def test_plans_execute_kernel_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "sigmoid", "Tanh")
    with graphopt.fuser("native"):
        executor = graphopt.compile(parse(TWO), verify=False)
    assert np.abs(executor.run(FEEDS)["y"] - api.run(parse(TWO), FEEDS)["y"]).max() > 0.1


def test_executor_reports_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    with graphopt.fuser("native"):
        executor = graphopt.compile(parse(TWO), ExecutorOptions(depth=0))
    executor.run(FEEDS)
    assert "not built" in str(executor.debug_state())


def test_remarks_state_that_kernels_are_missing() -> None:
    """A result without them is not stored: another run may have a compiler."""
    with config.patch(compiler="nope") as settings:
        assert are_missing(libraries_for(grouped(), settings).remarks)
    assert not are_missing(["no native groups: the model has IR version 3"])
