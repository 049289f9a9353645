"""What is computed in which pass over a row, and where a division becomes a product."""

from __future__ import annotations

from dataclasses import replace

from graphopt.fusion.backends.c.schedule import schedule
from graphopt.fusion.loops.ir import Kernel
from graphopt.fusion.loops.stages import may_invert
from tests.fusion.test_lower import one


def passes(kernel: Kernel) -> list[tuple[int, ...]]:
    """The outputs that each pass writes."""
    (piece,) = kernel.pieces
    return [step.stores for step in schedule(kernel, piece).staging.passes]


def test_outputs_are_written_as_soon_as_they_are_known() -> None:
    kernel = one("e = Exp(x) y = Softmax(e) z = Neg(e)", outputs="float[N,64] y, float[N,64] z")
    assert passes(kernel) == [(1,), (), (0,)]


def test_an_output_over_what_later_passes_read_is_written_last() -> None:
    kernel = one("e = Exp(x) y = Softmax(e) z = Neg(e)", outputs="float[N,64] y, float[N,64] z")
    assert passes(replace(kernel, in_place=((0, 1),))) == [(), (), (0, 1)]


def inverts(body: str, inputs: str = "float[N,64] x") -> bool:
    """Whether the last division of a kernel may be a product."""
    kernel = one(body, inputs)
    (piece,) = kernel.pieces
    nest = schedule(kernel, piece).nest
    *_, division = (index for index, step in enumerate(nest.body) if step.op == "div")
    return may_invert(nest, division)


def test_only_roots_and_sums_that_many_elements_share_are_inverted() -> None:
    assert inverts("q = Mul(x, x) m = ReduceMean <axes = [-1]> (q) r = Sqrt(m) y = Div(x, r)")
    assert inverts("e = Abs(x) y = Softmax(e)")
    shared = "float[N,64] x, float[N,1] v"
    # the root of what is read: it may be as small as a denormal number
    assert not inverts("a = Abs(v) r = Sqrt(a) s = Div(x, r) y = Exp(s)", shared)
    assert not inverts("e = Abs(x) m = ReduceMean <axes = [-1]> (e) y = Div(x, m)")
    assert not inverts("a = Abs(x) r = Sqrt(a) y = Div(x, r)")
