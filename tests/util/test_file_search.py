"""Search for the names of data files in models."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.util import file_search
from graphopt.util.file_search import mentions


@pytest.mark.parametrize("name", ["a.data", 'a".data', "ä.data"])
def test_large_models_as_text_may_name_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(file_search, "_LARGEST", 100)
    for file in ("m.json", "m.onnxtxt", "M.JSON", "m.data"):
        (tmp_path / file).write_text("x" * 200 + "a.data")
    assert mentions(tmp_path / "m.json", name) and mentions(tmp_path / "m.onnxtxt", name)
    assert mentions(tmp_path / "M.JSON", name)
    assert not mentions(tmp_path / "m.data", name)  # weights
    assert not mentions(tmp_path / "m.json", "b.data")


def test_empty_files_name_nothing(tmp_path: Path) -> None:
    (tmp_path / "m.json").touch()
    assert not mentions(tmp_path / "m.json", 'a".data')
