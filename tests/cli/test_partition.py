"""graphopt partition, and graphopt.partition."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import graphopt
from graphopt import ir
from graphopt.errors import UsageError
from graphopt.partitioning.draw_groups import to_dot, to_svg
from graphopt.profile import Profile
from tests.cli.conftest import Invoke
from tests.model_testing import ops, parse

TEXT = """m (float[4,2] x, float[4,2] z) => (float[2,4] y, float[4,2] v) {
    a = Exp(x)
    b = Neg(a)
    r = RandomNormalLike(b)
    c = Mul(b, r)
    d = Sin(c)
    y = Transpose(d)
    u = Cos(z)
    v = Identity(u)
}"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(parse(TEXT), path)
    return path


def test_partition_prints_groups_and_reasons(invoke: Invoke, path: Path) -> None:
    text = invoke("partition", path).out
    assert "2 groups with 5 of 8 nodes" in text and "Exp, Neg" in text and "32 B" in text
    assert "draws" not in text and "--explain" in text
    text = invoke("partition", path, "--policy", "autodiff", "--explain").out
    assert "it draws random numbers" in text and "its operands require a gradient" in text


def test_contents_of_json(invoke: Invoke, path: Path) -> None:
    told = json.loads(invoke("partition", path, "--wrt", "x", "--explain", "--json").out)
    first, second = told["groups"]
    assert first["ops"] == {"Exp": 1, "Neg": 1} and first["where"] == "main"
    assert first["inputs"] == [{"name": "x", "type": "f32[4, 2]", "bytes": 32, "requires_grad": True}]
    assert [port["name"] for port in second["inputs"]] == ["b", "r"]
    assert [port["requires_grad"] for port in second["inputs"]] == [True, False]
    assert [one["group"] for one in told["reasons"]] == [
        "group_0", "group_0", None, "group_1", "group_1", "group_1", None, None,
    ]  # fmt: skip
    assert told["reasons"][6]["reason"] == "its operands require no gradient"


def test_wrt_accepts_the_names_that_grad_accepts(invoke: Invoke, path: Path) -> None:
    ir.save(
        parse(
            "m (float[2] x, float[2] z) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w) b = Exp(z) y = Add(a, b) }"
        ),
        path,
    )
    for wrt, count in ((["w"], 2), (["params"], 2), (["params,z"], 3), (["params", "z"], 3), (["all"], 3)):
        options = [part for one in wrt for part in ("--wrt", one)]
        (group,) = json.loads(invoke("partition", path, *options, "--json").out)["groups"]
        assert sum(group["ops"].values()) == count
        loss = ["--loss-fn", "mse:y,t", "-o", path.with_name("joint.onnx")]
        assert invoke("grad", path, *options, *loss).status == 0


def test_partition_writes_verified_functions(invoke: Invoke, path: Path) -> None:
    ir.save(parse(TEXT.replace("RandomNormalLike", "Floor"), ir_version=7), path)
    out = path.with_name("groups.onnx")
    ran = invoke("partition", path, "-o", out, "--no-views", "--json")
    told = json.loads(ran.out)
    assert told["verification"] is not None and list(told["files"]) == [str(out)]
    written = ir.load(out)
    assert written.ir_version == 8
    assert [key[:2] for key in written.functions] == [("graphopt.autodiff", "group_0")]
    assert told["groups"][0]["name"] == "group_0" and "Transpose" in ops(written)


def test_partition_draws_groups(invoke: Invoke, path: Path) -> None:
    for suffix, begin in ((".svg", "<svg"), (".dot", "digraph")):
        plot = path.with_suffix(suffix)
        assert invoke("partition", path, "--plot", plot).status == 0
        assert plot.read_text().startswith(begin)
    found = graphopt.partition(path)
    texts = [element.text for element in ElementTree.fromstring(to_svg(found)).iter() if element.text]
    assert "group_0: 2 nodes" in texts and "RandomNormalLike" in texts
    assert to_dot(found).count("subgraph cluster_") == 2
    assert to_svg(found) == to_svg(graphopt.partition(path))


