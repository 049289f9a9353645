"""LSTM, GRU and RNN for tests: inputs, and gradients held to differences in single precision, which is what
onnxruntime runs them in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from graphopt import ir
from graphopt.autodiff.joint_graph import COTANGENT, Joint, differentiate
from graphopt.ort import session
from tests.autodiff.models import STENCIL, run
from tests.model_testing import parse

STEPS, BATCH, INPUTS, H = 4, 3, 2, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
#: Step length of finite differences.
LENGTH = 0.01
SIZES = {"static": f"{STEPS},{BATCH}", "dynamic": "T,B"}
#: Models around the layers, which map x to z, with one result y.
AROUND = {
    "plain": "{layers} y = Identity(z)",
    "If": """y = If(yes) <then_branch = then () => (float[?,?,?] z) {{ {layers} }},
                          else_branch = other () => (float[?,?,?] o) {{ o = Neg(x) }}>""",
    "If, behind Relu": """u = Relu(x)
        y = If(yes) <then_branch = other () => (float[?,?,?] o) {{ o = Neg(u) }},
                     else_branch = then () => (float[?,?,?] z) {{ {layers} }}>""",
    "Loop": """turns = Constant<value_int = 2>()
        y = Loop(turns, , x) <body = body (int64 i, bool going, float[?,?,?] x) => (bool on, float[?,?,?] z)
            {{ on = Identity(going) {layers} }}>""",
    "Scan": """axis = Constant<value_ints = [0]>() single = Unsqueeze(x, axis) other = Cos(single)
        several = Concat<axis = 0>(single, other)
        y = Scan<num_scan_inputs = 1, body = body (float[?,?,?] x) => (float[?,?,?] z) {{ {layers} }}>(several)""",
    "function": "y = own.stack(x, {weights}, shape)",
}


#: Feeds of operators other than the layers.
CONSTANTS = [
    "int64[1] wide = {{{w}}}", "int64[1] zero = {{0}}", "int64[1] one = {{1}}", "int64[1] three = {{3}}",
    "int64[1] minus = {{-1}}", "int64[1] many = {{1000}}", f"int64[1] steps = {{{{{STEPS}}}}}", "int64 first = {{0}}",
    "int64 trips = {{2}}", "bool true = {{1}}", "float half = {{0.5}}", "float two = {{2}}",
    "int64[2] sizes = {{1, {rest}}}", "int64[4] order = {{2, 0, 3, 1}}", "int64[3] repeats = {{2, 1, 1}}",
    "int64[6] margins = {{0, 0, 0, 1, 0, 0}}",
]  # fmt: skip


def feeds(op: str, given: str, directions: int = 1) -> dict[str, np.ndarray]:
    random, g = np.random.default_rng(0), GATES[op] * H
    shapes = {
        "x": (STEPS, BATCH, INPUTS), "w": (directions, g, INPUTS), "r": (directions, g, H), "b": (directions, 2 * g),
        "h0": (directions, BATCH, H), "c0": (directions, BATCH, H), "p": (directions, 3 * H),
    }  # fmt: skip
    found = {
        name: np.asarray(0.7 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
        if name in given.split()
    }
    return found | ({"lens": np.array([4, 1, 2], np.int32)} if "lens" in given else {})


def check(
    model: ir.Model,
    point: Mapping[str, np.ndarray],
    outputs: Iterable[str] = (),
    length: float = LENGTH,
) -> Joint:
    """Compare gradients of ``outputs``, or of all, with differences along a random direction.

    Args:
        length: of the steps; shorter where a model is so curved that differences are not exact enough.
    """
    random = np.random.default_rng(1)
    varied = [name for name, value in point.items() if value.dtype == np.float32]
    real = list(outputs) or [item.name or "" for item in model.graph.outputs]
    joint = differentiate(model, real, varied)
    given = {
        name: np.asarray(random.standard_normal(value.shape))
        for name, value in run(model, point).items()
        if name in real
    }

    running = session.create(ir.to_bytes(model), threads=1)

    def weighed(values: Mapping[str, np.ndarray]) -> float:
        found = session.run(running, dict(values), real)
        return sum(float(np.sum(given[name] * value)) for name, value in zip(real, found, strict=True))

    directions, truths = {}, {}
    for name in varied:
        directions[name] = np.asarray(random.standard_normal(point[name].shape)).astype(np.float32)
        moves = {steps: np.float32(steps * length) * directions[name] for steps in STENCIL}
        differences = [
            STENCIL[steps] * weighed({**point, name: point[name] + move}) for steps, move in moves.items()
        ]
        truths[name] = sum(differences) / length
    cotangents = {COTANGENT + name: value.astype(np.float32) for name, value in given.items()}
    for optimizations in ("off", "default"):
        gradients = run(joint.model, {**point, **cotangents}, optimizations)
        for name in varied:
            gradient = gradients[joint.gradients[name]]
            assert gradient.shape == point[name].shape, name
            found = float(np.sum(gradient * directions[name]))
            assert np.isclose(found, truths[name], rtol=2e-3, atol=2e-3), name
    return joint


def stacked(
    op: str, direction: str, sizes: str, around: str, layers: int = 2, beside: str = ""
) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """A model of layers whose outputs are as wide as their inputs, and feeds.

    Args:
        beside: nodes before and behind each layer, from ``{x}`` to ``{y}`` of the same shape, of which
            ``{w}`` is the width; names of others begin with ``{p}``.
    """
    random, count = np.random.default_rng(0), 2 if direction == "bidirectional" else 1
    width, gates = count * H, GATES[op] * H
    point = {"x": np.asarray(random.standard_normal((STEPS, BATCH, width)), np.float32)}
    written = []
    for k in range(layers):
        for name, size in ((f"w{k}", width), (f"r{k}", H)):
            point[name] = np.asarray(0.7 * random.standard_normal((count, gates, size)), np.float32)
        x, z = "x" if k == 0 else f"z{k - 1}", "z" if k == layers - 1 else f"z{k}"
        if beside:
            written.append(beside.format(x=x, y=f"a{k}", p=f"before{k}", w=width))
            x, z, end = f"a{k}", f"u{k}", z
        written.append(
            f"""y{k} = {op}<hidden_size = {H}, direction = "{direction}">({x}, w{k}, r{k})
            t{k} = Transpose<perm = [0, 2, 1, 3]>(y{k}) {z} = Reshape(t{k}, shape)"""
        )
        if beside:
            written.append(beside.format(x=z, y=end, p=f"after{k}", w=width))
    weights = ", ".join(name for name in point if name != "x")
    inputs = ", ".join(
        f"float[{','.join(map(str, point[name].shape))}] {name}" for name in point if name != "x"
    )
    body = AROUND[around].format(layers=" ".join(written), weights=weights)
    yes = ", bool yes" if around.startswith("If") else ""
    dims = "?,?,?,?" if around == "Scan" else "?,?,?"
    constants = [
        f"int64[3] shape = {{0, 0, {width}}}",
        *([item.format(w=width, rest=width - 1) for item in CONSTANTS] if beside else []),
        *([f"bool[{width}] mask = {{{', '.join(str(k % 2) for k in range(width))}}}"] if beside else []),
    ]
    text = f"""m (float[{SIZES[sizes]},{width}] x, {inputs}{yes}) => (float[{dims}] y)
        <{", ".join(constants)}> {{ {body} }}"""
    if around == "function":
        text += f"""<domain: "own", opset_import: ["" : 17]>
            stack (x, {weights}, shape) => (z) {{ {" ".join(written)} }}"""
    model = parse(text, domains=', "own" : 1')
    return model, point | ({"yes": np.array(around == "If")} if yes else {})
