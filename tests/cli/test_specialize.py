"""``optimize --profile``: files, reports and refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt import api, ir
from tests.cli.conftest import Invoke
from tests.model_testing import parse
from tests.specialization.models import feeds_of, positions, profile_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    found = positions()
    api.save(found, path)
    runs = [feeds_of(1, 8), feeds_of(1, 8), feeds_of(2, 5), feeds_of(2, 5), feeds_of(2, 6, 1)]
    profile_of(ir.load(path), *runs).write(tmp_path / "p.json")
    return path


def test_variants_are_reported_and_written(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    told = invoke("optimize", model, "-o", out, "--profile", tmp_path / "p.json", "--no-verify")
    assert told.status == 0
    assert "static-1: 3 nodes instead of 21, for 2 of 5 runs" in told.out
    assert "x: f32[1, 8, 4]; mode: i64[] = 2" in told.out
    for feeds in (feeds_of(1, 8), feeds_of(3, 4)):
        np.testing.assert_allclose(api.run(out, feeds)["y"], api.run(model, feeds)["y"], rtol=1e-5)


def test_report_lists_variants(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    arguments = ["--profile", tmp_path / "p.json", "--no-verify", "--json", "--variants", "1"]
    told = invoke("optimize", model, "-o", tmp_path / "out.onnx", *arguments)
    (variant,) = json.loads(told.out)["variants"]
    assert variant["name"] == "static-1" and variant["left_out"] is None
    assert variant["guard"]["inputs"]["x"] == {"type": "tensor(float)", "shape": [1, 8, 4]}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--emit", "bundle"], "--emit requires --profile"),
        (["--variants", "2"], "--variants requires --profile"),
        (["--single-file"], "--single-file requires --profile"),
        (["--fusion-strategy", "static:1"], "--fusion-strategy requires --profile"),
        (["--profile", "PROFILE", "--fusion-strategy", "quick"], "invalid fusion strategy"),
        (["--profile", "PROFILE", "--dim", "B=7"], "no profiled run complies with the sizes given for B=7"),
        (["--profile", "PROFILE", "--dim-range", "B=9:"], "no profiled run complies with the sizes given"),
        (["--profile", "PROFILE", "--single-file", "--emit", "bundle"], "a bundle is a folder"),
        (["--profile", "PROFILE", "--pin-shapes", "--emit", "bundle"], "--pin-shapes is about one model"),
        (["--profile", "nowhere.json"], "can't read nowhere.json"),
        (["--profile", "MODEL"], "not a profile"),
    ],
)
def test_conflicting_options_are_reported(
    invoke: Invoke, model: Path, tmp_path: Path, options: list[str], why: str
) -> None:
    paths = {"PROFILE": str(tmp_path / "p.json"), "MODEL": str(model)}
    given = [paths.get(option, option) for option in options]
    told = invoke("optimize", model, "-o", tmp_path / "out.onnx", *given)
    assert told.status in (2, 3) and why in told.err
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("form", [[], ["--emit", "bundle"]])
@pytest.mark.parametrize(
    "option",
    [["--dim", "B=2"], ["--dim-range", "B=2:9"], ["--target-opset", "18"], ["--stop-after", "3"]],
    ids=lambda option: option[0],
)
def test_other_options_apply_to_all_variants(
    invoke: Invoke, model: Path, tmp_path: Path, option: list[str], form: list[str]
) -> None:
    out = tmp_path / ("out.bundle" if form else "out.onnx")
    found = invoke("optimize", model, "-o", out, "--profile", tmp_path / "p.json", *option, *form)
    assert found.status == 0, found.err
    if option[0].startswith("--dim"):
        assert "2 of 5 profiled runs ignored: other sizes" in found.out and "[1, 8, 4]" not in found.out
    for feeds in (feeds_of(2, 5), feeds_of(2, 6, 1), feeds_of(2, 4)):
        result = graphopt.load(out).run(feeds) if form else api.run(out, feeds)
        np.testing.assert_allclose(result["y"], api.run(model, feeds)["y"], rtol=1e-5)


def test_a_specialized_model_is_specialized_again(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    first, second, profile = tmp_path / "1.onnx", tmp_path / "2.onnx", tmp_path / "2.json"
    invoke("optimize", model, "-o", first, "--profile", tmp_path / "p.json", "--variants", "1")
    profile_of(ir.load(first), feeds_of(3, 7), feeds_of(3, 7)).write(profile)
    found = invoke("optimize", first, "-o", second, "--profile", profile)
    assert "static-2: 3 nodes" in found.out, found.out
    listed = invoke("inspect", second).out
    assert listed.index("static-2") < listed.index("static-1") < listed.index("general")
    for feeds in (feeds_of(1, 8), feeds_of(3, 7), feeds_of(2, 4)):
        np.testing.assert_allclose(api.run(second, feeds)["y"], api.run(model, feeds)["y"], rtol=1e-5)


def test_bundle_requires_a_profile(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    told = invoke("optimize", model, "-o", tmp_path / "m.bundle", "--emit", "bundle")
    assert told.status == 2 and "--emit requires --profile" in told.err


def test_a_profile_of_another_model_is_refused(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    api.save(positions(opset=18), tmp_path / "other.onnx")
    told = invoke(
        "optimize", tmp_path / "other.onnx", "-o", tmp_path / "o.onnx", "--profile", tmp_path / "p.json"
    )
    assert told.status == 2 and "the profile is of another model" in told.err


def test_shapes_of_a_profile_are_tried_first(invoke: Invoke, tmp_path: Path) -> None:
    """The size depends on floats, so that no shape fact determines it; onnxruntime names three different sizes."""
    path, profile, target = tmp_path / "m.onnx", tmp_path / "profile.json", tmp_path / "out.onnx"
    onnx.save(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 17]>
            g (float[N] x) => (float[A, B] y) <float[2] sizes = {41, 43}> {
                twice = Add(sizes, sizes)
                shape = Cast <to = 7> (twice)
                z = Neg(x)
                w = Neg(z)
                y = Reshape(w, shape)
            }"""
        ),
        path,
    )
    done = invoke("optimize", path, "-o", target)
    warning, hint = done.err.splitlines()
    assert done.status == 0 and "not verified: no inputs that the original accepts were found (" in warning
    assert all(option in hint for option in ("--input-shape", "--input", "--dim", "--profile"))
    assert "  not verified: no inputs that the original accepts were found" in done.out.splitlines()
    assert invoke("profile", path, "--input-shape", f"x:{82 * 86}", "-o", profile).status == 0
    done = invoke("optimize", path, "-o", target, "--profile", profile)
    assert done.status == 0 and "not verified" not in done.out + done.err and "\n  verified  " in done.out


