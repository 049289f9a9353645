"""Text and tables at the width of a terminal."""

from __future__ import annotations

import pytest

from graphopt.cli.output.fit_to_width import fitted, wrapped
from graphopt.util.text_tables import Table, text_width

WIDTHS = [40, 60, 80, 120]


def _table() -> Table:
    table = Table(["pass", "what it does", "count", "options"], "<<><")
    table.add(
        "create-autodiff-subgraphs", "Find groups of nodes, and make functions of them", 3, "minimum, wrt"
    )
    table.add("dce", "Remove nodes that nothing needs", 1_000, "")
    table.add("remove-type-specializations-from-all-bodies", "Short", 12, "one, two, three, four")
    table.add("日本", "日本 語 " * 9, 12, "none")
    return table


def test_lines_break_at_spaces_and_align_behind_their_label() -> None:
    text = "  verified  bit-identical in 26 comparisons of 4 shapes and 4 kinds of values"
    assert wrapped(text, 80) == [text]
    assert wrapped(text, 50) == [
        "  verified  bit-identical in 26 comparisons of 4",
        "            shapes and 4 kinds of values",
    ]
    assert wrapped("hint: some words", 10) == ["hint: some", "  words"]
    assert wrapped("a\nb", 10) == ["a", "b"]


def test_rules_are_cut_instead_of_wrapped() -> None:
    heading = "── operators ─ 3 nodes " + "─" * 77
    assert wrapped(heading, 60) == [heading[:60]]
    assert wrapped(heading, 22) == ["── operators ─ 3 nodes"]
    assert wrapped("\x1b[31m-\x1b[0m  a few words", 14) == ["\x1b[31m-\x1b[0m  a few words"]


def test_a_name_longer_than_the_line_stays_in_one_piece() -> None:
    name = "/encoder/layer.0/attention/self/Softmax"
    assert wrapped(f"  at     {name} and more", 30) == ["  at", f"         {name}", "         and more"]


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_keep_every_word_within_the_line(width: int) -> None:
    table = _table()
    head, body = fitted(table, width)
    lines = [*head, *body]
    longest = max(text_width(name) for name, *_ in table.rows)
    assert all(text_width(line) <= max(width, longest + 2) for line in lines)
    words = " ".join(lines).split()
    for row in table.rows:
        assert all(word in words for cell in row for word in cell.split())
    assert [word for word in words if word in table.columns] != []


def test_columns_without_room_follow_their_row() -> None:
    table = Table(["kernel", "calls", "operators", "bytes"], "<><>")
    table.add("mul_reduce_sum_a659e5e30c1b", 2, "Mul, ReduceSum and others", "4*batch*seq*(seq + past)")
    head, body = fitted(table, 60)
    assert head == ["  kernel                       calls"]
    assert body == [
        "  mul_reduce_sum_a659e5e30c1b      2",
        "      operators Mul, ReduceSum and others   bytes",
        "      4*batch*seq*(seq + past)",
    ]
    assert fitted(table, 200)[0] + fitted(table, 200)[1] == table.lines("  ")
