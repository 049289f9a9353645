"""Small models whose nodes are placed for different reasons."""

from __future__ import annotations

from graphopt import ir
from tests.model_testing import parse


def _list(count: int) -> str:
    return "{" + ", ".join(["0.5"] * count) + "}"


_HEADER = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1, "ai.onnx.ml" : 3, "own" : 1]>'
_CONSTANTS = f"""
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, float half = {{0.5}}, float16 tiny = {{0}},
     float scale = {{0.5}}, uint8 point = {{0}}, int32 low = {{0}}, float[4, 4] square = {_list(16)},
     float[1, 32, 4] w = {_list(128)}, float[1, 32, 8] r = {_list(256)}, float[1, 24, 4] wg = {_list(96)},
     float[1, 24, 8] rg = {_list(192)}, float[2, 2, 3, 3] filters = {_list(36)}>
"""
#: A function of the model.
_FUNCTION = """
<domain: "own", opset_import: ["" : 17]>
scaled (a) => (b) { d = Det(a) e = Mul(a, d) b = Relu(e) }
"""
_HALF = "(float16[4, 4] x) => (float16[4, 4] y)"
_IMAGE = "(float[B, 2, 5, 5] x) => (float[B, 2, H, J] y)"
_MATRIX = "(float[N, 4] x) => (float[N, 4] y)"
_SERIES = "(float[S, B, 4] x) => (float[S, 1, B, 8] y)"
_SQUARE = "(float[4, 4] x) => (float[4, 4] y)"

