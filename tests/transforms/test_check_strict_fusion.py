"""check-strict-fusion: scopes that became one fused operator pass, others fail with the reasons."""

from __future__ import annotations

import pytest

from graphopt import api, ir
from graphopt.errors import ExitStatus, NotFused, UsageError
from graphopt.verification.verifier import Verifier
from tests.fusion.backends.c.runtime.samples import compiled
from tests.model_testing import ops, parse, run_pipeline

GELUS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x) => (float[N, 4] y) <float root = {1.4142135}, float one = {1.0}, float half = {0.5}>
{
    a = Div(x, root)
    b = Erf(a)
    c = Add(b, one)
    d = Mul(x, c)
    e = Mul(d, half)
    f = Div(e, root)
    h = Erf(f)
    i = Add(h, one)
    j = Mul(e, i)
    y = Mul(j, HALF)
}
"""


def model(half: str = "half") -> ir.Model:
    """Two GELUs, in the scopes /one and /two."""
    found = parse(GELUS.replace("HALF", half))
    for index, node in enumerate(found.graph):
        node.name = f"/{'one' if index < 5 else 'two'}/act/{node.op_type}_{node.outputs[0].name}"
    return found


@pytest.mark.parametrize("scope", ["/one", "/one/act", "/two/", "/two/act/Erf_h", "/one/act/Mul_e"])
def test_a_scope_that_became_one_operator_passes(scope: str) -> None:
    fused, _ = api.optimize(model(), pipeline="O3", strict_fusion=[scope])
    assert ops(fused) == ["Gelu", "Gelu"]


def test_unfused_nodes_are_reported_with_reasons() -> None:
    with pytest.raises(
        NotFused, match=r"not all of '/two' .*: 4 nodes left out, such as Div /two/act/Div_f"
    ) as raised:
        api.optimize(model("one"), pipeline="O3", strict_fusion=["/one", "/two"], verify=False)
    assert raised.value.status == ExitStatus.VERIFICATION_FAILED
    reason, *nodes = raised.value.details
    assert reason == (
        "gelu: the product is scaled by 1, in a GELU by 0.5 (if a GELU is intended, correct its constants)"
    )
    assert raised.value.hint is None
    assert [node.split("/")[-1] for node in nodes] == ["Div_f", "Erf_h", "Add_i", "Mul_j"]


def test_nothing_is_verified_for_a_scope_that_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Verifier, "verify", lambda *_, **__: pytest.fail("verified first"))
    with pytest.raises(NotFused):
        api.optimize(model("one"), pipeline="O3", strict_fusion=["/two"])


def test_unfused_nodes_without_a_near_pattern_are_reported() -> None:
    wider = parse("""
        g (float[N, 4] x) => (float[N, 4] y) <float root = {1.4142135}, float one = {1.0}, float half = {0.5}> {
            z = Exp(x) a = Div(z, root) b = Erf(a) c = Add(b, one) d = Mul(z, c) y = Mul(d, half)
        }
    """)
    for node in wider.graph:
        node.name = f"/act/{node.op_type}"
    with pytest.raises(NotFused) as raised:
        run_pipeline(wider, "fuse-builtin,check-strict-fusion{scopes=/act}")
    assert raised.value.details == ("no fusion pattern matches these nodes", "  Exp /act/Exp")
    assert raised.value.hint is not None and "smaller scope" in raised.value.hint


def test_without_a_pass_that_fuses_the_hint_names_one() -> None:
    with pytest.raises(NotFused) as raised:
        run_pipeline(model(), "check-strict-fusion{scopes=/one}")
    assert raised.value.hint is not None and "fuse-builtin" in raised.value.hint


def test_a_scope_that_became_several_operators_fails() -> None:
    both = model()
    for node in both.graph:
        node.name = f"/all{node.name}"
    with pytest.raises(NotFused, match=r"'/all' became several fused operators: Gelu .*, Gelu "):
        run_pipeline(both, "fuse-builtin,check-strict-fusion{scopes=/all}")


def test_scope_without_remaining_nodes_fails() -> None:
    with pytest.raises(NotFused, match="'/three' became no fused operator: no node of it is left"):
        run_pipeline(model(), "fuse-builtin,check-strict-fusion{scopes=/one+/three}")


def test_scopes_that_can_not_be_fused_are_refused_before_any_work() -> None:
    with pytest.raises(UsageError, match="no node or scope is called '/three'"):
        api.optimize(model(), pipeline="O3", strict_fusion=["/three"])
    with pytest.raises(UsageError, match="nothing is fused"):
        api.optimize(model(), pipeline="O2", strict_fusion=["/one"])


def test_the_exporters_notes_name_scopes_too() -> None:
    noted = model()
    for index, node in enumerate(noted.graph):
        node.name = f"node_{index}"
        node.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'first']" if index < 5 else "['', 'second']"
    fused, _ = api.optimize(noted, pipeline="O3", strict_fusion=["first", "second"], verify=False)
    assert ops(fused) == ["Gelu", "Gelu"]


# Native groups ------------------------------------------------------------------------------------

#: Products of so many rows are left to onnxruntime.
NATIVE = """g (float[128, 64] x, float[64, 64] w, float[64] b) => (float[128, 64] y) {
    s = Sin(x)
    m = Mul(s, b)
    p = MatMul(m, w)
    t = Sin(p)
    u = Mul(t, b)
    q = MatMul(u, w)
    v = Neg(q)
    y = MatMul(v, w)
}"""


def native_model() -> ir.Model:
    """Two groups that become one function, in separate scopes, and nodes outside of groups."""
    found = parse(NATIVE)
    for index, node in enumerate(found.graph):
        node.name = f"/{('one', 'one', 'product', 'two', 'two', 'three', 'three', 'three')[index]}/{node.outputs[0].name}"
    return found


@compiled
@pytest.mark.parametrize("scope", ["/one", "/two", "/one/s", "/two/u"])
def test_a_scope_that_became_one_kernel_passes(scope: str) -> None:
    fused, _ = api.optimize(native_model(), fuser="native", strict_fusion=[scope], verify=False)
    assert len(fused.functions) == 1
    run_pipeline(fused, f"check-strict-fusion{{scopes={scope}}}")


def test_nodes_outside_kernels_are_reported_with_the_reason_of_the_policy() -> None:
    with pytest.raises(NotFused, match="3 nodes left out") as raised:
        api.optimize(native_model(), fuser="native", strict_fusion=["/three"], verify=False)
    assert raised.value.details == (
        "fuse-groups: onnxruntime is expected to be as fast",
        "  MatMul /three/q",
        "  MatMul /three/y",
        "fuse-groups: its group has fewer than 2 nodes",
        "  Neg /three/v",
    )
    with pytest.raises(NotFused, match="2 nodes left out"):
        api.optimize(native_model(), pipeline="O3", strict_fusion=["/one"], verify=False)


def test_missing_support_for_kernels_is_the_reason() -> None:
    with pytest.raises(NotFused) as raised:
        api.optimize(native_model(), fuser="native", exact=True, strict_fusion=["/one"], verify=False)
    assert raised.value.details[0] == "fuse-groups: kernels are not bit-exact, as --exact requires"


def test_a_scope_that_became_several_kernels() -> None:
    model = native_model()
    for node in model.graph:
        node.name = node.name.replace("/one", "/both").replace("/two", "/both")
    with pytest.raises(NotFused, match="several fused operators: sin_mul_"):
        api.optimize(model, fuser="native", strict_fusion=["/both"], verify=False)
