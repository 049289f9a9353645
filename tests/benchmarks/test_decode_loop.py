"""The decoders and the comparison of ``benchmarks.decode_loop``."""

from __future__ import annotations

import pytest

from benchmarks.decode_loop import check_equal, compiled, fixed_decoder, inputs_of, measure


@pytest.mark.parametrize("layers", [1, 2])
def test_fixed_caches_of_a_decoder_stay_in_one_buffer_for_50_steps(layers: int) -> None:
    executor = compiled(fixed_decoder(layers, 16, 64))
    found = check_equal(executor, [inputs_of(executor, step) for step in range(50)])
    nbytes = layers * 2 * 64 * 16 * 4
    assert found.nbytes == nbytes and found.buffers == 1
    assert found.copied == {"plain": nbytes, "loop": 0}


def test_both_ways_are_measured_in_each_round() -> None:
    seconds, paired = measure(compiled(fixed_decoder(1, 16, 8)), steps=3, rounds=2)
    assert set(seconds) == {"plain", "loop"} and len(paired) == 2 and all(ratio > 0 for ratio in paired)
