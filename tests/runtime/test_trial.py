"""Models that run in a child."""

from __future__ import annotations

import numpy as np

from graphopt.runtime.child import Child
from graphopt.runtime.trial import RemoteHost, RemoteRuns
from tests.runtime.build import data


def test_hosts_take_turns_in_one_child() -> None:
    feeds = {"x": np.float32([1, -2])}
    with Child() as child:

        def runs(operator: str) -> RemoteRuns:
            model = data(f"g (float[2] x) => (float[2] y) {{ y = {operator}(x) }}")
            return RemoteRuns(RemoteHost(lambda: child, {"model": model}), "model")

        negated, rectified = runs("Neg"), runs("Relu")
        for _ in range(2):
            assert negated.run("off", feeds)[0].tolist() == [-1, 2]
            assert rectified.run("off", feeds)[0].tolist() == [1, 0]
        made = child.made
        assert rectified.run("default", feeds)[0].tolist() == [1, 0]
        assert child.made == made == 4
