"""A lack of memory during a reduction is no evidence about a model."""

from __future__ import annotations

import pytest

from graphopt import ir
from graphopt.debug import reduce_model
from graphopt.debug.checks import CheckOptions
from graphopt.debug.reduce_model import StillFails
from graphopt.debug.trial_run import Trial
from graphopt.errors import SystemExhausted
from graphopt.passes.pipelines import make_pipeline
from graphopt.process.child import Child
from graphopt.rewrite.rewrite_filter import RewriteLimit
from tests.debug import faulty_passes


def test_a_lack_of_memory_is_no_verdict_about_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*arguments: object, **more: object) -> None:
        raise SystemExhausted("there is not enough memory")

    model = ir.from_proto(faulty_passes.big_model())
    tried = Trial(model, make_pipeline((), ["tests.debug.faulty_passes:SwappedInputs"]))
    with Child(preload=("onnxruntime", "graphopt.ort.model_runs", "graphopt.debug.trial_run")) as child:
        fails = StillFails(tried, CheckOptions(), RewriteLimit(), child)
        assert fails(model)
        monkeypatch.setattr(reduce_model, "make_check", exhausted)
        assert not fails(model)  # not accepted without a check
        with pytest.raises(SystemExhausted):
            StillFails(tried, CheckOptions(), RewriteLimit(), child)
