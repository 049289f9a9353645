"""``run`` and ``bench`` with ``--share-buffers``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import api
from graphopt.profile import FusionStrategy
from graphopt.specialization.build_variants import Specialization
from graphopt.specialization.bundle.save import save_bundle
from tests.cli.conftest import Invoke
from tests.model_testing import parse

CACHE = """g (float[6, 4] past, float[1, 4] x, int64[1, 1] at) => (float[1, 4] y, float[6, 4] present) {
    present = ScatterND(past, at, x) t = Transpose<perm = [1, 0]>(present) s = MatMul(x, t) y = MatMul(s, present)
}"""
GROWING = (
    """g (float[R, 4] past, float[1, 4] x) => (float[N, 4] present) { present = Concat<axis = 0>(past, x) }"""
)
BRIEFLY = ("--device", "cpu", "--threads", 1, "--processes", 1, "--rounds", 3, "--warmup", 1)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    api.save(parse(CACHE), tmp_path / "cache.onnx")
    return tmp_path / "cache.onnx"


def test_outputs_of_a_run_with_shared_buffers_are_equal(invoke: Invoke, cache: Path, tmp_path: Path) -> None:
    found = []
    for number, options in enumerate(((), ("--share-buffers", "past=present"))):
        target = tmp_path / f"{number}.npz"
        done = invoke("run", cache, "-o", target, "--json", *options)
        assert done.status == 0, done.err
        found.append((json.loads(done.out), dict(np.load(target))))
    assert "shared_buffers" not in found[0][0] and found[1][0]["shared_buffers"] == {"present": "past"}
    assert found[0][1].keys() == found[1][1].keys() == {"y", "present"}
    assert all(np.array_equal(found[0][1][name], found[1][1][name]) for name in found[0][1])


def test_growing_output_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    api.save(parse(GROWING), path)
    for command in (("run", path), ("bench", path, path, *BRIEFLY)):
        done = invoke(*command, "--share-buffers", "past=present")
        assert done.status == 2 and "can't be written over 'past'" in done.err


def test_executor_and_bundle_share_buffers(invoke: Invoke, cache: Path, tmp_path: Path) -> None:
    feeds = {"past": np.ones((6, 4), np.float32), "x": np.ones((1, 4), np.float32), "at": np.array([[2]])}
    np.savez(tmp_path / "a.npz", **feeds)
    arguments = ("--inputs", tmp_path / "a.npz", "--rounds", "3", "--set", "verify=false", "--json")
    done = invoke("run", cache, *arguments, "--share-buffers", "past=present")
    assert done.status == 0, done.err
    assert [row["plan"] for row in json.loads(done.out)["runs"]] == ["general", "static-1", "static-1"]
    model = parse(CACHE)
    how = Specialization(graphopt.record_profile(model, [feeds] * 3), FusionStrategy.of("static:1"))
    save_bundle(api.specialize(model, how, bundle=True, verify=False, pipeline="O1"), tmp_path / "m.bundle")
    done = invoke("run", tmp_path / "m.bundle", "--share-buffers", "past=present")
    assert done.status == 0 and "wrote present over past" in done.err + done.out
    done = invoke("run", tmp_path / "m.bundle", "--share-buffers", "pst=present")
    assert done.status == 2 and "no input is called 'pst'" in done.err


def test_bench_times_runs_with_shared_buffers(invoke: Invoke, cache: Path) -> None:
    done = invoke("bench", cache, *BRIEFLY, "--share-buffers", "past=present", "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["shared_buffers"] == {"present": "past"}
    assert all("milliseconds" in row for row in found["tables"][0]["models"])
    done = invoke("bench", cache, cache, *BRIEFLY, "--share-buffers", "past=y")
    assert done.status == 2 and "can't be written over 'past'" in done.err


@pytest.mark.parametrize("form", ["model", "bundle"])
def test_shared_outputs_outlive_the_inputs(invoke: Invoke, tmp_path: Path, form: str) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "o.npz"
    model = parse(
        "g (float[512, 64] past, float[1, 64] x) => (float[512, 64] present) { present = Add(past, x) }"
    )
    past, x = np.random.default_rng(0).standard_normal((2, 512, 64)).astype(np.float32)
    feeds = {"past": past, "x": x[:1]}
    np.savez(tmp_path / "in.npz", **feeds)
    api.save(model, path)
    if form == "bundle":
        profile = graphopt.record_profile(path, [feeds])
        path = tmp_path / "m.bundle"
        save_bundle(graphopt.specialize(model, Specialization(profile), bundle=True), path)
    for _ in range(3):
        done = invoke(
            "run", path, "--input", tmp_path / "in.npz", "--share-buffers", "past=present", "-o", out
        )
        assert done.status == 0, done.err
        np.testing.assert_array_equal(np.load(out)["present"], past + x[:1])


def test_unoptimized_runs_exclude_options_of_specialization(
    invoke: Invoke, cache: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(1))
    for option in (("--watch", "all"), ("--depth", 1), ("--background",), ("--fuser", "ort")):
        done = invoke("run", cache, "--inputs", tmp_path / "a.npz", "--no-optimize", *option)
        assert done.status == 2 and "exclude each other" in done.err and "--inputs" not in done.err
