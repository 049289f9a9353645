"""Constraints on sizes of dynamic dims from weights, other dims, indices, and onnxruntime's error messages."""

from __future__ import annotations

import pytest

from graphopt.errors import RuntimeFailure
from graphopt.inputs.binding_search import BindingSearch, find_valid_bindings
from graphopt.inputs.constraint_system import ConstraintSystem
from graphopt.inputs.constraints_from_errors import constraints_from_error
from graphopt.inputs.feeds import InputOptions, Inputs
from graphopt.inputs.size_constraint import SizeConstraint, equal, least
from graphopt.inputs.size_solver import solve
from graphopt.ort import session
from tests.ort.build import data, parse

HEADER = {"opset": 20, "domains": ', "com.microsoft" : 1, "ai.onnx.ml" : 3'}


def constraints(text: str, **known: int) -> ConstraintSystem:
    model = parse(text, **HEADER)
    return ConstraintSystem(model, Inputs(model).dimensions, known, {})


def search(text: str, options: InputOptions | None = None, **more: float) -> BindingSearch:
    made = session.create(data(text, **HEADER), optimizations="off", threads=1)

    def attempt(feeds):
        try:
            session.run(made, feeds)
        except RuntimeFailure as failure:
            return str(failure)
        return None

    return find_valid_bindings(Inputs(parse(text, **HEADER), options), attempt, **more)


def zeros(name: str, *shape: int, type_: str = "float") -> str:
    """An initializer, for insertion between < and >."""
    size = 1
    for dim in shape:
        size *= dim
    dims = ", ".join(map(str, shape))
    return f"{type_}[{dims}] {name} = {{{', '.join(['0'] * size)}}}"


#: Graphs, and the adjusted sizes for sizes that would not run.
DETERMINED = {
    "MatMul": (f"g (float[b, f] x) => (y) <{zeros('w', 21, 2)}> {{ y = MatMul(x, w) }}", {"f": 21}),
    "Gemm": (f"g (float[b, f] x) => (y) <{zeros('w', 2, 21)}> {{ y = Gemm <transB = 1> (x, w) }}", {"f": 21}),
    "Conv": (
        f"g (float[b, c, h] x) => (y) <{zeros('w', 4, 3, 5)}> {{ y = Conv <group = 2> (x, w) }}",
        {"c": 6, "h": 5},
    ),
    "ConvTranspose": (
        f"g (float[b, c, h] x) => (y) <{zeros('w', 6, 3, 2)}> {{ y = ConvTranspose(x, w) }}",
        {"c": 6},
    ),
    "LSTM": (
        f"g (float[t, b, f] x, float[d, n, k] h) => (y) <{zeros('w', 1, 8, 21)}, {zeros('r', 1, 8, 2)}> "
        "{ y = LSTM <hidden_size = 2> (x, w, r, , , h) }",
        {"f": 21, "d": 1, "k": 2, "n": "b"},
    ),
    "GRU, batch first": (
        f"g (float[b, t, f] x, int32[n] s) => (y) <{zeros('w', 1, 6, 21)}, {zeros('r', 1, 6, 2)}> "
        "{ y = GRU <hidden_size = 2> (x, w, r, , s) }",
        {"f": 21, "n": "t"},
    ),
    "BatchNormalization": (
        f"g (float[b, c, h] x) => (y) <{zeros('s', 21)}> {{ y = BatchNormalization(x, s, s, s, s) }}",
        {"c": 21},
    ),
    "LayerNormalization": (
        f"g (float[b, f] x) => (y) <{zeros('s', 21)}> {{ y = LayerNormalization(x, s) }}",
        {"f": 21},
    ),
    "PRelu": (f"g (float[b, c, h] x) => (y) <{zeros('s', 21, 1)}> {{ y = PRelu(x, s) }}", {"c": 21}),
    "Add": (f"g (float[b, f] x) => (y) <{zeros('s', 21)}> {{ y = Add(x, s) }}", {"f": 21}),
    "Concat": ("g (float[a, f] x, float[b, k] z) => (y) { y = Concat <axis = 0> (x, z) }", {"k": "f"}),
    "Attention": (
        f"g (float[b, s, f] x) => (y) <{zeros('w', 21, 6)}, {zeros('o', 6)}> "
        "{ y = com.microsoft.Attention <num_heads = 1> (x, w, o) }",
        {"f": 21},
    ),
    "MultiHeadAttention": (
        "g (float[b, s, f] q, float[c, t, f] k, float[d, u, e] v) => (y) "
        "{ y = com.microsoft.MultiHeadAttention <num_heads = 1> (q, k, v) }",
        {"c": "b", "d": "b", "u": "t"},
    ),
    "DequantizeLinear": (
        f"g (uint8[b, c] x) => (y) <{zeros('s', 21)}> {{ y = DequantizeLinear <axis = 1> (x, s) }}",
        {"c": 21},
    ),
    "ScatterND": (
        "g (float[a, f] x, float[n, k] u) => (y) <int64[2, 1] i = {0, 3}> { y = ScatterND(x, i, u) }",
        {"n": 2, "k": "f", "a": 4},
    ),
    "Split": (
        "g (float[b, f] x) => (y, z) <int64[2] s = {20, 1}> { y, z = Split <axis = 1> (x, s) }",
        {"f": 21},
    ),
    "Reshape": (
        f"g (float[b, f] x) => (y) <int64[3] s = {{0, 7, 3}}, {zeros('w', 3, 2)}> "
        "{ z = Reshape(x, s) y = MatMul(z, w) }",
        {"f": 21},
    ),
    "Einsum": (
        f'g (float[b, f] x) => (y) <{zeros("w", 21, 2)}> {{ y = Einsum <equation = "bf,fo->bo"> (x, w) }}',
        {"f": 21},
    ),
    "LinearRegressor": (
        "g (float[b, f] x) => (y) { y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0, 3.0]> (x) }",
        {"f": 3},
    ),
    "through layers": (
        f"g (float[b, c, h] x) => (y) <{zeros('w', 4, 1, 3)}, {zeros('v', 40, 2)}> "
        "{ z = Conv(x, w) p = MaxPool <kernel_shape = [2], strides = [2]> (z) q = Flatten(p) y = MatMul(q, v) }",
        {"c": 1, "h": 22},
    ),
    "a function": (
        f"""g (float[b, f] x) => (y) <{zeros("w", 21, 2)}> {{ y = local.layer(x, w) }}
        <domain: "local", opset_import: ["" : 20]> layer (a, c) => (d) {{ d = MatMul(a, c) }}""",
        {"f": 21},
    ),
}


