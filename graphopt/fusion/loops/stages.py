"""Passes over the reduced axes.

A reduction ends a pass: what depends on it is computed in a later one. A value that several passes need is
computed in each of them again when that is cheap, loads and arithmetic, and kept in a buffer when it is not.

A softmax takes three passes: the maximum; the sum of exponentials, which are kept; the quotients.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.fusion.loops.collapse import Nest
from graphopt.fusion.loops.ir import COSTLY


@dataclass(frozen=True)
class Pass:
    """One run over the inner loops.

    Attributes:
        before: what is computed once before it, outside of the inner loops.
        body: what is computed at each point of the inner loops that it depends on.
        takes: what is read back from the buffers that earlier passes kept.
        keeps: those of ``body`` that later passes take.
        reductions: what the pass ends: indices of reductions.
        stores: indices of the stores that are made in it.
    """

    before: tuple[int, ...]
    body: tuple[int, ...]
    takes: tuple[int, ...]
    keeps: tuple[int, ...]
    reductions: tuple[int, ...]
    stores: tuple[int, ...]


@dataclass(frozen=True)
class Staging:
    """How the inner loops are run.

    Attributes:
        passes: in order; at least one.
        after: what is computed after them.
        stores: indices of the stores that are made after them, once for each point of the outer loops.
    """

    passes: tuple[Pass, ...]
    after: tuple[int, ...]
    stores: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """All that is kept in buffers."""
        return tuple(index for step in self.passes for index in step.keeps)


def stage(nest: Nest, inner: frozenset[int], late: frozenset[int], vector: int) -> Staging:
    """Plans the passes over ``inner`` loops.

    Args:
        nest: what is computed.
        inner: the loops of a pass.
        late: outputs that are to be written in the last pass: they may share memory with an input.
        vector: the loop whose points are computed side by side; what does not depend on it is not kept.
    """
    body = nest.body
    varies = [bool(axes & inner) for axes in nest.axes]
    stages: list[int] = []
    costly: list[bool] = []
    for step in body:
        reduction = step.op.startswith("reduce_")
        stages.append(max((stages[arg] for arg in step.args), default=0) + reduction)
        costly.append(
            not reduction and (step.op in COSTLY or any(costly[arg] and varies[arg] for arg in step.args))
        )
    needed = nest.needed
    reductions = [index for index in needed if body[index].op.startswith("reduce_")]
    full = [index for index, store in enumerate(nest.stores) if _full(nest, index, inner)]
    count = max(
        [stages[index] for index in reductions]
        + [stages[nest.stores[index].instruction] + 1 for index in full],
        default=1,
    )
    when = {
        index: count - 1 if nest.stores[index].place.port in late else stages[nest.stores[index].instruction]
        for index in full
    }
    computed: list[set[int]] = []
    taken: list[set[int]] = []
    kept: list[set[int]] = [set() for _ in range(count)]
    for number in range(count):
        ended = [index for index in reductions if stages[index] == number + 1]
        open_ = [body[index].args[0] for index in ended]
        open_ += [nest.stores[index].instruction for index in full if when[index] == number]
        computed.append(set())
        taken.append(set())
        while open_:
            index = open_.pop()
            if not varies[index] or index in computed[number] or index in taken[number]:
                continue
            first = next((early for early in range(number) if index in computed[early]), None)
            if first is not None and costly[index] and vector in nest.axes[index]:
                taken[number].add(index)
                kept[first].add(index)
            else:
                computed[number].add(index)
                open_ += body[index].args
    fixed = [index for index in needed if not varies[index] and not body[index].op.startswith("reduce_")]
    passes = tuple(
        Pass(
            before=tuple(index for index in fixed if stages[index] == number),
            body=tuple(sorted(computed[number])),
            takes=tuple(sorted(taken[number])),
            keeps=tuple(sorted(kept[number])),
            reductions=tuple(index for index in reductions if stages[index] == number + 1),
            stores=tuple(index for index in full if when[index] == number),
        )
        for number in range(count)
    )
    once = tuple(index for index in range(len(nest.stores)) if index not in when)
    return Staging(passes, tuple(index for index in fixed if stages[index] >= count), once)


def may_invert(nest: Nest, index: int) -> bool:
    """Whether division ``index`` may be a product with the inverse of its divisor, which many elements share.

    The inverse is an ordinary number wherever the divisor is one: roots are far from the ends of single
    precision, and the exponentials of a softmax, of which the largest is 1, add up to 1 or more. As sums do
    in another order, results may differ in the last place.
    """
    body, step = nest.body, nest.body[index]
    if step.op != "div" or not step.element.is_float:
        return False
    above, below = step.args
    if not nest.axes[below] < nest.axes[above]:
        return False
    if body[below].op == "sqrt":
        return _reduces(nest, below)
    if body[below].op != "reduce_sum" or body[below].args[0] != above or body[above].op != "exp":
        return False
    shifted = body[body[above].args[0]]
    return (
        shifted.op == "sub"
        and body[shifted.args[1]].op == "reduce_max"
        and body[shifted.args[1]].args[0] == shifted.args[0]
    )


def _reduces(nest: Nest, index: int) -> bool:
    """Whether a reduction goes into a value."""
    open_, seen = [index], set()
    while open_:
        index = open_.pop()
        if nest.body[index].op.startswith("reduce_"):
            return True
        if index not in seen:
            seen.add(index)
            open_ += nest.body[index].args
    return False


def _full(nest: Nest, index: int, inner: frozenset[int]) -> bool:
    """Whether a store stands at all points of the inner loops."""
    store = nest.stores[index]
    axes = nest.axes[store.instruction] | {
        axis for axis, stride in enumerate(store.place.strides) if stride.factor
    }
    return bool(axes & inner)
