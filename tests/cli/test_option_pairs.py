"""Every two options of ``graphopt optimize`` can be combined, except those that docs/cli.md lists."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import api, ir
from graphopt.cli.commands.optimize import command
from graphopt.cli.options.table_options import exclusions
from graphopt.tuning import tuner
from graphopt.tuning.measurements import Finding, Measurement
from graphopt.tuning.search_space import Group, Variant
from graphopt.tuning.variant_search import TuningDecision
from tests.cli.conftest import Invoke
from tests.model_testing import parse
from tests.specialization.models import profile_of

#: Shape computations that fold for a known number of rows; ``present`` may overwrite ``past``.
MODEL = """g (float[B, 4] x, float[B, 4] past) => (float[B, 4] y, float[B, 4] present)
<float[4, 4] w = {0.5, 0, 0, 1, 0, 1, 0, 0, 0, 2, 1, 0, 1, 1, 0, 0.25}, int64 one = {1}, int64 zero = {0},
 int64[1] last = {1}, float half = {0.5}> {
    sizes = Shape(x)
    n = Gather(sizes, zero)
    positions = Range(zero, n, one)
    row = Unsqueeze(positions, last)
    far = Cast <to = 1>(row)
    d = Mul(far, half)
    e = Exp(d)
    s = Sqrt(e)
    t = Cos(s)
    u = Sin(t)
    v = Neg(u)
    m = MatMul(x, w)
    a = Add(m, v)
    present = Add(past, a)
    g = Sigmoid(present)
    y = Mul(present, g)
}"""

#: The tried options, with values; {profile} and {folder} are paths.
OPTIONS: dict[str, Sequence[str]] = {
    "--profile": ["--profile", "{profile}"],
    "--emit": ["--profile", "{profile}", "--emit", "bundle"],
    "--single-file": ["--profile", "{profile}", "--single-file"],
    "--pin-shapes": ["--profile", "{profile}", "--pin-shapes"],
    "--fuser": ["--fuser", "native"],
    "-O": ["-O3"],
    "--pipeline": ["--pipeline", "O1"],
    "--passes": ["--passes", "dce,cse,peephole"],
    "--tune": ["--tune"],
    "--share-buffers": ["--share-buffers", "past=present"],
    "--dim": ["--dim", "B=2"],
    "--dim-range": ["--dim-range", "B=1:9"],
    "--target-opset": ["--target-opset", "19"],
    "--stop-after": ["--stop-after", "3"],
    "--exact": ["--exact"],
    "--fast-math": ["--fast-math"],
    "--portable": ["--portable"],
    "--strip-docs": ["--strip-docs"],
    "--skip": ["--skip", "cse"],
    "--only": ["--only", "drop-cast"],
    "--pre-pass": ["--pre-pass", "dce"],
    "--post-pass": ["--post-pass", "dce"],
    "--strict": ["--strict"],
    "--require-verified": ["--require-verified"],
    "--no-verify": ["--no-verify"],
    "--validate-each": ["--validate-each"],
    "--verify-each": ["--verify-each"],
    "--save-repro": ["--save-repro", "{folder}/repro"],
    "--dump-dir": ["--dump-dir", "{folder}/dump"],
    "--html": ["--html", "{folder}/page.html"],
    "--input-shape": ["--input-shape", "x:2x4"],
    "--weights": ["--weights", "beside"],
}
PAIRS = list(itertools.combinations(OPTIONS, 2))
#: Pairs that are refused: those of docs/cli.md, and values that contradict each other.
EXCLUDED = [
    *map(set, exclusions(command)),
    {"--emit", "--single-file"},
    {"--emit", "--pin-shapes"},
    {"--no-verify", "--require-verified"},
    *({name, "--html"} for name in ("--emit", "--single-file", "--pin-shapes")),  # these require --profile
]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model and its profile; tuning reverts its first group of rewrites without measuring it."""
    path = tmp_path / "model.onnx"
    api.save(parse(MODEL), path)
    profile_of(ir.load(path), feeds(2), feeds(2), feeds(3)).write(tmp_path / "profile.json")
    monkeypatch.setattr(tuner, "search", first_group_reverted)
    return path


def first_group_reverted(groups: Sequence[Group], *_: object) -> TuningDecision:
    """The decision of a search in which the model is faster without the first group of rewrites."""
    slow = Measurement(1.25, slower=True)
    found = [Finding(group.name, group.rewrites, slow, False, "slower", group.owners) for group in groups[:1]]
    return TuningDecision(Variant(off=frozenset(*(finding.reverted for finding in found))), found)


def feeds(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    return {name: rng.standard_normal((rows, 4)).astype(np.float32) for name in ("x", "past")}


def check(pair: tuple[str, str], invoke: Invoke, model: Path) -> None:
    """Optimize with both options: their refusal is declared, or the result computes the same."""
    folder = model.parent
    words = [
        word.format(profile=folder / "profile.json", folder=folder)
        for word in dict.fromkeys(tuple(OPTIONS[name]) for name in pair)
        for word in word
    ]
    if (
        pair[0] in ("--profile", "--emit", "--single-file", "--pin-shapes")
        and "--profile" in OPTIONS[pair[1]]
    ):
        words = [*words[:2], *(word for word in words[2:] if word not in words[:2] and word != "--profile")]
    out = folder / ("out.bundle" if "bundle" in words else "out.onnx")
    found = invoke("optimize", model, "-o", out, *words)
    if set(pair) in EXCLUDED:
        assert found.status == 2 and not out.exists(), found.err
        return
    assert found.status == 0, found.err
    assert ("--tune" in pair) == ("tuned for CPU" in found.out)
    for rows in (2, 3, 5):
        if rows != 2 and "--dim" in pair:
            continue
        run = graphopt.load(out).run if "bundle" in words else lambda given: api.run(out, given)
        result, expected = run(feeds(rows)), api.run(model, feeds(rows))
        for name, array in expected.items():
            np.testing.assert_allclose(result[name], array, rtol=1e-4, atol=1e-5, err_msg=f"{pair} {name}")


@pytest.mark.parametrize("other", [name for name in OPTIONS if name != "--profile"])
def test_profiles_combine_with_other_options(other: str, invoke: Invoke, model: Path) -> None:
    check(("--profile", other), invoke, model)


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_pairs_of_options_combine_or_are_refused(pair: tuple[str, str], invoke: Invoke, model: Path) -> None:
    check(pair, invoke, model)
