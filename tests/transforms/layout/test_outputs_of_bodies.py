"""Bodies whose outputs have equal contents in the chosen layouts."""

from __future__ import annotations

import pytest

from graphopt import ir
from tests.model_testing import agree, parse, run_pipeline

#: An If whose outputs t and u are x or -x; the layout of t is transposed.
MODEL = """
    g (float[2,3,4] x, bool p) => (float[2,3,4] y, float[2,3,4] z) {
        t, u = If (p) <
            then_branch = then () => (float[2,4,3] a, float[2,3,4] b) {
                r = Transpose <perm = [0, 2, 1]> (x)
                a = Neg(r)
                b = Transpose <perm = [0, 2, 1]> (a)
            },
            else_branch = other () => (float[2,4,3] c, float[2,3,4] d) {
                ELSE
                d = Relu(x)
            }
        >
        y = Transpose <perm = [0, 2, 1]> (t)
        z = Relu(u)
    }
"""


@pytest.mark.parametrize(
    "other",
    ["c = Transpose <perm = [0, 2, 1]> (x)", "n = Abs(x) c = Transpose <perm = [0, 2, 1]> (n)"],
    ids=["value of the graph around", "own value"],
)
def test_outputs_of_bodies_remain_distinct_and_their_own(other: str) -> None:
    model = parse(MODEL.replace("ELSE", other))
    original = model.clone()
    run_pipeline(model, "layout")
    assert "Transpose" not in [node.op_type for node in ir.walk_nodes(model.graph)]
    for graph in ir.graphs_of(model):
        outputs = [value.name for value in graph.outputs]
        assert len(outputs) == len(dict.fromkeys(outputs))
    assert [list(value.shape or ()) for value in model.graph.outputs] == [[2, 3, 4], [2, 3, 4]]
    assert agree(original, model)


def test_declarations_of_nested_bodies_are_those_of_the_contents() -> None:
    model = parse("""
        g (float[2,3,4] x, bool p, bool q) => (float[2,3,4] y) {
            t = If (p) <
                then_branch = then () => (float[2,4,3] a) {
                    a = If (q) <
                        then_branch = inner () => (float[2,4,3] e) {
                            e = Transpose <perm = [0, 2, 1]> (x)
                        },
                        else_branch = outer () => (float[2,4,3] f) {
                            n = Neg(x)
                            f = Transpose <perm = [0, 2, 1]> (n)
                        }
                    >
                },
                else_branch = other () => (float[2,4,3] c) {
                    m = Abs(x)
                    c = Transpose <perm = [0, 2, 1]> (m)
                }
            >
            r = Relu(t)
            y = Transpose <perm = [0, 2, 1]> (r)
        }
    """)
    original = model.clone()
    run_pipeline(model, "layout")
    assert "Transpose" not in [node.op_type for node in ir.walk_nodes(model.graph)]
    shapes = [list(value.shape or ()) for graph in ir.graphs_of(model) for value in graph.outputs]
    assert shapes == [[2, 3, 4]] * 5
    assert agree(original, model)