@pytest.mark.parametrize("name", DETERMINED)
def test_sizes_follow_from_weights_and_from_one_another(name: str) -> None:
    text, expected = DETERMINED[name]
    if "local" in text:
        text = '<ir_version: 8, opset_import: ["" : 20, "local" : 1]> ' + text
    model = parse(text, **HEADER)
    dimensions = Inputs(model).dimensions
    wish = {symbol: 2 + place for place, symbol in enumerate(dimensions.symbols)}
    found = ConstraintSystem(model, dimensions, {}, {}).adjust(wish)
    free = {symbol: size for symbol, size in wish.items() if symbol not in expected}
    assert found == free | {key: found.get(size, size) for key, size in expected.items()}


@pytest.mark.parametrize("name", DETERMINED)
def test_onnxruntime_agrees(name: str) -> None:
    text, _ = DETERMINED[name]
    if "local" in text:
        text = '<ir_version: 8, opset_import: ["" : 20, "local" : 1]> ' + text
    found = search(text)
    assert len(found.valid) >= 2 and found.tries < 15


#: A mask, read at positions that the graph computes, as torch's exporter writes it, with a cache.
DECODER = f"""g (int64[b, s] ids, bool[m, t] mask, float[b, p, 4] k, float[b, q, 4] v) => (y, kk, vv)
<{zeros("table", 9, 4)}, int64 zero = {{0}}, int64 one = {{1}}, int64[1] at = {{-1}}, int64[2] last = {{1, 2}}> {{
    x = Gather(table, ids)
    kk = Concat <axis = 1> (k, x)
    vv = Concat <axis = 1> (v, x)
    batch1 = Shape <start = 0, end = 1> (ids)
    total1 = Shape <start = 1, end = 2> (kk)
    batch = Squeeze(batch1)
    total = Squeeze(total1)
    rows0 = Range(zero, batch, one)
    columns0 = Range(zero, total, one)
    rows1 = Unsqueeze(rows0, at)
    shape = Concat <axis = 0> (batch1, total1)
    rows2 = Expand(rows1, shape)
    columns2 = Expand(columns0, shape)
    rows = Unsqueeze(rows2, at)
    columns = Unsqueeze(columns2, at)
    places = Concat <axis = -1> (rows, columns)
    seen = GatherND(mask, places)
    kt = Transpose <perm = [0, 2, 1]> (kk)
    scores = MatMul(x, kt)
    low = CastLike(one, scores)
    ones = Unsqueeze(seen, one)
    masked = Where(ones, scores, low)
    y = MatMul(masked, vv)
}}"""


