"""Single steps of convert-opset: types of former attributes, and features that an older opset lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
import pytest

import graphopt
from graphopt import ir
from graphopt.errors import UnsupportedModel
from graphopt.opset import convert
from tests.model_testing import agree, ops, parse, run_pipeline


def converted(text: str, source: int, target: int) -> ir.Model:
    """The model for opset ``target``, which is equivalent and valid by the standard's definitions."""
    original, result = parse(text, opset=source), parse(text, opset=source)
    run_pipeline(result, f"convert-opset{{target={target}}}")
    assert agree(original, result)
    onnx.checker.check_model(onnx.ModelProto.FromString(ir.to_bytes(result)), full_check=True)
    return result


def in_function(text: str, source: int) -> str:
    """The same computed by a function of one input."""
    head, _, rest = text.partition("{")
    return f"""<ir_version: 8, opset_import: ["" : {source}, "d" : 1]> {head} {{ y = d.F (x) }}
        <domain: "d", opset_import: ["" : {source}]> F (x) => (y) {{ {rest}"""


def dtypes(model: ir.Model) -> list[ir.DataType]:
    return [tensor.dtype for value in model.graph.initializers.values() if (tensor := ir.constant_of(value))]


# Attributes that become inputs ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_bounds_of_clip_have_the_type_of_its_input(dtype: str) -> None:
    text = f"g ({dtype}[N] x) => ({dtype}[N] y) {{ y = Clip <min = -0.5, max = 1.5> (x) }}"
    model = parse(text, opset=9)
    run_pipeline(model, "convert-opset{target=13}")
    assert dtypes(model) == 2 * [ir.DataType[dtype.upper()]]
    onnx.checker.check_model(onnx.ModelProto.FromString(ir.to_bytes(model)), full_check=True)


@pytest.mark.parametrize(("dtype", "count"), [("float", 1), ("float16", 1), ("double", 2)])
def test_omitted_bound_of_clip_has_single_precision(dtype: str, count: int) -> None:
    model = parse(f"g ({dtype}[N] x) => ({dtype}[N] y) {{ y = Clip <max = 1.5> (x) }}", opset=9)
    run_pipeline(model, "convert-opset{target=13}")
    assert len(dtypes(model)) == count


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_pad_value_has_the_type_of_the_input(dtype: str) -> None:
    text = f"g ({dtype}[N,3] x) => ({dtype}[p,q] y) {{ y = Pad <pads = [0, 1, 0, 2], value = 0.3> (x) }}"
    assert dtypes(converted(text, 9, 13)) == [ir.DataType.INT64, ir.DataType[dtype.upper()]]


@pytest.mark.parametrize("node", ["Clip <min = 0.5> (x)", "Pad <pads = [1, 1], value = 0.5> (x)"])
def test_unknown_type_is_refused(node: str) -> None:
    model = parse("g (float[N] x) => (float[p] y) { y = d.A (x) }", opset=9, domains=', "d" : 1')
    proto = ir.to_proto(model)
    proto.graph.node[0].output[0] = "x2"
    proto.graph.node.append(onnx.parser.parse_node(f"y = {node}".replace("(x)", "(x2)")))
    with pytest.raises(UnsupportedModel, match=r"the type of the input of .* is unknown"):
        run_pipeline(ir.from_proto(proto), "convert-opset{target=13}")


@pytest.mark.parametrize("dtype", ["float16", "double", "float"])
@pytest.mark.parametrize("target", [12, 13, 17])
def test_the_ratio_of_dropout(dtype: str, target: int) -> None:
    converted(f"g ({dtype}[N] x) => ({dtype}[N] y) {{ y = Dropout <ratio = 0.3> (x) }}", 10, target)


