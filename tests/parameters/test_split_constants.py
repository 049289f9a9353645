"""Models optimized for weights that are replaced later, compared with optimizing the new weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt import ir
from graphopt.errors import InvalidModel, UsageError
from graphopt.ort import session
from graphopt.parameters.split_constants import SplitConstants
from tests.model_testing import ops, parse

_CONV_BN = """m (float[N,2,5,5] x) => (float[N,3,3,3] y) <
    float[3,2,3,3] w, float[3] b, float[3] scale, float[3] shift, float[3] mean, float[3] var> {
    c = Conv(x, w, b) y = BatchNormalization(c, scale, shift, mean, var) }"""
_QKV = """m (float[N,64] x) => (float[N,64] q, float[N,64] k, float[N,64] v) <
    float[64,64] wq, float[64,64] wk, float[64,64] wv> {
    q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) }"""
_TRANSPOSED = """m (float[N,4] x) => (float[N,3] y) <float[3,4] w, float[3] b> {
    t = Transpose<perm = [1, 0]>(w) p = MatMul(x, t) y = Add(p, b) }"""
_SCALED = """m (float[N,4] x) => (float[N,3] y) <float[4,3] w, float[3] b, float[3] c, float[3] d> {
    g = Gemm<alpha = 2.0, beta = 0.5>(x, w, b) s = Mul(g, c) y = Add(s, d) }"""
_DIVIDED = """m (float[N,2,5,5] x) => (float[N,3,4,4] y) <float[3,2,2,2] w, float[2,1,1] c, float[3,1,1] d> {
    s = Div(x, c) v = Conv(s, w) y = Div(v, d) }"""
_SHIFTED = """m (float[N,2,5,5] x) => (float[N,3,4,4] y) <float[3,2,2,2] w, float[2,1,1] c, float[3] b> {
    s = Sub(x, c) y = Conv(s, w, b) }"""
_JOINED = """m (float[N,8] x) => (float[N,4] y) <float[8,8] a, float[8,4] b> {
    p = MatMul(x, a) y = MatMul(p, b) }"""
_COMPUTED = """m (float[N,4] x) => (float[N,4] y) <float[4] a, float[4] b> {
    s = Add(a, b) t = Sqrt(s) y = Mul(x, t) }"""
_MODELS = {
    "conv and batch normalization": (_CONV_BN, ["Conv"]),
    "products of one input": (_QKV, None),
    "transposed": (_TRANSPOSED, ["Gemm"]),
    "scaled Gemm": (_SCALED, ["Gemm"]),
    "divided Conv": (_DIVIDED, ["Conv"]),
    "shifted Conv": (_SHIFTED, ["Conv"]),
    "product of matrices": (_JOINED, ["MatMul"]),
    "computed": (_COMPUTED, ["Mul"]),
}


_WEIGHT = re.compile(r"(float16|float|double)\[([\d,]+)\] ([\w.]+)(?=[,>])")


def _weights(text: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Random positive contents for the weights that ``text`` declares in angle brackets."""
    random = np.random.default_rng(seed)
    found = {}
    for kind, dims, name in _WEIGHT.findall(text[text.index(" <") :]):
        dtype = {"float": np.float32, "float16": np.float16, "double": np.float64}[kind]
        found[name] = random.uniform(0.5, 2, tuple(map(int, dims.split(",")))).astype(dtype)
    return found


def _model(text: str, seed: int = 0, weights: Mapping[str, np.ndarray] | None = None) -> ir.Model:
    """The model of ``text`` with contents for its weights."""
    contents = _weights(text, seed) if weights is None else weights
    declared = _WEIGHT.sub(lambda match: f"{match[0]} = {{{', '.join(['0'] * _size(match[2]))}}}", text)
    model = parse(declared)
    for name, value in model.graph.initializers.items():
        value.const_value = ir.tensor(np.ascontiguousarray(contents[name]))
    return model


def _size(dims: str) -> int:
    return int(np.prod([int(dim) for dim in dims.split(",")]))