def test_refusals_leave_no_file(invoke: Invoke, path: Path) -> None:
    out = path.with_name("out.onnx")
    for wrong in (["--wrt", "nothing"], ["--plot", path.with_suffix(".png")], ["--minimum", "0"]):
        assert invoke("partition", path, "-o", out, *wrong).status == 2
        assert not out.exists()
    ran = invoke("partition", path, "--no-verify")
    assert ran.status == 2 and "-o" in ran.err


def test_options_of_python(path: Path) -> None:
    found = graphopt.partition(path, no_grad=["Neg(b)"])
    assert [group.ops for group in found.groups] == []
    assert {reason.node: reason.reason for reason in found.reasons}[
        "Neg(b)"
    ] == "gradients are disabled in Neg(b)"
    assert len(graphopt.partition(path, minimum=3).groups) == 1
    with pytest.raises(UsageError, match="no policy"):
        graphopt.partition(path, policy="constants")
    with pytest.raises(UsageError, match="no kind of shapes"):
        graphopt.partition(path, policy="fusion", shapes="few")


def test_profile_records_requires_grad_of_inputs() -> None:
    model = parse(
        TEXT.replace("Cos(z)", "Cos(w) w = Sin(z)").replace("u = Cos(w) w = Sin(z)", "w = Sin(z) u = Cos(w)")
    )
    profile = Profile(ir.fingerprint(model, names=True), requires_grad={"x": False})
    assert [group.ops for group in graphopt.partition(model, profile=profile).groups] == [
        {"Sin": 1, "Cos": 1}
    ]
    profile = Profile(ir.fingerprint(model, names=True), requires_grad={"x": True, "z": False})
    assert len(graphopt.partition(model, profile=profile).groups) == 2


def test_names_of_groups_are_those_of_their_functions() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        a = Exp(x)
        b = Neg(a)
        r = RandomNormalLike(b)
        m = Mul(b, r)
        y = If(c) <
            then_branch = t () => (float[4] p) { q = RandomNormalLike(m) o = Neg(m) n = Abs(o) p = Mul(n, q) },
            else_branch = e () => (float[4] s) { k = Cos(m) s = Tanh(k) }
        >
    }"""
    found = graphopt.partition(parse(text))
    functions = found.outlined().functions
    assert [group.where for group in found.groups] == ["main", "If(y)", "If(y)"]
    for group in found.groups:
        function = functions["graphopt.autodiff", group.name, ""]
        assert [node.op_type for node in function.graph] == list(group.ops)


FUSED = """m (float[N,64] x, float[64] b) => (float[N,64] y) {
    s = Sigmoid(x)
    m = Mul(x, s)
    z = Add(m, b)
    r = RandomNormalLike(z)
    y = Add(z, r)
}"""


def test_groups_for_kernels(invoke: Invoke, path: Path) -> None:
    ir.save(parse(FUSED), path)
    text = invoke("partition", path, "--policy", "fusion", "--explain").out
    assert "1 group with 3 of 5 nodes" in text and "saved" in text
    assert "it is computed in the same loops" in text and "no kernels for RandomNormalLike" in text
    told = json.loads(invoke("partition", path, "--policy", "fusion", "--json").out)
    (group,) = told["groups"]
    assert group["saved"] == "1280*N" and "requires_grad" not in group["inputs"][0]
    found = graphopt.partition(path, "fusion", shapes="static")
    assert not found.groups and "is unknown before the model runs" in found.reasons[0].reason


def test_groups_for_kernels_are_written_as_functions(invoke: Invoke, path: Path) -> None:
    text = FUSED.replace("r = RandomNormalLike(z)", "r = CumSum(z, a)").replace(
        "=> (float[N,64] y) {", "=> (float[N,64] y) <int64 a = {0}> {"
    )
    ir.save(parse(text), path)
    out = path.with_name("groups.onnx")
    assert invoke("partition", path, "--policy", "fusion", "-o", out).status == 0
    assert [key[0] for key in ir.load(out).functions] == ["graphopt.native"]


def test_each_policy_has_options_of_its_own(invoke: Invoke, path: Path) -> None:
    for policy, others in (
        ("fusion", ["--wrt", "x"]),
        ("fusion", ["--no-views"]),
        ("autodiff", ["--shapes", "any"]),
    ):
        ran = invoke("partition", path, "--policy", policy, *others)
        assert ran.status == 2 and "requires --policy" in ran.err