@pytest.mark.parametrize(
    ("source", "node"),
    [
        (10, 'Resize <mode = "linear"> (x, s)'),
        (7, "Upsample <scales = [1.0, 1.0, 2.0, 1.5]> (x)"),
        (13, 'Resize (x, "", s)'),
        (13, 'Resize (x, "", "", z)'),
    ],
)
@pytest.mark.parametrize("target", [11, 12, 13, 19])
def test_inputs_of_resize_follow_the_opset(source: int, node: str, target: int) -> None:
    text = f"""g (float[N,1,4,6] x) => (float[p,q,r,t] y) {{
        s = Constant <value = float[4] {{1, 1, 2, 1.5}}> ()
        z = Constant <value = int64[4] {{2, 1, 8, 9}}> ()
        y = {node}
    }}"""
    text = text.replace("[N,", "[2,") if " z)" in node else text
    held = [converted(text, source, target)]
    if source >= 9:
        held.append(converted(in_function(text, source), source, target))
    for model in held:
        graphs = [model.graph, *(function.graph for function in model.functions.values())]
        (found,) = [item for graph in graphs for item in graph if item.op_type == "Resize"]
        assert (None in found.inputs) == (target >= 13)


def test_mean_variance_normalization_has_explicit_axes() -> None:
    text = "g (float[N,2,3,4] x) => (float[p,q,r,s] y) { y = MeanVarianceNormalization (x) }"
    for target in (13, 18, 22):
        converted(text, 9, target)
        converted(in_function(text, 9), 9, target)


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("target", [20, 18, 17, 11])
def test_group_normalization_before_scales_of_channels(dtype: str, target: int) -> None:
    text = f"""g ({dtype}[N,4,H] x, {dtype}[4] s, {dtype}[4] b) => ({dtype}[N,4,H] y)
        {{ y = GroupNormalization<num_groups = 2, epsilon = 0.5>(x, s, b) }}"""
    feeds = {
        name: np.asarray(
            np.random.default_rng(0).standard_normal(shape), "f2" if dtype == "float16" else "f4"
        )
        for name, shape in (("x", (3, 4, 5)), ("s", (4,)), ("b", (4,)))
    }
    original, result = parse(text, opset=21, ir_version=10), parse(text, opset=21, ir_version=10)
    run_pipeline(result, f"convert-opset{{target={target}}}")
    onnx.checker.check_model(onnx.ModelProto.FromString(ir.to_bytes(result)), full_check=True)
    expected, found = (graphopt.run(model, feeds)["y"] for model in (original, result))
    assert found.dtype == expected.dtype and np.allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_group_normalization_with_scales_of_groups_without_the_operator() -> None:
    text = """g (float[N,4,H] x, float[2] s, float[2] b) => (float[N,4,H] y)
        { y = GroupNormalization<num_groups = 2>(x, s, b) }"""
    result = parse(text, opset=18)
    run_pipeline(result, "convert-opset{target=17}")
    random = np.random.default_rng(0)
    feeds = {
        "x": random.standard_normal((3, 4, 5)).astype("f4"),
        "s": np.array([2, 0.5], "f4"),
        "b": np.array([0, 1], "f4"),
    }
    expected, found = (graphopt.run(model, feeds)["y"] for model in (parse(text, opset=18), result))
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)


# Optional outputs that nothing reads ---------------------------------------------------------

UNREAD = {
    "Dropout": (9, 13, "float[N,4] x", "float[N,4] y", "y, mask = Dropout <ratio = 0.25> (x)"),
    "MaxPool": (10, 7, "float[N,2,6] x", "float[N,2,5] y", "y, places = MaxPool <kernel_shape = [2]> (x)"),
}


@pytest.mark.parametrize("op", UNREAD)
def test_unread_outputs_that_the_target_opset_lacks_are_dropped(op: str) -> None:
    source, target, x, y, node = UNREAD[op]
    result = converted(f"g ({x}) => ({y}) {{ {node} }}", source, target)
    assert [len(item.outputs) for item in result.graph] == [1]
    read = parse(f"g ({x}) => ({y}) {{ {node} }}", opset=source)
    read.graph.outputs.append(read.graph[0].outputs[1])
    with pytest.raises(UnsupportedModel):
        run_pipeline(read, f"convert-opset{{target={target}}}")