def _run(model: ir.Model) -> list[np.ndarray]:
    value = model.graph.inputs[0]
    assert value.shape is not None and value.name is not None
    dims = [dim if isinstance(dim, int) else 3 for dim in value.shape]
    feeds = {value.name: np.random.default_rng(9).normal(size=dims).astype(np.float32)}
    return session.run(session.create(ir.to_bytes(model), optimizations="off"), feeds)


def _same_bits(a: ir.Model, b: ir.Model) -> bool:
    return all(one.tobytes() == two.tobytes() for one, two in zip(_run(a), _run(b), strict=True))


@pytest.mark.parametrize("name", _MODELS)
def test_new_weights_have_the_same_results_as_optimizing_them(name: str) -> None:
    text, expected = _MODELS[name]
    models, report = graphopt.split_constants(_model(text))
    assert report.verdict is not None and report.verdict.ok
    new = _model(text, seed=1)
    updated = graphopt.update_weights(models, _weights(text, 1))
    optimized, _ = graphopt.optimize(new)
    assert ops(updated.main) == ops(optimized)
    if expected is not None:
        assert ops(updated.main) == expected
    assert _same_bits(updated.main, optimized)
    assert not _same_bits(updated.main, models.main)


def test_a_model_has_the_computed_constants_only() -> None:
    models, _ = graphopt.split_constants(_model(_CONV_BN))
    assert models.weights == ("w", "b", "scale", "shift", "mean", "var")
    assert sorted(models.main.graph.initializers) == sorted(
        value.name or "" for value in models.constants.graph.outputs if "valid." not in (value.name or "")
    )


def test_contents_of_weights_decide_no_rewrite() -> None:
    text = "m (float[N,4] x) => (float[N,4] y) <float[4] a = {1, 1, 1, 1}, float[4] b = {0, 0, 0, 0}> {"
    text += "s = Mul(x, a) y = Add(s, b) }"
    assert ops(graphopt.optimize(parse(text)).model) == ["Identity"]
    models, _ = graphopt.split_constants(parse(text))
    assert ops(models.main) == ["Mul", "Add"]
    changed = graphopt.update_weights(models, {"a": np.full(4, 2, np.float32)})
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(graphopt.run(changed.main, {"x": x})["y"], 2 * x)


def test_equal_weights_stay_apart() -> None:
    text = "m (float[N,4] x) => (float[N,4] y) <float[4] a = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4}> {"
    text += "s = Mul(x, a) r = Relu(s) y = Add(r, b) }"
    models, _ = graphopt.split_constants(parse(text))
    changed = graphopt.update_weights(models, {"b": np.zeros(4, np.float32)})
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(graphopt.run(changed.main, {"x": x})["y"], [[1, 2, 3, 4]])


def test_missing_weights_keep_their_latest_contents() -> None:
    models, _ = graphopt.split_constants(_model(_CONV_BN))
    new = _weights(_CONV_BN, 1)
    for name, array in new.items():
        models = graphopt.update_weights(models, {name: array})
    assert _same_bits(models.main, graphopt.optimize(_model(_CONV_BN, seed=1)).model)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        (_CONV_BN, {"var": np.array([1, -2, 1], np.float32)}),
        (_CONV_BN, {"scale": np.array([1, np.inf, 1], np.float32)}),
        (_CONV_BN, {"scale": np.array([1, 3e38, 1], np.float32)}),
        (_DIVIDED, {"d": np.array([[[1]], [[0]], [[1]]], np.float32)}),
        (_SHIFTED, {"c": np.array([[[1]], [[1000]]], np.float32)}),
    ],
)
def test_contents_for_which_a_rewrite_is_not_valid_are_refused(
    text: str, weights: Mapping[str, np.ndarray]
) -> None:
    models, _ = graphopt.split_constants(_model(text))
    with pytest.raises(UsageError, match="can't be computed from the new weights"):
        graphopt.update_weights(models, weights)


def test_tensors_that_do_not_fit_are_refused() -> None:
    models, _ = graphopt.split_constants(_model(_SCALED))
    with pytest.raises(UsageError, match="is 4x3, and the tensor 2x3"):
        graphopt.update_weights(models, {"w": np.zeros((2, 3), np.float32)})
    with pytest.raises(UsageError, match="is float32, and the tensor float64"):
        graphopt.update_weights(models, {"b": np.zeros(3)})
    with pytest.raises(UsageError, match="no tensor has the name of a weight"):
        graphopt.update_weights(models, {"nothing": np.zeros(3)})


