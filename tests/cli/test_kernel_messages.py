"""Messages about native kernels: causes, and remedies."""

from __future__ import annotations

import json
from pathlib import Path

from graphopt import ir
from tests.cli.conftest import Invoke
from tests.fusion.models import TWO, grouped
from tests.model_testing import parse


def test_a_race_without_a_compiler_names_the_cause(invoke: Invoke, tmp_path: Path) -> None:
    path, groups = tmp_path / "model.onnx", tmp_path / "groups.onnx"
    ir.save(parse(TWO), path)
    ir.save(grouped(), groups)
    for model in (path, groups):
        ran = invoke("kernels", model, "--candidates", "--budget", "1s", "--set", "compiler=/no/compiler")
        (line,) = [line for line in ran.out.splitlines() if "not raced" in line]
        assert "(sigmoid_mul_" in line and "sin_mul_" in line
        assert "no kernel was built: the C compiler that the setting 'compiler' names does not run" in line


def test_reasons_against_kernels_have_remedies(invoke: Invoke, tmp_path: Path) -> None:
    weights = ",".join("1" for _ in range(64 * 64))
    text = f"""g (float[64,64] x, int64[N] j) => (float[64,64] y, float[64,64] z, float[N,64] k)
        <float[64,64] w = {{{weights}}}> {{
        y = MatMul(x, w)  z = Neg(x)  a = Neg(y) k = Gather(a, j)
    }}"""
    path = tmp_path / "none.onnx"
    ir.save(parse(text), path)
    ran = invoke("optimize", path, "-o", tmp_path / "out.onnx", "--fuser", "native")
    assert "no native groups: no kernel is expected to be faster than onnxruntime" in ran.out
    assert "graphopt explain MODEL --fuser native has the reasons" in ran.out
    missed = json.loads(invoke("explain", path, "--fuser", "native", "--json").out)["missed"]
    reasons = {one["anchor"]: (one["reason"], one["hint"]) for one in missed if one["rule"] == "fuse-groups"}
    assert reasons["Gather(k)"][0] == "the index of a Gather is not one constant number"
    assert reasons["Neg(z)"] == ("its group has fewer than 2 nodes", None)
    assert "--candidates" in reasons["MatMul(y)"][1] and "--tune" in reasons["MatMul(y)"][1]
    assert not [one for one in json.loads(invoke("explain", path, "--json").out)["missed"]]
    only = invoke("explain", path, "--fuser", "native", "--pattern", "fuse-groups", "--node", "Neg(z)").out
    assert "Neg(z)" in only and "MatMul" not in only


def test_reasons_that_differ_in_names_are_one_line(invoke: Invoke, tmp_path: Path) -> None:
    weights = ",".join("1" for _ in range(16 * 16))
    text = f"""g (float[1,16,28,28] x) => (float[1,16,28,28] y) <float[16,16,1,1] w = {{{weights}}}> {{
        a = Conv(x, w)  e = Exp(a)  b = Mul(e, a)  c = Conv(b, w)  f = Exp(c)  y = Mul(f, c)
    }}"""
    path = tmp_path / "convolutions.onnx"
    ir.save(parse(text), path)
    lines = invoke("explain", path, "--fuser", "native", "--pattern", "fuse-groups").out.splitlines()
    (line,) = [line for line in lines if "layout of convolutions" in line]
    assert line == "not fused 4 × fuse-groups: a kernel next to … breaks onnxruntime's layout of convolutions"
