"""``graphopt.optimize`` with the result cache: equal models and reports, keys, bypasses, and failures."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt import config
from graphopt.errors import ConvertedInput
from graphopt.inputs.feeds import InputOptions
from graphopt.instrument.log import Log
from graphopt.result_cache.stored_result import StoredResult
from graphopt.transforms.scalar.dce import DeadCodeElimination
from graphopt.util.disk_store import Store
from graphopt.util.plain_data import from_plain, to_plain

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
m (float[N, 8] x, float[N, 8] z) => (float[N, 8] y) <float[8, 8] w, float[8] b, float s = {0.5}> {
  t = Transpose <perm = [1, 0]> (w)
  p = MatMul(x, t)
  q = Add(p, b)
  i = Identity(q)
  h = Mul(i, s)
  e = Erf(q)
  g = Mul(h, e)
  y = Add(g, z)
}
"""


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache=True, cache_dir=tmp_path / "store"):
        yield tmp_path / "store"


@pytest.fixture
def model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(MODEL)
    random = np.random.default_rng(0)
    for name, shape in (("w", (8, 8)), ("b", (8,))):
        values = random.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


@pytest.fixture
def path(model: onnx.ModelProto, tmp_path: Path) -> Path:
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def _entries(store: Path) -> int:
    return len(list(Store(store).entries("results")))


@pytest.mark.parametrize(
    "options",
    [{}, {"pipeline": "O3"}, {"verify": False}, {"dims": {"N": 3}}, {"stop_after": 1}, {"weigh_each": True}],
    ids=str,
)
def test_a_stored_result_equals_the_computed_one(path: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    computed = graphopt.optimize(path, **options)
    stored = graphopt.optimize(path, **options)
    assert stored.report.cached and not computed.report.cached
    assert replace(stored.report, cached="") == computed.report
    assert stored.report.to_dict() == computed.report.to_dict()
    text = str(stored.report)
    assert text.startswith(str(computed.report)) and "cached    the result of an earlier run" in text
    for result, name in ((computed, "a.onnx"), (stored, "b.onnx")):
        result.save(tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert stored.to_proto() == computed.to_proto()


def test_external_data_is_read_after_the_entry_is_gone(path: Path, tmp_path: Path, store: Path) -> None:
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="data.bin", size_threshold=0)
    computed = graphopt.optimize(path)
    stored = graphopt.optimize(path)
    assert stored.report.cached
    (entry,) = Store(store).entries("results")
    Store(store).remove("results", entry.key)
    for result, name in ((computed, "a"), (stored, "b")):
        (tmp_path / name).mkdir()
        result.save(tmp_path / name / "out.onnx")
    written = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert written[0] == written[1]


def test_bytes_are_cached_and_other_forms_are_not(path: Path, store: Path) -> None:
    data = path.read_bytes()
    first, second = graphopt.optimize(data).report, graphopt.optimize(data).report
    assert (bool(first.cached), bool(second.cached), _entries(store)) == (False, True, 1)
    for model in (onnx.load(path), graphopt.load_model(path)):
        for _ in range(2):
            assert not graphopt.optimize(model).report.cached
    assert _entries(store) == 1


def test_objects_and_observers_are_not_cached(path: Path, store: Path) -> None:
    log = Log("dce", io.StringIO(), ["dce"], ())
    for options in ({"pipeline": [DeadCodeElimination()]}, {"instruments": [log]}, {"cache": False}):
        assert not graphopt.optimize(path, **options).report.cached
    assert _entries(store) == 0


def test_options_and_files_are_part_of_the_key(path: Path) -> None:
    graphopt.optimize(path)
    assert not graphopt.optimize(path, exact=True).report.cached
    assert graphopt.optimize(path, exact=True).report.cached
    model = onnx.load(path)
    model.graph.initializer[0].float_data[:] = [0.25]
    onnx.save(model, path)
    assert not graphopt.optimize(path).report.cached


def test_warnings_about_converted_inputs_are_repeated(path: Path) -> None:
    inputs = InputOptions(arrays={"x": np.ones((2, 8))})
    for is_cached in (False, True):
        with pytest.warns(ConvertedInput, match="'x' is converted from float64 to float32") as caught:
            assert bool(graphopt.optimize(path, inputs=inputs).report.cached) is is_cached
        assert len({str(item.message) for item in caught}) == 1


def test_damaged_reports_are_computed_again(path: Path, store: Path) -> None:
    graphopt.optimize(path)
    (file,) = store.rglob("report.json")
    file.write_text("{}")
    assert not graphopt.optimize(path).report.cached
    assert graphopt.optimize(path).report.cached


def test_an_entry_that_is_removed_while_it_is_read_is_computed_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphopt.optimize(path)
    monkeypatch.setattr(StoredResult, "model", None)
    assert not graphopt.optimize(path).report.cached


def test_a_store_that_cannot_be_written_warns(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        config.patch(cache_dir=tmp_path / "file"),
        pytest.warns(RuntimeWarning, match="the result is not stored for later runs: can't write"),
    ):
        assert not graphopt.optimize(path).report.cached


def test_plain_data_of_other_structure_is_refused(model: onnx.ModelProto) -> None:
    report = graphopt.optimize(model, verify=False).report
    data = to_plain(report.original)
    assert from_plain(type(report.original), data, {}) == report.original
    with pytest.raises(ValueError, match="other fields"):
        from_plain(type(report.original), {**data, "more": 1}, {})
    with pytest.raises(TypeError, match="no plain data: set"):
        to_plain({1})