def test_a_mask_is_as_long_as_the_positions_that_are_read() -> None:
    found = constraints(DECODER).adjust({"b": 2, "s": 3, "m": 1, "t": 5, "p": 7, "q": 11})
    assert found == {"b": 2, "s": 3, "m": 2, "t": 10, "p": 7, "q": 7}
    valid = search(DECODER).valid
    assert len(valid) == 3 and all(one.binding["q"] == one.binding["p"] for one in valid)


def test_fixed_sizes_stay() -> None:
    found = constraints(DECODER, s=5, q=3).adjust({"b": 2, "s": 5, "m": 1, "t": 5, "p": 7, "q": 3})
    assert found == {"b": 2, "s": 5, "m": 2, "t": 8, "p": 3, "q": 3}
    options = InputOptions(shapes={"v": (2, 3, 4)}, ranges={"s": (4, 6)})
    for valid in search(DECODER, options).valid:
        assert (valid.binding["q"], valid.binding["p"]) == (3, 3) and 4 <= valid.binding["s"] <= 6


def test_sizes_of_zero_stay() -> None:
    """So a decoder is tried without any past."""
    found = constraints(DECODER).adjust({"b": 2, "s": 3, "m": 2, "t": 10, "p": 0, "q": 7})
    assert found == {"b": 2, "s": 3, "m": 2, "t": 10, "p": 0, "q": 0}


def test_contradictory_constraints_are_skipped() -> None:
    text = f"g (float[b, f] x) => (y, z) <{zeros('v', 3, 2)}, {zeros('w', 4, 2)}> {{ y = MatMul(x, v) z = MatMul(x, w) }}"
    assert constraints(text).adjust({"b": 2, "f": 7}) == {"b": 2, "f": 3}
    found = search(text)
    assert not found.valid and "dimension mismatch" in (found.refusal or "")


# Solver ---------------------------------------------------------------------------------------


def dims(*names: str):
    from graphopt.analysis.symbolic import symbol

    return [symbol(name) for name in names]


def test_sizes_are_changed_as_little_as_possible() -> None:
    a, b = dims("a", "b")
    rules = [least(a, b + 2), equal(a * b, 30)]
    assert solve({"a": 10, "b": 4}, rules, {}) == {"a": 10, "b": 3}
    assert solve({"a": 9, "b": 4}, rules, {}) == {"a": 10, "b": 3}, "two at once"
    assert solve({"a": 10, "b": 3}, rules, {}) == {"a": 10, "b": 3}
    assert solve({"a": 2, "b": 4}, rules[:1], {}, late=["a"]) == {"a": 6, "b": 4}
    assert solve({"a": 2, "b": 1}, rules[:1], {"a": (1, 2)}) == {"a": 2, "b": 1}, "nothing helps"
    assert solve({"a": 4}, [SizeConstraint("broadcast", a, 3)], {}) == {"a": 3}
    assert solve({"a": 1}, [SizeConstraint("broadcast", a, 3)], {}) == {"a": 1}


def test_sizes_that_follow_from_others_stay_within_their_ranges() -> None:
    model = parse("g (float[f] x, float[k] z) => (y) { y = com.microsoft.Unheard(x, z) }", **HEADER)
    known = ConstraintSystem(model, Inputs(model).dimensions, {}, {"f": (20, 30)})
    f, k = known.symbols()
    assert known.add(equal(f, 2 * k))
    assert known.adjust({"f": 21, "k": 3}) == {"f": 20, "k": 10}
    assert known.adjust({"f": 21, "k": 40}) == {"f": 30, "k": 15}


def test_constraints_are_dropped_if_no_sizes_satisfy_them() -> None:
    text = f"g (float[b, f] x) => (y) <{zeros('w', 21, 2)}> {{ y = MatMul(x, w) }}"
    tried: list[int] = []

    def attempt(feeds):
        tried.append(feeds["x"].shape[1])
        others = sum(size != 21 for size in tried)
        return "not at first, and not as the graph demands" if tried[-1] == 21 or others < 3 else None

    found = find_valid_bindings(Inputs(parse(text, **HEADER)), attempt)
    assert 21 in tried and found.valid and found.valid[0].binding["f"] != 21


# Error messages ------------------------------------------------------------------------


