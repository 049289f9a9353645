"""graphopt explain, and optimize --strict-fusion."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from graphopt.ort import devices
from tests.cli.attention_models import MASKED_ATTENTION
from tests.cli.conftest import Invoke, Outcome
from zoo import SAMPLES

#: A GELU, and half of one.
GELUS = """
<ir_version: 8, opset_import: ["" : 17]>
gelus (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)
    <float root = {1.4142135}, float one = {1.0}, float half = {0.5}>
{
    a = Div(x, root)
    b = Erf(a)
    c = Add(b, one)
    d = Mul(x, c)
    y = Mul(d, half)
    e = Div(y, half)
    f = Erf(e)
    h = Add(f, one)
    i = Mul(y, h)
    z = Mul(i, half)
}
"""


@pytest.fixture
def invoke(invoke: Invoke) -> Invoke:
    """``invoke``, which also checks that the command accepts each option that ``explain`` prints."""

    def call(*arguments: object, **options: Any) -> Outcome:
        outcome = invoke(*arguments, **options)
        if arguments[0] == "explain" and outcome.status == 0:
            for line in outcome.out.splitlines():
                for printed in _printed_options(line):
                    repeated = invoke(*arguments, *printed)
                    assert repeated.status == 0, (line, repeated.err)
        return outcome

    return call


def _printed_options(line: str) -> Iterator[tuple[str, ...]]:
    """The options in the next step of an unfused node."""
    label, _, hint = line.strip().partition(" ")
    words = shlex.split(hint) if label == "do" and "--" in hint else []
    if "--fast-math" in words:
        yield ("--fast-math",)
    for option, value in pairwise(words):
        if option in _OPTIONS_WITH_VALUES and ("=" in value or value.strip(";").isdigit()):
            yield option, value.strip(";")


#: The options with a value that hints print.
_OPTIONS_WITH_VALUES = ("--dim", "--dim-range", "--dim-relation", "--target-opset")


@pytest.fixture
def gelus(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(GELUS)
    for index, node in enumerate(model.graph.node):
        node.name = f"/{'first' if index < 5 else 'second'}/{node.op_type}_{node.output[0]}"
    path = tmp_path / "gelus.onnx"
    onnx.save(model, path)
    return path


def test_fused_and_unfused_nodes(invoke: Invoke, gelus: Path) -> None:
    outcome = invoke("explain", gelus)
    assert outcome.status == 0 and outcome.err == ""
    assert outcome.out.splitlines() == [
        "fused 1 × gelu: com.microsoft.Gelu",
        "  /first/Mul_y_Gelu for /first/Mul_y, /first/Mul_d, /first/Add_c, … 2 more",
        "not fused 1 × gelu: the argument of Erf is 2 x, in a GELU it is 0.707107 x",
        "  at     Erf /second/Erf_f",
        "  value  e: f32[N, 4], computed by Div /second/Div_e",
        "  do     if a GELU is intended, correct its constants",
    ]


def test_presets_are_accepted(invoke: Invoke, gelus: Path) -> None:
    plain, fusing = invoke("explain", gelus), invoke("explain", gelus, "-O3")
    assert (fusing.status, fusing.out, fusing.err) == (0, plain.out, "")
    for preset in ("-O0", "-O1", "-O2"):
        outcome = invoke("explain", gelus, preset)
        assert (outcome.status, outcome.out) == (0, plain.out)
        assert outcome.err == f"hint: {preset} fuses no operators; these are the fusions of -O3\n"
    assert invoke("explain", gelus, "-O4").status == 2


def test_the_same_in_json(invoke: Invoke, gelus: Path) -> None:
    outcome = invoke("explain", gelus, "--json", "--pattern", "gelu", "--node", "/second")
    told = json.loads(outcome.out)
    assert told["fused"] == []
    (missed,) = told["missed"]
    assert (missed["rule"], missed["value"], missed["hint"]) == (
        "gelu",
        "e",
        "if a GELU is intended, correct its constants",
    )
    assert "/second/Mul_z" in missed["origins"]


def test_names_of_nodes_made_by_passes_are_accepted(invoke: Invoke, gelus: Path) -> None:
    out = invoke("explain", gelus, "--node", "/first/Mul_y_Gelu").out
    (title, nodes) = out.splitlines()
    assert title == "fused 1 × gelu: com.microsoft.Gelu"
    assert nodes.startswith("  /first/Mul_y_Gelu for /first/Mul_y, ")


def test_hints_without_vendor_operators(invoke: Invoke, gelus: Path) -> None:
    out = invoke("explain", gelus, "--portable", "--node", "/first").out
    assert "there is no Gelu before opset 20" in out and "do     raise it: --target-opset 20" in out
    assert "fused 1 × gelu: Gelu" in invoke("explain", gelus, "--portable", "--target-opset", "20").out


def test_portable_without_effect_is_reported(invoke: Invoke, gelus: Path) -> None:
    arguments = ["optimize", gelus, "-o", "o.onnx", "--no-verify", "--portable"]
    assert "--portable leaves out nothing here" in invoke(*arguments).err
    assert invoke(*arguments, "-O3").err == ""


def test_examples_of_strict_fusion_are_correct(invoke: Invoke) -> None:
    onnx.save(SAMPLES["transformer"].build(), "transformer.onnx")
    page = Path(__file__).parent.parent.parent / "docs" / "explain.md"
    examples = re.findall(r"^graphopt (optimize transformer.onnx .*)$", page.read_text(), re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", invoke("optimize", "--help-all").out)  # lines continued by a backslash
    (epilog,) = re.findall(r"^\s*graphopt (optimize .*--strict-fusion .*)$", lines, re.M)
    for example in [*examples, epilog.replace("model.onnx", "transformer.onnx")]:
        outcome = invoke(*example.split(), "--no-verify")
        assert outcome.status == 0, outcome.err
    assert len(examples) == 2


def test_the_device_may_be_another(invoke: Invoke, gelus: Path) -> None:
    for command in (["explain", gelus], ["dump", gelus, "--pass-by-pass"]):
        assert invoke(*command, "--device", "cuda").status == 0
        outcome = invoke(*command, "--device", "tpu")
        assert outcome.status == 2 and "no device is called 'tpu'" in outcome.err


def test_absence_of_a_near_match_is_reported(invoke: Invoke, gelus: Path) -> None:
    assert invoke("explain", gelus, "--pattern", "attention").out == "no fusion pattern matches these nodes\n"


@pytest.mark.parametrize("wrong", [("--pattern", "gelo"), ("--node", "/third"), ("--dim", "M=1")])
def test_unknown_names_are_refused(invoke: Invoke, gelus: Path, wrong: tuple[str, str]) -> None:
    assert invoke("explain", gelus, *wrong).status == 2


def test_strict_fusion_writes_only_fused_models(invoke: Invoke, gelus: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    outcome = invoke("optimize", gelus, "-o", target, "-O3", "--strict-fusion", "/second", "--no-verify")
    assert outcome.status == 1 and not target.exists()
    assert "gelu: the argument of Erf is 2 x" in outcome.err and "    Erf /second/Erf_f" in outcome.err
    outcome = invoke("optimize", gelus, "-o", target, "-O3", "--strict-fusion", "/second", "--json")
    assert json.loads(outcome.out)["error"]["details"][1] == "  Div /second/Div_e"
    outcome = invoke("optimize", gelus, "-o", target, "-O3", "--strict-fusion", "/first", "--no-verify")
    assert outcome.status == 0 and target.exists()


def test_optimize_refers_to_explain(invoke: Invoke, gelus: Path, tmp_path: Path) -> None:
    arguments = ("optimize", gelus, "-o", tmp_path / "out.onnx", "--no-verify")
    out = invoke(*arguments, "-O3").out
    assert "  not fused 1 × gelu: the argument of Erf is 2 x, in a GELU it is 0.707107 x\n" in out
    assert "  (graphopt explain MODEL shows where, and remedies)\n" in out
    assert "  fused     1 Gelu\n" in out
    assert "not fused" not in invoke(*arguments).out
    told = json.loads(invoke(*arguments, "-O3", "--json").out)
    assert [place["rule"] for place in told["missed"]] == ["gelu"]
    assert [one["op"] for one in told["fused"]] == ["com.microsoft.Gelu"]


def test_option_that_groups_queries(invoke: Invoke, tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
    g (float[batch, seq, 32] q, float[batch, 2, past, 8] k, float[batch, 2, past, 8] v) => (float[batch, seq, 32] y)
        <int64[1] two = {2}, int64[5] groups = {1, 1, 2, 1, 1}, int64[4] joined = {0, 4, -1, 8}>
    {
        ku = Unsqueeze(k, two)
        ke = Expand(ku, groups)
        kr = Reshape(ke, joined)
        vu = Unsqueeze(v, two)
        ve = Expand(vu, groups)
        vr = Reshape(ve, joined)
        y = com.microsoft.MultiHeadAttention<num_heads = 4>(q, kr, vr)
    }"""
    path = tmp_path / "grouped.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    assert "do     --dim seq=1 (for a model of decoding steps)" in invoke("explain", path).out
    assert "fused 1 × group-queries" in invoke("explain", path, "--dim", "seq=1").out


