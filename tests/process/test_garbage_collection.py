"""Pauses of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import onnx
import pytest

from graphopt import ir
from graphopt.process import fork_safety
from graphopt.process.garbage_collection import collection_paused


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    """Enable the collector in a process that runs only graphopt."""
    gc.enable()
    token = fork_safety._own_process.set(True)
    yield
    fork_safety._own_process.reset(token)
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


@pytest.mark.parametrize("claimed", [False, True])
def test_loads_pause_the_collector_only_in_a_process_of_the_command_line(
    claimed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = "g (float[2] x) => (float[2] y) { y = Neg(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {graph}')
    calls: list[str] = []
    for name in ("disable", "freeze", "unfreeze", "enable"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    fork_safety._own_process.set(claimed)
    ir.from_proto(model)
    assert calls == (["disable", "freeze", "unfreeze", "enable"] if claimed else [])
