"""Stacked recurrent operators, also in branches, loops and functions."""

from __future__ import annotations

import pytest

from tests.autodiff.recurrent_models import AROUND, GATES, SIZES, check, stacked


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_two_layers(op: str, direction: str) -> None:
    for sizes in SIZES:
        check(*stacked(op, direction, sizes, "plain"))


@pytest.mark.parametrize("around", [name for name in AROUND if name != "plain"])
@pytest.mark.parametrize("op", GATES)
def test_layers_in_bodies(op: str, around: str) -> None:
    check(*stacked(op, "bidirectional", "dynamic", around))


#: Operators before and after a recurrent one, from {x} to {y} of the same shape [T, B, {w}].
BESIDE = {
    "elementwise": "{p}e = Tanh({x}) {p}f = Sigmoid({x}) {p}g = Mul({p}e, {p}f) {y} = Sub({p}g, {x})",
    "broadcast": "{p}m = ReduceMean<axes = [1], keepdims = 1>({x}) {p}n = Sub({x}, {p}m) {y} = Div({p}n, two)",
    "softmax": "{y} = Softmax<axis = -1>({x})",
    "log of softmax": "{y} = LogSoftmax<axis = 1>({x})",
    "layer norm": "{p}s = ConstantOfShape<value = float[1] {{1}}>(wide) {y} = LayerNormalization({x}, {p}s, {p}s)",
    "instance norm": """{p}t = Transpose<perm = [1, 2, 0]>({x}) {p}s = ConstantOfShape<value = float[1] {{1}}>(wide)
        {p}i = InstanceNormalization({p}t, {p}s, {p}s) {y} = Transpose<perm = [2, 0, 1]>({p}i)""",
    "batch norm": """{p}t = Transpose<perm = [1, 2, 0]>({x}) {p}s = ConstantOfShape<value = float[1] {{2}}>(wide)
        {p}i = BatchNormalization({p}t, {p}s, {p}s, {p}s, {p}s) {y} = Transpose<perm = [2, 0, 1]>({p}i)""",
    "matmul": """{p}o = Concat<axis = 0>(wide, wide) {p}z = ConstantOfShape({p}o)
        {p}w = EyeLike<dtype = 1, k = 1>({p}z) {y} = MatMul({x}, {p}w)""",
    "gemm": """{p}f = Flatten<axis = 2>({x}) {p}o = Concat<axis = 0>(wide, wide) {p}z = ConstantOfShape({p}o)
        {p}w = EyeLike<dtype = 1>({p}z) {p}g = Gemm<alpha = 0.5>({p}f, {p}w) {p}s = Shape({x}) {y} = Reshape({p}g, {p}s)""",
    "conv": """{p}t = Transpose<perm = [1, 2, 0]>({x}) {p}o = Concat<axis = 0>(wide, one, three)
        {p}k = ConstantOfShape<value = float[1] {{0.3}}>({p}o)
        {p}c = Conv<group = {w}, pads = [1, 1]>({p}t, {p}k) {y} = Transpose<perm = [2, 0, 1]>({p}c)""",
    "pool": """{p}t = Transpose<perm = [1, 2, 0]>({x}) {p}a = AveragePool<kernel_shape = [3], pads = [1, 1]>({p}t)
        {y} = Transpose<perm = [2, 0, 1]>({p}a)""",
    "slices": "{p}f = Slice({x}, one, many, zero) {p}g = Slice({x}, zero, one, zero) {y} = Concat<axis = 0>({p}f, {p}g)",
    "parts": """{p}a, {p}b = Split<axis = 2>({x}, sizes) {p}c = Exp({p}b) {y} = Concat<axis = 2>({p}a, {p}c)""",
    "gather": "{p}a = Gather<axis = 0>({x}, order) {p}b = Add({p}a, {x}) {y} = Tanh({p}b)",
    "pad": "{p}a = Pad({x}, margins) {p}b = Sin({p}a) {y} = Slice({p}b, zero, minus, zero)",
    "where": "{p}d = Mul({x}, half) {y} = Where(mask, {p}d, {x})",
    "running sum": "{y} = CumSum({x}, first)",
    "squeezed": "{p}a = Unsqueeze({x}, one) {p}b = Cos({p}a) {y} = Squeeze({p}b, one)",
    "squeezed, unknown axes": "{p}a = Unsqueeze({x}, one) {p}b = Cos({p}a) {y} = Squeeze({p}b)",
    "tile": "{p}a = Tile({x}, repeats) {p}b = Sin({p}a) {y} = Slice({p}b, zero, steps, zero)",
    "einsum": '{y} = Einsum<equation = "tbw,tbw->tbw">({x}, {x})',
    "cast": "{p}a = Cast<to = 11>({x}) {p}b = Exp({p}a) {p}c = Neg({p}b) {p}d = Cast<to = 1>({p}c) {y} = Tanh({p}d)",
    "if": """{y} = If(true) <then_branch = {p}t () => (float[?,?,?] {p}a) {{ {p}a = Tanh({x}) }},
        else_branch = {p}e () => (float[?,?,?] {p}b) {{ {p}b = Neg({x}) }}>""",
    "loop": """{y} = Loop(trips, , {x}) <body = {p}l (int64 {p}i, bool {p}g, float[?,?,?] {p}v) => (bool {p}o, float[?,?,?] {p}u)
        {{ {p}o = Identity({p}g) {p}u = Sin({p}v) }}>""",
    "scan": """{y} = Scan<num_scan_inputs = 1, body = {p}l (float[?,?] {p}v) => (float[?,?] {p}u) {{ {p}u = Sin({p}v) }}>({x})""",
}


@pytest.mark.parametrize("name", ["softmax", "parts", "squeezed, unknown axes", "loop"])
def test_operators_before_and_after(name: str) -> None:
    for op, direction in zip(GATES, ["bidirectional", "forward", "reverse"], strict=True):
        check(*stacked(op, direction, "dynamic", "plain", layers=1, beside=BESIDE[name]), length=0.003)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("name", BESIDE)
def test_all_operators_before_and_after(name: str, op: str, direction: str, sizes: str) -> None:
    check(*stacked(op, direction, sizes, "plain", layers=1, beside=BESIDE[name]), length=0.003)


@pytest.mark.slow
@pytest.mark.parametrize("around", [name for name in AROUND if name not in ("plain", "function")])
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("name", BESIDE)
def test_all_operators_before_and_after_in_bodies(name: str, op: str, around: str) -> None:
    check(*stacked(op, "forward", "dynamic", around, layers=2, beside=BESIDE[name]), length=0.003)
