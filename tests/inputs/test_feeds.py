"""Inputs: given inputs are read and checked, and generated inputs are valid for the model."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt import ir
from graphopt.errors import ConvertedInput, ResourceLimit, RuntimeFailure, UnsupportedModel, UsageError
from graphopt.inputs.binding_search import find_valid_bindings
from graphopt.inputs.dim_bindings import Dimensions, describe
from graphopt.inputs.feeds import InputOptions, Inputs, parse_file, parse_shape
from graphopt.inputs.operator_value_constraints import ValueRange
from graphopt.inputs.value_constraint_inference import value_ranges
from graphopt.inputs.value_generator import Sampler
from graphopt.ir.signature import Port
from graphopt.ort import session
from tests.ort.build import data, parse

# The user's inputs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "shape"),
    [
        ("x:1,3,224,224", "x", (1, 3, 224, 224)),
        ("x:[1,3]", "x", (1, 3)),
        ("x: [1, 3]", "x", (1, 3)),
        ("x:1x3x224", "x", (1, 3, 224)),
        ("serving_default:0:7", "serving_default:0", (7,)),
        ("a:b:[0]", "a:b", (0,)),
        ("n:", "n", ()),
        ("n:[]", "n", ()),
    ],
)
def test_shapes(text, name, shape):
    assert parse_shape(text) == (name, shape)


@pytest.mark.parametrize("text", ["", "x", ":1,2", "x:1,-2", "x:N", "x:1.5", "x:[1,2"])
def test_bad_shapes(text):
    with pytest.raises(UsageError, match="can't read the input shape"):
        parse_shape(text)


@given(st.text(min_size=1).filter(lambda name: name.strip()), st.lists(st.integers(0, 10**6), max_size=6))
def test_any_name_may_have_a_shape(name, dims):
    assert parse_shape(f"{name}:{','.join(map(str, dims))}") == (name, tuple(dims))


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("x:a.npy", "x", "a.npy"),
        ("serving_default:0:dir/a.npy", "serving_default:0", "dir/a.npy"),
        (r"x:C:\data\a.npy", "x", r"C:\data\a.npy"),
        ("all.npz", None, "all.npz"),
        (r"C:\all.npz", None, r"C:\all.npz"),
    ],
)
def test_files(text, name, path):
    assert parse_file(text) == (name, Path(path))


@pytest.mark.parametrize("text", ["", "a.npy", "x:a.txt", "x:"])
def test_bad_files(text):
    with pytest.raises(UsageError, match="can't read the input"):
        parse_file(text)


MODEL = "g (float[N, 3] pixel_values, int64[N] ids) => (float[N, 3] y) { y = Identity(pixel_values) }"


def test_files_are_fed(tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    inputs = Inputs(parse(MODEL), InputOptions.parse(files=[f"pixel_values:{tmp_path}/x.npy"]))
    (binding,) = {tuple(binding.items()) for binding in inputs.bindings(inputs.dimensions.first_tries())}
    assert binding == (("N", 2),)
    feeds = inputs.feeds(dict(binding))
    np.testing.assert_array_equal(feeds["pixel_values"], x)
    assert feeds["ids"].shape == (2,)


def test_archives_are_fed(tmp_path):
    arrays = {"pixel_values": np.ones((4, 3)), "ids": np.arange(4, dtype=np.int32)}
    np.savez(tmp_path / "all.npz", **arrays)
    with pytest.warns(ConvertedInput) as caught:
        feeds = Inputs(parse(MODEL), InputOptions.parse(files=[f"{tmp_path}/all.npz"])).feeds({"N": 4})
    assert [str(item.message) for item in caught] == [
        "input 'pixel_values' is converted from float64 to float32",
        "input 'ids' is converted from int32 to int64",
    ]
    assert feeds["pixel_values"].dtype == np.float32
    assert feeds["ids"].dtype == np.int64
    assert feeds["ids"].tolist() == [0, 1, 2, 3]


def test_bits_of_low_precision_floats_are_fed(tmp_path):
    x = np.array([1, -2], ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", x)
    model = parse("g (bfloat16[N] x) => (bfloat16[N] y) { y = Identity(x) }")
    feeds = Inputs(model, InputOptions.parse(files=[f"x:{tmp_path}/x.npy"])).feeds({})
    assert feeds["x"].dtype == ml_dtypes.bfloat16
    assert feeds["x"].tobytes() == x.tobytes()


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.ones((2, 4), np.float32), r"shape \[N, 3\], not \[2, 4\]"),
        (np.ones(3, np.float32), r"shape \[N, 3\], not \[3\]"),
        (np.full((2, 3), "a"), "expects float32, the array contains <U1"),
        (np.ones((2, 3), np.complex64), "expects float32"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, array, told):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UsageError, match=told):
        Inputs(parse(MODEL), InputOptions.parse(files=[f"pixel_values:{tmp_path}/x.npy"]))


def test_rounding_is_reported(tmp_path):
    np.save(tmp_path / "x.npy", np.full((1, 3), 0.1))
    with pytest.warns(ConvertedInput, match="from float64 to float32, which rounds some of its numbers"):
        Inputs(parse(MODEL), InputOptions.parse(files=[f"pixel_values:{tmp_path}/x.npy"]))


def test_numbers_must_not_become_infinite(tmp_path):
    np.save(tmp_path / "x.npy", np.full((1, 3), 1e300))
    with pytest.raises(UsageError, match="expects float32, the array contains float64"):
        Inputs(parse(MODEL), InputOptions.parse(files=[f"pixel_values:{tmp_path}/x.npy"]))


def test_lists_are_no_arrays():
    with pytest.raises(UsageError, match="input 'ids' expects an array, not list"):
        Inputs(parse(MODEL), InputOptions(arrays={"ids": [1, 2]}))


def test_integers_must_not_change(tmp_path):
    np.save(tmp_path / "i.npy", np.array([0.5]))
    with pytest.raises(UsageError, match="expects int64, the array contains float64"):
        Inputs(parse(MODEL), InputOptions.parse(files=[f"ids:{tmp_path}/i.npy"]))


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        Inputs(parse(MODEL), InputOptions.parse(files=[f"ids:{tmp_path}/no.npy"]))
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(UsageError, match="is no numpy file"):
        Inputs(parse(MODEL), InputOptions.parse(files=[f"ids:{tmp_path}/text.npy"]))


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UsageError, match="no input is called 'pixel_value'; nearest: pixel_values"):
        Inputs(parse(MODEL), InputOptions.parse(["pixel_value:2,3"]))
    with pytest.raises(UsageError, match=r"no input is called 'zzz'; inputs: pixel_values, ids"):
        Inputs(parse(MODEL), InputOptions.parse(["zzz:2,3"]))


def test_shapes_fix_symbols_everywhere():
    inputs = Inputs(parse(MODEL), InputOptions.parse(["pixel_values:5,3"]))
    bindings = [*inputs.bindings(inputs.dimensions.first_tries())]
    assert bindings and all(binding == {"N": 5} for binding in bindings)
    assert inputs.feeds(bindings[0])["ids"].shape == (5,)


def test_shapes_that_do_not_fit():
    with pytest.raises(UsageError, match=r"shape \[N, 3\], not \[2, 5\]"):
        Inputs(parse(MODEL), InputOptions.parse(["pixel_values:2,5"]))


def test_giant_inputs_are_refused():
    inputs = Inputs(parse(MODEL), InputOptions.parse(["pixel_values:1000000000,3"]))
    with pytest.raises(ResourceLimit, match="the inputs would take"):
        inputs.feeds({"N": 10**9})


def test_the_seed_determines_the_inputs():
    model = parse(MODEL)
    first = Inputs(model, InputOptions(seed=3)).feeds({"N": 4})
    again = Inputs(model, InputOptions(seed=3)).feeds({"N": 4})
    other = Inputs(model, InputOptions(seed=4)).feeds({"N": 4})
    assert first["pixel_values"].tobytes() == again["pixel_values"].tobytes()
    assert first["pixel_values"].tobytes() != other["pixel_values"].tobytes()


def test_sparse_inputs_can_not_be_generated():
    with pytest.raises(UnsupportedModel, match="can't be fed"):
        Inputs(parse("g (sparse_tensor(float[3]) x) => (float[3] y) { y = Foo(x) }"))


# Value ranges -----------------------------------------------------------------------------

TABLE = f"<float[10, 2] table = {{{', '.join(['0'] * 20)}}}>"


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        (f"g (int64[N] i) => (float[N, 2] y) {TABLE} {{ y = Gather(table, i) }}", 0, 9),
        (f"g (int64[N] i) => (float[N] y) {TABLE} {{ y = Gather <axis = 1> (table, i) }}", 0, 1),
        (
            f"g (int64[N] i) => (y) {TABLE} {{ a = Cast <to = 6> (i) b = Squeeze(a) y = Gather(table, b) }}",
            0,
            9,
        ),
        (f"g (int64[N] i) => (y) {TABLE} {{ a = Add(i, two) y = Gather(table, a) }}", -2, 7),
        (f"g (int64[N] i) => (y) {TABLE} {{ a = Sub(i, two) y = Gather(table, a) }}", 2, 11),
        (f"g (int64[N] i) => (y) {TABLE} {{ a = Sub(two, i) y = Gather(table, a) }}", -7, 2),
        (f"g (int64[N] i) => (y) {TABLE} {{ a = Mul(i, two) y = Gather(table, a) }}", 0, 4),
        (f"g (float[N] i) => (y) {TABLE} {{ a = Cast <to = 7> (i) y = Gather(table, a) }}", 0, 9),
        ("g (int64[N] i, float[5, K] x) => (y) { y = GatherElements(x, i) }", 0, 4),
        ("g (int64[N] i) => (y) { y = ConstantOfShape(i) }", 1, 3),
        ("g (int64 i, float[N] x) => (y) { y = Div(two, i) }", 1, 9),
        ("g (int64[N] attention_mask) => (y) { y = Neg(attention_mask) }", 0, 1),
        ("g (int64[N] sequenceLengths) => (y) { y = Neg(sequenceLengths) }", 1, 2),
    ],
)
def test_value_ranges(text, low, high):
    constants = "int64 two = {2}, int64[1] k = {1}"
    text = text.replace("<float[10", f"<{constants}, float[10") if "<float[10" in text else text
    if "<int64 two" not in text:
        text = text.replace("=> (y) {", f"=> (y) <{constants}> {{")
    found = next(iter(value_ranges(parse(text)).values()))
    assert (found.low, found.high, found.known) == (low, high, True)


def test_a_table_behind_quantization_bounds_indices():
    model = parse(
        "g (int64[N] i) => (y) <uint8[7, 1] q = {1, 2, 3, 4, 5, 6, 7}, float s = {0.5}, uint8 z = {0}> "
        "{ table = DequantizeLinear(q, s, z) y = Gather(table, i) }"
    )
    assert value_ranges(model)["i"].high == 6


def test_uses_in_bodies_and_functions_constrain_inputs():
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (bool c, int64[N] i, int64[N] j) => (y, z) <float[4] table = {1, 2, 3, 4}> {
            y = If (c) <
                then_branch = a () => (float[N] t) { t = Gather(table, i) },
                else_branch = b () => (float[N] e) { e = Cast <to = 1> (i) }
            >
            z = local.look(j)
        }
        <domain: "local", opset_import: ["" : 17]>
        look (j) => (z) {
            table = Constant <value = float[6] {1, 2, 3, 4, 5, 6}> ()
            z = Gather(table, j)
        }"""
    )
    found = value_ranges(model)
    assert (found["i"].high, found["j"].high) == (3, 5)


