"""The benchmark of guards: its guards hold, on the host and in a model."""

from __future__ import annotations

from benchmarks import guards


def test_each_kind_and_number_of_inputs_is_measured() -> None:
    found = guards.measure(rounds=1, times=1)
    assert [(row["kind"], row["inputs"]) for row in found] == [
        (kind, count) for kind in guards.KINDS for count in guards.COUNTS
    ]
    assert len(guards.table(found).splitlines()) == len(found) + 4
