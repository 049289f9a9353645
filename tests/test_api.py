"""The Python interface."""

from __future__ import annotations

import inspect
import re
import typing
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt import api, config, ir
from graphopt.errors import UsageError, VerificationFailed
from graphopt.inputs.feeds import InputOptions
from graphopt.numerics import Numerics
from graphopt.optimization_attempt import is_heavy
from graphopt.ort import devices
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry
from graphopt.transforms.scalar.dce import DeadCodeElimination
from tests.cli.broken_passes import ReluToSigmoid, RenameInput
from tests.model_testing import ops, parse

SMALL = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "test">
small (float[N, 4] x) => (float[N, 4] y) <float zero = {-0.0}> {
  a = Identity(x)
  b = Relu(a)
  y = Add(b, zero)
}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(onnx.parser.parse_model(SMALL), path)
    return path


def test_package_exports_the_public_names(small: Path) -> None:
    assert {"Bundle", "compile", "load", "optimize", "run", "save", "verify"} <= set(graphopt.__all__)
    assert graphopt.optimize is api.optimize and "verify" in dir(graphopt)
    with pytest.raises(AttributeError, match="no attribute 'optimise'; nearest: optimize"):
        graphopt.optimise  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        graphopt.zzz  # type: ignore[attr-defined] # noqa: B018


def test_every_public_name_can_be_imported() -> None:
    for name in graphopt.__all__:
        assert getattr(graphopt, name) is not None
    assert len(graphopt.__all__) == len(set(graphopt.__all__))


@pytest.mark.parametrize(("old", "new"), [("grad", "differentiate"), ("kernels", "list_kernels")])
def test_former_names_work_with_a_warning(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"graphopt.{old} is called graphopt.{new}"):
        assert getattr(graphopt, old) is getattr(graphopt, new)
    assert old not in graphopt.__all__


def test_the_former_argument_for_weights(small: Path, tmp_path: Path) -> None:
    text = "g (float[2, 3] x) => (float[1, 1] y) <float[3, 1] w = {1, 2, 3}> { m = MatMul(x, w) y = ReduceSum(m) }"
    step = graphopt.train_step(parse(text), "y", "sgd", "w")
    result = graphopt.optimize(small, verify=False)
    for save in (partial(graphopt.save, small), result.save, step.save):
        target = tmp_path / "out.onnx"
        for value, place in ((True, "beside"), (False, "inside")):
            with pytest.warns(DeprecationWarning, match=f"is deprecated: use weights='{place}'") as caught:
                save(target, external_data=value)
            assert caught[0].filename == __file__ and target.exists()
        target.unlink()
        with pytest.raises(
            TypeError, match=r"external_data=.* and weights=.* of save\(\) exclude each other"
        ):
            save(target, external_data=True, weights="beside")
        assert not target.exists()


