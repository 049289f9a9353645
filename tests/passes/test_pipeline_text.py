"""Pipeline text parses, round-trips, and its errors are named."""

from __future__ import annotations

import pytest

from graphopt.errors import UsageError
from graphopt.passes.pipeline import Pipeline, pipeline_text
from graphopt.passes.pipelines import PIPELINES, registry
from tests.debug.faulty_passes import WrongFactor


@pytest.mark.parametrize(
    "text",
    [
        "dce",
        "dce,cse",
        "fixpoint(dce,cse),dce",
        "peephole{families=slice+pad}",
        "constant-propagation{limit=1024}",
        "fixpoint(dce,fixpoint(cse,peephole{families=pad}))",
        "peephole{families=pad+slice,numerics=exact}",
    ],
)
def test_text_prints_back_to_itself(text: str) -> None:
    assert str(Pipeline.parse(text, registry())) == text


def test_sizes_and_blanks_are_read() -> None:
    pipeline = Pipeline.parse(" dce , constant-propagation{ limit = 64KiB } ", registry())
    assert str(pipeline) == "dce,constant-propagation{limit=65536}"


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_pipelines_parse(name: str) -> None:
    pipeline = Pipeline.parse(name, registry())
    assert Pipeline.parse(str(pipeline), registry()) == pipeline


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dce,csee", "no pass or pipeline is called 'csee'; nearest: cse"),
        ("dce{x=1}", "pass 'dce' has no option 'x'"),
        ("constant-propagation{limit=lots}", "'lots' is not a value"),
        ("dce,", "a name is expected at column 5"),
        ("fixpoint(dce", "'(' is not closed"),
        ("dce{", "'{' is not closed"),
        ("dce)", "unbalanced ')'"),
        ("dce cse", "a comma is expected at column 5"),
        ("fixpoint(dce cse)", "a comma or ')' is expected at column 14"),
        ("dce{a=1}cse", "a comma is expected at column 9"),
        ("fixpoint(dce,cse", "'(' is not closed"),
        (",dce", "a name is expected at column 1"),
    ],
)
def test_bad_text_is_explained(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Pipeline.parse(text, registry())
    assert message in str(caught.value)


def test_every_pass_has_a_summary_and_a_dashed_name() -> None:
    for name, kind in registry().passes.items():
        assert kind.name == name
        assert "_" not in name
        assert len(kind.summary()) > 10


@pytest.mark.parametrize(
    "text",
    [
        "tests.debug.faulty_passes:WrongFactor{factor=7.0}",
        "dce,fixpoint(tests.debug.faulty_passes:WrongFactor{factor=7.0},cse)",
    ],
)
def test_custom_passes_are_named_by_import_path(text: str) -> None:
    pipeline = Pipeline.parse(text, registry())
    assert ",".join(pipeline_text(step, registry()) for step in pipeline.steps) == text
    assert WrongFactor(factor=7.0) in pipeline.passes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tests.debug.faulty_passes:WrongFactor{x=7}", "has no option 'x'; its options: factor"),
        ("tests.debug.faulty_passes:WrongFactor{factor=much}", "'much' is not a value"),
        ("tests.debug.faulty_passes:Nothing", "has no Nothing"),
        ("tests.debug.faulty_passes:put", "can't be made without arguments: node, cx, made"),
        ("tests.debug.faulty_passes:big_model", "is a function, neither a pass nor a rule"),
        ("tests.cli.broken_passes:Copy{deep}", "takes no options"),
        ("tests.debug.nowhere:Pass", "No module named"),
    ],
)
def test_invalid_custom_passes_are_reported(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Pipeline.parse(text, registry())
    assert message in str(caught.value)
