"""The compiler, and the environment of its operations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt import config, ir
from graphopt.compiler import Compiler
from graphopt.compiler.environment import Environment
from graphopt.errors import UsageError
from graphopt.numerics import Numerics
from graphopt.ort import devices

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
small (float[N, 4] x) => (float[N, 4] y) <float zero = {-0.0}> {
  a = Identity(x)
  b = Relu(a)
  y = Add(b, zero)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def test_options_are_checked_when_a_compiler_is_created() -> None:
    with pytest.raises(TypeError, match=r"no argument of Compiler\(\) is called 'exakt'; nearest: exact"):
        Compiler(exakt=True)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="fast_math exclude each other"):
        Compiler(exact=True, fast_math=True)
    with pytest.raises(UsageError, match="require_verified requires verify"):
        Compiler(verify=False, require_verified=True)
    with pytest.raises(UsageError, match="seed can't be -1"):
        Compiler(config.Settings(seed=-1))


def test_options_override_settings_and_settings_defaults() -> None:
    settings = config.Settings(seed=3, exact=True, pipeline="O1")
    environment = Environment(settings, pipeline="O3")
    assert environment.given == {"pipeline": "O3"}
    assert (environment.settings.pipeline, environment.settings.seed) == ("O3", 3)
    assert environment.options["pipeline"] == "O3" and environment.options["fold_limit"] == 64 * 1024
    assert environment.numerics is Numerics.EXACT
    assert (environment.inputs.seed, settings.pipeline) == (3, "O1")
    with config.patch(seed=4):
        assert Environment().inputs.seed == 4


def test_an_environment_is_not_changed_by_further_options() -> None:
    environment = Environment(skip=("cse",), strict=True)
    further = environment.having({"exact": True, "strict": None})
    assert further.settings.exact and not environment.settings.exact
    assert further.given == {"skip": ("cse",), "strict": True, "exact": True}
    assert further.without("strict").given == {"skip": ("cse",), "exact": True}
    assert environment.having({}) is environment
    assert type(Compiler().having({"exact": True})) is Compiler
    with pytest.raises(UsageError, match="exclude each other"):
        further.having({"fast_math": True})


def test_the_log_of_an_environment_is_created_once() -> None:
    env = Environment(config.Settings(log="graphs"))
    assert len(env.instruments) == 1 and env.instruments[0] is env.instruments[0]
    assert not Environment(config.Settings()).instruments


def test_a_device_is_chosen_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str | None] = []

    def choose(name: str | None, settings: config.Settings) -> tuple[devices.Device, str | None]:
        chosen.append(name)
        return devices.CPU, "a remark"

    monkeypatch.setattr("graphopt.compiler.environment.choose_device", choose)
    compiler = Compiler(device="cpu")
    compiler.optimize(model)
    compiler.try_out(model)
    assert (compiler.device, compiler.device_remark, compiler.target) == (
        devices.CPU,
        "a remark",
        devices.CPU,
    )
    assert compiler.verify(model, model).ok
    assert chosen == ["cpu"]


def test_methods_compute_the_same_as_functions(model: Path) -> None:
    compiler = Compiler(exact=True)
    result, report = compiler.optimize(model)
    same, other = graphopt.optimize(model, exact=True)
    assert ir.to_bytes(result) == ir.to_bytes(same)
    assert report.optimized == other.optimized
    assert report.optimized.nodes < report.original.nodes
    assert compiler.optimize(model, skip="peephole").report.optimized.nodes > report.optimized.nodes
    assert compiler.verify(model, result).ok and graphopt.verify(model, same).ok
    feeds = {"x": np.ones((2, 4), np.float32)}
    np.testing.assert_array_equal(compiler.run(result, feeds)["y"], graphopt.run(model, feeds)["y"])
    assert str(compiler.explain(model)) == str(graphopt.explain(model))


def test_groups_are_counted_in_the_plural_of_their_number(model: Path) -> None:
    assert repr(Compiler().partition(model, minimum=1)) == "Partitioned(autodiff: 1 group with 2 nodes)"


def test_models_are_accepted_in_any_form_and_not_changed(model: Path) -> None:
    compiler = Compiler()
    proto = onnx.load(model)
    for source in (model, str(model), proto, proto.SerializeToString(), graphopt.load_model(model)):
        assert len(compiler.optimize(source).model.graph) == 1
    assert proto == onnx.load(model)
    _, original, size = compiler.working_copy(model)
    assert (original, size) == (model, model.stat().st_size)
