"""Views in and next to groups are recorded with reasons."""

from __future__ import annotations

import pytest

import graphopt
from graphopt.context import Observer, Options
from graphopt.partitioning.view_membership import ViewMembership
from tests.model_testing import parse, run_pipeline

MODEL = """g (float[4,64] x, float[64,4] z) => (float[256] y) <int64[1] s = {-1}, int64[1] w = {0}> {
    [a] a = Exp(x)
    [turned] b = Transpose(a)
    [c] c = Mul(b, z)
    [same] d = Unsqueeze(c, w)
    [e] e = Softmax(d)
    [flat] y = Reshape(e, s)
}"""


def _views(**options: object) -> list[ViewMembership]:
    (group,) = graphopt.partition(parse(MODEL), **options).groups  # type: ignore[arg-type]
    return list(group.views)


def test_views_of_groups_for_gradients() -> None:
    views = _views()
    assert [(view.node, view.included) for view in views] == [
        ("turned", True),
        ("same", True),
        ("flat", True),
    ]
    assert {view.reason for view in views} == {"its operands require a gradient"}


def test_views_that_an_option_excludes() -> None:
    found = graphopt.partition(parse(MODEL), views=False, minimum=1)
    choices = [[(view.node, view.included) for view in group.views] for group in found.groups]
    assert choices == [
        [("turned", False)],
        [("turned", False), ("same", False)],
        [("same", False), ("flat", False)],
    ]


def test_views_of_groups_for_kernels() -> None:
    found = {view.node: view for view in _views(policy="fusion")}
    assert (found["turned"].included, found["same"].included, found["flat"].included) == (True, True, False)
    assert found["turned"].reason == "it is computed in the same loops"
    assert found["same"].reason == "it lies between members of the group; it moves no element in memory"
    assert found["flat"].reason == "it moves no element in memory"
    assert found["flat"].to_dict() == {
        "node": "flat",
        "op": "Reshape",
        "included": False,
        "reason": "it moves no element in memory",
    }


class Remarks(Observer):
    """Collects remarks."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def said(self, owner, message) -> None:  # type: ignore[no-untyped-def]
        self.texts.append(f"{owner}: {message()}")


@pytest.mark.parametrize(
    ("pass_", "text"),
    [
        ("fuse-groups", "without flat (Reshape): it moves no element in memory"),
        ("create-autodiff-subgraphs", "with turned (Transpose): its operands require a gradient"),
    ],
)
def test_passes_report_the_views_of_their_groups(pass_: str, text: str) -> None:
    remarks = Remarks()
    run_pipeline(parse(MODEL), pass_, Options(), observers=[remarks])
    (found,) = [line for line in remarks.texts if line.startswith(pass_)]
    assert text in found
