"""Bundles of format versions 1 and 2, whose manifest is ``plan.json``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import api, ir
from graphopt.errors import InvalidModel
from graphopt.specialization.build_variants import Specialization, Specialized
from graphopt.specialization.bundle.loaded_bundle import Bundle
from graphopt.specialization.bundle.save import save_bundle

from ..model_testing import parse
from .bundle_files import edited, of_version

MODEL = f"""
g (float[N, 16] x, int64 i) => (float[N, 32] y, int64[2] size)
<float[16, 32] w = {{{", ".join(str(number / 512) for number in range(512))}}}>
{{
  z = MatMul(x, w)
  size = Shape(z)
  f = Cast <to = 1> (i)
  y = Add(z, f)
}}
"""


def _feeds(rows: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
    return {"x": x, "i": np.array(3)}


@pytest.fixture(scope="module")
def found() -> Specialized:
    how = Specialization(graphopt.record_profile(parse(MODEL), [_feeds(1), _feeds(4)]))
    return api.specialize(parse(MODEL), how, bundle=True, verify=False, pipeline="O1")


@pytest.fixture
def folder(found: Specialized, tmp_path: Path) -> Path:
    save_bundle(found, tmp_path / "m.bundle")
    return tmp_path / "m.bundle"


def _assert_correct(bundle: Bundle, rows: int) -> None:
    expected = graphopt.run(parse(MODEL), _feeds(rows))
    for name, array in bundle.run(_feeds(rows)).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("version", [1, 2])
def test_older_formats_load(folder: Path, version: int) -> None:
    bundle = Bundle(of_version(folder, version))
    assert bundle.manifest.version == version and bundle.names == ["static-1", "static-2", "general"]
    for rows in (1, 4, 9):
        _assert_correct(bundle, rows)
    assert bundle.check() == (version == 2)


@pytest.mark.parametrize("version", [1, 2])
def test_damaged_weights_are_refused(folder: Path, version: int) -> None:
    data = bytearray((of_version(folder, version) / "weights.bin").read_bytes())
    data[100] ^= 4
    (folder / "weights.bin").write_bytes(data)
    with pytest.raises(InvalidModel, match=r"is damaged: weights\.bin"):
        Bundle(folder)


def test_older_bundle_is_replaced_by_the_current_format(found: Specialized, folder: Path) -> None:
    save_bundle(found, of_version(folder, 2))
    assert not (folder / "plan.json").exists()
    assert Bundle(folder).manifest.version == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan.update(graphopt_bundle=3), "malformed manifest: native missing"),
        (lambda plan: plan.update(graphopt_bundle=9), "unsupported format version 9"),
        (lambda plan: plan.update(graphopt_bundle=True), "unsupported format version True"),
        (lambda plan: plan.pop("variants"), "malformed plan: variants missing"),
        (lambda plan: plan.pop("model"), "malformed plan: model missing"),
        (lambda plan: plan.update(general=3), "malformed plan: no general model"),
        (lambda plan: plan["variants"].append(plan["variants"][0]), "duplicate variant names"),
        (lambda plan: plan["variants"][0].update(name="general"), "duplicate variant names"),
        (lambda plan: plan["variants"][0].pop("guard"), "malformed guard: no mapping of inputs"),
        (lambda plan: plan.update(weights="other.bin"), "no checksum of other.bin"),
        (lambda plan: plan.update(inputs=[{"name": "x"}]), "type missing"),
        (lambda plan: plan.update(inputs=[3]), "unsupported record format for an input"),
        (lambda plan: plan["inputs"][0].update(dims=[True]), "unsupported record format for 'x'"),
        (lambda plan: plan.update(versions=[]), "versions must be a mapping"),
        (lambda plan: plan.update(native=["other"]), "native kernels of an unknown variant"),
        (lambda plan: plan.update(checksum="0" * 64), "its checksum does not match"),
        (lambda plan: plan.pop("checksum"), "its checksum does not match"),
        (lambda plan: plan.update(files=[]), "files must be a mapping"),
        (lambda plan: plan["files"].pop("weights.bin"), "no checksum of weights.bin"),
        (
            lambda plan: plan["files"]["weights.bin"].pop("bytes"),
            "no size or SHA-256 of the file 'weights.bin'",
        ),
    ],
)
def test_malformed_plan_is_reported_in_one_line(
    folder: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    with pytest.raises(InvalidModel) as failure:
        Bundle(edited(of_version(folder, 2), change, name="plan.json"))
    assert words in failure.value.message and "\n" not in failure.value.message


@pytest.mark.parametrize("file", ["/etc/passwd", "../m.onnx", ".", "a\0b", ""])
def test_files_outside_of_the_folder_are_refused(folder: Path, file: str) -> None:
    def change(plan: dict[str, Any]) -> None:
        plan["general"]["file"] = file

    with pytest.raises(InvalidModel, match="file outside of the bundle"):
        Bundle(edited(of_version(folder, 1), change, name="plan.json"))


def test_link_out_of_the_folder_is_refused(folder: Path) -> None:
    (folder / "general.onnx").rename(folder.parent / "general.onnx")
    (folder / "general.onnx").symlink_to(folder.parent / "general.onnx")
    with pytest.raises(InvalidModel, match="file outside of the bundle"):
        Bundle(of_version(folder, 2))


_OTHER = "g (float[N, 16] x, int64 i) => (float[N, 16] q, int64[2] size) { q = Neg(x) size = Shape(x) }"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (_OTHER, "it has outputs q, size instead of y, size"),
        (
            "g (float[N, 16] x, int64 k) => (float[N, 16] y, int64[2] size) { y = Neg(x) size = Shape(x) }",
            "it has input 'k' of type i64[",
        ),
        (
            "g (float[N, 16] x) => (int64[2] y, int64[2] size) { y = Shape(x) size = Shape(x) }",
            "it has output 'y' of type i64[",
        ),
    ],
)
def test_variant_with_another_signature_is_refused(folder: Path, other: str, words: str) -> None:
    ir.save(parse(other), of_version(folder, 1) / "static-1.onnx")  # without a checksum
    bundle = Bundle(folder)
    for use in (lambda: bundle.run(_feeds(1)), lambda: bundle.model("static-1")):
        with pytest.raises(InvalidModel) as failure:
            use()
        assert words in failure.value.message
    _assert_correct(bundle, 4)