def test_indices_into_dynamic_data_stay_below_its_size():
    model = parse("g (float[N] x, int64[K] i) => (float[K] y) { y = Gather(x, i) }")
    inputs = Inputs(model)
    for size in (1, 2, 9):
        assert inputs.feeds({"N": size, "K": 50})["i"].max() <= size - 1


def test_compared_values_are_tried():
    model = parse("g (int64 rate) => (bool y) <int64 k = {16000}> { y = Equal(rate, k) }")
    assert Inputs(model).feeds({})["rate"] == 16000


@pytest.mark.parametrize("distribution", ["normal", "negative", "large", "zero"])
def test_compared_values_of_empty_inputs(distribution):
    model = parse("g (float[4, 0, 0] x) => (y) <float k = {-40.0}> { y = Less(x, k) }")
    assert Inputs(model).feeds({}, distribution)["x"].shape == (4, 0, 0)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("g (int64[N] x) => (y) { s = Cast <to = 8> (x) d = Identity(s) y = Cast <to = 11> (d) }", np.int64),
        ("g (int64[N] x) => (y) { s = Cast <to = 8> (x) y = Cast <to = 11> (s) }", np.int64),
        ("g (string[N] x) => (y) { i = Cast <to = 7> (x) y = ConstantOfShape(i) }", object),
    ],
)
def test_constraints_do_not_pass_between_numbers_and_strings(text, dtype):
    model = parse(text)
    for node in model.graph:
        for output in node.outputs:
            if output.name in ("s", "d"):
                output.dtype = ir.DataType.STRING
    fed = Inputs(model).feeds({"N": 3})["x"]
    assert fed.dtype == dtype
    assert all(isinstance(item, str) for item in fed) or dtype is not object


