"""graphopt kernels, and native groups in other commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import api, ir
from graphopt.context import context_for
from graphopt.fusion.group_functions import groups_of
from graphopt.passes.pipelines import make_pipeline
from graphopt.profile import Guard, ValueProfile
from graphopt.specialization.variant_branch import Branch
from graphopt.specialization.versioned_model import build_versioned_model
from tests.cli.conftest import Invoke
from tests.fusion.backends.c.runtime.samples import compiled
from tests.fusion.models import TWO, grouped
from tests.model_testing import parse
from tests.specialization.models import feeds_of, positions, profile_of

#: A compiler that does not exist.
NONE = ("--set", "compiler=/no/compiler")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(parse(TWO), path)
    return path


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    path = tmp_path / "groups.onnx"
    ir.save(grouped(), path)
    return path


def test_a_table_of_kernels(invoke: Invoke, path: Path, groups: Path) -> None:
    text = invoke("kernels", groups).out
    assert "sigmoid_mul_" in text and "f32[d0, 64], f32[64]" in text and "512*d0 + 256" in text
    assert "not built yet" in text
    told = json.loads(invoke("kernels", groups, "--json").out)
    assert [kernel["ops"] for kernel in told["kernels"]] == [
        {"MatMul": 1, "Sin": 1, "Mul": 1},
        {"Sigmoid": 1, "Mul": 1},
    ]
    assert told["built"] is False and told["library"] is None and told["proposed"] is False
    assert told["device"] == "cpu"
    text = invoke("kernels", path).out
    assert "has no native groups; graphopt optimize --fuser native would create these" in text


def test_the_source(invoke: Invoke, groups: Path) -> None:
    text = invoke("kernels", groups, "--source").out
    assert text.startswith(("/*", "#", "//")) and "sigmoid_mul_" in text
    assert invoke("kernels", groups, "--source", "--json").status == 2


def test_changed_function_is_reported(invoke: Invoke, groups: Path) -> None:
    model = ir.load(groups)
    (function, *_) = model.functions.values()
    next(node for node in function if node.op_type == "Mul").op_type = "Sub"
    ir.save(model, groups)
    assert "its contents do not match its name" in invoke("kernels", groups).out


@compiled
def test_the_library_is_built(invoke: Invoke, groups: Path, tmp_path: Path) -> None:
    out = tmp_path / "k.so"
    ran = invoke("kernels", groups, "-o", out)
    assert ran.status == 0 and out.is_file()
    assert f"options.register_custom_ops_library({str(out)!r})" in ran.out and "RegisterCustomOps" in ran.out
    told = json.loads(invoke("kernels", groups, "--json").out)
    assert told["built"] is True and told["cpu_level"] in (0, 2, 3, 4)


def test_refusals_leave_no_file(invoke: Invoke, path: Path, groups: Path, tmp_path: Path) -> None:
    out = tmp_path / "k.so"
    ran = invoke("kernels", groups, "-o", out, *NONE)
    assert ran.status == 6 and "/no/compiler" in ran.err and not out.exists()
    ran = invoke("kernels", path, "-o", out)
    assert ran.status == 2 and "--fuser native" in ran.err and not out.exists()
    assert invoke("kernels", groups, "-o", tmp_path / "k.txt").status == 2
    assert "it is a folder\nhint: give the name of a file" in invoke("kernels", groups, "-o", tmp_path).err


# Other commands -----------------------------------------------------------------------------------


@compiled
def test_optimize_writes_the_library_beside_the_model(invoke: Invoke, path: Path) -> None:
    out = path.with_name("out.opt.onnx")
    ran = invoke("optimize", path, "-o", out, "--fuser", "native")
    library = path.with_name("out.opt.kernels.so")
    assert ran.status == 0 and library.is_file() and str(library) in ran.out
    assert "register_custom_ops_library" in ran.out and "native kernel" in ran.out
    told = json.loads(invoke("optimize", path, "-o", out, "--fuser", "native", "--json").out)
    assert told["library"] == str(library) and len(told["kernels"]) == 2
    assert told["session"][1] == f"options.register_custom_ops_library({str(library)!r})"
    rows = [
        (row["libraries"], row["binding"], row["flavour"], row["level"])
        for row in told["verification"]["rows"]
    ]
    with_library, without = ([row[1:] for row in rows if row[0] is used] for used in (True, False))
    assert with_library == without and with_library
    plain = json.loads(invoke("optimize", path, "-o", out, "--json").out)
    assert plain["library"] is None and plain["kernels"] == []


@compiled
def test_the_report_distinguishes_kernels_from_their_calls(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "twice.onnx"
    ir.save(
        parse("""g (float[N,64] x, float[N,64] z) => (float[N,64] y, float[N,64] w) {
            a = Exp(x)  b = Add(a, x)  y = Tanh(b)  c = Exp(z)  d = Add(c, z)  w = Tanh(d)
        }"""),
        path,
    )
    ran = invoke("optimize", path, "-o", tmp_path / "out.onnx", "--fuser", "native")
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["calls", "of", "native", "kernels", "0", "2", "+2", "fuse-groups", "×2"] in rows
    assert ["kernels", "1", "native", "kernel,", "2", "calls"] in rows


@compiled
def test_stale_library_is_deleted(invoke: Invoke, path: Path) -> None:
    out, library = path.with_name("out.onnx"), path.with_name("out.kernels.so")
    invoke("optimize", path, "-o", out, "--fuser", "native")
    built = library.read_bytes()
    ran = invoke("optimize", path, "-o", out)
    assert not library.exists() and f"removed {library}" in ran.out
    library.write_bytes(built)
    invoke("optimize", path, "-o", out.with_suffix(".json"))
    assert library.exists(), "it may be that of out.onnx"
    out.with_suffix(".json").unlink()
    library.write_bytes(b"graphopt_kernel, somebody else's")
    assert "removed" not in invoke("optimize", path, "-o", out).out and library.exists()


@compiled
def test_sessions_receive_files_that_onnxruntime_reads_itself(invoke: Invoke, path: Path) -> None:
    out = path.with_name("out.json")
    ran = invoke("optimize", path, "-o", out, "--fuser", "native")
    assert "InferenceSession" not in ran.out and "graphopt convert" in ran.out
    told = json.loads(invoke("optimize", path, "-o", out, "--fuser", "native", "--json").out)
    assert told["session"] is None and told["library"] == str(path.with_name("out.kernels.so"))


@compiled
def test_printed_session_lines_run_in_the_current_folder(
    invoke: Invoke, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    told = json.loads(invoke("optimize", path.name, "-o", "out.onnx", "--fuser", "native", "--json").out)
    exec("\n".join(["import onnxruntime", *told["session"]]), {})


@compiled
def test_model_is_not_written_if_its_library_cannot_be(invoke: Invoke, path: Path) -> None:
    out = path.with_name("out.onnx")
    out.with_suffix(".kernels.so").mkdir()
    ran = invoke("optimize", path, "-o", out, "--fuser", "native")
    assert ran.status == 2 and "it is a folder" in ran.err
    assert not out.exists() and not list(path.parent.glob(".*"))


def test_optimize_without_a_compiler(invoke: Invoke, path: Path) -> None:
    out = path.with_name("out.onnx")
    ran = invoke("optimize", path, "-o", out, "--fuser", "native", *NONE)
    assert ran.status == 0 and "2 kernels not built" in ran.out and "gcc, clang and ziglang" in ran.out
    assert out.is_file() and not list(path.parent.glob("*.so"))
    ran = invoke("run", out, *NONE)
    assert ran.status == 0 and "2 kernels not built" in ran.err
    assert "not built" not in invoke("run", out, "--no-kernels", *NONE).err


def test_fusers_choose_the_passes(invoke: Invoke, path: Path) -> None:
    out = path.with_name("out.onnx")
    for name, same in (("ort", "-O2"), ("builtin", "-O3")):
        found = [
            json.loads(invoke("optimize", path, "-o", out, *options, "--json").out)["pipeline"]
            for options in (["--fuser", name], [same])
        ]
        assert found[0] == found[1]
    for name, level in (("ort", "-O2"), ("builtin", "-O3"), ("native", "-O3")):
        plain = json.loads(invoke("optimize", path, "-o", out, "--fuser", name, "--json").out)
        both = json.loads(invoke("optimize", path, "-o", out, "--fuser", name, level, "--json").out)
        assert both["pipeline"] == plain["pipeline"]
    ran = invoke("optimize", path, "-o", out, "--fuser", "native", "-O2")
    assert ran.status == 2 and "-O3 with fuse-groups for native" in ran.err
    ran = invoke("optimize", path, "-o", out, "--strict-fusion", "Mul(m)")
    assert ran.status == 2 and "--fuser native" in ran.err


@compiled
def test_run_verify_and_executors_load_kernels(invoke: Invoke, path: Path, groups: Path) -> None:
    told = json.loads(invoke("run", groups, "--json").out)
    assert len(told["libraries"]) == 1
    assert json.loads(invoke("run", groups, "--no-kernels", "--json").out)["libraries"] == []
    for more, wanted in (([], True), (["--no-kernels"], False)):
        told = json.loads(invoke("verify", path, groups, *more, "--json").out)
        assert told["equal"] and any(row["libraries"] for row in told["rows"]) is wanted


@compiled
def test_bench_accepts_kernels(invoke: Invoke, path: Path) -> None:
    quick = ["--processes", "1", "--rounds", "2", "--warmup", "1"]
    ran = invoke("bench", path, "--fuser", "native", "--input-shape", "x:64,64", *quick, "--json")
    told = json.loads(ran.out)
    (native,) = [row for row in told["tables"][0]["models"] if row["name"] == "graphopt native"]
    assert native["nodes"] == 2 and any("sigmoid_mul" in op for op in json.dumps(native).split('"')), native


def test_explain_covers_native_groups(invoke: Invoke, groups: Path) -> None:
    text = invoke("explain", groups).out
    assert "fused 1 × fuse-groups: graphopt.native.sigmoid_mul_" in text and "for Sigmoid(s), Mul(m" in text
    (one,) = json.loads(invoke("explain", groups, "--node", "Sin(t)", "--json").out)["fused"]
    assert one["op"].startswith("graphopt.native.mat_mul_sin_mul_")


@compiled
def test_several_models_have_a_library_each(invoke: Invoke, path: Path, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = invoke("optimize", path, small, "-o", f"{out}/", "--fuser", "native")
    assert ran.status == 0 and "2 kernels  verified" in ran.out
    assert sorted(file.name for file in out.iterdir()) == ["model.kernels.so", "model.onnx", "small.onnx"]


def test_absence_of_groups_is_reported(invoke: Invoke, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.fusion.backend.discover", lambda package: {})
    ran = invoke("optimize", path, "-o", path.with_name("out.onnx"), "--fuser", "native", "--no-verify")
    assert "no native groups: there are no kernels for" in ran.out


def test_exact_results_have_no_kernels(invoke: Invoke, path: Path) -> None:
    ran = invoke("optimize", path, "-o", path.with_name("out.onnx"), "--fuser", "native", "--exact")
    assert ran.status == 0 and "no native groups: kernels are not bit-exact" in ran.out


@compiled
@pytest.mark.parametrize("form", ["model", "bundle"])
def test_models_with_variants_have_kernels(invoke: Invoke, path: Path, form: str) -> None:
    api.save(positions(), path)
    profile, out = path.with_name("p.json"), path.with_name("o.onnx" if form == "model" else "o")
    profile_of(ir.load(path), feeds_of(2, 5), feeds_of(2, 5)).write(profile)
    ran = invoke("optimize", path, "-o", out, "--fuser", "native", "--profile", profile, "--emit", form)
    assert ran.status == 0 and "static-1: " in ran.out and "native kernel" in ran.out
    for feeds in (feeds_of(2, 5), feeds_of(3, 4, 1)):
        if form == "model":
            assert path.with_name("o.kernels.so").exists()
            result = api.run(out, feeds)
        else:
            bundle = graphopt.load(out)
            assert bundle.manifest.native and not bundle.remarks
            result = bundle.run(feeds)
        np.testing.assert_allclose(result["y"], api.run(path, feeds)["y"], rtol=1e-5, atol=1e-6)


def test_groups_of_variants_and_of_the_general_model_form_one_library() -> None:
    text = "g (float[N,64] x, float[64] w) => (float[N,64] y) { a = Sin(x) b = Mul(a, w) y = Sigmoid(b) }"
    general, variant = parse(text), parse(text.replace("Sin", "Cos").replace("N", "8"))
    for model in (general, variant):
        with context_for(model) as cx:
            make_pipeline("fuse-groups").run(model, cx)
    guard = Guard({"x": ValueProfile("tensor(float)", (8, 64))})
    whole = build_versioned_model(general, [Branch("static-1", guard, variant)])
    names = [group.name for model in (variant, general) for group in groups_of(model)]
    assert [(group.name, group.reason) for group in groups_of(whole)] == [(name, "") for name in names]
