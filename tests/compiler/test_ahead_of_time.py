"""``aot_compile``: bundles that are written ahead of time, and loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt import api, config, ir
from graphopt.errors import UsageError
from graphopt.fusion.kernel_library import Toolchain
from graphopt.ops import graphopt_operators
from graphopt.profile import FusionStrategy
from graphopt.result_cache.local_level import KIND
from graphopt.specialization.build_variants import Specialization
from graphopt.specialization.bundle.loaded_bundle import Bundle
from graphopt.util.disk_store import Store
from tests.fusion.backends.c.runtime.samples import compiled
from tests.model_testing import parse

MODEL = f"""
g (float[N, 16] x) => (float[N, 32] y)
<float[16, 32] w = {{{", ".join(str(number / 512) for number in range(512))}}}>
{{
  z = MatMul(x, w)
  a = Sin(z)
  b = Sigmoid(a)
  y = Mul(a, b)
}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "m.onnx"
    ir.save(parse(MODEL), file)
    return file


def _feeds(rows: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)}


def _variants(model: Path) -> Specialization:
    profile = graphopt.record_profile(model, [_feeds(1), _feeds(4)])
    return Specialization(profile, FusionStrategy.parse("static:2"))


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _assert_correct(bundle: Any, model: Path) -> None:
    for rows in (1, 4, 7):
        expected = graphopt.run(model, _feeds(rows))["y"]
        np.testing.assert_allclose(bundle.run(_feeds(rows))["y"], expected, rtol=1e-5, atol=1e-6)


def test_default_is_a_folder_beside_the_model(path: Path) -> None:
    done = graphopt.aot_compile(path)
    assert done.path == path.with_suffix(".gopt") and next(iter(done.files)) == "manifest.json"
    assert done.report.verdict is not None and done.report.verdict.ok
    _assert_correct(done.load(), path)


def test_manifest_records_the_original_and_the_settings(path: Path, tmp_path: Path) -> None:
    graphopt.aot_compile(path, tmp_path / "m", exact=True, dims={"N": 4}, verify=False, device="cpu")
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert manifest["original"]["file"] == "m.onnx" and len(manifest["original"]["sha256"]) == 64
    assert manifest["model"] == ir.fingerprint(parse(MODEL), names=True)
    assert manifest["settings"]["settings"] == {
        "device": "cpu",
        "dims": {"N": 4},
        "exact": True,
        "pipeline": "O3",
        "verify": False,
    }
    assert manifest["operators"] == {"opsets": {"": 17}, "libraries": []}
    graphopt.aot_compile(parse(MODEL), tmp_path / "other", verify=False)
    assert "original" not in json.loads((tmp_path / "other" / "manifest.json").read_text())


@pytest.mark.parametrize(
    ("options", "pipeline"),
    [({}, "O3"), ({"pipeline": "O2"}, None), ({"fuser": "none"}, None), ({"pipeline": "O1"}, "O1")],
)
def test_default_pipeline(path: Path, tmp_path: Path, options: dict[str, str], pipeline: str | None) -> None:
    graphopt.aot_compile(path, tmp_path / "m", verify=False, **options)  # type: ignore[arg-type]
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert manifest["settings"]["settings"].get("pipeline") == pipeline
    with config.patch(pipeline="O1"):
        graphopt.aot_compile(path, tmp_path / "m", verify=False)
    assert (
        json.loads((tmp_path / "m" / "manifest.json").read_text())["settings"]["settings"]["pipeline"] == "O1"
    )


@pytest.mark.parametrize("profiled", [False, True])
def test_two_runs_write_the_same_bytes(path: Path, tmp_path: Path, profiled: bool) -> None:
    how = _variants(path) if profiled else None
    for name in ("a", "b"):
        with config.patch(cache_dir=tmp_path / f"store-{name}"):
            graphopt.aot_compile(path, tmp_path / name, how)
    assert _contents(tmp_path / "a") == _contents(tmp_path / "b")
    assert ("static-1.onnx" in _contents(tmp_path / "a")) == profiled


@pytest.mark.parametrize("profiled", [False, True])
def test_stored_results_are_neither_reused_nor_written(path: Path, tmp_path: Path, profiled: bool) -> None:
    how = _variants(path) if profiled else None
    with config.patch(cache_dir=tmp_path / "store", cache=True):
        graphopt.optimize(path, pipeline="O3")
        before = [*Store(tmp_path / "store").entries(KIND)]
        report = graphopt.aot_compile(path, tmp_path / "m", how).report
        assert not report.cached and report.verdict is not None
        assert len(before) == 1 and [*Store(tmp_path / "store").entries(KIND)] == before


def test_models_in_memory_need_a_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a model in memory has no name"):
        graphopt.aot_compile(parse(MODEL))
    proto = onnx.load_from_string(ir.to_bytes(parse(MODEL)))
    assert graphopt.aot_compile(proto, tmp_path / "m", verify=False).path == tmp_path / "m"


