"""The graphs that the named pipelines create from an encoder, with and without a profile and gradients.

``index.txt`` lists the file of each combination, and the passes that changed the model. Combinations with equal
graphs have one file.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from graphopt import ir
from graphopt.autodiff import joint_graph
from graphopt.passes.pipelines import PIPELINES
from graphopt.profile import ValueProfile
from tests.golden_files import GoldenFiles, write
from tests.model_testing import run_pipeline
from tests.passes import encoder_model
from tests.passes.named_pipelines import COMBINATIONS, Annotations, run_named

GOLDEN = Path(__file__).parent / "golden" / "encoder"
INDEX = "index.txt"
#: Maximum number of lines of a file.
LINES = 600

#: The losses of joint graphs, the inputs of pipelines for models with gradients.
LOSSES = ["scores", "summary"]


@cache
def _encoder() -> tuple[ir.Model, dict[str, ValueProfile]]:
    model = encoder_model.encoder()
    return model, encoder_model.profile(model).values


def _joint(model: ir.Model, *, optimize: bool) -> ir.Model:
    return joint_graph.differentiate(model, LOSSES, "params", optimize=optimize).model


def _input(pipeline: str, annotations: Annotations) -> ir.Model:
    """The input of ``pipeline``.

    With gradients, pipelines of later stages run on models with gradients, and freezing runs on a model that
    trains.
    """
    model, values = _encoder()
    parameters = [
        name for name, value in model.graph.initializers.items() if value.dtype == ir.DataType.FLOAT
    ]
    if annotations.gradients and pipeline in ("joint", "training"):
        model = _joint(model, optimize=False)
    elif annotations.gradients and (pipeline.startswith("post-grad") or pipeline == "inner"):
        model = _joint(model, optimize=True)
    elif annotations.gradients and pipeline == "freezing":
        model = encoder_model.encoder(trains=True)
    model = annotations.annotated(model, values, parameters)
    if annotations.gradients and pipeline == "forward":
        run_pipeline(model, "create-autodiff-subgraphs,differentiate,guard-groups")
    return model


def dumps(pipeline: str) -> dict[Annotations, tuple[str, str]]:
    """The graphs that ``pipeline`` creates, and the passes that changed the model."""
    found = {}
    for kinds in COMBINATIONS:
        result, passes = run_named(pipeline, _input(pipeline, kinds))
        found[kinds] = ir.print_model(result), passes
    return found


def _entry(pipeline: str, files: list[str], passes: list[str]) -> str:
    """The entry of a pipeline in the index."""
    lines = [pipeline]
    for kinds, file, changed_by in zip(COMBINATIONS, files, passes, strict=True):
        lines += [f"  {kinds}: {file}", f"    changed by: {changed_by}"]
    return "\n".join(lines) + "\n"


def _file(pipeline: str, annotations: Annotations) -> str:
    words = [pipeline, *(kind for kind in ("profile", "gradients") if getattr(annotations, kind))]
    return f"{'.'.join(words)}.txt"


def write_all() -> None:
    """Write all dumps, equal ones once, and the index."""
    files, entries = {ir.print_model(_encoder()[0]): "original.txt"}, []
    for pipeline in PIPELINES:
        found = dumps(pipeline)
        names = [files.setdefault(text, _file(pipeline, kinds)) for kinds, (text, _) in found.items()]
        entries.append(_entry(pipeline, names, [passes for _, passes in found.values()]))
    for text, name in files.items():
        write(GOLDEN / name, text)
    write(GOLDEN / INDEX, "\n".join(entries))
    for path in set(GOLDEN.glob("*.txt")) - {GOLDEN / name for name in (*files.values(), INDEX)}:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def index(golden: GoldenFiles) -> dict[str, str]:
    """The entry of each pipeline in the index."""
    if golden.update:
        write_all()
    return {
        text.partition("\n")[0]: text for text in (GOLDEN / INDEX).read_text(encoding="utf-8").split("\n\n")
    }


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_graphs_of_pipeline(pipeline: str, index: dict[str, str], golden: GoldenFiles) -> None:
    found = dumps(pipeline)
    files = [line.rpartition(": ")[2] for line in index.get(pipeline, "").splitlines()[1::2]]
    entry = _entry(pipeline, files, [passes for _, passes in found.values()]) if len(files) == 4 else ""
    assert entry.rstrip("\n") == index.get(pipeline, "").rstrip("\n"), golden.hint
    for file, (text, _) in zip(files, found.values(), strict=True):
        assert text == (GOLDEN / file).read_text(encoding="utf-8"), golden.hint


def test_files_are_distinct_small_and_in_the_index(index: dict[str, str], golden: GoldenFiles) -> None:
    assert list(index) == list(PIPELINES), golden.hint
    texts = {
        path.name: path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.txt") if path.name != INDEX
    }
    named = {line.rpartition(": ")[2] for entry in index.values() for line in entry.splitlines()[1::2]}
    assert named == set(texts), golden.hint
    assert len(set(texts.values())) == len(texts), golden.hint
    assert max(text.count("\n") for text in texts.values()) < LINES
