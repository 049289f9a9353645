"""Versioned models: variants behind guards in one model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from graphopt import api, ir
from graphopt.errors import UnsupportedModel, UsageError, VerificationFailed
from graphopt.inputs.feeds import InputOptions
from graphopt.profile import FusionStrategy, Guard, Profile, ValueProfile
from graphopt.specialization.build_variants import Specialization, Specialized
from graphopt.specialization.specialize_inputs import profiled_inputs, specialize_inputs
from graphopt.specialization.variant_branch import Branch
from graphopt.specialization.variant_records import read_variants
from graphopt.specialization.versioned_model import build_versioned_model
from tests.model_testing import parse
from tests.specialization.models import feeds_of, positions, profile_of

_RUNS = [feeds_of(1, 8), feeds_of(1, 8), feeds_of(2, 5), feeds_of(2, 5), feeds_of(2, 6, 1), feeds_of(2, 7, 0)]
#: Hits of both variants; misses by size, by contents, of size 1 and of size 0.
_FEEDS = [
    feeds_of(1, 8), feeds_of(2, 5), feeds_of(1, 7), feeds_of(2, 8), feeds_of(5, 5), feeds_of(1, 8, 1),
    feeds_of(1, 1), feeds_of(0, 8), feeds_of(1, 0),
]  # fmt: skip


def _specialized(model: ir.Model, *runs: dict[str, np.ndarray], **arguments: object) -> Specialized:
    how = Specialization(profile_of(model, *(runs or _RUNS)), **arguments)  # type: ignore[arg-type]
    return api.specialize(model, how, pipeline="O2", verify=False)


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_outputs_equal_the_original_whether_or_not_guards_hold(opset: int) -> None:
    original = positions(opset=opset)
    found = _specialized(original)
    assert [branch.name for branch in found.branches] == ["static-1", "static-2"]
    assert found.model is not None
    proto = ir.to_proto(found.model)
    onnx.checker.check_model(proto, full_check=True)
    for level in ("off", "default"):
        for feeds in _FEEDS:
            expected = api.run(original, feeds, optimizations=level)  # type: ignore[arg-type]
            given = api.run(found.model, feeds, optimizations=level)  # type: ignore[arg-type]
            for name, value in expected.items():
                np.testing.assert_allclose(given[name], value, rtol=1e-5, err_msg=str(feeds["x"].shape))


def test_each_guard_selects_its_branch() -> None:
    """The branches compute different results, to show which one ran."""
    model = parse("g (float[B, N] x) => (float[B, N] y) { y = Identity(x) }")
    branches = []
    for index, dims in enumerate([(1, 2), (1, 3), ("s", "s")]):
        other = parse(f"g (float[B, N] x) => (float[B, N] y) <float k = {{{index + 1}}}> {{ y = Mul(x, k) }}")
        guard = Guard({"x": ValueProfile("tensor(float)", dims)})
        branches.append(Branch(f"branch-{index}", guard, specialize_inputs(other, guard)))
    whole = build_versioned_model(model, branches)
    onnx.checker.check_model(ir.to_proto(whole), full_check=True)
    sizes = {(1, 2): 1, (1, 3): 2, (3, 3): 3, (1, 1): 3, (0, 0): 3, (2, 3): 0, (1, 4): 0}
    for shape, factor in sizes.items():
        feeds = {"x": np.full(shape, 2, np.float32)}
        expected = feeds["x"] * (factor or 1)
        np.testing.assert_array_equal(api.run(whole, feeds)["y"], expected, err_msg=str(shape))


def test_pinned_inputs_have_known_sizes_in_branches() -> None:
    found = _specialized(positions(), pins=True)
    assert found.model is not None
    (holder,) = (node for node in found.model.graph if node.op_type == "If")
    pinned = [node for node in holder.attributes["then_branch"].as_graph() if node.name.endswith("_pinned")]
    assert [str(node.inputs[0].name) for node in pinned if node.inputs[0]] == ["x"]
    for feeds in (feeds_of(1, 8), feeds_of(2, 8)):
        expected = api.run(positions(), feeds)["y"]
        np.testing.assert_allclose(api.run(found.model, feeds)["y"], expected, rtol=1e-5)


def test_signature_is_kept() -> None:
    original = positions()
    original.metadata_props["author"] = "somebody"
    found = _specialized(original)
    assert found.model is not None
    assert api.verify(original, found.model).ok
    assert found.model.metadata_props["author"] == "somebody"
    assert [planned.name for planned in read_variants(found.model)] == ["static-1", "static-2"]
    assert read_variants(found.model)[0].guard.holds(feeds_of(1, 8))


def test_building_is_deterministic() -> None:
    texts = [ir.to_bytes(_specialized(positions()).model or positions()) for _ in range(2)]
    assert texts[0] == texts[1]


def test_weights_are_written_once(tmp_path: Path) -> None:
    rows = ", ".join("1.5" for _ in range(64 * 4))
    text = f"""g (float[B, N, 4] x) => (float[B, N, 64] y) <float[4, 64] w = {{{rows}}}, int64 one = {{1}},
        int64 zero = {{0}}, int64[1] axis = {{0}}> {{
        s = Shape(x) n = Gather(s, one) r = Range(zero, n, one) c = Cast<to = 1>(r) e = Exp(c) t = Sqrt(e)
        h = Tanh(t) g = Sigmoid(h) k = Neg(g) a = Abs(k) total = ReduceSum<keepdims = 0>(a, axis)
        z = Add(x, total) y = MatMul(z, w) }}"""
    original = parse(text)
    runs = [{"x": np.ones((1, length, 4), np.float32)} for length in (3, 5, 3, 5, 6)]
    found = _specialized(original, *runs)
    assert len(found.branches) == 2 and found.model is not None
    files = api.save(found.model, tmp_path / "m.onnx", weights="beside")
    assert [file.name for file in files] == ["m.onnx", "m.onnx.data"]
    assert files[1].stat().st_size == 64 * 4 * 4
    session = onnxruntime.InferenceSession(files[0], providers=["CPUExecutionProvider"])
    assert session.run(None, runs[0])[0].shape == (1, 3, 64)
    single = _specialized(original, *runs, single_file=True).model
    assert single is not None
    (file,) = api.save(single, tmp_path / "single.onnx", weights="inside")
    assert file.stat().st_size < 64 * 4 * 4 * 2 + 4000
    for feeds in runs:
        np.testing.assert_allclose(api.run(single, feeds)["y"], api.run(original, feeds)["y"], rtol=1e-6)


def test_unprofitable_variants_are_dropped_and_reported() -> None:
    original = parse("g (float[B, N] x) => (float[B, N] y) { s = Shape(x) r = Reshape(x, s) y = Relu(r) }")
    found = _specialized(original, {"x": np.ones((2, 3), np.float32)})
    assert found.branches == [] and found.model is found.general
    assert "and a guard costs" in str(found.report)


def test_strategy_and_limit_determine_the_number_of_variants() -> None:
    runs = [feeds_of(2, length) for length in (5, 5, 6, 7)]
    assert len(_specialized(positions(), *runs, most=1).branches) == 1
    dynamic = _specialized(positions(), *runs, strategy=FusionStrategy.parse("dynamic:2"))
    assert [variant.variant.name for variant in dynamic.report.variants] == ["dynamic-1"]


def test_profile_of_another_model_is_rejected() -> None:
    with pytest.raises(UsageError, match="another model"):
        api.specialize(positions(), Specialization(Profile("something else")))


def test_wrong_variant_is_dropped_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification detects a guard that is written wrongly."""
    from graphopt.profile import guard_nodes

    original = positions()
    how = Specialization(profile_of(original, *_RUNS))
    monkeypatch.setattr(guard_nodes.GuardNodes, "_contradicts", lambda self, guard: False)
    monkeypatch.setattr(
        guard_nodes.GuardNodes, "_pairs", lambda self, guard: iter([((("shape", "x"), 2), 4)])
    )
    found = api.specialize(original, how, pipeline="O2")
    assert found.model is found.general
    assert all(
        "differs" in (variant.left_out or "") for variant in found.report.variants if variant.nodes == 3
    )
    with pytest.raises(VerificationFailed, match="the model with variants differs"):
        api.specialize(original, how, pipeline="O2", strict=True)