def test_weights_of_constant_nodes_and_of_ir_version_3() -> None:
    text = """m (float[N,4] x) => (float[N,4] y) {
        w = Constant<value = float[4] {1, 2, 3, 4}>() y = Mul(x, w) }"""
    models, _ = graphopt.split_constants(parse(text))
    assert models.weights == ("w",)
    old = parse(
        "m (float[N,4] x, float[4] w) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> {y = Mul(x, w)}",
        ir_version=3,
        opset=8,
    )
    models, _ = graphopt.split_constants(old)
    assert models.weights == ("w",) and models.main.ir_version == 4
    changed = graphopt.update_weights(models, {"w": np.zeros(4, np.float32)})
    assert not np.any(graphopt.run(changed.main, {"x": np.ones((1, 4), np.float32)})["y"])


def test_model_without_weights_is_refused() -> None:
    with pytest.raises(UsageError, match="the model has no weights"):
        graphopt.split_constants(parse("m (float[N] x) => (float[N] y) {y = Relu(x)}"))


def test_sums_that_vanish_depend_on_the_order_of_their_terms() -> None:
    """numpy and onnxruntime compute different bits for the bias, which is 0 up to rounding."""
    text = _SHIFTED.replace("float[", "double[").replace(", double[3] b>", ">").replace("(s, w, b)", "(s, w)")
    weights = _weights(text)
    weights["w"] -= weights["w"].mean((2, 3), keepdims=True)
    models, _ = graphopt.split_constants(_model(text, weights=weights))
    assert ops(models.main) == ["Conv"]


def test_indices_may_be_weights() -> None:
    numbers = ", ".join(map(str, range(100)))
    text = f"""m (float[N,2] x) => (float[N,2] y) <float[100] t = {{{numbers}}}, int64[2] i = {{3, 99}}> {{
        g = Gather(t, i) y = Add(x, g) }}"""
    models, _ = graphopt.split_constants(parse(text), "t,i")
    changed = graphopt.update_weights(models, {"i": np.array([7, 8])})
    assert graphopt.run(changed.main, {"x": np.zeros((1, 2), np.float32)})["y"].tolist() == [[7, 8]]


def test_half_precision_weights_are_scaled_at_run_time() -> None:
    text = _CONV_BN.replace("float[", "float16[")
    models, _ = graphopt.split_constants(_model(text))
    assert ops(models.main) == ["Conv", "BatchNormalization"]


_EXPORTED = {
    "TorchScript": """m (float[N,4] x) => (float[N,2] y) <
        float[4,3] onnx_MatMul_7, float[3] fc_bias, float[3,2] onnx_MatMul_8, float[2] out_bias> {
        a = MatMul(x, onnx_MatMul_7) h = Add(a, fc_bias) r = Relu(h)
        b = MatMul(r, onnx_MatMul_8) y = Add(b, out_bias) }""",
    "dynamo": """m (float[N,4] x) => (float[N,2] y) <
        float[3,4] fc_weight, float[3] fc_bias, float[2,3] out_weight, float[2] out_bias> {
        h = Gemm<transB = 1>(x, fc_weight, fc_bias) r = Relu(h)
        y = Gemm<transB = 1>(r, out_weight, out_bias) }""",
}


