"""``graphopt cache``: its lists, explanations and checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from graphopt.cli.commands.cache import command as cache
from graphopt.optimize_options import OPTIONS
from graphopt.util.disk_store import Store
from tests.cli.conftest import Invoke, Outcome


@pytest.fixture
def run(invoke: Invoke, tmp_path: Path) -> Callable[..., Outcome]:
    """Call graphopt with the result cache switched on."""
    environ = {"GRAPHOPT_CACHE": "true", "GRAPHOPT_CACHE_DIR": str(tmp_path / "store")}
    return lambda *words: invoke(*words, environ=environ)


@pytest.fixture
def key(run: Callable[..., Outcome], small: Path) -> str:
    """The key of a stored result of ``small``."""
    done = run("optimize", small, "-o", "out.onnx", "--json")
    digest: str = json.loads(done.out)["cache"]["key"]
    return digest


def test_ls_lists_results(run: Callable[..., Outcome], key: str) -> None:
    (entry,) = json.loads(run("cache", "ls", "--json").out)["entries"]
    assert (entry["kind"], entry["key"], entry["contents"]) == ("results", key, "small.onnx, O2, file.onnx")
    text = run("cache", "ls").out
    assert key[:12] in text and "1 entry" in text
    assert "'nonsense'" in run("cache", "ls", "nonsense").err
    assert "0 entries" in run("cache", "ls", "results", "--set", "cache-dir=other").out


def test_explain_has_the_options_of_optimize_that_are_parts_of_keys() -> None:
    names = {param.name for param in cache.params}
    assert {name for name, opt in OPTIONS.items() if opt.flag and opt.cache != "ignored"} <= names


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--stop-after", "3"], "option stop_after"),
        (["--weights", "beside"], "setting weights"),
        (["--no-record-settings"], "option record_settings"),
    ],
)
def test_explain_names_the_option_that_differs(
    run: Callable[..., Outcome], key: str, small: Path, words: list[str], part: str
) -> None:
    assert f"stored as {key[:12]}" in run("cache", "explain", small).out
    found = json.loads(run("cache", "explain", small, *words, "--json").out)
    assert [pair["part"] for pair in found["differences"]] == [part]
    assert "--validate-each is given" in run("cache", "explain", small, "--validate-each").out


def test_show_describes_a_result(run: Callable[..., Outcome], key: str) -> None:
    found = json.loads(run("cache", "show", key[:8], "--json").out)
    assert found["intact"] and found["parts"]["option pipeline"] == '"O2"'
    assert found["report"]["verification"]["equal"]
    text = run("cache", "show", key).out
    assert key in text and "  verified  bit-identical" in text


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["show"],
        ["explain"],
        ["show", "zz"],
        ["show", ""],
        ["verify", "x"],
        ["explain", "x.onnx"],
    ],
)
def test_wrong_arguments(run: Callable[..., Outcome], key: str, words: list[str]) -> None:
    done = run("cache", *words)
    assert done.status == 2 and done.err.startswith("graphopt: ") and not done.out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], []),
        (["--exact", "-O3"], ["option exact", "option pipeline"]),
        (["--seed", "7"], ["setting seed"]),
    ],
)
def test_explain_names_the_parts_that_differ(
    run: Callable[..., Outcome], key: str, small: Path, words: list[str], parts: list[str]
) -> None:
    found = json.loads(run("cache", "explain", small, *words, "--json").out)
    assert found["nearest"] == key
    assert [pair["part"] for pair in found["differences"]] == parts
    text = run("cache", "explain", small, *words).out
    assert all(part in text for part in parts) and ("stored as" in text) == (not parts)


def test_explain_names_another_model(run: Callable[..., Outcome], key: str, weights: Path) -> None:
    found = json.loads(run("cache", "explain", weights, "--json").out)
    assert [pair["part"] for pair in found["differences"]] == ["model"]
    done = run("cache", "explain", weights, "--verify-each", "--json")  # results are not stored with it
    assert json.loads(done.out)["reason"] == "the option --verify-each is given"


def test_verify_removes_damaged_entries(run: Callable[..., Outcome], key: str, tmp_path: Path) -> None:
    assert run("cache", "verify").status == 0
    (file,) = (tmp_path / "store").rglob("model.onnx")
    file.write_bytes(b"")
    done = run("cache", "verify")
    assert done.status == 1 and f"removed results {key[:12]}: damaged" in done.out
    assert run("cache", "verify").status == 0 and not json.loads(run("cache", "ls", "--json").out)["entries"]


def test_an_entry_that_is_removed_during_verify_is_not_damaged(
    run: Callable[..., Outcome], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_intact = Store.is_intact

    def removed(store: Store, kind: str, key: str) -> bool:
        store.remove(kind, key)
        return is_intact(store, kind, key)

    monkeypatch.setattr(Store, "is_intact", removed)
    done = run("cache", "verify")
    assert done.status == 0 and "damaged" not in done.out


@pytest.mark.parametrize("subject", ["", "results", "all", "key"])
def test_clear_removes_entries(run: Callable[..., Outcome], key: str, subject: str) -> None:
    done = run("cache", "clear", *([key[:9] if subject == "key" else subject] if subject else []))
    assert done.status == 0 and "removed 1 entry" in done.out
    assert not json.loads(run("cache", "ls", "--json").out)["entries"]
