"""--dim and --dim-range: the guarantees of the user, their effects, and their use in verification."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.errors import UsageError
from graphopt.inputs.dim_guarantees import apply_dim_guarantees, fix_dims, relate_dims, resolve_ranges
from graphopt.inputs.feeds import InputOptions, Inputs
from graphopt.util.parse_values import parse_ranges, parse_relations, parse_sizes
from tests.cli.attention_models import MASKED_ATTENTION
from tests.cli.conftest import Invoke
from tests.model_testing import parse

_CHAIN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, seq, 8] x) => (float[batch, seq, 8] y, int64[1] longest)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {512}, int64 limit = {600}, int64[1] axis = {1}> {
    sizes = Shape (x)
    length = Gather <axis = 0> (sizes, one)
    scalar = Squeeze (length)
    short = Less (scalar, limit)
    a = If (short) <
        then_branch = short_one () => (float[p, q, r] b) { b = Relu (x) },
        else_branch = long_one () => (float[s, t, u] c) { c = Neg (x) }
    >
    y = Slice (a, zero, end, axis)
    longest = Max (length, one)
}"""


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.onnx"
    onnx.save(onnx.parser.parse_model(_CHAIN), path)
    return path


def _dims(value: onnx.ValueInfoProto) -> list[str | int]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_a_size_is_written_and_a_range_is_relied_on(invoke: Invoke, chain: Path) -> None:
    target = chain.parent / "out.onnx"
    arguments = ("optimize", chain, "-o", target, "--dim", "batch=4", "--dim-range", "seq=1:512")
    outcome = invoke(*arguments)
    assert outcome.status == 0
    model = onnx.load(target)
    assert _dims(model.graph.input[0]) == [4, "seq", 8]
    assert _dims(model.graph.output[0]) == [4, "seq", 8]
    # the If is decided, the Slice takes all, and no length is less than 1
    assert sorted(node.op_type for node in model.graph.node) == ["Relu", "Shape"]
    assert "  fixed as asked: batch = 4" in outcome.out.splitlines()
    assert "  relies on 1 ≤ seq ≤ 512: may be wrong for other sizes" in outcome.out.splitlines()
    assert json.loads(invoke(*arguments, "--json").out)["remarks"][0] == "fixed as asked: batch = 4"