def test_inputs_of_label_encoders_are_their_keys():
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (string[N] s) => (int64[N] y) {
            y = ai.onnx.ml.LabelEncoder <keys_strings = ["red", "blue"], values_int64s = [1, 2]> (s)
        }"""
    )
    assert set(Inputs(model).feeds({"N": 20})["s"]) == {"red", "blue"}


DISTRIBUTIONS = ["normal", "zero", "negative", "large", "special", "overridden", "tiny", "huge"]
FLOATS = ["float", "double", "float16", "bfloat16", "float8e4m3fn", "float8e5m2", "complex64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int4", "uint4"]


@pytest.mark.parametrize("element", [*FLOATS, *INTEGERS, "bool", "string"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2), (4, 0, 0)])
def test_every_type_can_be_generated(element, distribution, shape):
    made = Sampler(shape, ValueRange(), distribution, 0, np.random.default_rng(0)).sample(
        f"tensor({element})"
    )
    assert isinstance(made, np.ndarray)
    assert made.shape == shape
    known = {"float": "float32", "double": "float64", "string": "object"}
    assert made.dtype.name.replace("_", "") == known.get(element, element)


def test_distributions_match_their_names():
    def made(distribution, type_="tensor(float)", shape=(50,)):
        return Sampler(shape, ValueRange(), distribution, 0, np.random.default_rng(0)).sample(type_)

    assert not made("zero").any()
    assert (made("negative") <= 0).all()
    assert made("large").min() < -100 and made("large").max() > 100 and (made("large") % 1 == 0.5).any()
    special = made("special")
    assert np.isnan(special).any() and np.isposinf(special).any() and np.isneginf(special).any()
    assert (np.signbit(special) & (special == 0)).any()
    for size, finite in ((1, 0), (2, 1), (3, 2), (9, 6)):
        assert np.isfinite(made("special", shape=(size,))).sum() == finite
    assert {2.5, 0.5, -0.5, -1.5} & set(made("large", shape=(3,)).tolist())
    assert np.isfinite(made("large", "tensor(float16)")).all()
    for element, least in (
        ("float", 1.2e-38),
        ("double", 2.3e-308),
        ("float16", 6.2e-5),
        ("bfloat16", 1.2e-38),
    ):
        tiny, huge = (
            made(distribution, f"tensor({element})").astype(np.float64) for distribution in ("tiny", "huge")
        )
        assert ((tiny != 0) & (np.abs(tiny) < least)).any() and (np.abs(tiny) > 0.1).any()
        with np.errstate(over="ignore"):
            doubled = (2 * made("huge", f"tensor({element})")).astype(np.float64)
        assert np.isfinite(huge).all() and np.isinf(doubled).any()
    assert (made("negative", "tensor(int64)") < 0).all()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("restriction", range(4))
def test_value_ranges_are_respected(distribution, restriction):
    value_range = ValueRange(2, 5, known=True)
    made = Sampler((40,), value_range, distribution, restriction, np.random.default_rng(0)).sample(
        "tensor(int64)"
    )
    assert made.min() >= 2 and made.max() <= 5


def test_bounds_beyond_64_bits_are_clamped():
    value_range = ValueRange(low=2**62, high=2.0**64, known=True)
    made = Sampler((5,), value_range, "normal", 0, np.random.default_rng(0)).sample("tensor(int64)")
    assert made.dtype == np.int64 and (made > 0).all()


def test_negative_indices_count_from_the_end():
    value_range = ValueRange(0, 3, from_end=True, known=True)
    made = Sampler((40,), value_range, "negative", 0, np.random.default_rng(0)).sample("tensor(int64)")
    assert set(made.tolist()) == {-4, -3, -2, -1}


def test_sequences_optionals_and_maps():
    generator = np.random.default_rng(0)
    assert [
        a.shape for a in Sampler((2,), ValueRange(), "normal", 0, generator).sample("seq(tensor(float))")
    ] == [
        (2,),
        (2,),
    ]
    assert Sampler((2,), ValueRange(), "normal", 0, generator).sample("optional(tensor(float))").shape == (2,)
    assert set(Sampler((), ValueRange(), "normal", 0, generator).sample("map(string,tensor(float))")) == {
        "a",
        "b",
    }
    assert set(Sampler((), ValueRange(), "normal", 0, generator).sample("map(int64,tensor(float))")) == {0, 1}
    with pytest.raises(UnsupportedModel):
        Sampler((2,), ValueRange(), "normal", 0, generator).sample("sparse_tensor(float)")


def test_overridden_initializers_have_other_values():
    model = parse("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    inputs = Inputs(model)
    assert set(inputs.feeds({})) == {"x"}
    overridden = inputs.feeds({}, "overridden")
    assert overridden["w"].dtype == np.float32
    assert overridden["w"].tolist() != [1, 2]


# Sizes of dims ------------------------------------------------------------------


def ports(*dims):
    return [Port(f"x{index}", "tensor(float)", shape) for index, shape in enumerate(dims)]


def test_anonymous_dims_are_named():
    dimensions = Dimensions.of(ports(("N", None, 3), (None, "?")))
    assert dimensions.symbols == ("N", "x0@1", "x1@0", "x1@1")
    assert dimensions.batch == {"N", "x1@0"}


def test_expressions_follow_from_symbols():
    dimensions = Dimensions.of(ports(("B", "past"), ("B", "past + 1"), ("2*past", "odd name!", "past_a - 1")))
    assert dimensions.symbols == ("B", "past", "odd name!", "past_a - 1")
    binding = {"B": 2, "past": 5, "odd name!": 7, "past_a - 1": 9}
    assert dimensions.shape("x1", binding) == (2, 6)
    assert dimensions.shape("x2", binding) == (10, 7, 9)


def test_tries_are_distinct_and_positive():
    dimensions = Dimensions.of(ports(("B", "S", "T"), ("B", "U")))
    first = [*dimensions.first_tries()]
    assert first[0] == {"B": 1, "S": 1, "T": 1, "U": 1}
    assert all(len({binding[symbol] for symbol in "BSTU"}) == 4 for binding in first[1:])
    for binding in (*first, *dimensions.more_tries(0), *dimensions.variations(first[1])):
        assert set(binding) == set("BSTU") and min(binding.values()) > 0
    assert [*dimensions.empty(first[0])] == [{**first[0], symbol: 0} for symbol in "BSTU"]
    assert describe(first[0]) == "B=1 S=1 T=1 U=1"
    assert describe({}) == "fixed shapes"


def search(text, options=None, **header):
    made = session.create(data(text, **header), optimizations="off", threads=1)

    def attempt(feeds):
        try:
            session.run(made, feeds)
        except RuntimeFailure as failure:
            return str(failure)
        return None

    return find_valid_bindings(Inputs(parse(text, **header), options), attempt)


def test_a_sum_of_dims_is_found():
    found = search(
        "g (float[B, past] p, float[B, seq] s, float[B, total] m) => (y) "
        "{ c = Concat <axis = 1> (p, s) y = Add(c, m) }"
    )
    assert len(found.valid) == 3
    binding = found.valid[1].binding
    assert binding["total"] in (binding["past"] + binding["seq"], 1) or binding["past"] + binding["seq"] == 1


def test_equal_dims_are_found():
    found = search("g (float[A, 3] x, float[B, 3] y) => (z) { z = Concat <axis = 1> (x, y) }")
    assert len({tuple(valid.binding.values()) for valid in found.valid}) == 3
    assert all(valid.binding["A"] == valid.binding["B"] for valid in found.valid)


def test_granular_dims_are_found():
    found = search(
        "g (float[N, C] x) => (y) <int64[3] s = {0, 16, -1}> { y = Reshape(x, s) }",
    )
    assert [valid.binding["C"] for valid in found.valid] == [16, 16, 16, 48]


def test_open_ranks_are_found():
    found = search("g (float[] x) => (y) { y = Transpose <perm = [2, 0, 1]> (x) }")
    assert len(found.valid) == 3
    assert all(len(valid.binding) == 3 for valid in found.valid)


def test_restricted_values_are_found():
    found = search(
        "g (int64[2] shape, float[1] x) => (y) <int64[1] one = {1}> "
        "{ clipped = Mul(shape, shape) z = Neg(clipped) w = Neg(z) y = Expand(x, w) }"
    )
    assert found.valid


def test_model_that_never_runs_is_reported_with_a_reason():
    found = search("g (float[A, 2] x) => (y) <int64[2] s = {7, 11}> { y = Reshape(x, s) }")
    assert not found.valid
    assert "cannot be reshaped" in found.refusal


@pytest.mark.parametrize("kind", ["cut short", "objects"])
def test_damaged_archives_are_errors(tmp_path, kind):
    path = tmp_path / "f.npz"
    np.savez(path, ids=np.array([{}], object) if kind == "objects" else np.zeros((100, 100), np.int64))
    if kind == "cut short":
        path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(UsageError, match=r"f\.npz is no numpy file of plain arrays"):
        Inputs(parse(MODEL), InputOptions.parse(files=[str(path)]))


@pytest.mark.parametrize("text", ["ids:2x128,lens:3", "ids:[2x128], lens:3", "ids:2,lens:3"])
def test_shapes_of_several_inputs_are_separate_options(text: str) -> None:
    model = parse("g (int64[N, L] ids, int64[N] lens) => (int64[N, L] y) { y = Identity(ids) }")
    with pytest.raises(UsageError) as error:
        Inputs(model, InputOptions.parse([text]))
    hint = error.value.hint or ""
    assert hint.startswith("repeat the option for each input: --input-shape ids:")
    assert hint.endswith(" --input-shape lens:…")