@pytest.mark.parametrize(
    ("total", "past", "options", "hint"),
    [
        ("total", "past", (), "--dim-relation total=past+seq"),
        ("total", "past", ("--dim", "seq=1"), "--dim-relation total=past+1"),
        ("total len", "past", (), "--dim-relation 'total len=past+seq'"),
        ("total", "past", ("--dim-range", "total=5:"), None),
        ("past+seq", "past", ("--dim-range", "past+seq=5:"), None),
        ("past + seq", "past", ("--dim-range", "past + seq=5:"), None),
        ("total", "past-len", (), None),
        ("a=b", "past", (), None),
    ],
)
def test_relation_that_the_command_line_accepts(
    invoke: Invoke, tmp_path: Path, total: str, past: str, options: tuple[str, ...], hint: str | None
) -> None:
    proto = onnx.parser.parse_model(MASKED_ATTENTION)
    proto.graph.input[2].type.tensor_type.shape.dim[2].dim_param = past
    proto.graph.input[3].type.tensor_type.shape.dim[3].dim_param = total
    path = tmp_path / "masked.onnx"
    onnx.save(proto, path)
    out = invoke("explain", path, "--pattern", "attention", *options).out
    assert "the mask does not broadcast" in out
    assert (f"  do     {hint} (if that holds in every run)" in out.splitlines()) == (hint is not None)
    assert ("--dim-relation" in out) == (hint is not None)