def test_signatures_name_public_types_only() -> None:
    """Classes of graphopt in the signatures of public functions can be imported from the top package."""
    named: dict[str, str] = {}
    for name in graphopt.__all__:
        function = getattr(graphopt, name)
        if inspect.isfunction(function):
            signature = inspect.signature(function)
            hints = [*(one.annotation for one in signature.parameters.values()), signature.return_annotation]
            named.update(dict.fromkeys(re.findall(r"(?<![\w.])[A-Z]\w+", " ".join(map(str, hints))), name))
    defined = {
        class_
        for path in sorted(Path(graphopt.__file__).parent.rglob("*.py"))
        for class_ in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    own = defined.difference(typing.__all__)
    missing = {f"{class_} of {function}" for class_, function in named.items() if class_ in own}
    unlisted = sorted(one for one in missing if one.split()[0] not in graphopt.__all__)
    assert unlisted == []


def test_optimize_returns_model_and_report(small: Path) -> None:
    model, report = graphopt.optimize(graphopt.load(small))
    assert ops(model) == ["Relu"]
    assert (report.original.nodes, report.optimized.nodes) == (3, 1)
    assert report.verdict is not None and report.verdict.ok and not report.verdict.unverifiable
    assert report.rules()["drop-identity"] == 1
    assert "nodes" in str(report) and "verified" in str(report)
    assert graphopt.optimize(small).verdict is not None
    assert graphopt.optimize(small, verify=False).verdict is None


def test_argument_is_not_modified(small: Path) -> None:
    model = graphopt.load(small)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    weight = model.graph.initializers["zero"].const_value
    result, _ = graphopt.optimize(model, pipeline="peephole{families=identities}")
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert result.graph.initializers["zero"].const_value is weight  # tensors are shared, not copied


def test_copy_is_complete() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17, "local" : 1], metadata_props: ["k": "v"], doc_string: "doc">
        main (float[N] x, bool c) => (float[N] y) <float[1] w = {1.0}> {
          a = local.f <alpha = 2.0> (x)
          y = If (c) <then_branch = t () => (float[N] p) { p = Add(a, w) },
                      else_branch = e () => (float[N] q) { q = Identity(a) }>
        }
        <domain: "local", opset_import: ["" : 17]>
        f <alpha> (v) => (r) { r = Elu <alpha: float = @alpha> (v) }""")
    proto.graph.node[0].name = ""
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", 1, ["N"]))
    sparse = onnx.helper.make_sparse_tensor(
        onnx.helper.make_tensor("s", 1, [1], [3.0]), onnx.helper.make_tensor("i", 7, [1], [1]), [2]
    )
    proto.graph.sparse_initializer.append(sparse)
    training = proto.training_info.add()
    training.algorithm.name = "step"
    training.update_binding.add(key="w", value="w_new")
    data = proto.SerializeToString(deterministic=True)
    model = ir.from_proto(onnx.ModelProto.FromString(data))
    copy = api.copy(model)
    for same in (model, copy):
        assert ir.to_proto(same).SerializeToString(deterministic=True) == ir.to_proto(
            model
        ).SerializeToString(deterministic=True)
    assert ir.to_proto(copy).training_info[0].algorithm.name == "step"
    assert ir.is_overridable(copy.graph.initializers["w"])  # the training step updates it


def test_pipelines_may_be_passes(small: Path) -> None:
    model, report = graphopt.optimize(small, pipeline=[DeadCodeElimination()], verify=False)
    assert report.pipeline == "dce" and len(model.graph) == 3
    _, report = graphopt.optimize(
        small, pipeline="cse", pre_passes=[DeadCodeElimination()], post_passes=["peephole,dce"], verify=False
    )
    assert report.pipeline == "dce,cse,peephole,dce"


@pytest.mark.parametrize(
    ("arguments", "numerics"),
    [
        ({}, Numerics.REASSOCIATES),
        ({"exact": True}, Numerics.EXACT),
        ({"fast_math": True}, Numerics.APPROXIMATES),
    ],
)
def test_numerics_follow_from_the_settings(arguments: dict[str, object], numerics: Numerics) -> None:
    with config.patch(**arguments) as settings:
        assert api.make_options(settings).numerics == numerics


@pytest.mark.parametrize(
    ("pipeline", "expected"), [("O1", ["Add"]), ("O1,dce", ["Add"]), ("O2", ["Identity"])]
)
def test_exact_preset_is_exact_inside_other_pipelines(pipeline: str, expected: list[str]) -> None:
    model = parse("g (float[N] x) => (float[N] y) <float[1] zero = {0.0}> { y = Add(x, zero) }")
    assert ops(graphopt.optimize(model, pipeline=pipeline, verify=False).model) == expected


def test_settings_apply(small: Path) -> None:
    with config.patch(pipeline="O0", verify=False):
        model, report = graphopt.optimize(small)
        assert len(model.graph) == 3 and report.verdict is None
        assert ops(graphopt.optimize(small, pipeline="O2").model) == ["Relu"]


def test_instruments_receive_all_events(small: Path) -> None:
    class Recorder(PassInstrumentation):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def entered(self, stage: str) -> None:
            self.seen.append(stage)

        def before_pass(self, pass_, index, model, cx) -> None:  # type: ignore[no-untyped-def]
            self.seen.append(f"before {index}")

        def after_pass(self, pass_, record, model, cx) -> None:  # type: ignore[no-untyped-def]
            self.seen.append(f"after {record.index}")

        def rewrote(self, action, root, made) -> None:  # type: ignore[no-untyped-def]
            self.seen.append(action.owner)

    recorder = Recorder()
    graphopt.optimize(small, pipeline="peephole{families=identities},dce", instruments=[recorder])
    assert [item for item in recorder.seen if item != "starting onnxruntime"] == [
        "before 1",
        "drop-identity",
        "after 1",
        "before 2",
        "after 2",
        "verifying",
    ]


def test_harmful_pass_is_detected(small: Path) -> None:
    with pytest.raises(VerificationFailed, match="is not the same"):
        graphopt.optimize(small, post_passes=[ReluToSigmoid()], pipeline="O0", strict=True)
    model, report = graphopt.optimize(small, post_passes=[ReluToSigmoid()], pipeline="O0")
    assert ops(model) == ["Identity", "Relu", "Add"]
    assert [drop.owner for drop in report.dropped] == ["relu-to-sigmoid"]
    with pytest.raises(VerificationFailed, match="called differently"):
        graphopt.optimize(small, post_passes=[RenameInput()], verify=False, strict=True)
    _, report = graphopt.optimize(small, post_passes=[RenameInput()], verify=False)
    assert [drop.owner for drop in report.dropped] == ["rename-input"]


def test_verify(small: Path) -> None:
    model, _ = graphopt.optimize(small, verify=False)
    verdict = graphopt.verify(small, model)
    assert verdict.ok and str(verdict).startswith("bit-identical in")
    other = parse("small (float[N, 4] x) => (float[N, 4] y) { y = Abs(x) }")
    assert not graphopt.verify(small, other).ok
    shapes = InputOptions({"x": (5, 4)})
    assert {row.binding for row in graphopt.verify(small, model, inputs=shapes).rows} == {"N=5"}


def test_run(small: Path) -> None:
    x = np.array([[-1, 2, -3, 4]], np.float32)
    for model in (small, graphopt.load(small)):
        outputs = graphopt.run(model, {"x": x})
        assert list(outputs) == ["y"]
        np.testing.assert_array_equal(outputs["y"], np.maximum(x, 0))
    with pytest.raises(UsageError, match="nearest: x"):
        graphopt.run(small, {"xx": x})
    with pytest.raises(UsageError, match="needs a value for input 'x'"):
        graphopt.run(small, {})
    with pytest.raises(UsageError, match="input 'x' expects float32, the array contains float64"):
        graphopt.run(small, {"x": x.astype(np.float64)})


def test_try_out_generates_inputs(small: Path) -> None:
    trial = api.try_out(small, InputOptions({"x": (2, 4)}, seed=3))
    np.testing.assert_array_equal(trial.outputs["y"], np.maximum(trial.feeds["x"], 0))
    assert trial.feeds["x"].shape == (2, 4) and trial.seconds > 0


def test_save(small: Path, tmp_path: Path) -> None:
    model = graphopt.load(small)
    assert graphopt.save(model, tmp_path / "a.onnx") == [tmp_path / "a.onnx"]
    with config.patch(weights="beside"):
        assert graphopt.save(model, tmp_path / "b.onnx")[0] == tmp_path / "b.onnx"


def test_context_for_is_all_that_a_pass_needs() -> None:
    model = parse("g (float[N] x) => (float[N] y) { a = Abs(x) y = Relu(x) }")
    Pipeline.parse("dce", registry()).run(model, api.context_for(model))
    assert ops(model) == ["Relu"]


def test_a_long_chain() -> None:
    nodes = " ".join(f"v{i + 1} = Relu(v{i})" for i in range(10_000))
    model = parse(f"g (float[N] v0) => (float[N] v10000) {{ {nodes} }}")
    result, report = graphopt.optimize(model, verify=False)
    assert report.original.nodes == 10_000 and len(result.graph) <= 10_000


def test_named_but_unusable_device_is_reported(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "probe_cuda", lambda index=0: devices.CudaStatus(False, "no driver"))
    told = "CUDA can't be used (no driver); running on the CPU"
    _, report = graphopt.optimize(small, device="cuda", allow_fallback=True)
    assert report.remarks == [told] and report.verdict is not None and report.verdict.ok
    assert not graphopt.optimize(small, device="auto").report.remarks  # where any will do
    with config.patch(device="cuda", allow_fallback=True):
        assert graphopt.optimize(small).report.remarks == [told]


def test_size_of_calls_decides_on_a_process_with_a_memory_limit() -> None:
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2] x, float[1000000] z) => (float[2] y, float[1000000] u) { y = own.F(x) u = own.F(z) }
        <domain: "own", opset_import: ["" : 17]>
        F (x) => (y) { a = Exp(x) b = Neg(a) c = Exp(b) d = Neg(c) y = Exp(d) }"""
    )
    before = ir.to_bytes(model)
    assert is_heavy(model, 19_000_000) and not is_heavy(model, 21_000_000)
    assert ir.to_bytes(model) == before