def _state_dict(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = {"fc_weight": (3, 4), "fc_bias": (3,), "out_weight": (2, 3), "out_bias": (2,)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def _exported(exporter: str, state: Mapping[str, np.ndarray]) -> ir.Model:
    transposed = {"onnx_MatMul_7": state["fc_weight"].T, "onnx_MatMul_8": state["out_weight"].T}
    return _model(_EXPORTED[exporter], weights={**state, **transposed})


@pytest.mark.parametrize("exporter", _EXPORTED)
def test_weights_under_the_names_of_the_framework(exporter: str) -> None:
    models, _ = graphopt.split_constants(_exported(exporter, _state_dict(0)), framework=_state_dict(0))
    assert not models.names.unmatched
    updated = graphopt.update_weights(models, _state_dict(1))
    assert _same_bits(updated.main, graphopt.optimize(_exported(exporter, _state_dict(1))).model)


def test_equal_weights_of_a_framework_are_distinguished_by_scopes() -> None:
    text = """m (float[N,2] x) => (float[N,2] y) <float[2] a = {0, 0}, float[2] b = {0, 0}, float[2] c = {0, 0}> {
        h = Add(x, a) r = Relu(h) i = Add(r, b) s = Relu(i) y = Add(s, c) }"""
    model = parse(text)
    scopes = ["/net/net.0/Add", "/net/net.10/net.10.1/Add", "/body/layer.0/norm/Add"]
    for node, scope in zip([node for node in model.graph if node.op_type == "Add"], scopes, strict=True):
        node.name = scope
    names = ["net.0.bias", "net.1.bias", "net.10.1.bias", "body.layer.0.norm.bias", "layer.0.bias"]
    models, _ = graphopt.split_constants(model, framework={name: np.zeros(2, np.float32) for name in names})
    assert {weight: name.name for weight, name in models.names.names.items()} == {
        "a": "net.0.bias",
        "b": "net.10.1.bias",
        "c": "body.layer.0.norm.bias",
    }


_GATES = {"LSTM": "ifgo", "GRU": "rzn", "RNN": "h"}
_ONNX_GATES = {"LSTM": "iofg", "GRU": "zrn", "RNN": "h"}
_RECURRENT = """m (float[N,1,2] x) => (float[N,D,1,3] y) <
    float[DIMS,2] w, float[DIMS,3] r, float[BIAS] b> {
    y = OP<hidden_size = 3, direction = "WAY">(x, w, r, b) }"""


def _recurrent(op: str, way: str, seed: int) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """A model with one recurrent layer as exporters write it, and the weights by their names in PyTorch."""
    random = np.random.default_rng(seed)
    suffixes = ["", "_reverse"] if way == "bidirectional" else [""]
    shapes = {"weight_ih": (3, 2), "weight_hh": (3, 3), "bias_ih": (3,), "bias_hh": (3,)}
    gates = {
        (kind, suffix): {gate: random.normal(size=shape).astype(np.float32) for gate in _GATES[op]}
        for suffix in suffixes
        for kind, shape in shapes.items()
    }
    state = {
        f"net.rnn.{kind}_l0{suffix}": np.concatenate(list(one.values()))
        for (kind, suffix), one in gates.items()
    }
    onnx_order = {key: np.concatenate([one[gate] for gate in _ONNX_GATES[op]]) for key, one in gates.items()}
    weights = {
        "w": np.stack([onnx_order["weight_ih", suffix] for suffix in suffixes]),
        "r": np.stack([onnx_order["weight_hh", suffix] for suffix in suffixes]),
        "b": np.stack(
            [
                np.concatenate([onnx_order[kind, suffix] for kind in ("bias_ih", "bias_hh")])
                for suffix in suffixes
            ]
        ),
    }
    rows, directions = 3 * len(_GATES[op]), len(suffixes)
    text = _RECURRENT.replace("OP", op).replace("WAY", way).replace("DIMS", f"{directions},{rows}")
    return _model(text.replace("BIAS", f"{directions},{2 * rows}"), weights=weights), state


@pytest.mark.parametrize("way", ["forward", "bidirectional"])
@pytest.mark.parametrize("op", _GATES)
def test_recurrent_weights_under_the_names_of_the_framework(op: str, way: str, tmp_path: Path) -> None:
    (model, state), (other, trained) = _recurrent(op, way, 0), _recurrent(op, way, 1)
    models, _ = graphopt.split_constants(model, framework=state)
    assert not models.names.unmatched
    models.save(tmp_path / "m.split")
    updated = graphopt.update_weights(tmp_path / "m.split", trained)
    assert _same_bits(updated.main, graphopt.optimize(other).model)
    with pytest.raises(UsageError, match=r"'[wrb]' consists of net.rnn.*; 'net.rnn.* is not given"):
        graphopt.update_weights(models, dict(list(trained.items())[:-1]))
    wrong = {name: array[:-1] for name, array in trained.items()}
    with pytest.raises(UsageError, match=r"weight of \d gates|'w' is \d"):
        graphopt.update_weights(models, wrong)


def test_a_weight_that_the_exporter_computed_must_be_given() -> None:
    text = """m (float[N,2] x) => (float[N,2] y) <float[2] bias = {1, 2}, float[2] linear_1 = {3, 5}> {
        a = Add(x, bias) b = Relu(a) y = Mul(b, linear_1) }"""
    models, _ = graphopt.split_constants(parse(text), framework={"bias": np.array([1, 2], np.float32)})
    assert models.names.unmatched == ("linear_1",)
    trained = {"bias": np.array([7, 8], np.float32)}
    with pytest.raises(UsageError, match="'linear_1' is not given, and may derive from weights"):
        graphopt.update_weights(models, trained)
    kept = graphopt.update_weights(models, trained, partial=True)
    given = graphopt.update_weights(models, {**trained, "linear_1": np.array([3, 5], np.float32)})
    assert _same_bits(kept.main, given.main)


def test_folder_keeps_models_and_names(tmp_path: Path) -> None:
    folder = tmp_path / "m.split"
    models, _ = graphopt.split_constants(_exported("TorchScript", _state_dict(0)), framework=_state_dict(0))
    models.save(folder)
    loaded = SplitConstants.load(folder)
    assert loaded.weights == models.weights and loaded.names.names == models.names.names
    updated = graphopt.update_weights(folder, _state_dict(1))
    updated.save(folder)
    again = SplitConstants.load(folder)
    assert _same_bits(again.main, graphopt.optimize(_exported("TorchScript", _state_dict(1))).model)
    np.testing.assert_array_equal(
        again.main.graph.initializers["fc_bias"].const_value.numpy(), _state_dict(1)["fc_bias"]
    )  # type: ignore[union-attr]
    onnx.checker.check_model(str(folder / "main.onnx"))
    onnx.checker.check_model(str(folder / "constants.onnx"))


#: A model whose weights are large enough for a separate file.
_LARGE = (
    "m (float[N,64] x) => (float[N,64] y) <float[64,64] w, float[64] b> { p = MatMul(x, w) y = Add(p, b) }"
)
#: Changes of the contents of a file; ``None`` removes it.
_CHANGES: dict[str, Callable[[bytes], bytes] | None] = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[:-2],
    "extended": lambda data: data + b"0",
    "flipped": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "zeros": lambda data: bytes(len(data)),
    "removed": None,
}


@pytest.mark.parametrize("change", _CHANGES)
@pytest.mark.parametrize("file", ["main.onnx", "constants.onnx", "weights.bin", "split.json"])
def test_each_changed_file_is_refused_by_name(file: str, change: str, tmp_path: Path) -> None:
    folder = tmp_path / "m.split"
    models, _ = graphopt.split_constants(_model(_LARGE), verify=False)
    models.save(folder)
    names = ["constants.onnx", "main.onnx", "split.json", "weights.bin"]
    assert sorted(path.name for path in folder.iterdir()) == names
    whole = (folder / file).read_bytes()
    if (edit := _CHANGES[change]) is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(edit(whole))
    with pytest.raises((InvalidModel, UsageError), match=re.escape(file)):
        graphopt.update_weights(folder, {"b": np.ones(64, np.float32)}, partial=True)
    (folder / file).write_bytes(whole)
    SplitConstants.load(folder)


def test_damaged_and_foreign_folders(tmp_path: Path) -> None:
    folder = tmp_path / "m.split"
    models, _ = graphopt.split_constants(_model(_CONV_BN))
    models.save(folder)
    (folder / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match=r"mine\.txt is not part of a split model"):
        models.save(folder)
    assert (folder / "mine.txt").read_text() == "keep"
    (folder / "mine.txt").unlink()
    good = (folder / "split.json").read_text()
    for text in (
        "",
        "[]",
        "{}",
        good.replace("/2", "/9"),
        good.replace('"w"', "7"),
        good.replace('"w"', '"q"'),
    ):
        (folder / "split.json").write_text(text)
        with pytest.raises(InvalidModel):
            SplitConstants.load(folder)
    with pytest.raises(UsageError, match=r"no split\.json"):
        SplitConstants.load(tmp_path)


def test_weights_that_the_result_does_not_read() -> None:
    models, _ = graphopt.split_constants(
        parse(
            "m (float[N,4] x) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> { unread = Mul(x, w) y = Relu(x) }"
        )
    )
    assert models.weights == () and ops(models.main) == ["Relu"]
    with pytest.raises(UsageError, match="no tensor has the name of a weight"):
        graphopt.update_weights(models, {"w": np.zeros(4, np.float32)})


@pytest.mark.parametrize("number", ["nan", "inf", "65504"])
def test_weights_at_the_end_of_the_range(number: str) -> None:
    model = parse("m (float16[N,2] x) => (float16[N,2] y) <float16[2] w = {1, 2}> { y = Mul(x, w) }")
    model.graph.initializers["w"].const_value = ir.tensor(np.array([float(number), 1], np.float16))
    models, report = graphopt.split_constants(model)
    assert models.weights == ("w",) and report.verdict is not None and report.verdict.ok


def test_names_that_look_like_those_of_conditions() -> None:
    text = _CONV_BN.replace("w,", "valid_w,").replace("Conv(x, w", "Conv(x, valid_w")
    weights, new = _weights(text), _weights(text, 1)
    model = _model(text)
    model.graph.initializers["valid_w"].name = "valid.w"
    models, _ = graphopt.split_constants(ir.from_proto(ir.to_proto(model)))
    assert "valid.w" in models.weights and len(weights) == len(models.weights)
    new["valid.w"] = new.pop("valid_w")
    updated = graphopt.update_weights(models, new)
    assert _same_bits(updated.main, graphopt.optimize(_model(text, seed=1)).model)


def test_dims_are_fixed_in_the_comparison() -> None:
    models, report = graphopt.split_constants(_model(_CONV_BN), dims={"N": 2})
    assert report.verdict is not None and report.verdict.ok
    assert models.main.graph.inputs[0].shape == [2, 2, 5, 5]


def test_old_opset_is_split_without_expressions() -> None:
    text = "m (float[2,4] x) => (float[2,3] y) <float[4,3] w = {1,2,3,4,5,6,7,8,9,1,2,3}, float[2,3] d = {1,2,3,4,5,6}> {"
    text += " p = MatMul(x, w) y = Mul(p, d) }"
    models, _ = graphopt.split_constants(parse(text, opset=7))
    updated = graphopt.update_weights(models, {"d": np.zeros((2, 3), np.float32)})
    assert not np.any(graphopt.run(updated.main, {"x": np.ones((2, 4), np.float32)})["y"])


def test_native_kernels_are_refused() -> None:
    with pytest.raises(UsageError, match="native kernels can't be written"):
        graphopt.split_constants(_model(_CONV_BN), fuser="native")


def test_weight_called_weights() -> None:
    text = "m (float[N,4] x) => (float[N,4] y) <float[4] weights = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4}> {"
    models, _ = graphopt.split_constants(parse(text + " s = Mul(x, weights) y = Add(s, b) }"))
    assert models.weights == ("weights", "b")


def test_other_names_are_refused_unless_partial() -> None:
    models, _ = graphopt.split_constants(_exported("TorchScript", _state_dict(0)))
    with pytest.raises(
        UsageError, match="'fc_weight' is not a weight of the model, and 'onnx_MatMul_7' is not given"
    ):
        graphopt.update_weights(models, _state_dict(1))
    changed = graphopt.update_weights(models, _state_dict(1), partial=True)
    assert changed.main.graph.initializers["fc_bias"].const_value is not None
    mapped, _ = graphopt.split_constants(_exported("TorchScript", _state_dict(0)), framework=_state_dict(0))
    with pytest.raises(UsageError, match="are the same weight, with different contents"):
        graphopt.update_weights(mapped, {**_state_dict(1), "onnx_MatMul_7": np.zeros((4, 3), np.float32)})


def test_weights_of_another_training_step_are_not_found() -> None:
    with pytest.raises(UsageError, match="no weight of the model has the contents of a tensor") as error:
        graphopt.split_constants(_exported("TorchScript", _state_dict(0)), framework=_state_dict(1))
    assert "with which the model was exported" in str(error.value.hint)
