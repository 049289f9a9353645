"""Messages about native kernels: causes, and remedies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphopt import ir
from tests.cli.conftest import Invoke
from tests.fusion.models import TWO, grouped
from tests.model_testing import parse


def test_a_race_without_a_compiler_names_the_cause(invoke: Invoke, tmp_path: Path) -> None:
    path, groups = tmp_path / "model.onnx", tmp_path / "groups.onnx"
    ir.save(parse(TWO), path)
    ir.save(grouped(), groups)
    false = tmp_path / "false"
    false.write_text(
        '#!/bin/sh\ntest "$1" = --version && echo false 1.0 && exit 0\necho error: broken >&2\nexit 1\n'
    )
    false.chmod(0o755)
    for compiler, cause in (
        ("/no/compiler", "the C compiler that the setting 'compiler' names does not run: /no/compiler"),
        (str(false), "the C compiler false (false 1.0) can't compile kernels: error: broken"),
    ):
        for model in (path, groups):
            choice = ("--set", f"compiler={compiler}", "--set", f"cache-dir={tmp_path / 'store'}")
            ran = invoke("kernels", model, "--candidates", "--budget", "1s", *choice)
            assert ran.status == 6 and ran.out == ""
            (line,) = ran.err.strip().splitlines()
            assert line.startswith(f"graphopt: no kernel was built: {cause}")


def test_a_list_without_a_compiler_names_the_cause(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "groups.onnx"
    ir.save(grouped(), path)
    ran = invoke("kernels", path, "--set", "compiler=/no/compiler")
    assert ran.status == 6 and ran.out == ""
    assert ran.err.startswith("graphopt: the C compiler that the setting 'compiler' names does not run")
    assert invoke("kernels", path, "--source", "--set", "compiler=/no/compiler").status == 0
    monkeypatch.setenv("CC", "/no/compiler")
    ran = invoke("kernels", path)
    assert (
        ran.status == 0 and "no library can be built: the C compiler that $CC names does not run" in ran.out
    )


def test_reasons_against_kernels_have_remedies(invoke: Invoke, tmp_path: Path) -> None:
    weights = ",".join("1" for _ in range(64 * 64))
    text = f"""g (float[64,64] x, int64[N] j) => (float[64,64] y, float[64,64] z, float[N,64] k, float[64,64] b)
        <float[64,64] w = {{{weights}}}> {{
        y = MatMul(x, w)  z = Neg(x)  a = Neg(y) k = Gather(a, j)  b = Abs(y)
    }}"""
    path = tmp_path / "none.onnx"
    ir.save(parse(text), path)
    ran = invoke("optimize", path, "-o", tmp_path / "out.onnx", "--fuser", "native")
    assert "no native groups: no kernel is expected to be faster than onnxruntime" in ran.out
    assert "graphopt explain MODEL --fuser native has the reasons" in ran.out
    missed = json.loads(invoke("explain", path, "--fuser", "native", "--json").out)["missed"]
    reasons = {one["anchor"]: (one["reason"], one["hint"]) for one in missed if one["rule"] == "fuse-groups"}
    assert reasons["Gather(k)"][0] == "the index of a Gather is not one constant number"
    few = "its group has fewer than 2 nodes"
    assert reasons["Neg(z)"] == (few, "none: a kernel of one node saves no pass over memory")
    alone = "none for this node alone; it could join MatMul(y), but onnxruntime is expected to be as fast"
    assert reasons["Abs(b)"] == (few, alone)
    assert "--candidates" in reasons["MatMul(y)"][1] and "--tune" in reasons["MatMul(y)"][1]
    assert not [one for one in json.loads(invoke("explain", path, "--json").out)["missed"]]
    only = invoke("explain", path, "--fuser", "native", "--pattern", "fuse-groups", "--node", "Neg(z)").out
    assert "Neg(z)" in only and "MatMul" not in only


def test_unknown_sizes_are_named_with_the_options_that_fix_them(invoke: Invoke, tmp_path: Path) -> None:
    text = """g (float[N,64] x, float[M,64] z, float[K,3,3,3] w, float[1,3,9,9] i) => (float[N,64] y, float[A,B,C,D] c) {
        a = Exp(x)  y = Mul(a, z)  c = Conv(i, w)
    }"""
    path = tmp_path / "sizes.onnx"
    ir.save(parse(text), path)

    def explained(*options: str) -> dict[str, tuple[str, str]]:
        found = json.loads(invoke("explain", path, "--fuser", "native", "--json", *options).out)["missed"]
        return {one["anchor"]: (one["reason"], one["hint"]) for one in found}

    reasons = explained()
    assert reasons["Conv(c)"] == (
        "the size K of 'w' on axis 0 is unknown before the model runs",
        "--dim K=SIZE",
    )
    assert reasons["Mul(y)"] == (
        "whether N and M are equal is unknown before the model runs",
        "--dim-relation N=M (if that holds in every run), or --dim N=SIZE --dim M=SIZE",
    )
    assert "Mul(y)" not in explained("--dim-relation", "N=M")
    assert "Mul(y)" not in explained("--dim", "N=4", "--dim", "M=4")
    assert "unknown" not in explained("--dim", "K=4").get("Conv(c)", ("", ""))[0]


def test_predictions_by_typical_sizes_name_the_sizes(invoke: Invoke, tmp_path: Path) -> None:
    text = "g (float[M,1024] x, float[1024,4096] w) => (float[M,4096] y) { y = MatMul(x, w) }"
    path = tmp_path / "rows.onnx"
    ir.save(parse(text), path)
    missed = json.loads(invoke("explain", path, "--fuser", "native", "--json").out)["missed"]
    (hint,) = [one["hint"] for one in missed if one["rule"] == "fuse-groups"]
    assert "--candidates races it" in hint and hint.endswith("; --dim M=SIZE replaces typical sizes")


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
