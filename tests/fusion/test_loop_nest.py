"""Operations on loop nests, and their refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion.loop_nest import ONLY, Index, LoopNest
from graphopt.fusion.loops.ir import CantFuse
from tests.model_testing import parse

#: Returns a nest over the elements of the first of several values, and the values.
Begin = Callable[..., tuple[LoopNest, list[ir.Value]]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    with ExitStack() as open_:

        def begun(*shapes: str) -> tuple[LoopNest, list[ir.Value]]:
            inputs = ", ".join(f"float[{shape}] v{number}" for number, shape in enumerate(shapes))
            model = parse(f"g ({inputs}) => (float[{shapes[0]}] o) {{ o = Identity(v0) }}")
            nest = LoopNest(open_.enter_context(context_for(model)).facts)
            values = list(model.graph.inputs)
            nest.begin(values[0])
            return nest, values

        yield begun


def at(*loops: int | tuple[int, ...]) -> tuple[Index, ...]:
    """The index of loops along each axis."""
    return tuple(Index((loop,) if isinstance(loop, int) else loop) for loop in loops)


def test_an_axis_of_one_element_has_no_loop(begin: Begin) -> None:
    nest, (x,) = begin("N,1,4")
    assert nest.loops == [0, 1] and nest.indices(x) == [(Index((0,)), ONLY, Index((1,)))]


def test_covers_requires_all_positions_in_order(begin: Begin) -> None:
    nest, _ = begin("N,4")
    n, four = nest.sizes
    assert nest.covers(Index((0,)), n) and nest.covers(Index((0, 1)), n * four)
    assert not nest.covers(Index((0,)), four) and not nest.covers(Index((1,)), 8)
    assert not nest.covers(Index((1,), offset=1), 4)
    assert not nest.covers(Index((1,), offset=3, step=-1), 4)  # all of it, from the end
    assert not nest.covers(Index((1,), step=2), 4)


# Stores ------------------------------------------------------------------------------------------------


def refused(nest: LoopNest, value: ir.Value) -> bool:
    try:
        nest.store(value)
    except CantFuse as reason:
        assert "used outside" in str(reason) and value not in nest.stores
        return True
    return False


def test_values_read_once_per_element_are_stored(begin: Begin) -> None:
    nest, (x, turned) = begin("N,4", "4,N")
    nest.require(turned, at(1, 0))
    nest.store(x)
    nest.store(turned)
    assert nest.stores == {x: at(0, 1), turned: at(1, 0)}


def test_values_invariant_in_an_outer_loop_are_not_stored(begin: Begin) -> None:
    nest, (_, bias) = begin("N,4", "4")
    nest.require(bias, at(1))
    assert refused(nest, bias)


def test_values_invariant_in_all_reduction_loops_are_stored(begin: Begin) -> None:
    nest, (_, sums) = begin("N,4,6", "N")
    nest.outer, nest.reduction_loops = [0], [1, 2]
    nest.require(sums, at(0))
    nest.store(sums)
    assert nest.stores[sums] == at(0)


def test_values_invariant_in_some_reduction_loops_are_not_stored(begin: Begin) -> None:
    nest, (x, part) = begin("N,4,6", "N,4")
    nest.outer, nest.reduction_loops = [0], [1, 2]
    nest.require(part, at(0, 1))
    assert refused(nest, part)
    nest.store(x)


def test_a_diagonal_is_not_stored(begin: Begin) -> None:
    nest, (_, square) = begin("4", "4,4")
    nest.require(square, at(0, 0))
    assert refused(nest, square)


def test_partially_read_values_are_not_stored(begin: Begin) -> None:
    nest, (_, longer, turned) = begin("4", "8", "4")
    nest.require(longer, at(0))
    nest.require(turned, (Index((0,), 3, -1),))
    assert refused(nest, longer) and refused(nest, turned)


def test_one_index_that_covers_a_value_suffices_for_a_store(begin: Begin) -> None:
    nest, (_, other) = begin("4", "4")
    nest.require(other, (Index((0,), 3, -1),))
    nest.require(other, at(0))
    nest.store(other)
    assert nest.stores[other] == at(0)


def test_number_of_indices_per_value_is_limited(begin: Begin) -> None:
    nest, (x,) = begin("N")
    for start in range(1, 8):
        nest.require(x, (Index((0,), start),))
    with pytest.raises(CantFuse, match="too many ways"):
        nest.require(x, (Index((0,), 8),))


# Loops ------------------------------------------------------------------------------------------------


def test_factors_replace_a_loop(begin: Begin) -> None:
    nest, (x,) = begin("N,12,5")
    assert nest.factorize(1, 4) == (3, 4)
    assert nest.outer == [0, 3, 4, 2] and nest.sizes[3:] == [3, 4]
    assert nest.indices(x) == [at(0, (3, 4), 2)]
    nest.outer, nest.reduction_loops = [0, 3, 4], [2]
    nest.factorize(2, 1)
    assert nest.reduction_loops == [5, 6]


def test_only_known_multiples_are_factorized(begin: Begin) -> None:
    nest, _ = begin("N,12")
    for loop, inner in ((1, 5), (0, 2)):
        with pytest.raises(CantFuse, match=r"is a multiple of .* is unknown before the model runs"):
            nest.factorize(loop, inner)
    assert nest.loops == [0, 1]


def test_split_loop_is_not_factorized(begin: Begin) -> None:
    nest, _ = begin("12,12")
    nest.split_at(0, [4])
    nest.factorize(1, 4)
    with pytest.raises(CantFuse, match="concatenated axis is reshaped"):
        nest.factorize(0, 4)


def test_split_points_are_merged(begin: Begin) -> None:
    nest, _ = begin("12,12")
    nest.split_at(1, [8, 4])
    nest.split_at(1, [2, 4])
    assert nest.split_loop == 1 and nest.split_points == [2, 4, 8]
    with pytest.raises(CantFuse, match="along another axis"):
        nest.split_at(0, [4])


def test_reduction_loops_are_not_split(begin: Begin) -> None:
    nest, _ = begin("12,12")
    nest.outer, nest.reduction_loops = [0], [1]
    with pytest.raises(CantFuse, match="concatenated axis is reduced"):
        nest.split_at(1, [4])
    nest.split_at(0, [4])


def test_reduction_loops_are_those_the_reduced_value_is_invariant_in(begin: Begin) -> None:
    nest, _ = begin("N,4,6")
    four, six = nest.sizes[1:]
    assert nest.reduce_over([four, six], at(0)) == [(1,), (2,)]
    assert nest.outer == [0] and nest.reduction_loops == [1, 2]
    for kept, dims in ((at(0, 1), [six]), (at(), [*nest.sizes])):
        with pytest.raises(CantFuse, match="over other axes than its neighbours"):
            nest.reduce_over(dims, kept)


def test_reduction_loops_are_added_to_the_nest(begin: Begin) -> None:
    nest, _ = begin("N")
    assert nest.reduce_over([4, 1], at(0)) == [(1,)]
    assert nest.loops == [0, 1] and nest.reduction_loops == [1] and nest.sizes[1] == 4


# Fusion -----------------------------------------------------------------------------------------------


def reading(nest: LoopNest, x: ir.Value, *loops: int | tuple[int, ...]) -> LoopNest:
    """Another nest that reads ``x``."""
    other = LoopNest(nest.facts, list(nest.sizes), outer=list(nest.outer))
    other.require(x, at(*loops))
    return other


def test_nests_over_equal_elements_are_fused(begin: Begin) -> None:
    nest, (x, y, z) = begin("M,M", "M,M", "M,M")
    other = reading(nest, x, 1, 0)  # its loop 1 is the other's loop 0
    other.require(y, at(1, 0))
    other.require(z, (Index((0,), 1), Index((1,))))
    other.stores[y] = at(1, 0)
    other.split_at(0, [3])
    nest.fuse_horizontally(other, x)
    assert nest.required_indices == {x: [at(0, 1)], y: [at(0, 1)], z: [(Index((1,), 1), Index((0,)))]}
    assert nest.stores == {y: at(0, 1)} and (nest.split_loop, nest.split_points) == (1, [3])


def test_fusion_keeps_reduction_loops_of_both_nests(begin: Begin) -> None:
    nest, (x,) = begin("N,M")
    other = reading(nest, x, 0, 1)
    other.outer, other.reduction_loops = [0], [1]
    nest.fuse_horizontally(other, x)
    assert nest.outer == [0] and nest.reduction_loops == [1]
    nest.fuse_horizontally(other, x)
    assert nest.reduction_loops == [1]


def refusal(nest: LoopNest, other: LoopNest, value: ir.Value) -> str:
    with pytest.raises(CantFuse) as found:
        nest.copy().fuse_horizontally(other, value)
    return str(found.value)


def test_nests_with_shifted_reads_are_not_fused(begin: Begin) -> None:
    nest, (x, y) = begin("N,4", "N,4")
    other = reading(nest, y, 0, 1)
    assert (
        refusal(nest, other, x) == "they read the shared value at different indices"
    )  # does not read it at all
    other.require(x, (Index((0,)), Index((1,), 1)))
    assert refusal(nest, other, x) == "they read the shared value at different indices"
    assert refusal(other, nest, x) == "they read the shared value at different indices"


def test_nests_with_factorized_loops_are_not_fused(begin: Begin) -> None:
    nest, (x,) = begin("N,12")
    other = reading(nest, x, 0, 1)
    other.factorize(1, 4)
    assert refusal(nest, other, x) == "they read the shared value at different indices"


def test_nests_of_different_sizes_are_not_fused(begin: Begin) -> None:
    nest, (x,) = begin("N,12")
    other = reading(nest, x, 0, 1)
    other.sizes[1] = 6
    assert refusal(nest, other, x) == "they loop over different sizes"


def test_nests_with_further_loops_are_not_fused(begin: Begin) -> None:
    nest, (x,) = begin("N,12")
    more = reading(nest, x, 0, 1)
    more.outer.append(more.loop(5))
    assert refusal(nest, more, x) == "they loop over different elements"
    assert refusal(more, nest, x) == "they loop over different elements"


def test_nests_with_different_reduction_loops_are_not_fused(begin: Begin) -> None:
    nest, (x,) = begin("8,8")
    other = reading(nest, x, 0, 1)
    nest.outer, nest.reduction_loops = [0], [1]
    other.outer, other.reduction_loops = [1], [0]
    assert refusal(nest, other, x) == "they reduce over different axes"
    other.outer, other.reduction_loops = [], [0, 1]
    assert refusal(nest, other, x) == "they reduce over different axes"


def test_fusion_does_not_reduce_a_split_loop(begin: Begin) -> None:
    nest, (x,) = begin("8,8")
    other = reading(nest, x, 0, 1)
    other.outer, other.reduction_loops = [0], [1]
    nest.split_at(1, [4])
    assert refusal(nest, other, x) == "the concatenated axis is reduced"
    assert refusal(other, nest, x) == "the concatenated axis is reduced"


def test_fusion_does_not_split_two_loops(begin: Begin) -> None:
    nest, (x,) = begin("8,8")
    other = reading(nest, x, 0, 1)
    nest.split_at(1, [4])
    other.split_at(0, [4])
    assert refusal(nest, other, x) == "the nest has a concatenation along another axis"
