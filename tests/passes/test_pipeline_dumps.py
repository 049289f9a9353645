"""The graphs that the named pipelines create from a small model, with and without a profile and gradients."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from graphopt import ir
from graphopt.instrument.graph_text import graph_text
from graphopt.passes.pipelines import PIPELINES
from graphopt.profile import ValueProfile
from tests.golden_files import GoldenFiles
from tests.model_testing import parse
from tests.passes.named_pipelines import COMBINATIONS, run_named

GOLDEN = Path(__file__).parent / "golden"

#: A function, a branch, a sequence, a repeated computation, foldable constants, three products of one operand,
#: element-wise chains, and a value whose shape depends on data.
MODEL = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[N, 4] x, bool c) => (float[N, 4] y, int64[2, M] found)
<float[4, 4] q, float[4, 4] k, float[4, 4] v, int64 first = {0}, float two = {2}> {
    f = own.gelu (x)
    s = SequenceConstruct (f, x)
    a = SequenceAt (s, first)
    again = own.gelu (x)
    both = Add (a, again)
    four = Mul (two, two)
    scaled = Mul (both, four)
    wq = MatMul (scaled, q)
    wk = MatMul (scaled, k)
    wv = MatMul (scaled, v)
    h = Add (wq, wk)
    t = Tanh (h)
    m = Mul (t, wv)
    y = If (c) <then_branch = yes () => (float[N, 4] p) { p = Identity (m) },
                else_branch = no () => (float[N, 4] r) { n = Neg (m) r = Exp (n) }>
    found = NonZero (y)
}
<opset_import: ["" : 17], domain: "own">
gelu (i) => (o) {
    half = Constant <value = float {0.5}> ()
    e = Sigmoid (i)
    z = Mul (i, e)
    o = Mul (z, half)
}"""

#: The profile: sizes of the inputs and of intermediate values.
PROFILE = {
    "x": ValueProfile("tensor(float)", (512, 4)),
    "c": ValueProfile("tensor(bool)", ()),
    "both": ValueProfile("tensor(float)", (512, 4)),
    "scaled": ValueProfile("tensor(float)", (512, 4)),
    "m": ValueProfile("tensor(float)", (512, 4)),
    "found": ValueProfile("tensor(int64)", (2, 2048)),
}


def small_model() -> ir.Model:
    """:data:`MODEL` with weights."""
    text = MODEL
    for start, name in enumerate("qkv"):
        weights = ", ".join(str((number * 5 + start) % 7 - 3) for number in range(16))
        text = text.replace(f"float[4, 4] {name}", f"float[4, 4] {name} = {{{weights}}}")
    return parse(text)


def dumps(pipeline: str) -> str:
    """The graphs that ``pipeline`` creates."""
    original, found = small_model(), []
    for kinds in COMBINATIONS:
        result, passes = run_named(pipeline, kinds.annotated(original, PROFILE, "xqkv"))
        result.metadata_props.clear()  # digests and records of constants
        text = graph_text(result).rstrip("\n")
        ir.validate(ir.from_proto(onnx.parser.parse_model(text)))
        found.append(f"=== {kinds}\n--- changed by: {passes}\n{text}\n")
    return "\n".join(found)


@pytest.mark.parametrize("pipeline", sorted(PIPELINES))
def test_graphs_of_pipeline(pipeline: str, golden: GoldenFiles) -> None:
    golden.check(GOLDEN / f"{pipeline}.txt", dumps(pipeline))


def test_every_golden_file_has_a_pipeline() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == sorted(PIPELINES)
