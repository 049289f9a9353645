"""The log of losses."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.errors import InvalidModel, UsageError
from graphopt.training.loss_log import LossLog, read_losses


def test_losses_are_read_as_they_were_written(tmp_path: Path) -> None:
    log = LossLog(tmp_path / "losses.jsonl")
    log(1, 0.5)
    log(2, 0.25)
    found = read_losses(tmp_path / "losses.jsonl")
    assert [(one.step, one.loss) for one in found] == [(1, 0.5), (2, 0.25)]
    assert 0 <= found[0].seconds <= found[1].seconds


def test_a_second_log_appends(tmp_path: Path) -> None:
    LossLog(tmp_path / "losses.jsonl")(1, 0.5)
    LossLog(tmp_path / "losses.jsonl")(2, 0.25)
    assert [one.step for one in read_losses(tmp_path / "losses.jsonl")] == [1, 2]


def test_a_partial_last_line_is_skipped(tmp_path: Path) -> None:
    LossLog(tmp_path / "losses.jsonl")(1, 0.5)
    with open(tmp_path / "losses.jsonl", "a") as file:
        file.write('{"step": 2, "lo')
    assert [one.step for one in read_losses(tmp_path / "losses.jsonl")] == [1]


@pytest.mark.parametrize(
    "line", ["[]", "{}", "nonsense", '{"step": "a", "loss": 1, "seconds": 1}', "\\ud800"]
)
def test_other_lines_are_errors(tmp_path: Path, line: str) -> None:
    (tmp_path / "losses.jsonl").write_text(f"{line}\n")
    with pytest.raises(InvalidModel, match="line 1: not a record of a loss"):
        read_losses(tmp_path / "losses.jsonl")


def test_missing_folders_and_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't write"):
        LossLog(tmp_path / "no" / "losses.jsonl")
    with pytest.raises(UsageError, match="can't read"):
        read_losses(tmp_path / "no.jsonl")
