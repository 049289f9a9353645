"""The record of settings in models: its contents, its bytes, and its use for another run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import config, ir
from graphopt.errors import InvalidModel, UsageError
from graphopt.inputs.feeds import InputOptions
from graphopt.optimize_options import OPTIONS
from graphopt.recorded_settings import KEY, SettingsRecord
from graphopt.recorded_settings.artifacts import record_in
from graphopt.settings import declarations
from graphopt.specialization.build_variants import Specialization
from graphopt.specialization.bundle.save import save_bundle
from graphopt.transforms.scalar.dce import DeadCodeElimination
from tests.model_testing import parse

TEXT = """m (float[B,2] x) => (float[B,2] y) <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}> {
    i = Identity(x) p = MatMul(i, w) y = Add(p, b) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(parse(TEXT), path)
    return path


def entry(model: ir.Model) -> Any:
    text = model.metadata_props.get(KEY)
    return None if text is None else json.loads(text)


def test_recorded_settings_are_parts_of_the_keys_of_results() -> None:
    """Otherwise a stored result could have the record of another run."""
    declared = {**declarations(), **OPTIONS}
    recorded = [name for name, opt in declared.items() if opt.record in ("value", "contents")]
    assert {"pipeline", "exact", "dims", "seed", "costs", "inputs"} <= set(recorded)
    assert [name for name in recorded if declared[name].cache == "ignored"] == []
    assert declared["record_settings"].cache == "key"


def test_settings_with_paths_or_urls_are_not_recorded() -> None:
    for name in ("cache_dir", "cache_url", "allow_external", "save_repro", "command", "trace"):
        assert {**declarations(), **OPTIONS}[name].record == "private"


def test_default_settings_change_no_bytes(model: Path) -> None:
    result = graphopt.optimize(model)
    assert entry(result.model) is None
    assert json.loads(result.report.settings) == {"version": graphopt.__version__, "settings": {}}
    assert entry(graphopt.optimize(model, pipeline="O2", exact=False, dims={}, skip=[]).model) is None


def test_changed_settings_are_recorded_in_canonical_form(model: Path) -> None:
    options: dict[str, Any] = {"exact": True, "dims": {"B": 2}, "pipeline": "O1", "verify": False}
    found, again = graphopt.optimize(model, **options).model, None
    with config.patch(exact=True, pipeline="O1"):
        again = graphopt.optimize(model, verify=False, dims="B=2").model
    text = found.metadata_props[KEY]
    assert text == again.metadata_props[KEY]
    assert text == (
        '{"settings":{"dims":{"B":2},"exact":true,"pipeline":"O1","verify":false},"version":"'
        f'{graphopt.__version__}"}}'
    )
    assert ir.to_bytes(found) == ir.to_bytes(again)


def test_a_record_describes_the_last_run_only(model: Path, tmp_path: Path) -> None:
    first = graphopt.optimize(model, exact=True).model
    assert entry(first) is not None
    assert entry(graphopt.optimize(first).model) is None
    assert entry(graphopt.optimize(first, exact=True, record_settings=False).model) is None
    with config.patch(record_settings=False):
        result = graphopt.optimize(model, exact=True)
    assert entry(result.model) is None and result.report.settings == ""


OPTIONS_OF_RUNS: list[Mapping[str, Any]] = [
    {"pipeline": "O3", "exact": True},
    {"pipeline": "dce,cse", "verify": False},
    {"pipeline": ["dce", DeadCodeElimination()]},
    {"dims": {"B": 3}, "skip": ["cse"], "fold_limit": 7},
    {"dim_ranges": {"B": (1, None)}, "fast_math": True},
    {"pre_passes": ["cse"], "post_passes": "dce", "stop_after": 1},
    {"only": ["identities"], "strip_docs": True, "target_opset": 21},
    {"inputs": InputOptions({"x": (5, 2)}, seed=3)},
    {"fuser": "builtin", "device": "cpu"},
]


@pytest.mark.parametrize("options", OPTIONS_OF_RUNS, ids=",".join)
def test_optimizing_again_with_the_recorded_settings_gives_the_same_bytes(
    options: Mapping[str, Any], model: Path, tmp_path: Path
) -> None:
    result, out = graphopt.optimize(model, **options), tmp_path / "out.onnx"
    result.save(out)
    assert KEY in result.model.metadata_props
    again = graphopt.optimize(model, settings=out).model
    assert ir.to_bytes(again) == ir.to_bytes(result.model)
    assert SettingsRecord.of(
        graphopt.Compiler(settings=out).settings, graphopt.Compiler(settings=out).given
    ) == record_in(out)


def test_arguments_have_precedence_over_a_record(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    graphopt.optimize(model, pipeline="O1", dims={"B": 3}).save(out)
    compiler = graphopt.Compiler(settings=out, dims={"B": 4}, pipeline="O3")
    assert (compiler.options["dims"], compiler.options["pipeline"]) == ({"B": 4}, "O3")
    assert compiler.having({"settings": config.defaults()}).settings.pipeline == "O3"


def test_files_and_objects_are_recorded_by_digest_and_import_path(model: Path, tmp_path: Path) -> None:
    array = tmp_path / "x.npy"
    np.save(array, np.ones((2, 2), np.float32))
    out = tmp_path / "out.onnx"
    result = graphopt.optimize(model, inputs=InputOptions.parse(files=[f"x:{array}"]))
    result.save(out)
    text = result.model.metadata_props[KEY]
    assert '"inputs":{"files":[["x",{"sha256":"' in text and str(tmp_path) not in text
    with pytest.raises(UsageError, match=r"inputs was a file with the SHA-256 .* which is not recorded"):
        graphopt.optimize(model, settings=out)
    again = graphopt.optimize(model, settings=out, inputs=InputOptions.parse(files=[f"x:{array}"]))
    assert ir.to_bytes(again.model) == ir.to_bytes(result.model)


def test_compilers_are_recorded_without_paths(tmp_path: Path) -> None:
    def recorded(compiler: str) -> Any:
        return SettingsRecord.of(config.Settings(compiler=compiler), {}).values.get("compiler")

    program = tmp_path / "cc"
    program.write_text("")
    assert recorded("gcc -O2") == "gcc -O2" and recorded("auto") is None
    assert recorded(f"gcc -I{tmp_path}") == {"paths": True}
    assert list(recorded(str(program))) == ["sha256"]


def test_other_operations_record_their_arguments(model: Path, tmp_path: Path) -> None:
    joint = graphopt.differentiate(model, "mse:y,t", ["w"], by_group=True)
    assert entry(joint.model) == {
        "version": graphopt.__version__,
        "operation": "differentiate",
        "arguments": {"by_group": True, "loss": "mse:y,t", "wrt": "w"},
        "settings": {},
    }
    halves = graphopt.split(model, "mse:y,t", memory_budget=0.5)
    assert entry(halves.forward) == entry(halves.backward)
    assert entry(halves.forward)["arguments"] == {"loss": "mse:y,t", "memory_budget": 0.5}
    step = graphopt.train_step(model, "mse:y,t", "adamw", betas=(0.8, 0.9))
    arguments = {"betas": [0.8, 0.9], "loss": "mse:y,t", "optimizer": "adamw"}
    assert entry(step.model)["arguments"] == arguments
    ones = np.ones((1, 2), np.float32)
    assert graphopt.Trainer(step).step({"x": ones, "t": ones}) > 0
    models, report = graphopt.split_constants(model, "w", exact=True)
    assert entry(models.main) == entry(models.constants) == json.loads(report.settings)
    assert entry(models.main)["settings"] == {"exact": True}
    models.save(tmp_path / "split")
    graphopt.update_weights(tmp_path / "split", {"w": np.eye(2, dtype=np.float32)}).save(tmp_path / "split")
    assert entry(ir.load(tmp_path / "split" / "main.onnx")) == entry(models.main)
    with config.patch(record_settings=False):
        assert entry(graphopt.differentiate(model, "mse:y,t").model) is None


def test_variants_and_bundles_record_the_profile(model: Path, tmp_path: Path) -> None:
    profile = graphopt.record_profile(model, [{"x": np.ones((3, 2), np.float32)}])
    whole = graphopt.specialize(model, Specialization(profile), exact=True)
    assert whole.model is not None
    record = entry(whole.model)
    assert record["operation"] == "specialize" and record["settings"] == {"exact": True}
    assert list(record["arguments"]["profile"]) == ["sha256"]
    parts = graphopt.specialize(model, Specialization(profile, most=1), bundle=True, exact=True)
    save_bundle(parts, tmp_path / "out.bundle")
    found = record_in(tmp_path / "out.bundle" / "manifest.json")
    assert found is not None and found.to_dict() == entry(parts.general)
    assert found.arguments["bundle"] is True and found.arguments["most"] == 1
    graphopt.Bundle(tmp_path / "out.bundle").check()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "no settings"),
        ('{"settings": {}}', "no version"),
        ('{"settings": [], "version": "1"}', "no settings"),
    ],
)
def test_damaged_records_are_refused(text: str, message: str, model: Path) -> None:
    damaged = ir.load(model)
    damaged.metadata_props[KEY] = text
    ir.save(damaged, model)
    with pytest.raises(InvalidModel, match=f"{model}: the record of settings is damaged: .*{message}"):
        record_in(model)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"exat": True}, "'exat', which is no setting of graphopt .*; version 9.9 wrote it"),
        ({"exact": 3}, "not a value for 'exact'"),
        ({"fold_limit": -1}, "fold-limit can't be -1"),
        ({"dims": [1]}, "not a value for 'dims'"),
        ({"dims": {"B": "many"}}, "not a value for 'dims'"),
        ({"inputs": {"shapes": {"x": [-1]}}}, "not a value for 'inputs'"),
        ({"inputs": {"form": 1}}, "not a value for 'inputs'"),
        ({"cache_url": "s3://me:secret@b"}, "'cache_url', which is no setting"),
        ({"rules": [{"object": "mine:rule"}]}, "rules was the object mine:rule"),
    ],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any], message: str, model: Path) -> None:
    changed = ir.load(model)
    changed.metadata_props[KEY] = SettingsRecord(values, "9.9").to_json()
    ir.save(changed, model)
    with pytest.raises(UsageError, match=message):
        graphopt.optimize(model, settings=model)