def test_outputs_that_make_batch_normalization_train_stay() -> None:
    text = """g (float[N,2] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[N,2] y)
        { y, m2, v2, m3, v3 = BatchNormalization (x, s, b, m, v) }"""
    with pytest.raises(UnsupportedModel):
        run_pipeline(parse(text, opset=9), "convert-opset{target=14}")


# What an older opset means otherwise ---------------------------------------------------------

REFUSED: Mapping[str, tuple[int, int, str, str]] = {
    "half pixels": (
        16,
        15,
        "g (float[1,1,6,6] x, float[1,4] r, int64[1] b) => (float[p,q,s,t] y) { y = RoiAlign (x, r, b) }",
        "output_half_pixel",
    ),
    "wrap": (
        19,
        18,
        """g (float[3] x) => (float[p] y) <int64[2] p = {1, 1}> { y = Pad <mode = "wrap"> (x, p) }""",
        "no mode 'wrap'",
    ),
    "symmetric half pixels": (
        19,
        18,
        """g (float[3] x) => (float[p] y) <float[1] s = {1.5}> {
            y = Resize <coordinate_transformation_mode = "half_pixel_symmetric"> (x, "", s)
        }""",
        "half_pixel_symmetric",
    ),
    "scattered maxima": (
        18,
        16,
        """g (float[3] x, int64[3] i, float[3] u) => (float[3] y) {
            y = ScatterElements <reduction = "max"> (x, i, u)
        }""",
        "no reduction 'max'",
    ),
    "more dimensions": (
        20,
        19,
        "g (float[1,1,2,2,2] x, float[1,2,2,2,3] g) => (float[a,b,c,d,e] y) { y = GridSample (x, g) }",
        "two spatial axes",
    ),
    "a scale for each slice": (
        13,
        12,
        """g (float[2,3] x) => (uint8[2,3] y) <float[3] s = {1, 2, 3}, uint8[3] z = {0, 0, 0}> {
            y = QuantizeLinear <axis = 1> (x, s, z)
        }""",
        "one scale",
    ),
    "broadcasting": (
        8,
        7,
        "g (float[N,3] x, float[3] z) => (float[N,3] y) { y = Max (x, z) }",
        "equal shapes",
    ),
    "nothing to reduce": (
        13,
        12,
        "g (float[N,3] x) => (float[N,3] y) { y = ReduceSum <noop_with_empty_axes = 1> (x) }",
        "can't do nothing",
    ),
    "bounds of double precision": (
        11,
        10,
        "g (double[N] x) => (double[N] y) <double a = {0.1}, double b = {1}> { y = Clip (x, a, b) }",
        "lose precision",
    ),
    "no bounds in double precision": (
        11,
        10,
        "g (double[N] x) => (double[N] y) <double a = {0.5}> { y = Clip (x, a) }",
        "double precision",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_conversions_that_change_semantics_are_refused(name: str) -> None:
    source, target, text, reason = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=reason):
        run_pipeline(parse(text, opset=source), f"convert-opset{{target={target}}}")


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        (
            16,
            11,
            """g (float[1,1,6,6] x, float[1,4] r) => (float[p,q,s,t] y) <int64[1] b = {0}> {
                y = RoiAlign <coordinate_transformation_mode = "output_half_pixel"> (x, r, b)
            }""",
        ),
        (20, 16, "g (float[N,1,4,4] x, float[N,2,2,2] g) => (float[N,1,2,2] y) { y = GridSample (x, g) }"),
        (
            16,
            20,
            """g (float[N,1,4,4] x, float[N,2,2,2] g) => (float[N,1,2,2] y) {
                y = GridSample <mode = "bicubic"> (x, g)
            }""",
        ),
        (
            13,
            10,
            "g (float[N,3] x) => (uint8[N,3] y) <float s = {0.5}> { y = QuantizeLinear <axis = 0> (x, s) }",
        ),
        (8, 7, "g (float[N,3] x, float[N,3] z) => (float[N,3] y) { y = Sum (x, z) }"),
        (
            18,
            9,
            """g (float[N,3] x) => (float[N,1] y) <int64[1] a = {1}> {
                y = ReduceMax <noop_with_empty_axes = 1> (x, a)
            }""",
        ),
        (13, 9, "g (float[N,3] x) => (float[1,1] y) <int64[0] a = {}> { y = ReduceSum (x, a) }"),
    ],
)
def test_operators_with_equal_semantics_are_converted(source: int, target: int, text: str) -> None:
    assert len(ops(converted(text, source, target))) == 1


