"""Variants on the command line: in a bundle, and as branches of a model."""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import onnx
import onnx.parser
import pytest

import graphopt
from graphopt import api
from graphopt.errors import UsageError
from graphopt.inputs.feeds import InputOptions
from graphopt.specialization.build_variants import Specialization
from graphopt.specialization.bundle.save import save_bundle
from graphopt.util.file_sums import checksum
from graphopt.util.text_tables import human_bytes

from .conftest import Invoke

#: (x plus a function of its number of rows) times a weight: two nodes if the shape is known.
CHAIN = "".join(
    f"  t{number + 1} = {op}(t{number})\n" for number, op in enumerate(["Sin", "Cos", "Exp", "Neg"] * 3)
)
MODEL = f"""
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 16] x) => (float[N, 32] y)
<float[16, 32] w = {{{", ".join(str(number / 512) for number in range(512))}}}, int64 from = {{0}}, int64 by = {{1}}>
{{
  shape = Shape(x)
  rows = Gather(shape, from)
  count = Range(from, rows, by)
  t0 = Cast <to = 1> (count)
{CHAIN}
  last = Constant <value_ints = [1]> ()
  column = Unsqueeze(t12, last)
  z = Add(x, column)
  y = MatMul(z, w)
}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


@pytest.fixture(scope="module")
def made(model: Path) -> Path:
    """Of one row and of four rows."""
    shapes = [InputOptions(shapes={"x": (rows, 16)}) for rows in (1, 4)]
    how = Specialization(graphopt.record_profile(model, shapes))
    save_bundle(api.specialize(model, how, bundle=True, verify=False), model.parent / "m.bundle")
    return model.parent / "m.bundle"


@pytest.fixture
def bundle(invoke: Invoke, made: Path) -> str:
    """A copy of it in the folder where commands run."""
    shutil.copytree(made, "m.bundle")
    return "m.bundle"


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_only_another_bundle_replaces_a_bundle(invoke: Invoke, model: Path) -> None:
    assert invoke("profile", model, "--input-shape", "x:1x16,4x16", "-o", "p.json").status == 0
    optimize = ["optimize", model, "--profile", "p.json", "--emit", "bundle", "-o"]
    done = invoke(*optimize, "m.bundle")
    assert done.status == 0 and "wrote m.bundle" in "".join(_lines(done.out)[-1:]), done.err
    assert Path("m.bundle/static-2.onnx").is_file()
    assert invoke(*optimize, "m.bundle", "--variants", 1).status == 0
    assert sorted(os.listdir("m.bundle")) == ["general.onnx", "manifest.json", "static-1.onnx", "weights.bin"]
    Path("m.bundle/notes.txt").write_text("mine")
    done = invoke(*optimize, "m.bundle")
    assert done.status == 2 and "contains notes.txt, which its manifest does not list" in done.err
    assert "-o would write over p.json, which --profile names" in invoke(*optimize, "p.json").err
    Path("f.json").write_text("mine")
    done = invoke(*optimize, "f.json")
    assert done.status == 2 and "f.json is a file, not a folder" in done.err
    done = invoke("optimize", model, "-o", "m.bundle")
    assert done.status == 2 and done.err == (
        "graphopt: m.bundle is a bundle\nhint: --profile FILE.json --emit bundle replaces it\n"
    )
    done = invoke("optimize", model, "-o", "new.bundle", "--profile", "p.json")
    assert done.status == 2 and "--profile FILE.json --emit bundle writes a bundle\n" in done.err


def test_run_reports_the_variant(invoke: Invoke, bundle: str) -> None:
    done = invoke("run", bundle, "--input-shape", "x:4x16", "-o", "out.npz")
    assert done.status == 0, done.err
    assert "variant static-2" in _lines(done.out + done.err) and Path("out.npz").is_file()
    assert "not static-1" not in done.out + done.err


def test_run_reports_why_other_variants_did_not_match(invoke: Invoke, bundle: str) -> None:
    done = invoke("run", f"{bundle}/manifest.json", "--input-shape", "x:3x16", "-v")
    lines = _lines(done.out + done.err)
    assert "variant general" in lines and "not static-1: dim 0 of 'x' is 3, not 1" in lines
    told = json.loads(invoke("run", bundle, "--input-shape", "x:1x16", "--json").out)
    assert told["variant"] == "static-1"
    assert told["reasons"] == {"static-1": [], "static-2": ["dim 0 of 'x' is 1, not 4"]}
    assert told["outputs"]["y"]["shape"] == [1, 32]


def test_inspect_shows_variants_guards_and_weights(invoke: Invoke, bundle: str) -> None:
    done = invoke("inspect", bundle)
    assert done.status == 0, done.err
    lines = _lines(done.out)
    assert "weights 2.05 kB in weights.bin" in lines and "checksums correct" in lines
    total = sum(path.stat().st_size for path in Path(bundle).iterdir())
    assert f"bundle {human_bytes(total)} in 5 files" in lines
    assert any(line.startswith(f"versions graphopt {graphopt.__version__}, ") for line in lines)
    assert invoke("inspect", bundle, "-v").err == ""
    assert any(line.startswith("static-2 2 1 2.05 kB ") and "x: f32[4, 16]" in line for line in lines)
    assert any(line.startswith("general ") and line.endswith("for all other inputs") for line in lines)
    told = json.loads(invoke("inspect", bundle, "--json", "-v").out)
    assert [item["name"] for item in told["variants"]] == ["static-1", "static-2", "general"]
    assert all(item["shared_bytes"] >= 2048 and item["session_bytes"] > 0 for item in told["variants"])
    assert told["variants"][0]["guard"] == {"inputs": {"x": {"type": "tensor(float)", "shape": [1, 16]}}}


def test_inspect_shows_the_branches_of_a_model(invoke: Invoke, model: Path) -> None:
    assert invoke("profile", model, "--input-shape", "x:1x16,4x16", "-o", "p.json").status == 0
    done = invoke("optimize", model, "-o", "v.onnx", "--profile", "p.json")
    assert done.status == 0, done.err
    told = json.loads(invoke("inspect", "v.onnx", "--json", "-v").out)
    names = [item["name"] for item in told["variants"]]
    assert names[-1] == "general" and "static-1" in names and told["session_bytes"] > 0
    assert told["variants"][0]["shared_bytes"] >= 2048
    done = invoke("optimize", model, "-o", "s.onnx", "--profile", "p.json", "--single-file")
    single = json.loads(invoke("inspect", "s.onnx", "--json").out)
    assert [item["name"] for item in single["variants"]] == names, done.err
    assert all(item["shared_bytes"] >= 2048 for item in single["variants"])
    lines = _lines(invoke("inspect", "v.onnx").out)
    assert any(line.startswith("static-1 ") and "x: f32[1, 16]" in line for line in lines)
    assert json.loads(invoke("inspect", model, "--json").out)["variants"] == []


def test_verify_compares_each_variant(invoke: Invoke, model: Path, bundle: str) -> None:
    done = invoke("verify", model, bundle)
    assert done.status == 0, done.err
    assert [line for line in _lines(done.out) if len(line.split()) == 1] == [
        "static-1",
        "static-2",
        "general",
    ]
    assert sum(line.startswith("verified") for line in _lines(done.out)) == 3
    shutil.copy(f"{bundle}/static-1.onnx", f"{bundle}/static-2.onnx")
    plan = json.loads(Path(bundle, "manifest.json").read_text())
    plan["files"]["static-2.onnx"] = plan["files"]["static-1.onnx"]
    Path(bundle, "manifest.json").write_text(json.dumps({**plan, "checksum": checksum(plan)}))
    told = json.loads(invoke("verify", model, bundle, "--json").out)
    assert not told["equal"] and not told["variants"]["static-2"]["equal"]
    assert told["variants"]["general"]["equal"]
    assert invoke("verify", model, bundle).status == 1
    assert not graphopt.verify(model, bundle).ok


def test_verify_in_python_accepts_bundles(model: Path, bundle: str) -> None:
    verdict = graphopt.verify(model, bundle)
    assert verdict.ok and verdict.unverifiable is None
    models = list(dict.fromkeys(row.binding.partition(": ")[0] for row in verdict.rows))
    assert models == ["static-1", "static-2", "general"]
    loaded = graphopt.Bundle(bundle)
    assert {row.binding for row in graphopt.verify(model, loaded).rows} == {
        row.binding for row in verdict.rows
    }
    with zipfile.ZipFile("packed.gopt", "w") as archive:
        for file in Path(bundle).iterdir():
            archive.write(file, file.name)
    assert graphopt.verify(model, "packed.gopt").ok
    other = onnx.parser.parse_model(MODEL.replace("z = Add(", "z = Sub("))
    assert not graphopt.verify(other, bundle).ok
    with pytest.raises(UsageError, match="--dim has no effect on a bundle"):
        graphopt.verify(model, bundle, dims={"N": 1})
    with pytest.raises(UsageError, match="a bundle has its own"):
        graphopt.verify(model, bundle, libraries=[])


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "m.bundle", "--inputs", "m.bundle"],
        ["verify", "m.bundle", "m.bundle"],
        ["optimize", "m.bundle", "-o", "o.onnx"],
    ],
)
@pytest.mark.usefixtures("bundle")
def test_commands_that_accept_models_are_listed(invoke: Invoke, arguments: list[str]) -> None:
    done = invoke(*arguments)
    assert done.status == 2 and "hint:" in done.err
    assert re.search(r"m\.bundle is a (bundle|folder)", done.err)


def test_a_command_on_a_bundle_can_be_repeated(invoke: Invoke, bundle: str) -> None:
    done = invoke("run", f"{bundle}/manifest.json", "--input-shape", "x:1x16", "--save-repro", "repro")
    assert done.status == 0, done.err
    shutil.rmtree(bundle)
    assert invoke("replay", "repro").status == 0


@pytest.mark.parametrize("file", ["manifest.json", "static-2.onnx", "weights.bin"])
def test_a_changed_file_of_a_bundle_is_one_line(invoke: Invoke, model: Path, bundle: str, file: str) -> None:
    data = bytearray(Path(bundle, file).read_bytes())
    data[-20] ^= 1
    Path(bundle, file).write_bytes(data)
    for command in (["inspect", bundle], ["verify", model, bundle]):
        done = invoke(*command)
        assert done.status == 3 and "damaged" in done.err and len(done.err.splitlines()) <= 2


def test_a_damaged_bundle_is_one_line(invoke: Invoke, bundle: str) -> None:
    Path(bundle, "weights.bin").unlink()
    for command in ("run", "inspect"):
        done = invoke(command, bundle)
        assert done.status == 3 and done.err.splitlines() == [
            f"graphopt: the bundle {bundle} lacks weights.bin",
            "hint: copy it again completely",
        ]
