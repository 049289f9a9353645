"""What a nest of loops takes in, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from graphopt import ir
from graphopt.driver import context_for
from graphopt.fusion.loop_nest import ONLY, CantFuse, Index, Nest
from tests.support import parse

#: A nest over the elements of the first of some values, and the values.
Begun = Callable[..., tuple[Nest, list[ir.Value]]]


@pytest.fixture
def begin() -> Iterator[Begun]:
    with ExitStack() as open_:

        def begun(*shapes: str) -> tuple[Nest, list[ir.Value]]:
            inputs = ", ".join(f"float[{shape}] v{number}" for number, shape in enumerate(shapes))
            model = parse(f"g ({inputs}) => (float[{shapes[0]}] o) {{ o = Identity(v0) }}")
            nest = Nest(open_.enter_context(context_for(model)).facts)
            values = list(model.graph.inputs)
            nest.begin(values[0])
            return nest, values

        yield begun


def at(*loops: int | tuple[int, ...]) -> tuple[Index, ...]:
    """The place that these loops are, along each axis."""
    return tuple(Index((loop,) if isinstance(loop, int) else loop) for loop in loops)


def test_an_axis_of_one_element_has_no_loop(begin: Begun) -> None:
    nest, (x,) = begin("N,1,4")
    assert nest.loops == [0, 1] and nest.maps(x) == [(Index((0,)), ONLY, Index((1,)))]


def test_loops_cover_an_axis_where_they_go_over_all_of_it_in_order(begin: Begun) -> None:
    nest, _ = begin("N,4")
    n, four = nest.sizes
    assert nest.covers(Index((0,)), n) and nest.covers(Index((0, 1)), n * four)
    assert not nest.covers(Index((0,)), four) and not nest.covers(Index((1,)), 8)
    assert not nest.covers(Index((1,), offset=1), 4)
    assert not nest.covers(Index((1,), offset=3, step=-1), 4)  # all of it, from the end
    assert not nest.covers(Index((1,), step=2), 4)


# What is written to memory ----------------------------------------------------------------------------


def refused(nest: Nest, value: ir.Value) -> bool:
    try:
        nest.store(value)
    except CantFuse as reason:
        assert "wanted outside" in str(reason) and value not in nest.stores
        return True
    return False


def test_what_is_read_once_for_each_element_is_stored(begin: Begun) -> None:
    nest, (x, turned) = begin("N,4", "4,N")
    nest.demand(turned, at(1, 0))
    nest.store(x)
    nest.store(turned)
    assert nest.stores == {x: at(0, 1), turned: at(1, 0)}


def test_what_a_loop_repeats_is_not_stored(begin: Begun) -> None:
    nest, (_, bias) = begin("N,4", "4")
    nest.demand(bias, at(1))
    assert refused(nest, bias)


def test_what_a_reduction_repeats_is_stored(begin: Begun) -> None:
    nest, (_, sums) = begin("N,4,6", "N")
    nest.outer, nest.row = [0], [1, 2]
    nest.demand(sums, at(0))
    nest.store(sums)
    assert nest.stores[sums] == at(0)


def test_what_a_part_of_the_row_repeats_is_not_stored(begin: Begun) -> None:
    nest, (x, part) = begin("N,4,6", "N,4")
    nest.outer, nest.row = [0], [1, 2]
    nest.demand(part, at(0, 1))
    assert refused(nest, part)
    nest.store(x)


def test_a_diagonal_is_not_stored(begin: Begun) -> None:
    nest, (_, square) = begin("4", "4,4")
    nest.demand(square, at(0, 0))
    assert refused(nest, square)


def test_a_part_is_not_stored(begin: Begun) -> None:
    nest, (_, longer, turned) = begin("4", "8", "4")
    nest.demand(longer, at(0))
    nest.demand(turned, (Index((0,), 3, -1),))
    assert refused(nest, longer) and refused(nest, turned)


def test_one_way_of_reading_all_is_enough(begin: Begun) -> None:
    nest, (_, other) = begin("4", "4")
    nest.demand(other, (Index((0,), 3, -1),))
    nest.demand(other, at(0))
    nest.store(other)
    assert nest.stores[other] == at(0)


def test_a_value_is_read_in_a_few_ways_only(begin: Begun) -> None:
    nest, (x,) = begin("N")
    for start in range(1, 8):
        nest.demand(x, (Index((0,), start),))
    with pytest.raises(CantFuse, match="too many ways"):
        nest.demand(x, (Index((0,), 8),))


# Loops ------------------------------------------------------------------------------------------------


def test_the_parts_of_a_loop_take_its_place(begin: Begun) -> None:
    nest, (x,) = begin("N,12,5")
    assert nest.split(1, 4) == (3, 4)
    assert nest.outer == [0, 3, 4, 2] and nest.sizes[3:] == [3, 4]
    assert nest.maps(x) == [at(0, (3, 4), 2)]
    nest.outer, nest.row = [0, 3, 4], [2]
    nest.split(2, 1)
    assert nest.row == [5, 6]


def test_only_multiples_are_taken_apart(begin: Begun) -> None:
    nest, _ = begin("N,12")
    for loop, inner in ((1, 5), (0, 2)):
        with pytest.raises(CantFuse, match="not known to be a multiple"):
            nest.split(loop, inner)
    assert nest.loops == [0, 1]


def test_a_loop_that_is_cut_stays_whole(begin: Begun) -> None:
    nest, _ = begin("12,12")
    nest.cut_at(0, [4])
    nest.split(1, 4)
    with pytest.raises(CantFuse, match="concatenated is reshaped"):
        nest.split(0, 4)


def test_one_loop_is_cut_at_all_points(begin: Begun) -> None:
    nest, _ = begin("12,12")
    nest.cut_at(1, [8, 4])
    nest.cut_at(1, [2, 4])
    assert nest.cut == 1 and nest.cuts == [2, 4, 8]
    with pytest.raises(CantFuse, match="along another axis"):
        nest.cut_at(0, [4])


def test_what_is_reduced_is_not_cut(begin: Begun) -> None:
    nest, _ = begin("12,12")
    nest.outer, nest.row = [0], [1]
    with pytest.raises(CantFuse, match="concatenated is reduced"):
        nest.cut_at(1, [4])
    nest.cut_at(0, [4])


def test_a_row_is_what_the_reduced_value_does_not_depend_on(begin: Begun) -> None:
    nest, _ = begin("N,4,6")
    four, six = nest.sizes[1:]
    assert nest.reduce_over([four, six], at(0)) == [(1,), (2,)]
    assert nest.outer == [0] and nest.row == [1, 2]
    for kept, dims in ((at(0, 1), [six]), (at(), [*nest.sizes])):
        with pytest.raises(CantFuse, match="over other axes than its neighbours"):
            nest.reduce_over(dims, kept)


def test_a_row_that_nothing_loops_over_is_added(begin: Begun) -> None:
    nest, _ = begin("N")
    assert nest.reduce_over([4, 1], at(0)) == [(1,)]
    assert nest.loops == [0, 1] and nest.row == [1] and nest.sizes[1] == 4


# Together ---------------------------------------------------------------------------------------------


def two(nest: Nest, x: ir.Value, *loops: int | tuple[int, ...]) -> Nest:
    """Another nest, that reads ``x`` at its own loops."""
    other = Nest(nest.facts, list(nest.sizes), outer=list(nest.outer))
    other.demand(x, at(*loops))
    return other


def test_what_loops_over_the_same_becomes_one(begin: Begun) -> None:
    nest, (x, y, z) = begin("M,M", "M,M", "M,M")
    other = two(nest, x, 1, 0)  # its loop 1 is the other's loop 0
    other.demand(y, at(1, 0))
    other.demand(z, (Index((0,), 1), Index((1,))))
    other.stores[y] = at(1, 0)
    other.cut_at(0, [3])
    nest.absorb(other, x)
    assert nest.demands == {x: [at(0, 1)], y: [at(0, 1)], z: [(Index((1,), 1), Index((0,)))]}
    assert nest.stores == {y: at(0, 1)} and (nest.cut, nest.cuts) == (1, [3])


def test_a_row_is_taken_over(begin: Begun) -> None:
    nest, (x,) = begin("N,M")
    other = two(nest, x, 0, 1)
    other.outer, other.row = [0], [1]
    nest.absorb(other, x)
    assert nest.outer == [0] and nest.row == [1]
    nest.absorb(other, x)
    assert nest.row == [1]


def refusal(nest: Nest, other: Nest, value: ir.Value) -> str:
    with pytest.raises(CantFuse) as found:
        nest.copy().absorb(other, value)
    return str(found.value)


def test_shifted_elements_are_not_the_same(begin: Begun) -> None:
    nest, (x, y) = begin("N,4", "N,4")
    other = two(nest, y, 0, 1)
    assert refusal(nest, other, x) == "they read the same in different ways"  # does not read it at all
    other.demand(x, (Index((0,)), Index((1,), 1)))
    assert refusal(nest, other, x) == "they read the same in different ways"
    assert refusal(other, nest, x) == "they read the same in different ways"


def test_loops_that_were_taken_apart_are_not_whole_ones(begin: Begun) -> None:
    nest, (x,) = begin("N,12")
    other = two(nest, x, 0, 1)
    other.split(1, 4)
    assert refusal(nest, other, x) == "they read the same in different ways"


def test_loops_of_one_place_have_one_size(begin: Begun) -> None:
    nest, (x,) = begin("N,12")
    other = two(nest, x, 0, 1)
    other.sizes[1] = 6
    assert refusal(nest, other, x) == "they loop over different sizes"


def test_all_loops_have_to_be_shared(begin: Begun) -> None:
    nest, (x,) = begin("N,12")
    more = two(nest, x, 0, 1)
    more.outer.append(more.loop(5))
    assert refusal(nest, more, x) == "they loop over different elements"
    assert refusal(more, nest, x) == "they loop over different elements"


def test_reductions_go_over_one_row(begin: Begun) -> None:
    nest, (x,) = begin("8,8")
    other = two(nest, x, 0, 1)
    nest.outer, nest.row = [0], [1]
    other.outer, other.row = [1], [0]
    assert refusal(nest, other, x) == "they reduce over different axes"
    other.outer, other.row = [], [0, 1]
    assert refusal(nest, other, x) == "they reduce over different axes"


def test_what_is_cut_here_is_not_reduced_there(begin: Begun) -> None:
    nest, (x,) = begin("8,8")
    other = two(nest, x, 0, 1)
    other.outer, other.row = [0], [1]
    nest.cut_at(1, [4])
    assert refusal(nest, other, x) == "what is concatenated is reduced"
    assert refusal(other, nest, x) == "what is concatenated is reduced"


def test_only_one_axis_is_cut(begin: Begun) -> None:
    nest, (x,) = begin("8,8")
    other = two(nest, x, 0, 1)
    nest.cut_at(1, [4])
    other.cut_at(0, [4])
    assert refusal(nest, other, x) == "others are concatenated along another axis"
