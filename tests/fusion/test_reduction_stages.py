"""Stages of kernels, and divisions that become products."""

from __future__ import annotations

from dataclasses import replace

from graphopt.fusion.backends.c.schedule import schedule
from graphopt.fusion.loops.ir import Kernel
from graphopt.fusion.loops.reduction_stages import has_shared_inverse
from tests.fusion.test_lower_group import one


def stores_by_stage(kernel: Kernel) -> list[tuple[int, ...]]:
    """The outputs stored in each stage."""
    (segment,) = kernel.segments
    return [step.stores for step in schedule(kernel, segment).stage_plan.stages]


def test_outputs_are_stored_in_the_earliest_stage() -> None:
    kernel = one("e = Exp(x) y = Softmax(e) z = Neg(e)", outputs="float[N,64] y, float[N,64] z")
    assert stores_by_stage(kernel) == [(1,), (), (0,)]


def test_in_place_outputs_are_stored_in_the_last_stage() -> None:
    kernel = one("e = Exp(x) y = Softmax(e) z = Neg(e)", outputs="float[N,64] y, float[N,64] z")
    assert stores_by_stage(replace(kernel, in_place=((0, 1),))) == [(), (), (0, 1)]


def inverts(body: str, inputs: str = "float[N,64] x") -> bool:
    """Whether the last division of a kernel may be a product."""
    kernel = one(body, inputs)
    (segment,) = kernel.segments
    nest = schedule(kernel, segment).nest
    *_, division = (index for index, step in enumerate(nest.body) if step.op == "div")
    return has_shared_inverse(nest, division)


def test_only_shared_roots_and_softmax_sums_are_inverted() -> None:
    assert inverts("q = Mul(x, x) m = ReduceMean <axes = [-1]> (q) r = Sqrt(m) y = Div(x, r)")
    assert inverts("e = Abs(x) y = Softmax(e)")
    shared = "float[N,64] x, float[N,1] v"
    # the root of an input may be denormal
    assert not inverts("a = Abs(v) r = Sqrt(a) s = Div(x, r) y = Exp(s)", shared)
    assert not inverts("e = Abs(x) m = ReduceMean <axes = [-1]> (e) y = Div(x, m)")
    assert not inverts("a = Abs(x) r = Sqrt(a) y = Div(x, r)")


def test_quotients_by_constants_are_products_if_only_erf_or_tanh_reads_them() -> None:
    root = "s = Constant <value = float {1.4142135}> () q = Div(x, s)"
    assert inverts(f"{root} y = Erf(q)")
    assert inverts(f"{root} y = Tanh(q)")
    assert not inverts(f"{root} y = Exp(q)")
    assert not inverts(f"{root} e = Erf(q) y = Add(e, q)")
    assert not inverts("s = Constant <value = float {1e-38}> () q = Div(x, s) y = Erf(q)")