#: Inputs and outputs, and nodes.
_MODELS: dict[str, tuple[str, str]] = {
    "an operator without a kernel": (_SQUARE, "a = Relu(x) d = Det(a) e = Exp(d) y = Mul(x, e)"),
    "an input on both sides": ("(float[4, 4] x) => (float y, float[4, 4] z)", "y = Det(x) z = Relu(x)"),
    "a constant on both sides": (_SQUARE, "a = Add(x, square) d = Det(square) y = Mul(a, d)"),
    "a type without a kernel": (
        "(int32[N] x) => (int32[N] y)",
        "a = Add(x, x) b = Clip(a, low) y = Add(b, x)",
    ),
    "strings": ("(float[N] x) => (string[N] y, float[N] z)", "a = Neg(x) y = Cast<to = 8>(a) z = Relu(a)"),
    "sizes": (
        "(float[N, M] x) => (float[K, 2] y)",
        "s = Shape(x) n = ReduceProd<keepdims = 1>(s) t = Div(n, two) u = Concat<axis = 0>(t, two)"
        " y = Reshape(x, u)",
    ),
    "sizes as floats": (
        "(float[N, M] x) => (float[N, M] y)",
        "s = Shape(x) n = ReduceProd<keepdims = 0>(s) f = Cast<to = 1>(n) q = Sqrt(f) y = Mul(x, q)",
    ),
    "sizes as halves": (
        "(float16[N, M] x) => (float16[N, M] y)",
        "s = Shape(x) n = ReduceProd<keepdims = 0>(s) f = Cast<to = 10>(n) q = Sqrt(f) y = Mul(x, q)",
    ),
    "sizes and an input": (
        "(float[N, M] x, int64[1] k) => (float[N, K] y)",
        "s = Shape<end = 1>(x) u = Concat<axis = 0>(s, k) y = Reshape(x, u)",
    ),
    "sizes and a computed value": (
        "(float[N, M] x, int64[1] k) => (float[N, K] y)",
        "s = Shape<end = 1>(x) j = Mul(k, two) u = Concat<axis = 0>(s, j) y = Reshape(x, u)",
    ),
    "sizes and an omitted input": (
        "(float[N, M] x) => (int64[A] y)",
        "s = Shape(x) y = Slice(s, zero, two, , one)",
    ),
    "a large constant": (
        "(float[N, M] x) => (float[1, 32, 4] y)",
        "s = Shape<end = 1>(x) f = Cast<to = 1>(s) y = Mul(f, w)",
    ),
    "indices": (
        "(float[N, M] x) => (int64[2, K] y, float[N, M] z)",
        "a = Relu(x) y = NonZero(a) s = Shape(y) t = Gather(s, one) u = Concat<axis = 0>(one, t)"
        " z = Expand(x, u)",
    ),
    "a half without a kernel": (_HALF, "a = Relu(x) d = Det(a) y = Mul(a, d)"),
    "a conditional": (
        "(float[N] x, bool c) => (float[N] y)",
        "a = Relu(x) y = If(c)<then_branch = t () => (float[N] p) { p = Neg(a) }, else_branch = e () =>"
        " (float[N] q) { m = Cast<to = 8>(a) k = Cast<to = 1>(m) q = Add(k, a) }>",
    ),
    "a constant captured on both sides": (
        "(float[4, 4] x, bool c) => (float[4, 4] y)",
        "y = If(c)<then_branch = t () => (float[4, 4] p) { d = Det(square) f = Add(x, square) p = Mul(f, d) },"
        " else_branch = e () => (float[4, 4] q) { q = Neg(x) }>",
    ),
    "a computed condition": (
        "(float[N] x) => (float[N] y)",
        "s = ReduceSum<keepdims = 0>(x) c = Greater(s, half) y = If(c)<then_branch = t () => (float[N] p)"
        " { p = Neg(x) }, else_branch = e () => (float[N] q) { q = Relu(x) }>",
    ),
    "a loop": (
        "(float[N] x, int64 n) => (float[N] y, float[K, N] z)",
        "y, z = Loop(n, , x)<body = b (int64 i, bool c, float[N] a) => (bool d, float[N] e, float[N] f)"
        " { d = Identity(c) j = Cast<to = 1>(i) e = Mul(a, j) f = Add(e, x) }>",
    ),
    "an LSTM": (_SERIES, "y = LSTM<hidden_size = 8>(x, w, r)"),
    "an LSTM with clipping": (
        _SERIES,
        "a = Relu(x) z = LSTM<hidden_size = 8, clip = 1.0>(a, w, r) y = Relu(z)",
    ),
    "an LSTM with another activation": (
        _SERIES,
        'y = LSTM<hidden_size = 8, activations = ["Sigmoid", "Relu", "Tanh"]>(x, w, r)',
    ),
    "an LSTM with coupled gates": (_SERIES, "y = LSTM<hidden_size = 8, input_forget = 1>(x, w, r)"),
    "a GRU": (_SERIES, "y = GRU<hidden_size = 8>(x, wg, rg)"),
    "a GRU of cuDNN": (_SERIES, "y = GRU<hidden_size = 8, linear_before_reset = 1>(x, wg, rg)"),
    "the last of equal elements": (
        "(float[N, 4] x) => (int64[N, 1] y)",
        "a = Relu(x) b = ArgMax<axis = 1, select_last_index = 1>(a) y = Neg(b)",
    ),
    "padding of a transposed convolution": (
        _IMAGE,
        "a = Relu(x) b = ConvTranspose<pads = [1, 0, 0, 1]>(a, filters) y = Relu(b)",
    ),
    "equal padding of a transposed convolution": (
        _IMAGE,
        "y = ConvTranspose<pads = [1, 1, 1, 1]>(x, filters)",
    ),
    "a transposed convolution of the same size": (
        _IMAGE,
        'a = Relu(x) y = ConvTranspose<auto_pad = "SAME_UPPER">(a, filters)',
    ),
    "padding of a convolution": (_IMAGE, "a = Relu(x) y = Conv<pads = [1, 0, 0, 1]>(a, filters)"),
    "a sequence": (
        "(float[N, 4] x, int64 i) => (float[M, 4] y)",
        "s = SplitToSequence<axis = 0>(x, one) a = SequenceAt(s, i) y = Relu(a)",
    ),
    "quantized operators": (
        "(uint8[N, 4] x) => (uint8[N, 4] y)",
        "a = DequantizeLinear(x, scale, point) b = Relu(a) c = QuantizeLinear(b, scale, point)"
        " y = com.microsoft.QLinearAdd(c, scale, point, x, scale, point, scale, point)",
    ),
    "a dequantized value with several readers": (
        "(uint8[N, 4] x, bool c) => (float[N, 4] y, float[N, 4] z, float[N, 4] v)",
        "a = DequantizeLinear(x, scale, point) y = Mul(a, a) z = DequantizeLinear(x, scale, point) q = Relu(z)"
        " d = DequantizeLinear(x, scale, point) k = If(c)<then_branch = t () => (float[N, 4] p) { p = Neg(d) },"
        " else_branch = e () => (float[N, 4] o) { o = Relu(d) }> m = Add(k, d) v = Add(m, q)",
    ),
    "an operator of another domain": (
        _MATRIX,
        "a = ai.onnx.ml.Scaler<offset = [0.0], scale = [2.0]>(x) y = Relu(a)",
    ),
    "a function of the model": (_SQUARE, "y = own.scaled(x)"),
    "a function of the standard with a kernel": (_MATRIX, "y = HardSwish(x)"),
    "functions of the standard": (
        "(float[N, 4] x) => (float16[N, 4] y)",
        "a = Relu(x) b = CastLike(a, tiny) y = Relu(b)",
    ),
}
NAMES = tuple(_MODELS)


def placed_model(name: str) -> ir.Model:
    """The model of this name."""
    ports, nodes = _MODELS[name]
    function = _FUNCTION if "own." in nodes else ""
    return parse(f"{_HEADER}\ng {ports} {_CONSTANTS} {{ {nodes} }}\n{function}")
