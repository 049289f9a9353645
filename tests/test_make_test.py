"""The selection of tests for `make test` and `make test-full`."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import CASES, FIRST_CASES, FUNCTIONS, left_to_full

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[1]


def test_the_list_names_tests_that_exist() -> None:
    assert list(left_to_full()) == sorted(left_to_full())
    for entry in left_to_full():
        file, _, function = entry.partition("[")[0].partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {function}(" in text if function else "def test_" in text, entry


def test_functions_and_their_cases_are_sampled(pytester) -> None:
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (pytester.path / "full.txt").write_text("# a comment\ntest_sample.py::test_2\n")
    pytester.makeini("[pytest]\nmarkers = full")
    many = "import pytest\n@pytest.mark.parametrize('x', range(20))\ndef test_0(x): pass\n"
    pytester.makepyfile(test_sample=many + "".join(f"def test_{i}(): pass\n" for i in range(1, 6)))
    found = pytester.runpytest_inprocess("-m", "not full", "--collect-only", "-q").stdout.lines
    assert (FUNCTIONS, FIRST_CASES, CASES) == (2, 2, 8)
    assert [line for line in found if "::" in line] == [
        *(f"test_sample.py::test_0[{case}]" for case in (0, 1, 8, 16)),
        "test_sample.py::test_4",
    ]
