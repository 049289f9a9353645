"""Commands that search for faults accept the options of optimize, with the same effect."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import onnx
import pytest

from graphopt import config, ir
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups import failing_check
from graphopt.cli.output.console import Console
from graphopt.debug import checks
from graphopt.debug.checks import CheckOptions, make_check
from graphopt.errors import UsageError, VerificationFailed
from graphopt.optimization_attempt import prepare
from graphopt.optimize_options import OptimizeOptions
from tests.cli.conftest import Invoke
from tests.model_testing import parse

#: Sections of the help of optimize with options that affect results, inputs or devices.
SHAPING = {"Passes", "Inputs", "Device"}
#: A dump of passes runs no models.
OF_RUNS = {"input_files", "input_shapes", "seed", "device", "allow_fallback"}

TEXT = "g (float[n, 2] past) => (float[n, 2] present) { a = Identity(past)  present = Relu(a) }"


def options_of(command: str, sections: set[str] | None = None) -> set[str]:
    module = importlib.import_module(f"graphopt.cli.commands.{command}")
    return {
        str(parameter.name)
        for parameter in module.command.params
        if sections is None or getattr(parameter, "section", None) in sections
    }


@pytest.mark.parametrize("command", ["bisect", "reduce", "dump"])
def test_options_that_affect_results_are_shared(command: str) -> None:
    wanted = options_of("optimize", SHAPING) - (OF_RUNS if command == "dump" else set())
    assert wanted <= options_of(command)
    assert {"share_buffers", "strip_docs", "target_opset", "portable", "memory_limit", "dims"} <= wanted


def test_fault_search_runs_the_pipeline_of_optimize(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(ir.to_proto(parse(TEXT)), path)
    options: OptimizeOptions = {"pipeline": "dce", "dim_ranges": {"n": (1, 4)}, "target_opset": 18}
    options |= {"strip_docs": True, "share_buffers": (("past", "present"),)}
    settings = config.Settings(memory_limit=12345, portable=True, device="cpu")
    run = Run(settings, Console(quiet=True), options=options)
    attempt, check = failing_check.prepare(run, path, failing_check.CheckValues("numerics", None, 3.0))
    assert str(attempt.pipeline) == "convert-opset{target=18},dce,strip-docs,check-aliasing"
    assert attempt.options.share_buffers == (("past", "present"),) and attempt.options.portable
    assert attempt.options.memory_limit == check.memory == 12345 and check.seconds == 3.0
    assert check.inputs.ranges == attempt.options.dim_ranges != {}


def test_dump_refuses_options_without_effect(invoke: Invoke, small: Path) -> None:
    outcome = invoke("dump", small, "--strip-docs")
    assert outcome.status == 2 and "--strip-docs needs --pass-by-pass" in outcome.err
    assert invoke("dump", small, "--strip-docs", "--pass-by-pass", "--changed").status == 0
    outcome = invoke("dump", small, "--share-buffers", "x=nothing", "--pass-by-pass")
    assert outcome.status == 2 and "no output is called 'nothing'" in outcome.err


def test_a_request_is_refused_before_and_on_a_model() -> None:
    with pytest.raises(UsageError, match="no pass or pipeline"):
        prepare(config.Settings(), pipeline="nothing")
    with pytest.raises(UsageError, match="runs opsets up to"):
        prepare(config.Settings(), target_opset=1000)
    unsafe = parse("g (float[2] x) => (float[2] y, float[2] z) { y = Neg(x)  z = Cos(x) }")
    with pytest.raises(VerificationFailed):
        prepare(config.Settings(), share_buffers=[("x", "y")]).on(unsafe)


@pytest.mark.parametrize(("limit", "isolated"), [(None, False), (1 << 30, False), (8, True)])
def test_checks_keep_to_the_memory_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, isolated: bool
) -> None:
    given: dict[str, Any] = {}

    class Noted(checks.Verifier):
        def __init__(self, original: ir.Model, **how: Any) -> None:
            given.update(how)
            super().__init__(original, **how)

    monkeypatch.setattr(checks, "Verifier", Noted)
    with make_check(CheckOptions(memory=limit), parse(TEXT)):
        assert (given["memory"], given["isolate"]) == (limit, isolated)
