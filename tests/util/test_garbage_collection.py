"""Pauses of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from graphopt.util.garbage_collection import collection_paused


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_blocks_may_be_nested_and_end_with_an_error() -> None:
    with pytest.raises(KeyError), collection_paused():
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_a_disabled_collector_stays_disabled() -> None:
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()


def test_objects_of_the_block_are_old_and_can_be_collected() -> None:
    gc.collect()
    with collection_paused():
        cycle: list[object] = []
        cycle.append(cycle)
    assert any(item is cycle for item in gc.get_objects(generation=2))
    assert not gc.get_freeze_count()
    del cycle
    assert gc.collect() >= 1
