"""LSTM, GRU and RNN by templates: all inputs, attributes and sizes, at all CPU levels, with 1 and 2 threads."""

import ctypes

import numpy as np
import onnx
import onnxruntime
import pytest

from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion.backends.c import BACKEND
from graphopt.fusion.group_functions import groups_of
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import matches
from graphopt.passes.pipelines import make_pipeline
from graphopt.util.disk_store import Store
from tests.fusion.backends.c.harness import levels
from tests.fusion.backends.c.runtime import samples
from tests.fusion.templates.recurrences import Case

pytestmark = samples.compiled


def _cases() -> list[Case]:
    found = []
    for op in ("LSTM", "GRU", "RNN"):
        state = ("h", "c") if op == "LSTM" else ("h",)
        found += [
            Case(op, (1, 1, 1, 1)),
            Case(op, (11, 1, 7, 37)),
            Case(op, (9, 1, 64, 64), "bidirectional", ("B", *state)),
            Case(op, (6, 3, 5, 17), "reverse", ()),
            Case(op, (7, 9, 16, 20), "bidirectional", ("B", "lens", *state)),
            Case(op, (5, 13, 40, 130), "bidirectional", ("lens",), ("Y_h",)),
            Case(op, (5, 2, 9, 16), given=("B", *state), attributes={"clip": 0.4}),
            Case(op, (4, 2, 3, 5), "reverse", ("B", "lens"), fixed=False),
            Case(op, (8, 1, 300, 24), outputs=("Y",), static=True),
            Case(op, (37, 1, 20, 80), "bidirectional", ("B", "lens")),  # few inputs beside the states
            Case(op, (3, 2, 20, 600), "bidirectional", ("B", "lens")),  # threads share the products of a step
        ]
    found += [
        Case("LSTM", (6, 3, 8, 19), "bidirectional", ("B", "h", "c", "P")),
        Case("LSTM", (6, 3, 8, 19), given=("lens", "P"), attributes={"input_forget": 1}),
        Case("LSTM", (5, 2, 8, 16), given=("B", "c"), outputs=("Y_c",)),
        Case("GRU", (6, 1, 8, 70), attributes={"linear_before_reset": 1}),
        Case("GRU", (6, 4, 8, 19), "bidirectional", ("lens", "h"), attributes={"linear_before_reset": 1}),
        Case(
            "LSTM",
            (4, 2, 6, 10),
            "bidirectional",
            attributes={
                "activations": ["HardSigmoid", "Softsign", "ScaledTanh", "Sigmoid", "Elu", "LeakyRelu"],
                "activation_alpha": [0.3, 0.9, 0.7],
                "activation_beta": [0.45, 1.1],
            },
        ),
        Case("LSTM", (4, 2, 6, 10), attributes={"activations": ["Sigmoid", "Softplus", "Relu"]}),
        Case(
            "GRU",
            (4, 2, 6, 10),
            attributes={"activations": ["HardSigmoid", "Affine"], "activation_alpha": [0.3, 0.9]},
        ),
        Case(
            "GRU",
            (4, 2, 6, 10),
            attributes={"activations": ["Sigmoid", "ThresholdedRelu"], "activation_alpha": [0.1]},
        ),
    ]
    parameters = {"activation_alpha": [0.8], "activation_beta": [0.2]}
    found += [
        Case("RNN", (4, 2, 6, 10), attributes={"activations": [name], **parameters})
        for name in ("Relu", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid")
    ]
    parameters = {"activation_alpha": [0.8, 0.3], "activation_beta": [0.2, 0.6]}
    found += [
        Case("RNN", (4, 2, 6, 10), "bidirectional", attributes={"activations": [*names], **parameters})
        for names in (("Tanh", "HardSigmoid"), ("LeakyRelu", "Affine"), ("ScaledTanh", "Sigmoid"))
    ]
    found += [
        Case("RNN", (4, 2, 6, 10), attributes={"activations": [name]})
        for name in ("Softsign", "Softplus", "Tanh")
    ]
    return found


CASES = _cases()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Original models with their inputs, the same with groups, and one library."""
    models, kernels = [], {}
    for case in CASES:
        proto, feeds = case.model()
        model = ir.from_proto(proto)
        with context_for(model) as cx:
            make_pipeline("fuse-groups{kernels=all}").run(model, cx)
        groups = groups_of(model)
        assert [group.kernel is not None for group in groups] == [True], (
            str(case),
            [g.reason for g in groups],
        )
        kernels |= {group.name: group.kernel for group in groups}
        models.append((proto.SerializeToString(), feeds, ir.to_proto(model).SerializeToString()))
    library = BACKEND.build(list(kernels.values()), Store(tmp_path_factory.mktemp("store")))
    return models, str(library)


def _run(model, feeds, library=None, threads=1):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library:
        options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def _at_level(library, level):
    ctypes.CDLL(library).graphopt_set_cpu_level(level)


@pytest.fixture(params=levels()[1:] or (0,))
def level(request, built):
    _at_level(built[1], request.param)
    yield request.param
    _at_level(built[1], -1)


@pytest.mark.parametrize("number", range(len(CASES)), ids=map(str, CASES))
def test_error_is_at_most_that_of_onnxruntime(number, level, built):
    case, (models, library) = CASES[number], built
    original, feeds, grouped = models[number]
    exact = case.expected(case.tensors())
    reference, found = _run(original, feeds), _run(grouped, feeds, library)
    threaded = _run(grouped, feeds, library, threads=2)
    for own, other, right, twice in zip(found, reference, exact, threaded, strict=True):
        assert own.shape == other.shape == right.shape
        scale = np.abs(right).max(initial=1.0)
        worst = max(2 * np.abs(other - right).max(), 1e-6 * scale)
        assert np.abs(own - right).max() <= worst
        assert np.array_equal(own, twice)


#: Cases with inputs that are not finite.
SPECIAL = [
    number
    for number, case in enumerate(CASES)
    if case.shape[0] > 1
    and "linear_before_reset" not in case.attributes
    and "activations" not in case.attributes
]


@pytest.mark.parametrize("number", SPECIAL, ids=lambda number: str(CASES[number]))
def test_infinities_and_nan_are_those_of_onnxruntime(number, level, built):
    models, library = built
    original, feeds, grouped = models[number]
    feeds = {name: value.copy() for name, value in feeds.items()}
    x = feeds["X"]
    x[1, 0, 0] = np.nan
    if x.shape[1] > 1:
        x[0, 1, 0], x[2, 1, -1] = np.inf, -np.inf
    else:
        x[-1, 0, 0] = -np.inf
    if "h" in feeds and feeds["h"].shape[1] > 2:
        # onnxruntime's sigmoid of GRU is not exactly 0 or 1, so that the sign of its product with infinity varies
        feeds["h"][0, 2, 0] = np.nan if CASES[number].op == "GRU" else np.inf
    for own, other in zip(_run(grouped, feeds, library), _run(original, feeds), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("number", [number for number, case in enumerate(CASES) if not case.static])
def test_no_steps_and_no_rows(number, level, built):
    case, (models, library) = CASES[number], built
    _, feeds, grouped = models[number]
    hidden, directions, inputs = case.shape[3], case.directions, case.shape[2]
    for steps, batch in ((0, 2), (3, 0)):
        sized = {
            "X": np.ones((steps, batch, inputs), np.float32),
            "lens": np.zeros(batch, np.int32),
            "h": np.ones((directions, batch, hidden), np.float32),
            "c": np.ones((directions, batch, hidden), np.float32),
        }
        found = _run(grouped, {name: sized.get(name, value) for name, value in feeds.items()}, library)
        states = {"Y": (steps, directions, batch, hidden)}
        shapes = [
            states.get(name, (directions, batch, hidden))
            for name in ("Y", "Y_h", "Y_c")
            if name in case.outputs
        ]
        assert [value.shape for value in found] == shapes[: len(found)]
        assert not any(value.any() for value in found)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lens", np.full(9, 8, np.int32), "sequence_lens contains 8, 0 to 7 expected"),
        ("lens", np.full(9, -1, np.int32), "sequence_lens contains -1, 0 to 7 expected"),
        ("lens", np.ones(4, np.int32), "sequence_lens is 4 long on axis 0, 9 expected"),
        ("h", np.zeros((2, 3, 20), np.float32), "initial_h is 3 long on axis 1, 9 expected"),
        ("X", np.zeros((7, 9, 17), np.float32), "W is 16 long on axis 2, 17 expected|Got invalid dimensions"),
    ],
)
def test_wrong_inputs_fail_with_a_message(name, value, message, built):
    number = next(n for n, case in enumerate(CASES) if case.op == "GRU" and case.shape == (7, 9, 16, 20))
    models, library = built
    _, feeds, grouped = models[number]
    with pytest.raises(Exception, match=message):
        _run(grouped, {**feeds, name: value}, library)


def test_an_infinite_recurrent_weight_of_rnn_is_not_multiplied_with_an_omitted_state(built):
    number = next(n for n, case in enumerate(CASES) if case.op == "RNN" and not case.fixed)
    models, library = built
    original, feeds, grouped = models[number]
    feeds = {
        **feeds,
        "R": np.full_like(feeds["R"], np.inf),
        "lens": np.full_like(feeds["lens"], CASES[number].shape[0]),
    }
    for own, other in zip(_run(grouped, feeds, library), _run(original, feeds), strict=True):
        assert np.array_equal(np.isnan(own), np.isnan(other))


@pytest.mark.parametrize(
    ("attributes", "given", "reason"),
    [
        ({"layout": 1}, ("B",), "the batch on the first axis"),
        ({"activations": ["Swish", "Tanh", "Tanh"]}, ("B",), "activations are unknown"),
        ({"activations": ["Tanh"]}, ("B",), "activations are unknown"),
        ({"clip": -1.0}, ("B",), "clip"),
    ],
)
def test_what_onnxruntime_rejects_has_no_kernel(attributes, given, reason):
    model = ir.from_proto(Case("LSTM", (3, 2, 4, 5), given=given, attributes=attributes).model()[0])
    with context_for(model) as cx:
        (node,) = model.graph
        with pytest.raises(CantFuse, match=reason):
            matches(node, cx)


def test_elementwise_readers_of_y_join_the_kernel(tmp_path):
    proto, feeds = Case("GRU", (9, 3, 8, 19), "bidirectional", ("B", "lens"), ("Y",)).model()
    nodes = [
        onnx.helper.make_node("Transpose", ["Y"], ["t"], perm=[2, 0, 1, 3]),
        onnx.helper.make_node("Mul", ["t", "t"], ["z"]),
    ]
    proto.graph.node.extend(nodes)
    proto.graph.output[0].name = "z"
    model = ir.from_proto(proto)
    with context_for(model) as cx:
        make_pipeline("fuse-groups{kernels=all}").run(model, cx)
    (group,) = groups_of(model)
    assert group.kernel.epilogue is not None
    library = str(BACKEND.build([group.kernel], Store(tmp_path)))
    (own,), (other,) = (
        _run(ir.to_proto(model).SerializeToString(), feeds, library),
        _run(proto.SerializeToString(), feeds),
    )
    np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "chosen"),
    [
        (Case("LSTM", (3, 1, 4, 100), static=True), True),
        (Case("LSTM", (3, 1, 4, 100)), True),
        (Case("LSTM", (3, 1, 4, 100), fixed=False), False),
        (Case("LSTM", (3, 2, 4, 100), static=True), False),
        (Case("LSTM", (3, 1, 4, 300), static=True), False),
        (Case("GRU", (3, 1, 4, 100), static=True), True),
        (Case("GRU", (3, 3, 4, 100), static=True), False),
        (Case("GRU", (3, 4, 4, 100), static=True), True),
        (Case("GRU", (3, 3, 4, 100), "bidirectional", static=True), True),
        (Case("RNN", (3, 2, 4, 100)), True),
    ],
    ids=str,
)
def test_operators_that_were_faster_are_chosen_without_a_measurement(case, chosen):
    model = ir.from_proto(case.model()[0])
    with context_for(model) as cx:
        make_pipeline("fuse-groups").run(model, cx)
    assert len(groups_of(model)) == chosen