_FOUR = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x) => (float[m] y) <float[4] four = {1.0, 2.0, 3.0, 4.0}> {
    a = Identity (x)
    y = Add (a, four)
}"""


@pytest.mark.parametrize("said", [("--dim", "n=5"), ("--dim-range", "n=5:7")])
def test_inputs_refused_by_the_original_are_refused(
    invoke: Invoke, tmp_path: Path, said: tuple[str, str]
) -> None:
    path = tmp_path / "four.onnx"
    onnx.save(onnx.parser.parse_model(_FOUR), path)
    outcome = invoke("optimize", path, "-o", "out.onnx", *said)
    assert outcome.status == 6 and "with the inputs given, the original does not run" in outcome.err
    assert "dropped" not in outcome.err and "--dim" in outcome.err and not Path("out.onnx").exists()
    assert invoke("optimize", path, "-o", "out.onnx", *said, "--no-verify").status == 0
    assert invoke("optimize", path, "-o", "out.onnx", "--dim-range", "n=1:7").status == 0
    assert invoke("optimize", path, "-o", "out.onnx", "--dim", "n=4").status == 0


def test_dims_without_options_are_not_restricted(invoke: Invoke, chain: Path) -> None:
    target = chain.parent / "out.onnx"
    assert invoke("optimize", chain, "-o", target).status == 0
    assert {"If", "Slice", "Max"} <= {node.op_type for node in onnx.load(target).graph.node}


def test_verify_respects_guaranteed_ranges(invoke: Invoke, chain: Path) -> None:
    target = chain.parent / "out.onnx"
    invoke("optimize", chain, "-o", target, "--dim", "batch=4", "--dim-range", "seq=1:512")
    vouched = ("--dim", "batch=4", "--dim-range", "seq=1:512")
    assert invoke("verify", chain, target, *vouched).status == 0
    assert "seq=512" in invoke("verify", chain, target, *vouched, "-v").out
    assert invoke("verify", chain, target).status == 1
    longer = invoke("verify", chain, target, "--dim", "batch=4", "--dim-range", "seq=520:640")
    assert longer.status == 1


def test_a_name_that_no_input_has(invoke: Invoke, chain: Path) -> None:
    outcome = invoke("optimize", chain, "-o", chain.parent / "out.onnx", "--dim", "btch=4")
    assert outcome.status == 2
    assert "no dynamic dim is called 'btch'; nearest: batch" in outcome.err
    for arguments in (("--dim", "batch"), ("--dim", "batch=0"), ("--dim-range", "seq=4"), ("--dim", "x@2=9")):
        assert invoke("optimize", chain, "-o", chain.parent / "out.onnx", *arguments).status == 2
    assert not (chain.parent / "out.onnx").exists()


def test_sizes_and_ranges_agree(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "sum.onnx"
    text = "g (float[h, 3] x, float[?] k, float[s] m) => (float[h, 3] y) { y = Relu (x) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    proto.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "h + 1"
    onnx.save(proto, path)
    for sizes in (("h=64", "h=1:32"), ("h=64", "x@0=65:"), ("k@0=2", "k@0=3:4"), ("h=64", "h + 1=1:64")):
        outcome = invoke("optimize", path, "-o", "out.onnx", "--dim", sizes[0], "--dim-range", sizes[1])
        assert outcome.status == 2 and "rules out" in outcome.err and not Path("out.onnx").exists()
    fits = ("--dim", "h=64", "--dim-range", "h=1:64", "--dim-range", "h + 1=65:")
    assert invoke("optimize", path, "-o", "out.onnx", *fits).status == 0
    outcome = invoke("optimize", path, "-o", "out.onnx", "--dim", "h=0")
    assert outcome.status == 2 and "can't fix dim 'h' to 0: " in outcome.err


@pytest.fixture
def attention(tmp_path: Path) -> Path:
    path = tmp_path / "attention.onnx"
    onnx.save(onnx.parser.parse_model(MASKED_ATTENTION), path)
    return path


def test_a_relation_of_dims_permits_a_fusion(invoke: Invoke, attention: Path) -> None:
    explained = invoke("explain", attention, "--pattern", "attention")
    assert "--dim-relation total=past+seq" in explained.out
    outcome = invoke("optimize", attention, "-o", "out.onnx", "-O3", "--dim-relation", "total=past+seq")
    assert outcome.status == 0, outcome.err
    assert "relies on total = past+seq: may be wrong for other sizes" in outcome.out
    assert "equal" in outcome.out and "not verified" not in outcome.out
    model = onnx.load("out.onnx")
    assert "MultiHeadAttention" in [node.op_type for node in model.graph.node]
    assert _dims(model.graph.input[3]) == ["batch", 1, "seq", "past + seq"]
    assert invoke("verify", attention, "out.onnx", "--dim-relation", "total=past+seq").status == 0


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        ("total", "can't read the relation"),
        ("total=past/2", "can't read the size"),
        ("total=7", "can't read the size"),
        ("total=past+sqe", "no dynamic dim is called 'sqe'; nearest: seq"),
        ("totl=past+seq", "no dynamic dim is called 'totl'; nearest: total"),
        ("total=total+1", "is defined by itself"),
    ],
)
def test_invalid_relations_are_refused(invoke: Invoke, attention: Path, relation: str, message: str) -> None:
    outcome = invoke("optimize", attention, "-o", "out.onnx", "--dim-relation", relation)
    assert outcome.status == 2 and message in outcome.err and not Path("out.onnx").exists()


def test_relations_precede_sizes(invoke: Invoke, attention: Path) -> None:
    sizes = ("--dim-relation", "total=past+seq", "--dim", "past=4", "--dim", "seq=2")
    assert invoke("optimize", attention, "-o", "out.onnx", *sizes).status == 0
    assert _dims(onnx.load("out.onnx").graph.input[3]) == ["batch", 1, 2, 6]


def test_relations_and_sizes_compose(invoke: Invoke, attention: Path) -> None:
    relation, size = ("--dim-relation", "total=past+seq"), ("--dim", "seq=1")
    for options in ((*relation, *size), (*size, *relation), ("--dim-relation", "total=past+1", *size)):
        assert invoke("optimize", attention, "-o", "out.onnx", "-O3", *options).status == 0
        model = onnx.load("out.onnx")
        assert "MultiHeadAttention" in [node.op_type for node in model.graph.node]
        assert _dims(model.graph.input[3]) == ["batch", 1, 1, "past + 1"]
        assert invoke("verify", attention, "out.onnx", *relation, *size).status == 0
    assert "not fused" not in invoke("explain", attention, "--pattern", "attention", *size, *relation).out


def test_a_declared_sum_of_dims_contains_a_fixed_size(invoke: Invoke, attention: Path) -> None:
    proto = onnx.load(attention)
    proto.graph.input[3].type.tensor_type.shape.dim[3].dim_param = "past + seq"
    onnx.save(proto, attention)
    outcome = invoke("optimize", attention, "-o", "out.onnx", "-O3", "--dim", "seq=1")
    assert outcome.status == 0
    model = onnx.load("out.onnx")
    assert "MultiHeadAttention" in [node.op_type for node in model.graph.node]
    assert _dims(model.graph.input[3]) == ["batch", 1, 1, "past + 1"]


def test_a_candidate_with_a_fixed_size_is_verified_by_the_relation(invoke: Invoke, attention: Path) -> None:
    assert invoke("optimize", attention, "-o", "out.onnx", "--dim", "seq=1").status == 0
    guarantees = ("--dim-relation", "total=past+seq", "--dim", "seq=1")
    assert invoke("verify", attention, "out.onnx", *guarantees).status == 0


def test_a_range_of_a_sum_of_dims_holds_after_a_part_is_fixed() -> None:
    model = parse("g (float[n, 3] x, float[past, seq] k) => (float[n, 3] y) { y = Relu (x) }")
    model.graph.inputs[0].shape = ir.Shape(["past+seq", 3])
    ranges = apply_dim_guarantees(model, {"seq": 2}, {"past+seq": (5, 9)})
    assert ranges == {"past + 2": (5, 9)}
    assert str((model.graph.inputs[0].shape or ())[0]) == "past + 2"


def test_relations_replace_dims_in_expressions() -> None:
    model = parse("g (float[n, 3] x, float[?, seq] k, float[past] m) => (float[n, 3] y) { y = Relu (x) }")
    model.graph.inputs[2].shape = ir.Shape(["2*n + 1", "past"])
    relate_dims(model, {"n": "past*seq - 1", "k@0": "seq"})
    shapes = [[str(dim) for dim in value.shape or ()] for value in model.graph.inputs]
    assert shapes == [["past * seq - 1", "3"], ["seq", "seq"], ["2 * (past * seq - 1) + 1", "past"]]


def test_dims_that_are_sums_of_other_dims_have_equal_facts() -> None:
    model = parse("g (float[n, 3] x, float[past, seq] k) => (float[n, 3] y) { y = Relu (x) }")
    model.graph.inputs[0].shape = ir.Shape(["past + seq", 3])
    cx = context_for(model)
    rows, shape = cx.shape(model.graph.inputs[0]), cx.shape(model.graph.inputs[1])
    assert rows is not None and shape is not None and rows[0] == shape[0] + shape[1]


def test_inspect_and_dump_show_fixed_dims(invoke: Invoke, chain: Path) -> None:
    assert "[4, seq, 8]" in invoke("inspect", chain, "--dim", "batch=4").out
    assert "f32[4, 9, 8]" in invoke("dump", chain, "--dim", "x@0=4", "--dim-range", "seq=9:9").out


def test_texts() -> None:
    assert parse_sizes(["batch=4", "a=b=2"]) == {"batch": 4, "a=b": 2}
    assert parse_ranges(["seq=1:512", "n=2:", "m=:7"]) == {"seq": (1, 512), "n": (2, None), "m": (0, 7)}
    assert parse_relations(["total=past+seq"]) == {"total": "past+seq"}
    with pytest.raises(UsageError, match="two relations"):
        parse_relations(["n=a", "n=b"])
    for text in ("seq=5:4", "seq=:0", "seq=a:b"):
        with pytest.raises(UsageError):
            parse_ranges([text])
    with pytest.raises(UsageError, match="two sizes"):
        parse_sizes(["n=1", "n=2"])


def test_unnamed_dims_and_arithmetic() -> None:
    model = parse("g (float[?, 3] x, float[past, seq] k, float[N] m) => (float[?, 3] y) { y = Relu (x) }")
    model.graph.inputs[2].shape = ir.Shape(["past + seq"])
    fix_dims(model, {"x@0": 5, "past": 2, "k@1": 3})
    assert [list(value.shape or ()) for value in model.graph.inputs] == [[5, 3], [2, 3], [5]]


def test_unnamed_dim_has_the_name_that_the_option_accepts(invoke: Invoke, tmp_path: Path) -> None:
    model = parse("g (float[?, n] x) => (float[?, n] y) { y = Relu (x) }")
    ir.save(model, tmp_path / "m.onnx")
    shown = invoke("inspect", tmp_path / "m.onnx")
    assert "x@0 n" in shown.out and "[x@0, n]" in shown.out
    told = invoke("optimize", tmp_path / "m.onnx", "-o", "o.onnx", "--no-verify")
    assert "dynamic x@0, n" in told.out
    dims = context_for(model).shape(model.graph.inputs[0])
    assert dims is not None and str(dims[0]) == "x@0"
    assert list(Inputs(model, InputOptions()).dimensions.symbols) == ["x@0", "n"]
    dynamic = json.loads(invoke("inspect", tmp_path / "m.onnx", "--json").out)["dynamic_dims"]
    assert dynamic == ["x@0", "n"]


def test_generated_sizes_are_within_their_range() -> None:
    model = parse("g (float[?, n] x) => (float[?, n] y) { y = Relu (x) }")
    ranges = resolve_ranges(model, {"x@0": (4, 6), "n": (10, None)})
    assert ranges == {"x@0": (4, 6), "n": (10, None)}
    inputs = Inputs(model, InputOptions(ranges=ranges))
    tries = list(inputs.bindings(inputs.dimensions.first_tries()))
    assert all(4 <= sizes["x@0"] <= 6 and sizes["n"] >= 10 for sizes in tries)
    assert len({sizes["n"] for sizes in tries}) > 2
    assert next(inputs.ends(tries[0]))["x@0"] == 6
    with pytest.raises(UsageError, match="outside"):
        Inputs(model, InputOptions(shapes={"x": (7, 10)}, ranges=ranges))


@pytest.mark.parametrize("number", ["9" * 20, "9" * 5000, "\N{FULLWIDTH DIGIT ONE}", "1_0"])
def test_invalid_numbers_are_refused_before_any_work(
    invoke: Invoke, chain: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr("graphopt.ir.io.interoperability.load", refuse)
    for option in (
        *(
            f"--dim=N={number}",
            f"--dim-range=N=1:{number}",
            f"--dim-range=N={number}:",
            f"--input-shape=x:{number}",
        ),
        *(f"--stop-after={number}", f"--target-opset={number}"),
    ):
        result = invoke("optimize", chain, "-o", "o.onnx", option)
        assert result.status == 2 and len(result.err.splitlines()) <= 2, option
    for option in ("--threads", "--rounds"):
        assert invoke("bench", chain, option, number).status == 2


@pytest.mark.parametrize(("other", "agreed"), [((5, 9), (5, 6)), ((0, None), (4, 6))])
def test_ranges_of_one_dim_by_two_names_meet(other: tuple[int, int | None], agreed: tuple[int, int]) -> None:
    model = parse("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    assert resolve_ranges(model, {"n": (4, 6), "x@0": other}) == {"n": agreed}


def test_ranges_of_one_dim_that_rule_each_other_out_are_refused() -> None:
    model = parse("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match="contradict each other"):
        resolve_ranges(model, {"n": (4, 6), "x@0": (7, 9)})
