"""Plain tables, and numbers for people."""

from __future__ import annotations

import pytest

from graphopt.util.parse_values import Seconds, from_text, parse_natural, parse_size
from graphopt.util.text_tables import (
    Table,
    counted,
    escaped,
    human_bytes,
    human_count,
    human_seconds,
    shortened,
    text_width,
)


def test_columns_are_aligned() -> None:
    table = Table(["op", "count"], "<>")
    table.add("MatMul", 12)
    table.add("日本", "1,000")
    assert str(table).splitlines() == ["op      count", "MatMul     12", "日本    1,000"]


def test_no_headings_no_heading_line() -> None:
    table = Table(["", ""], "<<")
    table.add("a", "b")
    assert table.lines("  ") == ["  a  b"]


def test_each_row_is_one_line() -> None:
    table = Table(["", ""], "<<")
    table.add("a\nb", "\x1b[31mc")
    assert table.lines() == [r"a\nb  \x1b[31mc"]
    assert escaped("é\u2028日") == r"é\u2028日"
    assert shortened(["a\nb", "c"], 1) == r"a\nb, … 1 more"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (82_400_000, "82.4 MB"), (999_999, "1.00 MB")],
)
def test_bytes(number: int, text: str) -> None:
    assert human_bytes(number) == text


def test_numbers() -> None:
    assert (human_count(1801), human_count(21_100_000)) == ("1,801", "21.1 M")
    assert [human_seconds(s) for s in (0.0004, 0.035, 0.9, 125)] == ["0.4 ms", "35 ms", "0.9 s", "2 min 5 s"]
    assert (counted(1, "input"), counted(3, "input")) == ("1 input", "3 inputs")
    assert shortened("abcd", 2) == "a, b, … 2 more"
    assert text_width("é日") == 3


def test_values_from_text() -> None:
    assert [parse_size(text) for text in ("65536", "64KiB", "1MB", "1.5 kB")] == [65536, 65536, 10**6, 1500]
    assert from_text("a+b", tuple[str, ...], separator="+") == ("a", "b")
    assert from_text("none", int | None) is None
    times = [from_text(text, Seconds) for text in ("90", "60s", "2 m", "1.5min", "1h", "0", ".5", "inf")]
    assert times == [90, 60, 120, 90, 3600, 0, 0.5, float("inf")]
    for text, kind in (
        ("64 parsec", int),
        ("x", int),
        ("maybe", bool),
        *((text, Seconds) for text in ("-1", "nan", "soon", "5 weeks", "s", "")),
    ):
        with pytest.raises(ValueError):
            from_text(text, kind)


def test_numbers_are_written_in_ascii_digits_and_fit() -> None:
    assert [parse_natural(text) for text in ("0", " 007 ", str(2**63 - 1))] == [0, 7, 2**63 - 1]
    for text in (
        "",
        " ",
        "-1",
        "1.0",
        "1_0",
        "\N{FULLWIDTH DIGIT ONE}",
        "\N{SUPERSCRIPT TWO}",
        str(2**63),
        "9" * 5000,
    ):
        with pytest.raises(ValueError, match="whole number"):
            parse_natural(text)
    for text in ("\N{FULLWIDTH DIGIT ONE}", "1_0", "1" * 400 + ".5MB", "9" * 5000):
        for kind in (int, Seconds, float):
            if kind is int or not text.isdigit() or not text.isascii():
                with pytest.raises(ValueError, match=r"."):
                    from_text(text, kind)
