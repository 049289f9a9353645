"""Small models of many kinds, to be broken."""

from __future__ import annotations

HEAD = '<ir_version: 9, opset_import: ["" : 17, "l" : 1, "com.microsoft" : 1]>'
DOMAIN = '<domain: "l", opset_import: ["" : 17, "l" : 1]>'


def text(
    body: str, weights: str = "", x: str = "float[N, 4] x", y: str = "float[A, B] y", more: str = ""
) -> str:
    """A model in ONNX text."""
    given = f"<{weights}>" if weights else ""
    return f"{HEAD} g ({x}) => ({y}) {given} {{ {body} }} {more}"


_LOOP_BODY = (
    "<body = b (int64 i, bool c, float[N, 4] v) => (bool d, float[N, 4] u) { d = Identity(c) u = Sin(v) }>"
)
SOURCES: dict[str, str] = {
    "layers": text(
        "a = MatMul(x, w) b = Add(a, v) c = Relu(b) d = MatMul(c, w) y = Softmax<axis = -1>(d)",
        "float[4, 4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float[4] v = {1,2,3,4}",
    ),
    "transposes": text(
        "a = Transpose<perm = [1, 0]>(x) b = Transpose<perm = [1, 0]>(a) c = Identity(b) y = Neg(c)"
    ),
    "shapes": text(
        "s = Shape(x) d = Gather(s, i) e = Concat<axis = 0>(d, m) r = Reshape(x, e)"
        " z = ConstantOfShape(d) t = ReduceSum<keepdims = 0>(r, m) q = Add(t, z) y = Unsqueeze(q, i)",
        "int64[1] i = {0}, int64[1] m = {-1}",
    ),
    "branches": text(
        "y = If(c)<then_branch = t () => (float[3] a) { a = Neg(x) }, else_branch = e () => (float[3] b)"
        " { k = Constant<value = float[3] {1.0, 2.0, 3.0}>() b = Add(x, k) }>",
        x="float[3] x, bool c",
        y="float[3] y",
    ),
    "loop": text(f"y = Loop(n, t, x){_LOOP_BODY}", "int64 n = {3}, bool t = {1}"),
    "scan": text(
        "s, y = Scan<num_scan_inputs = 1, body = b (float[4] a, float[4] e) => (float[4] o, float[4] p)"
        " { o = Add(a, e) p = Identity(o) }>(k, x)",
        "float[4] k = {0, 0, 0, 0}",
    ),
    "functions": text(
        "a = l.f <k = 2.0>(x) y = l.f <k = 3.0>(a)",
        more=f"{DOMAIN} f <k>(v) => (w) {{ c = Constant<value_float: float = @k>() w = Mul(v, c) }}",
    ),
    "convolution": text(
        "q = Pad(x, p) b = Conv<kernel_shape = [2, 2]>(q, w) c = Mul(b, k) d = Relu(c)"
        " y = MaxPool<kernel_shape = [2, 2]>(d)",
        "float[1, 1, 2, 2] w = {1, 2, 3, 4}, int64[8] p = {0,0,1,1,0,0,1,1}, float[1] k = {2}",
        x="float[1, 1, 4, 4] x",
        y="float[1, 1, A, B] y",
    ),
    "normalization": text(
        "y = BatchNormalization(x, a, a, a, a)", "float[4] a = {1, 2, 3, 4}", x="float[N, 4, 3] x", y="float[N, 4, 3] y"
    ),
    "gemm": text(
        "a = Gemm<transB = 1, alpha = 0.5>(x, w, v) b = Reshape(a, s) y = Flatten<axis = 1>(b)",
        "float[3, 4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3] v = {1, 2, 3}, int64[2] s = {-1, 3}",
    ),
    "slices": text(
        "a = Slice(x, p, q, r, r) b, c = Split<axis = 1>(a, e) d = Concat<axis = 1>(c, b) y = Neg(d)",
        "int64[1] p = {1}, int64[1] q = {9223372036854775807}, int64[1] r = {1}, int64[2] e = {1, 2}",
    ),
    "quantized": text(
        "a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) c = Relu(b)"
        " d = QuantizeLinear(c, s, z) y = DequantizeLinear(d, s, z)",
        "float s = {0.5}, uint8 z = {3}",
    ),
    "integers": text(
        "a = Cast<to = 7>(x) b = Div(a, k) c = Mod(b, k) d = Mul(c, k) e = Sub(d, k) y = Cast<to = 1>(e)",
        "int64[4] k = {1, 2, 3, -4}",
    ),
    "logic": text(
        "a = Less(x, k) b = Not(a) c = Not(b) d = And(c, a) y = Where(d, x, k)", "float[4] k = {1, 2, 3, 4}"
    ),
    "sequence": text(
        "s = SequenceConstruct(x, x, x) t = SequenceInsert(s, x, i) e = SequenceAt(t, i)"
        " f = ConcatFromSequence<axis = 0>(t) y = Concat<axis = 0>(e, f)",
        "int64 i = {1}",
    ),
    "folding": text(
        "a = Sqrt(k) b = Expand(a, s) c = ReduceSum(b, i) d = Tile(c, s) e = Range(p, q, p) f = Cast<to = 1>(e)"
        " h = Mul(d, f) y = Add(x, h)",
        "float[4] k = {1, 4, 9, 16}, int64[2] s = {2, 4}, int64[1] i = {1}, int64 p = {1}, int64 q = {5}",
    ),
    "gathers": text(
        "a = Gather<axis = 1>(x, i) b = GatherElements<axis = 1>(a, j) c = ScatterND(k, h, u) d = Add(b, c)"
        " v, w = TopK<axis = 1>(d, o) y = Neg(v)",
        "int64[2] i = {1, 3}, int64[1, 2] j = {0, 1}, float[1, 2] k = {1, 2}, int64[1, 2] h = {0, 1},"
        " float[1] u = {5}, int64[1] o = {1}",
    ),
    "recurrent": text(
        "o, h = GRU<hidden_size = 1>(x, w, r) y = Squeeze(h, z)",
        "float[1, 3, 2] w = {1,2,3,4,5,6}, float[1, 3, 1] r = {1, 2, 3}, int64[1] z = {0}",
        x="float[3, 1, 2] x",
    ),
    "strings": text(
        "a = Identity(n) b = Shape(a) c = Cast<to = 1>(b) y = Add(x, c)", 'string[1] n = {"name"}'
    ),
    "einsum": text(
        'a = Einsum<equation = "ij->ji">(x) b = Einsum<equation = "ij,jk->ik">(x, a) y = Clip(b, lo, hi)',
        "float lo = {0}, float hi = {6}",
    ),
    "contrib": text("a = com.microsoft.FastGelu(x) b = com.microsoft.FusedMatMul<transB = 1>(a, x) y = Erf(b)"),
}  # fmt: skip
