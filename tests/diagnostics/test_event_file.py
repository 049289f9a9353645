"""Files of events: whole lines from many processes, valid arrays, and failures that leave the file as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphopt.diagnostics.event_file import EventFile, format_of

_APPEND = """
import sys
from graphopt.diagnostics.event_file import EventFile
file = EventFile(sys.argv[1], as_array=sys.argv[2] == "array")
for number in range(200):
    file.append([{"process": sys.argv[3], "number": number, "text": "x" * 500}])
"""


def test_lines_are_appended(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "t.jsonl")
    file.append(())
    assert file.path.read_bytes() == b""
    file.append([{"a": 1}])
    file.append([{"b": "é"}, {"c": None}])
    assert file.path.read_text() == '{"a": 1}\n{"b": "é"}\n{"c": null}\n'


def test_arrays_are_complete_after_each_event(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "t.json", as_array=True)
    for count in (1, 2, 3):
        file.append([{"count": count}])
        assert json.loads(file.path.read_text()) == [{"count": one} for one in range(1, count + 1)]
    assert len(file.path.read_text().splitlines()) == 5


@pytest.mark.parametrize("form", ["lines", "array"])
def test_processes_append_whole_lines(tmp_path: Path, form: str) -> None:
    path = tmp_path / "t"
    command = [sys.executable, "-c", _APPEND, str(path), form]
    running = [subprocess.Popen([*command, str(number)]) for number in range(4)]
    assert [one.wait() for one in running] == [0] * 4
    text = path.read_text()
    found = json.loads(text) if form == "array" else [json.loads(line) for line in text.splitlines()]
    for number in range(4):
        mine = [item["number"] for item in found if item["process"] == str(number)]
        assert mine == list(range(200))
    assert len(found) == 800


@pytest.mark.parametrize("content", ['{"a": 1}\n', "[1, 2]", "[\n1", "\x00"])
def test_another_file_is_not_extended_as_an_array(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(OSError, match="not a trace in Chrome's format"):
        EventFile(path, as_array=True).append([{"a": 1}])
    assert path.read_text() == content


@pytest.mark.skipif(sys.platform == "win32", reason="limits on the size of files")
@pytest.mark.parametrize("form", ["lines", "array"])
def test_a_full_disk_leaves_the_earlier_events(tmp_path: Path, form: str) -> None:
    path = tmp_path / "t"
    code = f"""
import resource, signal
from graphopt.diagnostics.event_file import EventFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = EventFile({str(path)!r}, as_array={form == "array"})
file.append([{{"text": "x" * 600}}])
try:
    file.append([{{"text": "y" * 600}}])
except OSError as error:
    print(error.strerror)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "File too large\n"
    text = path.read_text()
    assert (json.loads(text) if form == "array" else [json.loads(text)]) == [{"text": "x" * 600}]


def test_a_device_has_no_array(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="requires a regular file"):
        EventFile(os.devnull, as_array=True).append([{"a": 1}])
    EventFile(os.devnull).append([{"a": 1}])


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes")
def test_a_pipe_needs_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="No such device or address"):
        EventFile(path).append([{"a": 1}])
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    EventFile(path).append([{"a": 1}])
    assert os.read(reader, 100) == b'{"a": 1}\n'
    os.close(reader)


def test_the_suffix_selects_the_format() -> None:
    assert [format_of(Path(name)) for name in ("a.json", "a.jsonl", "a")] == ["chrome", "lines", "lines"]
    assert format_of(Path("a.json"), "lines") == "lines" and format_of(Path("a"), "chrome") == "chrome"