def test_inputs_of_unknown_rank_do_not_satisfy_other_guards() -> None:
    model = positions()
    model.graph.inputs[0].shape = None
    found = _specialized(model, *_RUNS, strategy=FusionStrategy.parse("dynamic:1"))
    guard = Guard({"x": ValueProfile("tensor(float)", ("a", "b", 4))})
    whole = build_versioned_model(
        found.general, [Branch("dynamic-1", guard, specialize_inputs(found.general, guard))]
    )
    flat = parse(
        "g (float[4] x, int64 mode) => (float[N, M] y, int64[K] sizes) { y = Identity(x) sizes = Shape(x) }"
    )
    flat.graph.inputs[0].shape = None
    whole = build_versioned_model(flat, [Branch("dynamic-1", guard, specialize_inputs(flat, guard))])
    for shape in [(4,), (2, 4), (1, 2, 4), ()]:
        feeds = {"x": np.ones(shape, np.float32), "mode": np.array(0)}
        assert api.run(whole, feeds)["sizes"].tolist() == list(shape)


def test_variant_with_a_trivial_guard_does_not_affect_others() -> None:
    model = parse("""g (float[B] x) => (float[B] y) <int64 trips = {12}, bool yes = {1}> {
        y = Loop (trips, yes, x) <body = b (int64 i, bool c, float[B] h) => (bool d, float[B] k) {
            d = Identity(c) a = Sin(h) e = Cos(a) k = Tanh(e) }> }""")
    runs = [{"x": np.ones(size, np.float32)} for size in (1, 1, 2, 2, 3, 4)]
    found = _specialized(model, *runs)
    assert [branch.name for branch in found.branches] == ["static-1", "static-2"]
    assert "holds for all inputs" in (found.report.variants[2].left_out or "")