@pytest.mark.parametrize(
    ("source", "target", "node"),
    [
        (19, 18, "Pad <mode: string = @m> (x, p)"),
        (20, 19, "GridSample <mode: string = @m> (x, p)"),
        (16, 20, "GridSample <mode: string = @m> (x, p)"),
        (16, 15, "RoiAlign <coordinate_transformation_mode: string = @m> (x, p, q)"),
    ],
)
def test_mode_given_by_callers_is_unknown(source: int, target: int, node: str) -> None:
    model = parse(
        f"""g (float[1,1,3,3] x, float[1,2,2,2] p, int64[1] q) => (float[a,b,c,d] y) {{
            y = d.f <m = "wrap"> (x, p, q)
        }}
        <domain: "d", opset_import: ["" : {source}]> f <m> (x, p, q) => (y) {{ y = {node} }}""",
        opset=source,
        domains=', "d" : 1',
    )
    with pytest.raises(UnsupportedModel):
        run_pipeline(model, f"convert-opset{{target={target}}}")


def test_the_report_names_operators_that_the_runtime_can_not_run_any_more() -> None:
    text = "g (float[N,2,3,4] x) => (float[N,2,1,1] y) { a = Relu (x) b = Softplus (a) y = GlobalLpPool (b) }"
    _, report = graphopt.optimize(parse(text, opset=17), pipeline="O0", target_opset=22, verify=False)
    assert any("has no kernel for GlobalLpPool of opset 22" in note for note in report.notes())
    _, report = graphopt.optimize(parse(text, opset=17), pipeline="O0", target_opset=21, verify=False)
    assert not any("kernel" in note for note in report.notes())


# All operators of the standard ---------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """An operator that is defined anew."""

    before: onnx.defs.OpSchema
    after: onnx.defs.OpSchema

    @property
    def version(self) -> int:
        return self.after.since_version

    def back(
        self, *attributes: onnx.AttributeProto, inputs: int | None = None
    ) -> list[onnx.NodeProto] | None:
        """The conversion of a node without attributes to the preceding version; ``None`` if it is refused."""
        count = self.after.min_input if inputs is None else inputs
        formals = [self.after.inputs[min(index, len(self.after.inputs) - 1)] for index in range(count)]
        outputs = [f"o{index}" for index in range(max(self.after.min_output, 1))]
        node = onnx.helper.make_node(self.after.name, [f"i{index}" for index in range(count)], outputs)
        node.attribute.extend(attributes)
        model = onnx.ModelProto(ir_version=10)
        model.opset_import.add(version=self.version)
        model.graph.name = "g"
        model.graph.node.append(node)
        for name, formal in zip(node.input, formals, strict=True):
            kinds = [kind for kind in formal.types if kind in ("tensor(float)", "tensor(int64)")]
            elements = {"tensor(float)": 1, "tensor(int64)": 7}
            model.graph.input.add(name=name).type.tensor_type.elem_type = elements[min(kinds)] if kinds else 0
        for name in outputs:
            model.graph.output.add(name=name)
        try:
            made = list(convert.convert(model, self.version - 1).graph.node)
        except UnsupportedModel:
            return None
        types: dict[str, str | None] = {}
        stands = all(convert.obstacle(item, types, self.version, self.version - 1) is None for item in made)
        return made if stands else None


#: Operators that are not converted here: those with bodies, and those with a new notation only.
SPECIAL = {"Constant", "If", "Loop", "Scan"}


