"""samples/run_bundle.py runs bundles without graphopt, as graphopt runs them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import api
from graphopt.profile import FusionStrategy, Guard, ValueProfile
from graphopt.specialization.build_variants import Specialization
from tests.fusion.backends.c.runtime.samples import compiled
from tests.model_testing import parse

SCRIPT = Path(__file__).resolve().parents[2] / "samples" / "run_bundle.py"
MODEL = f"""
g (float[N, 16] x, int64 i) => (float[N, 32] y, int64[2] size)
<float[16, 32] w = {{{", ".join(str(number / 512) for number in range(512))}}}>
{{
  z = MatMul(x, w)
  size = Shape(z)
  f = Cast <to = 1> (i)
  a = Add(z, f)
  b = Sigmoid(a)
  y = Mul(a, b)
}}
"""


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("run_bundle", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _feeds(rows: int, i: int = 3) -> dict[str, np.ndarray]:
    x = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
    return {"x": x, "i": np.array(i)}


def _compiled(path: Path, *, archive: bool = False, **options: Any) -> Path:
    """Variants for one row, for four rows, and for any number of rows, if i is 3."""
    profile = graphopt.record_profile(parse(MODEL), [_feeds(1)] * 3 + [_feeds(4)] * 2 + [_feeds(7)])
    how = Specialization(profile, FusionStrategy.parse("static:2,dynamic:1"))
    api.aot_compile(parse(MODEL), path, how, archive=archive, verify=False, **options)
    return path


@pytest.mark.parametrize("archive", [False, True])
def test_results_are_those_of_graphopt(script: Any, tmp_path: Path, archive: bool) -> None:
    path = _compiled(tmp_path / "m.gopt", archive=archive)
    bundle, loaded = script.Bundle(path), graphopt.load(path)
    files = set()
    for rows, i in ((1, 3), (4, 3), (9, 3), (1, 5)):
        feeds = _feeds(rows, i)
        files.add(bundle.choose(feeds)["file"])
        assert bundle.choose(feeds)["file"] == loaded.manifest.models[loaded.choose(feeds)]
        outputs = bundle.run(feeds)
        assert list(outputs) == ["y", "size"]
        for name, array in loaded.run(feeds).items():
            np.testing.assert_array_equal(outputs[name], array)
    assert files == {"static-1.onnx", "static-2.onnx", "dynamic-1.onnx", "general.onnx"}


def test_a_process_without_graphopt_runs_a_moved_bundle(tmp_path: Path) -> None:
    path = _compiled(tmp_path / "m.gopt")
    moved = path.rename(tmp_path / "elsewhere")
    np.savez(tmp_path / "in.npz", **_feeds(4))  # type: ignore[arg-type]
    code = (
        "import runpy, sys\n"
        "sys.modules['graphopt'] = None\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    command = [sys.executable, "-c", code, moved, tmp_path / "in.npz", tmp_path / "out.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outputs, expected = dict(np.load(tmp_path / "out.npz")), graphopt.run(parse(MODEL), _feeds(4))
    np.testing.assert_allclose(outputs["y"], expected["y"], rtol=1e-5, atol=1e-6)
    assert outputs["size"].tolist() == [4, 32]


@compiled
def test_kernels_of_the_bundle_are_registered(script: Any, tmp_path: Path) -> None:
    path = _compiled(tmp_path / "m.gopt", fuser="native")
    with_kernels, without = script.Bundle(path, kernels=True), script.Bundle(path)
    assert with_kernels.manifest["kernels"]
    for rows in (4, 9):
        one, other = with_kernels.run(_feeds(rows)), without.run(_feeds(rows))
        np.testing.assert_allclose(one["y"], other["y"], rtol=1e-5, atol=1e-6)


def test_damaged_files_and_other_formats_are_refused(script: Any, tmp_path: Path) -> None:
    path = _compiled(tmp_path / "m.gopt")
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"graphopt_bundle": 3', '"graphopt_bundle": 4'))
    with pytest.raises(ValueError, match="format version"):
        script.Bundle(path)
    (path / "manifest.json").write_text(text)
    (path / "weights.bin").write_bytes(bytes((path / "weights.bin").stat().st_size))
    with pytest.raises(ValueError, match=r"weights\.bin is damaged"):
        script.Bundle(path)


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("guard", "feeds"),
    [
        (Guard({"x": ValueProfile("tensor(float)", (2, 3))}), {"x": X}),
        (Guard({"x": ValueProfile("tensor(float)", (2, 4))}), {"x": X}),
        (Guard({"x": ValueProfile("tensor(double)", (2, 3))}), {"x": X}),
        (Guard({"x": ValueProfile("tensor(double)")}), {"x": X}),
        (Guard({"x": ValueProfile("", (2, 3))}), {"x": X}),
        (Guard({"x": ValueProfile("tensor(float)", (2,))}), {"x": X}),
        (Guard({"x": ValueProfile("tensor(float)", ("n", "?"))}), {"x": X}),
        (Guard({"x": ValueProfile("tensor(float)", ("n", "n"))}), {"x": X}),
        (Guard({"x": ValueProfile("tensor(float)", ("?", "?"))}), {"x": X}),
        (Guard({name: ValueProfile("tensor(float)", ("n", "m")) for name in "xy"}), {"x": X, "y": X[:1]}),
        (Guard({name: ValueProfile("tensor(float)", ("n", "m")) for name in "xy"}), {"x": X, "y": X}),
        (Guard({"i": ValueProfile("tensor(int64)", (2,), (1, 2))}), {"i": np.array([1, 2])}),
        (Guard({"i": ValueProfile("tensor(int64)", (2,), (1, 2))}), {"i": np.array([1, 3])}),
        (Guard({"i": ValueProfile("tensor(bool)", (), (1,))}), {"i": np.array(True)}),
        (Guard({"i": ValueProfile("tensor(bool)", (), (1,))}), {"i": np.array(False)}),
        (Guard({"s": ValueProfile("tensor(string)", (1,))}), {"s": np.array(["a"], object)}),
        (Guard({"s": ValueProfile("seq(tensor(float))")}), {"s": [X]}),
        (Guard({"s": ValueProfile("tensor(float)", (2, 3))}), {"s": [X]}),
        (Guard({"x": ValueProfile("tensor(float)", (2, 3))}), {}),
        (Guard({"x": ValueProfile("tensor(float)", (2, 3), always=False)}), {}),
        (Guard({}, ("k",)), {}),
        (Guard({}, ("k",)), {"k": X}),
        (Guard({}), {"x": X}),
    ],
)
def test_guards_hold_as_in_graphopt(script: Any, guard: Guard, feeds: dict[str, Any]) -> None:
    assert script.holds(guard.to_dict(), feeds) == guard.holds(feeds)


def test_errors_are_one_line(tmp_path: Path) -> None:
    path = _compiled(tmp_path / "m.gopt")
    np.savez(tmp_path / "in.npz", **_feeds(4))  # type: ignore[arg-type]
    np.savez(tmp_path / "extra.npz", q=X, **_feeds(4))  # type: ignore[arg-type]
    np.savez(tmp_path / "fewer.npz", x=_feeds(4)["x"])
    np.savez(tmp_path / "wide.npz", x=np.ones((1, 17), np.float32), i=np.array(5))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.gopt").write_text("no zip file")
    lacking = tmp_path / "lacking"
    shutil.copytree(path, lacking)
    (lacking / "weights.bin").unlink()
    damaged = tmp_path / "damaged"
    shutil.copytree(path, damaged)
    (damaged / "manifest.json").write_text("{")
    keyless = tmp_path / "keyless"
    keyless.mkdir()
    (keyless / "manifest.json").write_text('{"graphopt_bundle": 3}')
    cases = [
        ("none.gopt", "in.npz", "out.npz", "there is no bundle none.gopt"),
        ("empty", "in.npz", "out.npz", "empty is not a bundle: it has no manifest.json"),
        ("text.gopt", "in.npz", "out.npz", "File is not a zip file"),
        ("lacking", "in.npz", "out.npz", "weights.bin is missing in lacking"),
        ("damaged", "in.npz", "out.npz", "manifest.json of damaged is damaged: "),
        ("keyless", "in.npz", "out.npz", "the manifest has no 'files'"),
        ("m.gopt", "none.npz", "out.npz", "No such file or directory: 'none.npz'"),
        ("m.gopt", "text.gopt", "out.npz", "text.gopt is not an .npz file"),
        ("m.gopt", "extra.npz", "out.npz", "the model has no input 'q', only x, i"),
        ("m.gopt", "fewer.npz", "out.npz", "the model needs a value for input 'i'"),
        ("m.gopt", "wide.npz", "out.npz", "Got invalid dimensions for input: x"),
        ("m.gopt", "in.npz", "missing/out.npz", "No such file or directory: 'missing/out.npz'"),
    ]
    for *arguments, message in cases:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == 1, arguments
        lines = [line for line in done.stderr.splitlines() if "[E:onnxruntime" not in line]
        assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0], done.stderr
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["m.gopt", "in.npz"], ["m.gopt", "in.npz", "out.npz", "--kernel"]]
)
def test_wrong_arguments(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "usage: python run_bundle.py BUNDLE INPUTS.npz OUTPUTS.npz [--kernels]\n"