def test_profiled_types_are_checked() -> None:
    model = positions()
    for wrong in (
        ValueProfile("foo", (1, 8, 4)),
        ValueProfile("tensor(float)", (1, 8)),
        ValueProfile("tensor(float)", (1, 8, 5)),
    ):
        profile = Profile(ir.fingerprint(model, names=True)).with_run({"x": wrong})
        with pytest.raises(UsageError, match=r"input 'x' is .* in the profile"):
            api.specialize(model, Specialization(profile), verify=False)
    fingerprint = ir.fingerprint(model, names=True)
    scalar = Profile(fingerprint).with_run(
        {"mode": ValueProfile("tensor(int64)", (1,))}
    )  # accepted by onnxruntime
    api.specialize(model, Specialization(scalar), verify=False)
    profile = Profile(fingerprint).with_run({"q": ValueProfile("tensor(float)", (1,))})
    with pytest.raises(UsageError, match="no input is called 'q'"):
        api.specialize(model, Specialization(profile), verify=False)


# Unsupported models --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ('<ir_version: 3, opset_import: ["" : 9]>', "IR version 3"),
        ('<ir_version: 4, opset_import: ["" : 9]>', "opset 9"),
    ],
)
def test_unsupported_versions_are_reported(header: str, why: str) -> None:
    model = parse(f"{header} g (float[N] x) => (float[N] y) {{ y = Relu(x) }}")
    guard = Guard({"x": ValueProfile("tensor(float)", (2,))})
    with pytest.raises(UnsupportedModel, match=why):
        build_versioned_model(model, [Branch("static-1", guard, specialize_inputs(model, guard))])


def test_variants_that_a_model_can_not_represent_are_reported() -> None:
    model = parse("g (float[N] x, float k) => (float[N] y) <float k = {3}> { y = Mul(x, k) }")
    guard = Guard({"x": ValueProfile("tensor(float)", (2,))}, absent=("k",))
    with pytest.raises(UnsupportedModel, match="'k' is not fed"):
        build_versioned_model(model, [Branch("static-1", guard, specialize_inputs(model, guard))])


