"""Recurrent operators behind one another, and in branches, loops and functions."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from tests.autodiff.recurrent_models import BATCH, GATES, STEPS, H, check
from tests.support import parse

SIZES = {"static": f"{STEPS},{BATCH}", "dynamic": "T,B"}
#: What stands around the layers, which take x and return z, with one result y.
AROUND = {
    "plain": "{layers} y = Identity(z)",
    "If": """y = If(yes) <then_branch = then () => (float[?,?,?] z) {{ {layers} }},
                          else_branch = other () => (float[?,?,?] o) {{ o = Neg(x) }}>""",
    "If, behind Relu": """u = Relu(x)
        y = If(yes) <then_branch = other () => (float[?,?,?] o) {{ o = Neg(u) }},
                     else_branch = then () => (float[?,?,?] z) {{ {layers} }}>""",
    "Loop": """trips = Constant<value_int = 2>()
        y = Loop(trips, , x) <body = body (int64 i, bool going, float[?,?,?] x) => (bool on, float[?,?,?] z)
            {{ on = Identity(going) {layers} }}>""",
    "Scan": """axis = Constant<value_ints = [0]>() one = Unsqueeze(x, axis) half = Cos(one)
        several = Concat<axis = 0>(one, half)
        y = Scan<num_scan_inputs = 1, body = body (float[?,?,?] x) => (float[?,?,?] z) {{ {layers} }}>(several)""",
    "function": "y = own.stack(x, {weights}, shape)",
}


def stacked(
    op: str, direction: str, sizes: str, around: str, layers: int = 2
) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """A model of layers whose outputs are as wide as their inputs, and feeds."""
    random, count = np.random.default_rng(0), 2 if direction == "bidirectional" else 1
    width, gates = count * H, GATES[op] * H
    point = {"x": np.asarray(random.standard_normal((STEPS, BATCH, width)), np.float32)}
    written = []
    for k in range(layers):
        for name, size in ((f"w{k}", width), (f"r{k}", H)):
            point[name] = np.asarray(0.7 * random.standard_normal((count, gates, size)), np.float32)
        x, z = "x" if k == 0 else f"z{k - 1}", "z" if k == layers - 1 else f"z{k}"
        written.append(
            f"""y{k} = {op}<hidden_size = {H}, direction = "{direction}">({x}, w{k}, r{k})
            t{k} = Transpose<perm = [0, 2, 1, 3]>(y{k}) {z} = Reshape(t{k}, shape)"""
        )
    weights = ", ".join(name for name in point if name != "x")
    inputs = ", ".join(
        f"float[{','.join(map(str, point[name].shape))}] {name}" for name in point if name != "x"
    )
    body = AROUND[around].format(layers=" ".join(written), weights=weights)
    yes = ", bool yes" if around.startswith("If") else ""
    dims = "?,?,?,?" if around == "Scan" else "?,?,?"
    text = f"""m (float[{SIZES[sizes]},{width}] x, {inputs}{yes}) => (float[{dims}] y)
        <int64[3] shape = {{0, 0, {width}}}> {{ {body} }}"""
    if around == "function":
        text += f"""<domain: "own", opset_import: ["" : 17]>
            stack (x, {weights}, shape) => (z) {{ {" ".join(written)} }}"""
    model = parse(text, domains=', "own" : 1')
    return model, point | ({"yes": np.array(around == "If")} if yes else {})


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_two_layers(op: str, direction: str) -> None:
    for sizes in SIZES:
        check(*stacked(op, direction, sizes, "plain"))


@pytest.mark.parametrize("around", [name for name in AROUND if name != "plain"])
@pytest.mark.parametrize("op", GATES)
def test_layers_in_bodies(op: str, around: str) -> None:
    check(*stacked(op, "bidirectional", "dynamic", around))