def steps() -> Iterator[Step]:
    """All that was defined anew since opset 7, and not done away with."""
    history: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            history.setdefault(schema.name, []).append(schema)
    for name in sorted(history):
        found = sorted(history[name], key=lambda schema: schema.since_version)
        for before, after in pairwise(found):
            if after.since_version > 7 and not after.deprecated and name not in SPECIAL:
                yield Step(before, after)


def told(name: str, attribute: onnx.defs.OpSchema.Attribute) -> onnx.AttributeProto | None:
    """The attribute with a value that is not its default."""
    kinds = onnx.defs.OpSchema.AttrType
    values = {
        kinds.INT: 1,
        kinds.FLOAT: 0.4375,
        kinds.STRING: "other",
        kinds.INTS: [1],
        kinds.FLOATS: [0.4375],
        kinds.STRINGS: ["other"],
    }
    value = values.get(attribute.type)
    if attribute.default_value.type and value == onnx.helper.get_attribute_value(attribute.default_value):
        value = 0
    return None if value is None else onnx.helper.make_attribute(name, value)


def tells(nodes: list[onnx.NodeProto], step: Step, name: str) -> bool:
    """Whether ``nodes`` are other operators, or have the attribute."""
    alike = [node for node in nodes if node.op_type == step.after.name]
    return all(any(item.name == name for item in node.attribute) for node in alike)


#: By attribute, operators without it in older versions, with the semantics of its default.
OFF_BY_DEFAULT: Mapping[str, str] = {
    "allowzero": "Reshape",
    "antialias": "Resize",
    "axis": "DequantizeLinear QuantizeLinear",
    "batch_dims": "GatherND",
    "block_size": "DequantizeLinear QuantizeLinear",
    "ceil_mode": "AveragePool LpPool MaxPool",
    "keep_aspect_ratio_policy": "Resize",
    "largest": "TopK",
    "layout": "GRU LSTM RNN",
    "left_window_size": "Attention",
    "mode": "DepthToSpace SpaceToDepth",
    "noop_with_empty_axes": (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"
        " ReduceSumSquare"
    ),
    "output_dtype": "DequantizeLinear QuantizeLinear",
    "precision": "QuantizeLinear",
    "reduction": "ScatterElements ScatterND",
    "right_window_size": "Attention",
    "round_mode": "Cast CastLike",
    "saturate": "Cast CastLike QuantizeLinear",
    "select_last_index": "ArgMax ArgMin",
    "sorted": "TopK",
    "stash_type": "Range",
    "start": "Shape",
    "storage_order": "MaxPool",
    "training_mode": "BatchNormalization",
}
#: What they are about the older operator does not do: it draws nothing, tells no indices, takes no small types.
WITHOUT_EFFECT = {("Dropout", "seed"), ("MaxPool", "storage_order"), ("Range", "stash_type")}


def test_attributes_of_newer_opsets_are_not_lost() -> None:
    lost = []
    for step in steps():
        for name, attribute in step.after.attributes.items():
            value = None if name in step.before.attributes else told(name, attribute)
            nodes = None if value is None else step.back(value)
            if nodes is not None and not tells(nodes, step, name):
                lost.append((step.after.name, name))
    assert set(lost) <= WITHOUT_EFFECT


def test_defaults_of_new_attributes_match_older_semantics() -> None:
    unknown = []
    for step in steps():
        for name, attribute in step.after.attributes.items():
            if name in step.before.attributes or not attribute.default_value.type:
                continue
            nodes = step.back()
            known = step.after.name in OFF_BY_DEFAULT.get(name, "").split()
            if nodes is not None and not known and not tells(nodes, step, name):
                unknown.append((step.after.name, step.version, name))
    assert not unknown


def test_changed_defaults_are_written() -> None:
    untold = []
    for step in steps():
        for name, attribute in step.after.attributes.items():
            older = step.before.attributes.get(name)
            if older is not None and older.default_value != attribute.default_value:
                nodes = step.back()
                if nodes is not None and not tells(nodes, step, name):
                    untold.append((step.after.name, step.version, name))
    assert not untold