def test_functions_of_one_name_and_other_contents_get_new_names() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]> g (float[N] x) => (float[N] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 17, "local" : 1]> f (a) => (c) { b = local.h(a) c = Neg(b) }
        <domain: "local", opset_import: ["" : 17]> h (a) => (b) { b = OP(a) }"""
    general, other, equal = (
        parse(text.replace("OP", "Exp")),
        parse(text.replace("OP", "Sin")),
        parse(text.replace("OP", "Exp")),
    )
    branches = [
        Branch(name, Guard({"x": ValueProfile("tensor(float)", (size,))}), model)
        for name, size, model in (("static-1", 2, other), ("static-2", 3, equal))
    ]
    whole = build_versioned_model(general, branches)
    assert [key[1] for key in whole.functions] == ["f", "h", "f_static_1", "h_static_1"]
    assert [key[1] for key in other.functions] == ["f", "h"]
    onnx.checker.check_model(ir.to_proto(whole), full_check=True)
    for size, function in ((2, np.sin), (3, np.exp), (4, np.exp)):
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_allclose(api.run(whole, {"x": x})["y"], -function(x), rtol=1e-5)


def test_functions_of_a_variant_alone_are_added() -> None:
    general = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }", ir_version=7)
    variant = parse("""<ir_version: 8, opset_import: ["" : 17, "local" : 1]> g (float[2] x) => (float[2] y)
        { y = local.f(x) } <domain: "local", opset_import: ["" : 17]> f (a) => (c) { c = Neg(a) }""")
    guard = Guard({"x": ValueProfile("tensor(float)", (2,))})
    whole = build_versioned_model(general, [Branch("static-1", guard, variant)])
    assert whole.ir_version == 8
    assert api.run(whole, {"x": np.ones(2, np.float32)})["y"].tolist() == [-1, -1]


def test_outputs_that_are_inputs_weights_or_repeated() -> None:
    text = """g (float[N] x, float[M] z) => (float[N] y, float[N] same, float[M] z2, float[2] w, float[M] z, float[N] y)
        <float[2] w = {1, 2}> { y = Relu(x) same = Identity(y) z2 = Identity(z) }"""
    model = parse(text)
    guard = Guard({"x": ValueProfile("tensor(float)", (2,))})
    whole = build_versioned_model(model, [Branch("static-1", guard, specialize_inputs(model, guard))])
    onnx.checker.check_model(ir.to_proto(whole), full_check=True)
    for size in (2, 3):
        feeds = {"x": np.arange(size, dtype=np.float32) - 1, "z": np.ones(4, np.float32)}
        expected, given = api.run(model, feeds), api.run(whole, feeds)
        for name, value in expected.items():
            np.testing.assert_array_equal(given[name], value)


def test_overridable_initializers_stay_overridable() -> None:
    model = parse("g (float[N] x, float k) => (float[N] y) <float k = {3}> { y = Mul(x, k) }")
    guard = Guard({"x": ValueProfile("tensor(float)", (2,))})
    whole = build_versioned_model(model, [Branch("static-1", guard, specialize_inputs(model, guard))])
    feeds = {"x": np.ones(2, np.float32)}
    assert api.run(whole, feeds)["y"].tolist() == [3, 3]
    assert api.run(whole, {**feeds, "k": np.array(5, np.float32)})["y"].tolist() == [5, 5]


def test_functions_are_inlined_in_variants_only() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[B, N] x) => (float[B, N] y) { a = local.f(x) y = local.f(a) }
        <domain: "local", opset_import: ["" : 17]>
        f (x) => (y) { s = Shape(x) r = Reshape(x, s) e = Exp(r) y = Tanh(e) }"""
    model = parse(text)
    found = api.specialize(
        model,
        Specialization(profile_of(model, {"x": np.ones((2, 3), np.float32)})),
        bundle=True,
        pipeline="O2",
    )
    assert not found.branches[0].model.functions and found.general.functions
    whole = build_versioned_model(found.general, found.branches)
    for shape in ((2, 3), (3, 2)):
        feeds = {"x": np.ones(shape, np.float32)}
        np.testing.assert_allclose(api.run(whole, feeds)["y"], api.run(model, feeds)["y"], rtol=1e-6)


def test_inputs_for_a_guard_come_from_the_profile() -> None:
    model = positions()
    profile = profile_of(model, *_RUNS)
    guard = Guard(
        {"x": ValueProfile("tensor(float)", (2, "s", 4)), "mode": ValueProfile("tensor(int64)", (), (1,))}
    )
    options = profiled_inputs(guard, profile, InputOptions(seed=3))
    assert options is not None and options.seed == 3
    assert options.shapes == {"x": (2, 6, 4)} and options.arrays["mode"] == 1