UNKNOWN = "g (float[a, f] x, float[b, k] z) => (y) { y = com.microsoft.Unheard(x, z) }"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Op 'n': Attempting to broadcast an axis by a dimension other than 1. 3 by 7", ("f", "k")),
        ("Op 'n': PrepareForComputeImpl Non concat axis dimensions must match: Axis 1 has mismatched "
         "dimensions of 7 and 3", ("k", "f")),
        ("Op 'n': Input W must have shape {1,8,9}. Actual:{1,8,3}", ("f", 9)),
        ("Op 'n': Input channels C is not equal to kernel channels * group. C: 3 kernel channels: 9 group: 1",
         ("f", 9)),
        ("Op 'n': Mismatch between input data and scale: size of scale != input channel count 9 vs. 7", ("k", 9)),
        ("Op 'n': skip is expected to have same shape as input", ("a", "b")),
    ],
)  # fmt: skip
def test_error_messages_with_sizes_give_equalities(message: str, expected: tuple[str, str | int]) -> None:
    model = parse(UNKNOWN, **HEADER)
    next(iter(model.graph)).name = "n"
    known = ConstraintSystem(model, Inputs(model).dimensions, {}, {})
    binding = {"a": 2, "f": 3, "b": 5, "k": 7}
    found = constraints_from_error(message, known, binding)
    assert (str(found[0].left), str(found[0].right)) == (expected[0], str(expected[1]))
    assert found[0].kind == "equal" and known.add(found[0])
    settled = known.adjust(binding)
    assert settled[expected[0]] == (settled[expected[1]] if isinstance(expected[1], str) else expected[1])


@pytest.mark.parametrize(
    ("message", "least_size"),
    [
        ("GatherND 'n': invalid index found, index = 9", 10),
        (
            "Gather 'n': indices element out of data bounds, idx=-8 must be within the inclusive range [-3,2]",
            8,
        ),
        ("GatherElements 'n': GatherElements op: Out of range value in index tensor", 6),
    ],
)
def test_error_messages_about_indices_give_lower_bounds(message: str, least_size: int) -> None:
    model = parse(UNKNOWN, **HEADER)
    next(iter(model.graph)).name = "n"
    known = ConstraintSystem(model, Inputs(model).dimensions, {}, {})
    for rule in constraints_from_error(message, known, {"a": 2, "f": 3, "b": 5, "k": 7}):
        assert known.add(rule)
    assert known.adjust({"a": 20, "f": 3, "b": 5, "k": 7}) == {"a": 20, "f": least_size, "b": 5, "k": 7}


def test_an_error_message_with_a_range_concerns_only_axes_of_that_length() -> None:
    model = parse(UNKNOWN, **HEADER)
    next(iter(model.graph)).name = "n"
    known = ConstraintSystem(model, Inputs(model).dimensions, {}, {})
    message = (
        "Gather 'n': indices element out of data bounds, idx=9 must be within the inclusive range [-3,2]"
    )
    found = constraints_from_error(message, known, {"a": 2, "f": 3, "b": 5, "k": 7})
    assert [(str(rule.left), rule.right) for rule in found] == [("f", 10)]


def test_unknown_constraints_are_derived_from_error_messages() -> None:
    """The offset of the index is a float, so that no fact contains its value."""
    found = search(
        "g (float[n, 2] x, float[m, 2] z) => (y) <float two = {2.0}> {"
        " f = Mul(two, two) i = Cast <to = 7> (f) p = Gather(x, i) q = Gather(z, i) y = Add(p, q) }"
    )
    assert found.valid and found.valid[0].binding["n"] >= 5 and found.tries < 12


def test_a_search_without_result_is_short() -> None:
    """No feeds are tried twice, and no time is spent once it is up."""
    text = f"g (float[a, b] x, float[c, d] z) => (y) <{zeros('v', 3)}, {zeros('w', 4)}> {{ p = Add(x, v) y = Add(p, w) }}"
    tried = []

    def attempt(feeds):
        tried.append(tuple(value.shape for value in feeds.values()))
        return "onnxruntime failed: it never runs"

    found = find_valid_bindings(Inputs(parse(text, **HEADER)), attempt)
    assert not found.valid and found.tries == len(tried) == len(dict.fromkeys(tried)) < 150
    seconds = iter(range(1000))
    found = find_valid_bindings(
        Inputs(parse(text, **HEADER)), attempt, seconds=9, clock=lambda: float(next(seconds))
    )
    assert found.tries <= 9