def test_other_contents_are_refused_before_any_work(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphopt.compiler.ahead_of_time.optimize", None)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not replaced: not a bundle"):
        graphopt.aot_compile(path, tmp_path / "m")
    with pytest.raises(UsageError, match="there is no x86-64 level 5"):
        graphopt.aot_compile(path, tmp_path / "n", cpu_levels=[5])
    with pytest.raises(UsageError, match="there is no folder"):
        graphopt.aot_compile(path, tmp_path / "missing" / "n")


def test_custom_operators_are_listed(tmp_path: Path) -> None:
    model = parse(
        "g (float[N] x) => (float[N] y) { a = com.example.Twice(x) y = com.microsoft.Gelu(a) }",
        domains=', "com.example" : 1, "com.microsoft" : 1',
    )
    graphopt.aot_compile(model, tmp_path / "m")
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert manifest["operators"] == {
        "opsets": {"": 17, "com.example": 1, "com.microsoft": 1},
        "libraries": ["com.example"],
    }


# Kernels ------------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("archive", [False, True])
def test_one_library_has_the_kernels_of_all_models(path: Path, tmp_path: Path, archive: bool) -> None:
    done = graphopt.aot_compile(path, tmp_path / "m", _variants(path), archive=archive, fuser="native")
    bundle = Bundle(done.path)
    (library,) = bundle.manifest.kernels
    assert {"static-2", "general"} <= set(bundle.manifest.native)
    assert library.file in done.files and library.cpu_level == (min(done.cpu_levels, default=None))
    _assert_correct(bundle, path)
    _assert_correct(Bundle(done.path, trusted=True), path)


@compiled
def test_only_trusted_bundles_load_their_library(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphopt.aot_compile(path, tmp_path / "m", fuser="native")
    built: list[object] = []
    libraries = Toolchain.libraries

    def counting(self: Toolchain, model: ir.Model) -> Any:
        built.extend([model] if graphopt_operators.has_groups(model) else [])
        return libraries(self, model)

    monkeypatch.setattr(Toolchain, "libraries", counting)
    trusted = graphopt.load(tmp_path / "m", trusted=True)
    assert isinstance(trusted, Bundle)
    _assert_correct(trusted, path)
    (own,) = trusted.libraries("general").paths
    assert Path(own).parent == tmp_path / "m" and not built
    other = graphopt.load(tmp_path / "m")
    assert isinstance(other, Bundle)
    _assert_correct(other, path)
    (own,) = other.libraries("general").paths
    assert Path(own).parent != tmp_path / "m" and built
    built.clear()
    plain = Bundle(tmp_path / "m", trusted=True, kernels=False)
    _assert_correct(plain, path)
    assert not plain.libraries("general").paths and not built


@compiled
def test_levels_limit_the_library(path: Path, tmp_path: Path) -> None:
    whole = graphopt.aot_compile(path, tmp_path / "m", fuser="native", verify=False)
    if not whole.cpu_levels:
        pytest.skip("not x86-64")
    part = graphopt.aot_compile(path, tmp_path / "n", fuser="native", verify=False, cpu_levels=[3, 2])
    assert whole.cpu_levels == (2, 3, 4) and part.cpu_levels == (2, 3)
    (one,), (other,) = (Bundle(done.path).manifest.kernels for done in (whole, part))
    assert part.files[other.file] < whole.files[one.file]
    _assert_correct(Bundle(part.path, trusted=True), path)
    highest = graphopt.aot_compile(path, tmp_path / "o", fuser="native", verify=False, cpu_levels=[4])
    manifest = json.loads((highest.path / "manifest.json").read_text())
    assert manifest["kernels"][0]["file"].endswith("-v4.so") and manifest["target"]["cpu_level"] == 4


def test_levels_without_kernels_are_remarked(path: Path, tmp_path: Path) -> None:
    done = graphopt.aot_compile(path, tmp_path / "m", verify=False, cpu_levels=[3])
    assert any("the CPU levels have no effect" in remark for remark in done.report.remarks)
    assert done.cpu_levels == () and not Bundle(done.path).manifest.kernels


def test_bundle_without_a_compiler_has_no_library(path: Path, tmp_path: Path) -> None:
    with config.patch(compiler="missing-cc"):
        done = graphopt.aot_compile(path, tmp_path / "m", fuser="native")
    bundle = Bundle(done.path)
    assert not bundle.manifest.kernels and bundle.manifest.native == ("general",)
    assert any("not built, onnxruntime runs the nodes" in remark for remark in done.report.remarks)
    with config.patch(compiler="missing-cc"):
        _assert_correct(graphopt.load(done.path, trusted=True), path)


@compiled
def test_library_of_a_bundle_is_checked(path: Path, tmp_path: Path) -> None:
    done = graphopt.aot_compile(path, tmp_path / "m", fuser="native", verify=False)
    (library,) = Bundle(done.path).manifest.kernels
    data = bytearray((done.path / library.file).read_bytes())
    data[len(data) // 2] ^= 1
    (done.path / library.file).write_bytes(data)
    with pytest.raises(graphopt.GraphoptError, match=f"{library.file} does not match its checksum"):
        Bundle(done.path, trusted=True)
    assert api.is_bundle(done.path)
