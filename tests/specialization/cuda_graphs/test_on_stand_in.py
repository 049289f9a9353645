"""Provider options and CUDA graphs of onnxruntime's CUDA provider, on the stand-in for CUDA's libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphopt.util.cuda_options import CUDA_OPTIONS
from tests.placement import cuda_stand_in

pytestmark = pytest.mark.skipif(cuda_stand_in.obstacle() is not None, reason=str(cuda_stand_in.obstacle()))

_MODELS = {
    "plain": "g (float[N,4] x) => (float[N,4] y) { a = Exp(x)\n y = Relu(a) }",
    "sizes": "g (float[N,4] x, float[4] z) => (float[N,4] y) { s = Shape(x)\n y = Expand(z, s) }",
    "branch": "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = a () => (float[2] p) { p = Exp(x) },"
    " else_branch = b () => (float[2] q) { q = Relu(x) }> }",
    "copies": "g (float[2,2] x) => (float[2,2] y) { [d] a = Det(x)\n y = Add(x, a) }",
}
#: Options that the provider accepts and ignores, so that it does not list them.
_IGNORED = {"enable_skip_layer_norm_strict_mode"}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    cuda_stand_in.build(folder)
    return folder


@pytest.fixture(scope="module")
def facts(libraries: Path) -> Any:
    request = {"options": [], "graphs": [_MODELS]}
    output = cuda_stand_in.run(
        libraries, "tests.specialization.cuda_graphs.stand_in_runs", json.dumps(request)
    )
    return json.loads(output.splitlines()[-1])


def test_the_provider_has_the_options_with_these_defaults(facts: Any) -> None:
    defaults = facts["options"]["defaults"]
    assert CUDA_OPTIONS.keys() - defaults.keys() == _IGNORED
    others = {"gpu_mem_limit": "all memory"}
    own = {name: option.default for name, option in CUDA_OPTIONS.items() if name not in {*others, *_IGNORED}}
    assert {name: defaults[name] for name in own} == own


def test_sessions_receive_the_options(facts: Any) -> None:
    given, received = facts["options"]["given"], facts["options"]["received"]
    assert {name: value for name, value in given.items() if name not in _IGNORED} == {
        name: received[name] for name in given if name not in _IGNORED
    }


def test_refusals_of_cuda_graphs(facts: Any) -> None:
    assert facts["graphs"]["refusals"] == {
        "plain": None,
        "sizes": None,
        "branch": "onnxruntime finds control flow in the model",
        "copies": "Det 'd' runs on the CPU (CUDA has no kernel of Det), and 'a' is copied",
    }


def test_an_executor_captures_and_replays(facts: Any) -> None:
    assert facts["graphs"]["hints"] == []
    assert facts["graphs"]["counters"] == {"cuda-graph captures": 1, "cuda-graph replays": 1}
