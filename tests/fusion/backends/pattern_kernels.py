"""Typical kernels of models, for tests of back ends."""

from __future__ import annotations

from graphopt.fusion.loops.ir import (
    ONE,
    Access,
    Axis,
    Element,
    Instruction,
    Kernel,
    Port,
    Segment,
    Size,
    Store,
    Symbol,
)

F32 = Element.F32
N, M = Size(1, (0,)), Size(1, (1,))
ROWS = Access(0, (M, ONE))


def step(op: str, *args: int, element: Element = F32) -> Instruction:
    return Instruction(op, element, args)


def load(port: int, columns: Size = M) -> Instruction:
    """An element of a matrix."""
    return Instruction("load", F32, access=Access(port, (columns, ONE)))


def kernel(name: str, inputs: int, body: list[Instruction], reduced: bool = False) -> Kernel:
    """A kernel of N × M matrices, in place."""
    port = Port(F32, (N, M))
    return Kernel(
        name,
        (port,) * inputs,
        (port,),
        (Symbol(0, 0), Symbol(0, 1)),
        (Axis(N), Axis(M, reduced)),
        (Segment(tuple(body), (Store(ROWS, len(body) - 1),)),),
        in_place=((0, 0),),
    )


SWISH = kernel(
    "swish",
    3,
    [load(0), load(1), load(2), step("sigmoid", 0), step("mul", 0, 3), step("mul", 4, 1), step("add", 5, 2)],
)
SOFTMAX = kernel(
    "softmax", 1,
    [load(0), step("reduce_max", 0), step("sub", 0, 1), step("exp", 2), step("reduce_sum", 3), step("div", 3, 4)],
    reduced=True,
)  # fmt: skip
# A condition with an exponential is spilled for the second stage.
KEPT_BOOL = kernel(
    "kept_bool", 1,
    [load(0), step("exp", 0), Instruction("constant", F32, value=1.0),
     step("lt", 1, 2, element=Element.BOOL), step("reduce_max", 3, element=Element.BOOL),
     step("xor", 3, 4, element=Element.BOOL), step("cast", 5)],
    reduced=True,
)  # fmt: skip
# A reduction before the last axis: the columns of x divided by their norms.
COLUMNS = Kernel(
    "columns", (Port(F32, (N, Size(8), M)),), (Port(F32, (N, Size(8), M)), Port(F32, (N, M))),
    (Symbol(0, 0), Symbol(0, 2)), (Axis(N), Axis(Size(8), True), Axis(M)),
    (Segment(
        (Instruction("load", F32, access=Access(0, (Size(8, (1,)), M, ONE))), step("exp", 0), step("mul", 1, 1),
         step("reduce_sum", 2), step("sqrt", 3), step("div", 1, 4)),
        (Store(Access(0, (Size(8, (1,)), M, ONE)), 5), Store(Access(1, (M, Size(0), ONE)), 4)),
    ),),
)  # fmt: skip
# Pixels of 3 channels: bytes in, scaled by channel, channels last.
PIXELS = Kernel(
    "pixels", (Port(Element.U8, (N, M, Size(3))), Port(F32, (Size(3),))), (Port(F32, (N, M, Size(3))),),
    (Symbol(0, 0), Symbol(0, 1)), (Axis(N), Axis(M), Axis(Size(3))),
    (Segment(
        (Instruction("load", Element.U8, access=Access(0, (Size(3, (1,)), Size(3), ONE))),
         Instruction("load", F32, access=Access(1, (Size(0), Size(0), ONE))),
         step("cast", 0), step("mul", 2, 1)),
        (Store(Access(0, (Size(3, (1,)), Size(3), ONE)), 3),),
    ),),
)  # fmt: skip
KERNELS = [SWISH, SOFTMAX, KEPT_BOOL, COLUMNS, PIXELS]