@pytest.mark.parametrize(
    "pipeline", ["profiling", "profiling-builtin", "profiling-gradients", "plan-optimized"]
)
def test_pipelines_specialize_without_losing_passes(
    invoke: Invoke, model: Path, tmp_path: Path, pipeline: str
) -> None:
    out = tmp_path / "out.onnx"
    options = ["--pipeline", pipeline, "--profile", tmp_path / "p.json", "--json"]
    found = json.loads(invoke("optimize", model, "-o", out, *options).out)
    assert [variant["dropped"] for variant in found["variants"]] == [[]] * 3
    for feeds in (feeds_of(1, 8), feeds_of(2, 5), feeds_of(2, 6, 1), feeds_of(3, 4)):
        np.testing.assert_allclose(api.run(out, feeds)["y"], api.run(model, feeds)["y"], rtol=1e-5)


def test_bundles_have_static_variants_without_an_optional_input(invoke: Invoke, tmp_path: Path) -> None:
    path, profile, out = tmp_path / "m.onnx", tmp_path / "p.json", tmp_path / "m.bundle"
    text = """g (float[N,4] x, float[4] w) => (float[N,4] y) <float[4] w = {1,2,3,4}> {
        n = Shape(x) s = Expand(w, n) a = Mul(x, s) b = Neg(w) y = Add(a, b) }"""
    api.save(parse(text), path)
    invoke("profile", path, "--input-shape", "x:2x4", "-o", profile)
    found = invoke("optimize", path, "-o", out, "--profile", profile, "--emit", "bundle")
    assert "static-1: " in found.out and "left out" not in found.out, found.out
    x = np.ones((2, 4), np.float32)
    for feeds in ({"x": x}, {"x": x, "w": np.full(4, 7, np.float32)}):
        np.testing.assert_allclose(graphopt.load(out).run(feeds)["y"], api.run(path, feeds)["y"])


def test_variants_whose_guards_are_gone_are_not_listed(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    invoke("optimize", model, "-o", out, "--profile", tmp_path / "p.json", "--no-verify")
    found = ir.load(out)
    inner = next(node for node in ir.walk_nodes(found.graph) if node.name == "guarded_static-2")
    inner.name = "other"
    ir.save(found, out)
    listed = invoke("inspect", out).out
    assert "static-1" in listed and "static-2" not in listed and "general" in listed


def test_counts_below_their_minimum_are_refused_with_the_minimum(invoke: Invoke, model: Path) -> None:
    found = invoke("optimize", model, "--profile", "p.json", "--variants", "0")
    assert found.status == 2 and "0 is less than 1" in found.err


def test_reproducers_contain_the_profile(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    os.replace(model, "m.onnx")
    os.replace(tmp_path / "p.json", "p.json")
    options = ["--profile", "p.json", "--no-verify", "--save-repro", "kept"]
    assert invoke("optimize", "m.onnx", "-o", "o.onnx", *options).status == 0
    os.remove("p.json")
    found = invoke("replay", "kept")
    assert found.status == 0, found.err