def test_options_that_permit_less_exact_rewrites(invoke: Invoke, tmp_path: Path) -> None:
    text = MASKED_ATTENTION.replace("scores = Add(products, mask)", "scores = Where(mask, products, few)")
    text = text.replace("float[batch, 1, seq, total] mask", "bool[batch, 1, seq, all] mask")
    text = text.replace(
        "=> (float[batch, 2, seq, 8] y)", "=> (float[batch, 2, seq, 8] y) <float few = {-10000}>"
    )
    path = tmp_path / "masked.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    options = ("--dim-relation", "all=past+seq", "--dim-range", "batch=1:", "--dim-range", "seq=1:")
    assert "or use --fast-math" in invoke("explain", path, *options).out
    assert "fused 1 × multi-head-attention" in invoke("explain", path, *options, "--fast-math").out
    assert "fused" not in invoke("explain", path, *options, "--exact").out


def test_a_check_on_an_absent_device_names_the_prediction(
    invoke: Invoke, gelus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "probe_cuda", lambda index=0: devices.CudaStatus(False, "no driver"))
    outcome = invoke("explain", gelus, "--device", "cuda", "--check")
    assert outcome.status == 6 and "no driver" in outcome.err
    assert "without --check, the prediction requires no GPU" in outcome.err


def test_placement_on_cuda_needs_no_device(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N, M] x, int32[N, M] i) => (float[N, M] y, int32[N, M] k)
            <int32 low = {0}, int64[1] one = {1}>
        {
            a = Relu(x)
            s = Shape(x)
            t = Mul(s, one)
            y = Reshape(a, t)
            j = Neg(i)
            k = Clip(j, low)
        }
    """
    onnx.save(onnx.parser.parse_model(text), path)
    outcome = invoke("explain", path, "--device", "cuda", "--pattern", "placement")
    assert outcome.status == 0 and outcome.err == ""
    assert outcome.out.splitlines() == [
        "placement on CUDA: 2 of 6 nodes on the CPU, 1 copy; after -O3: 0 of 5 nodes on the CPU, 0 copies",
        "on the CPU 1 × Clip: CUDA has no kernel of Clip for int32 input",
        "  at     Clip Clip(k)",
        "  do     graphopt optimize MODEL -O3 --device cuda runs it on the device",
        "copied to the host 1 ×: Clip runs on the CPU",
        "  at     j, computed by Neg(j), read by Clip(k)",
        "  do     graphopt optimize MODEL -O3 --device cuda removes it",
        "on the CPU 1 × computation of sizes, which are in host memory",
    ]
    told = json.loads(invoke("explain", path, "--device", "cuda", "--json").out)["placement"]
    assert [(node["op"], node["cause"]) for node in told["on_cpu"]] == [
        ("Mul", "computes with sizes"),
        ("Clip", "no kernel of the type"),
    ]
    assert [(copy["op"], copy["tensor"]) for copy in told["copies"]] == [("MemcpyToHost", "j")]
    within = json.loads(invoke("explain", path, "--device", "cuda", "--node", "Clip(k)", "--json").out)
    assert [node["op"] for node in within["placement"]["on_cpu"]] == ["Clip"]
    assert json.loads(invoke("explain", path, "--json").out)["placement"] is None
    assert invoke("explain", path, "--pattern", "placement").status == 2