def test_arguments_override_settings_of_the_same_name() -> None:
    found = config.defaults().having(
        {"exact": True, "memory_limit": 5, "allow_fallback": None, "skip": ["cse"], "strict": True}
    )
    assert (found.exact, found.memory_limit, found.allow_fallback, found.skip) == (True, 5, False, ("cse",))
    assert config.defaults().having({"device": devices.CPU}) == config.defaults()


def test_an_executor_may_fall_back_from_its_device() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    executor = api.compile(model, device="cuda", allow_fallback=True, verify=False)
    assert executor.run({"x": np.ones(2, np.float32)})["y"].tolist() == [-1, -1]


@pytest.mark.parametrize("size", [0, -1, -5, 2**63])
def test_sizes_that_no_dim_has_are_refused(size: int) -> None:
    model = ir.to_proto(parse("g (float[N] x) => (float[N] y) { y = Relu(x) }"))
    with pytest.raises(UsageError, match=f"can't fix dim 'N' to {size}"):
        graphopt.optimize(model, dims={"N": size})


@pytest.mark.parametrize(
    ("sizes", "why"), [((0, 0), "no size above 0"), ((-3, 4), "begins below 0"), ((5, 2), "no size")]
)
def test_ranges_that_no_dim_has_are_refused(sizes: tuple[int, int], why: str) -> None:
    model = ir.to_proto(parse("g (float[N] x) => (float[N] y) { y = Relu(x) }"))
    with pytest.raises(UsageError, match=why):
        graphopt.optimize(model, dim_ranges={"N": sizes})


def test_a_compiler_checks_its_options(small: Path) -> None:
    with pytest.raises(TypeError, match=r"no argument of Compiler\(\) is called 'exakt'; nearest: exact"):
        graphopt.Compiler(exakt=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"exact of Compiler\(\) must be bool or None, not 'yes'"):
        graphopt.Compiler(exact="yes")  # type: ignore[arg-type]
    assert graphopt.Compiler(exact=True).numerics is Numerics.EXACT


def test_hints_name_keywords_in_tracebacks(small: Path) -> None:
    with pytest.raises(VerificationFailed) as caught:
        graphopt.optimize(small, post_passes=[ReluToSigmoid()], strict=True)
    assert caught.value.hint == "graphopt bisect names the rewrite at fault; --skip leaves out its rule"
    assert caught.value.__notes__ == [
        "hint: graphopt bisect names the rewrite at fault; skip leaves out its rule"
    ]
