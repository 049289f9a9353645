"""Number of pipeline runs of a search, and the result when they are used up."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import graphopt
from graphopt import ir
from graphopt.debug.bisect import quoted_names
from graphopt.debug.drop_faulty_rewrites import _alike, repair
from graphopt.errors import PassFailed, VerificationFailed
from graphopt.rewrite import Exact, rule
from graphopt.rewrite.rule import Rule
from graphopt.transforms.scalar import peephole
from tests.debug import faulty_passes
from tests.model_testing import parse

#: Products that fail if the batch is empty and FusedMatMul itself transposes the operand.
PRODUCTS = 3
#: Rewrites before, between and behind them.
OTHERS = 24


@rule(lambda op, x, y, p: op.MatMul(op.Transpose(x, perm=p), y), numerics=Exact)
def careless(op: Any, m: Any, x: ir.Value, y: ir.Value, p: Any) -> object:
    """MatMul(Transpose(x), y) → FusedMatMul(x, y), without a check of the batch."""
    return op.node("FusedMatMul", [x, y], {"transA": 1}, domain=ir.MICROSOFT)


def plant(monkeypatch: pytest.MonkeyPatch, *rules: Rule) -> None:
    """Make peephole also apply ``rules``."""
    sound = peephole.admitted_rules
    monkeypatch.setattr(peephole, "admitted_rules", lambda *arguments: [*rules, *sound(*arguments)])


def products() -> ir.Model:
    """Transposed products of a batch [N, 4, 4], each between rows of Identity operators, which are removed."""
    steps, last = [], "x"
    for i in range(PRODUCTS):
        for j in range(OTHERS):
            steps.append(f"i_{i}_{j} = Identity({last})  n_{i}_{j} = Neg(i_{i}_{j})")
            last = f"n_{i}_{j}"
        steps.append(f"t_{i} = Transpose<perm = [0, 2, 1]>({last})  [product_{i}] p_{i} = MatMul(t_{i}, w)")
        last = f"p_{i}"
    return parse(
        "g (float[N, 4, 4] x, float[4, 4] w) => (float[N, 4, 4] y) { "
        + "  ".join(steps)
        + f"  y = Abs({last}) }}",
        domains=', "com.microsoft" : 1',
    )


def test_rewrite_that_added_the_failing_node_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, careless)
    report = graphopt.optimize(products(), pipeline="peephole").report
    assert [(drop.owner, drop.node) for drop in report.dropped] == [
        ("careless", "product_0"),
        ("careless", ""),
    ]
    assert "FusedMatMul" in report.dropped[0].reason
    assert report.rewrites, "the other rewrites stay"
    assert report.search_runs <= 5, (
        "all, with it, without it, and again without one and without any of its rule"
    )
    assert f"searched for what to drop: {report.search_runs} runs of the pipeline, " in str(report)
    assert report.to_dict()["search_runs"] == report.search_runs


def test_searches_that_exhaust_their_runs_drop_all_suspect_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.debug.drop_faulty_rewrites.repair", partial(repair, most_runs=4))
    model = ir.from_proto(faulty_passes.big_model())
    result = graphopt.optimize(model, pipeline="O1", post_passes=[faulty_passes.WrongConstant()])
    assert [(drop.owner, drop.node) for drop in result.report.dropped] == [("wrong-constant", "")]
    assert result.report.search_runs <= 5
    assert result.verdict is not None and result.verdict.ok


def test_search_limit_of_0_runs_drops_all_suspect_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.debug.drop_faulty_rewrites.repair", partial(repair, most_runs=0))
    model = ir.from_proto(faulty_passes.big_model())
    result = graphopt.optimize(model, pipeline="O1", post_passes=[faulty_passes.WrongConstant()])
    assert result.report.search_runs == 2, "one to list the passes that changed the model, and the result"
    assert {drop.owner for drop in result.report.dropped} >= {"peephole", "wrong-constant"}
    assert not result.report.rewrites and result.verdict is not None and result.verdict.ok


def test_finally_only_required_passes_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.debug.drop_faulty_rewrites.repair", partial(repair, most_drops=1))
    model = ir.from_proto(faulty_passes.big_model())
    planted = [faulty_passes.WrongConstant(), faulty_passes.Unasked(), faulty_passes.SwappedInputs()]
    result = graphopt.optimize(model, pipeline="dce", post_passes=planted)
    assert {drop.owner for drop in result.report.dropped} >= {"wrong-constant", "swapped-inputs"}
    assert result.verdict is not None and result.verdict.ok
    assert len(result.model.graph) == len(model.graph)


@pytest.mark.parametrize(
    ("reason", "names"),
    [
        (
            "Non-zero status code returned while running MatMul node. Name:'a/b_1' Status Message: no",
            ["a/b_1"],
        ),
        (
            'This is an invalid model. In Node, ("a:0", Add, "", -1) : ("x": tensor(float),) ',
            ["a:0", "x", "float"],
        ),
        ("Could not find an implementation for Foo(13) node with name 'f'", ["f", "13"]),
        ("output 'y': 7 of 8 elements differ by up to 0.0291 (largest |element| 10)", []),
    ],
)
def test_names_in_messages_of_onnxruntime(reason: str, names: list[str]) -> None:
    assert set(names) <= set(quoted_names(reason)) and bool(names) == bool(quoted_names(reason))


def test_failures_with_the_same_wording() -> None:
    def differ(name: str, count: int, delta: str) -> VerificationFailed:
        return VerificationFailed(
            f"the optimized model is not the same: output {name!r}: {count} of 8 elements differ by up to {delta}"
            f" (largest |element| 10), such as 1 and {delta} (N=1, normal inputs, optimizations off; …)"
        )

    assert _alike(differ("y", 3, "0.1"), differ("z", 8, "2e-05"))
    assert not _alike(differ("y", 3, "0.1"), VerificationFailed("the optimized model is broken: no"))
    one, other = (PassFailed(f"rule r at {node}: no", owner="r", node=node) for node in "ab")
    assert _alike(one, other) and not _alike(one, PassFailed("rule s at a: no", owner="s", node="a"))
