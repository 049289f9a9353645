"""Stages: passes over the inner loops, each ended by reductions.

Values that depend on a reduction are computed in a later stage. A value used in several stages is recomputed
if it is cheap (loads and arithmetic), and spilled to a buffer otherwise.

A softmax has three stages: the maximum; the sum of the exponentials, which are spilled; the quotients.
"""

from __future__ import annotations

from graphopt.fusion.loops.collapse import CollapsedNest
from graphopt.fusion.loops.instructions import COSTLY, OPS
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Stage:
    """One pass over the inner loops; instructions and stores are given by index.

    Attributes:
        before: instructions computed once, before the loops.
        body: instructions computed in the loops.
        reloads: values read from buffers of earlier stages.
        spills: values of ``body`` that later stages reload.
        reductions: the reductions that end the stage.
        stores: stores in the loops.
    """

    before: tuple[int, ...]
    body: tuple[int, ...]
    reloads: tuple[int, ...]
    spills: tuple[int, ...]
    reductions: tuple[int, ...]
    stores: tuple[int, ...]


@dataclass(frozen=True)
class StagePlan:
    """The stages of the inner loops.

    Attributes:
        stages: the stages in order; at least one.
        after: instructions computed after the last stage.
        stores: stores after the last stage, once per point of the outer loops.
    """

    stages: tuple[Stage, ...]
    after: tuple[int, ...]
    stores: tuple[int, ...]

    @property
    def spilled(self) -> tuple[int, ...]:
        """All values that are spilled to buffers."""
        return tuple(index for step in self.stages for index in step.spills)


def plan_stages(nest: CollapsedNest, inner: frozenset[int], late: frozenset[int], vector: int) -> StagePlan:
    """Plan the stages of ``nest``.

    Args:
        inner: the loops of a stage.
        late: outputs that the last stage has to write, because they may share memory with an input.
        vector: the vectorized loop; values that do not depend on it are not spilled.
    """
    body = nest.body
    varies = [bool(axes & inner) for axes in nest.axes]
    level: list[int] = []  # the first stage in which a value can be computed
    costly: list[bool] = []
    for step in body:
        level.append(max((level[arg] for arg in step.args), default=0) + step.is_reduction)
        is_costly = OPS[step.op].cost >= COSTLY or any(costly[arg] and varies[arg] for arg in step.args)
        costly.append(not step.is_reduction and is_costly)
    reductions = [index for index in nest.live if body[index].is_reduction]
    full = [index for index, store in enumerate(nest.stores) if _varies(nest, index, inner)]
    count = max(
        [level[index] for index in reductions]
        + [level[nest.stores[index].instruction] + 1 for index in full],
        default=1,
    )
    stage_of = {
        index: count - 1 if nest.stores[index].access.port in late else level[nest.stores[index].instruction]
        for index in full
    }
    computed: list[set[int]] = []
    reloads: list[set[int]] = []
    spills: list[set[int]] = [set() for _ in range(count)]
    for number in range(count):
        ended = [index for index in reductions if level[index] == number + 1]
        pending = [body[index].args[0] for index in ended]
        pending += [nest.stores[index].instruction for index in full if stage_of[index] == number]
        computed.append(set())
        reloads.append(set())
        while pending:
            index = pending.pop()
            if not varies[index] or index in computed[number] or index in reloads[number]:
                continue
            first = next((early for early in range(number) if index in computed[early]), None)
            if first is not None and costly[index] and vector in nest.axes[index]:
                reloads[number].add(index)
                spills[first].add(index)
            else:
                computed[number].add(index)
                pending += body[index].args
    invariant = [index for index in nest.live if not varies[index] and not body[index].is_reduction]
    stages = tuple(
        Stage(
            before=tuple(index for index in invariant if level[index] == number),
            body=tuple(sorted(computed[number])),
            reloads=tuple(sorted(reloads[number])),
            spills=tuple(sorted(spills[number])),
            reductions=tuple(index for index in reductions if level[index] == number + 1),
            stores=tuple(index for index in full if stage_of[index] == number),
        )
        for number in range(count)
    )
    once = tuple(index for index in range(len(nest.stores)) if index not in stage_of)
    return StagePlan(stages, tuple(index for index in invariant if level[index] >= count), once)


#: Instructions whose relative error is at most that of their argument, and their own.
_DAMPING = ("erf", "tanh")


def has_shared_inverse(nest: CollapsedNest, index: int) -> bool:
    """Whether division ``index`` may be a product with the inverse of its divisor, shared by many elements.

    The inverse of the divisor must be a normal number if the divisor is normal. This holds for roots, which
    are far from the limits of single precision, and for the sum of the exponentials of a softmax, which is at
    least 1 because the largest exponential is 1. Like a reordered sum, the product may change the last place
    of results. Quotients by constants are exact unless only functions that do not amplify errors read them,
    such as the erf of a GELU.
    """
    body, step = nest.body, nest.body[index]
    if step.op != "div" or not step.element.is_float:
        return False
    dividend, divisor = step.args
    if not nest.axes[divisor] < nest.axes[dividend]:
        return False
    if body[divisor].op == "constant":
        number = abs(float(body[divisor].value or 0))
        return 2.0**-100 < number < 2.0**100 and _is_damped(nest, index)
    if body[divisor].op == "sqrt":
        return _depends_on_reduction(nest, divisor)
    if body[divisor].op != "reduce_sum" or body[divisor].args[0] != dividend or body[dividend].op != "exp":
        return False
    shifted = body[body[dividend].args[0]]
    return (
        shifted.op == "sub"
        and body[shifted.args[1]].op == "reduce_max"
        and body[shifted.args[1]].args[0] == shifted.args[0]
    )


def _is_damped(nest: CollapsedNest, index: int) -> bool:
    readers = [step.op for step in nest.body if index in step.args]
    return all(op in _DAMPING for op in readers) and all(store.instruction != index for store in nest.stores)


def _depends_on_reduction(nest: CollapsedNest, index: int) -> bool:
    pending, visited = [index], set()
    while pending:
        index = pending.pop()
        if nest.body[index].is_reduction:
            return True
        if index not in visited:
            visited.add(index)
            pending += nest.body[index].args
    return False


def _varies(nest: CollapsedNest, index: int, inner: frozenset[int]) -> bool:
    """Whether a store is executed at each point of the inner loops."""
    store = nest.stores[index]
    axes = nest.axes[store.instruction] | {
        axis for axis, stride in enumerate(store.access.strides) if stride.factor
    }
    return bool(axes & inner)