def test_inputs_of_newer_opsets_are_not_lost() -> None:
    lost = []
    for step in steps():
        most = max(step.before.max_input, len(step.before.inputs))
        for count in range(most + 1, len(step.after.inputs) + 1):
            if step.back(inputs=count) is not None:
                lost.append((step.after.name, step.version, count))
    assert not lost


def test_numbers_that_attributes_cannot_represent() -> None:
    text = "g (double[N,3] x) => (double[N,5] y) <int64[4] p = {0, 1, 0, 1}, double v = {0.1}> { y = Pad (x, p, v) }"
    with pytest.raises(UnsupportedModel, match="'value' would lose precision"):
        run_pipeline(parse(text, opset=11), "convert-opset{target=10}")
    exact = parse(text.replace("0.1", "0.25"), opset=11)
    run_pipeline(exact, "convert-opset{target=10}")
    (node,) = exact.graph
    assert np.float64(node.attributes["value"].as_float()) == 0.25


# What the older standard holds otherwise ----------------------------------------------------


@pytest.mark.parametrize("axis", [-3, -1, 0, 2, 3])
def test_flatten_counts_from_the_front(axis: int) -> None:
    text = f"g (float[N,2,3] x) => (float[p,q] y) {{ y = Flatten <axis = {axis}> (x) }}"
    for held in (converted(text, 13, 9), converted(in_function(text, 13), 13, 9)):
        graphs = [held.graph, *(function.graph for function in held.functions.values())]
        (found,) = [node for graph in graphs for node in graph if node.op_type == "Flatten"]
        assert found.attributes["axis"].as_int() == (axis + 3 if axis < 0 else axis)


def test_integer_constants_become_initializers() -> None:
    held = converted(
        """g (float[N] x, bool c) => (float[p,q] y, int64[2] k) {
            k = Constant <value = int64[2] {1, -1}> ()
            y = If (c) <
                then_branch = t () => (float[r,s] p) { p = Reshape (x, k) },
                else_branch = e () => (float[u,v] q) {
                    l = Constant <value_ints = [-1, 1]> ()
                    q = Reshape (x, l)
                }
            >
        }""",
        13,
        8,
    )
    assert not [node for graph in ir.graphs_of(held) for node in graph if node.op_type == "Constant"]
    assert [output.name for output in held.graph.outputs] == ["y", "k"]


def test_sequence_inputs_of_functions_have_known_types() -> None:
    model = parse(
        """g (seq(float[2]) x) => (int64 y) { z = d.F (x) y = SequenceLength (z) }
        <domain: "d", opset_import: ["" : 16]> F (a) => (b) { b = Identity (a) }""",
        opset=16,
        domains=', "d" : 1',
    )
    with pytest.raises(UnsupportedModel, match=r"Identity takes no seq\(tensor\(float\)\) in opset 13"):
        run_pipeline(model, "convert-opset{target=13}")


def test_kernels_lost_for_one_type_are_reported() -> None:
    text = "g ({0}[N] x) => ({0}[N] y) {{ y = Max (x, x) }}"
    for dtype, lost in (("double", True), ("float", False), ("float16", False)):
        _, report = graphopt.optimize(
            parse(text.format(dtype), opset=13), pipeline="O0", target_opset=7, verify=False
        )
        assert any("no kernel for Max of opset 7" in note for note in report.notes()) == lost


@pytest.mark.parametrize(
    ("op_type", "version", "newer", "same"),
    [
        ("Cast", 23, 26, True),  # it learnt to round up
        ("ReduceMax", 17, 18, False),  # its axes became an input
        ("GridSample", 18, 20, False),  # its modes got other names
        ("Shape", 15, 26, True),
    ],
)
def test_extended_operator_has_unchanged_semantics(
    op_type: str, version: int, newer: int, same: bool
) -> None:
    assert convert.keeps_semantics(op_type, version, newer) is same
