"""Output paths are checked before any work, and failures leave no files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.conftest import Invoke
from tests.cli.test_bad_input import bytes_in, check

ROOT = Path(__file__).parents[2]


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model may be loaded."""

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr("graphopt.ir.io.interoperability.load", refuse)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("optimize", "-o"),
        ("optimize", "--report"),
        ("run", "-o"),
        ("bench", "--plot"),
        ("run", "--compile-log"),
        ("partition", "--plot"),
        ("profile", "-o"),
    ],
)
@pytest.mark.usefixtures("no_work")
def test_files(invoke: Invoke, small: Path, tmp_path: Path, command: str, option: str) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((1, 4), np.float32))
    rest = {"--report": ["-o", tmp_path / "out.onnx"], "--compile-log": ["--inputs", tmp_path / "x.npz"]}.get(
        option, []
    )
    for path, words in (
        (tmp_path / "none" / "file", "there is no folder"),
        (small / "file", f"{small} is a file, not a folder"),
        (f"{small}/deep/file", f"{small} is a file, not a folder"),
        *([] if (command, option) == ("optimize", "-o") else [("-", "stdout is for reports")]),
    ):
        check(invoke(command, small, *rest, option, path), 2, words)


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        ("optimize IN -o x.pt", ".onnx, .json, .onnxjson, .onnxtxt or .txt"),
        ("optimize IN -o x", ".onnx, .json, .onnxjson, .onnxtxt or .txt"),
        ("reduce IN -o x.pt", ".onnx, .json, .onnxjson, .onnxtxt or .txt"),
        ("convert IN x.pt", ".onnx, .json, .onnxjson, .onnxtxt or .txt"),
        ("optimize IN -o x.onnx --report x.txt", ".json"),
        ("run IN -o x.npy", ".npz"),
        ("bench IN --plot x.png", ".svg"),
    ],
)
@pytest.mark.usefixtures("no_work")
def test_suffixes(invoke: Invoke, small: Path, arguments: str, known: str) -> None:
    words = [str(small) if word == "IN" else word for word in arguments.split()]
    check(invoke(*words), 2, f"{words[-1]} needs the suffix {known}")


def test_a_result_may_be_called_like_its_model(invoke: Invoke, small: Path) -> None:
    odd = small.rename(small.with_suffix(".model"))
    assert invoke("optimize", odd, "-o", "x.model").status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["optimize", "-o", "out.onnx", "--dump-dir"],
        ["optimize", "-o", "out.onnx", "--save-repro"],
        ["optimize", "second.onnx", "-o"],
        ["dump", "-o"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("no_work")
def test_folders(invoke: Invoke, small: Path, arguments: list[str]) -> None:
    command, *rest = arguments
    file = small.with_name("file")
    file.touch()
    for path in (file, file / "folder", file / "deep" / "folder"):
        check(invoke(command, small, *rest, path), 2, f"{file} is a file, not a folder")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("reduce small.onnx -o small.onnx", "-o would write over small.onnx, which MODEL names, too"),
        ("optimize small.onnx -o out.onnx --report ./small.onnx", "--report would write over small.onnx"),
        ("optimize small.onnx -o out.json --report out.json", "--report would write over out.json, which -o"),
        ("run small.onnx --input x.npz -o x.npz", "-o would write over x.npz, which --input names, too"),
        (
            "run small.onnx --inputs x.npz --compile-log x.npz",
            "--compile-log would write over x.npz, which --inputs",
        ),
        (
            "run small.onnx --inputs kept --compile-log kept/x.npz",
            "--compile-log would write over kept/x.npz",
        ),
        (
            "optimize small.onnx --profile p.json -o p.json",
            "-o would write over p.json, which --profile names, too",
        ),
        ("bench small.onnx other.onnx --plot other.onnx", "--plot would write over other.onnx"),
        ("bisect small.onnx -o .", "-o might write over small.onnx, which is read"),
        ("dump small.onnx -o .", "-o might write over small.onnx, which is read"),
        ("optimize small.onnx -o out.onnx --dump-dir .", "--dump-dir might write over small.onnx"),
        ("bisect small.onnx -o kept", "kept is not empty"),
    ],
)
@pytest.mark.usefixtures("no_work")
def test_inputs_are_not_overwritten(invoke: Invoke, small: Path, arguments: str, words: str) -> None:
    Path("small.onnx").write_bytes(small.read_bytes())
    for name in ("other.onnx", "x.npz", "x.npy", "p.json", "kept/notes.txt", "kept/x.npz"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("ours")
    before = bytes_in(Path())
    check(invoke(*arguments.split()), 2, words)
    assert bytes_in(Path()) == before


@pytest.mark.parametrize(
    ("command", "option", "name"),
    [
        ("optimize", "-o", "w.onnx"),
        ("optimize", "-o out.onnx --report", "w.json"),
        ("run", "-o", "w.npz"),
        ("bench", "--plot", "w.svg"),
        ("convert", "", "w.onnx"),
    ],
)
@pytest.mark.usefixtures("no_work")
def test_weights_are_not_written_over(
    invoke: Invoke, small: Path, command: str, option: str, name: str
) -> None:
    model = onnx.load(small)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(400, np.float32), "spare"))
    onnx.save(model, "outside.onnx", save_as_external_data=True, location=name, size_threshold=0)
    before = bytes_in(Path())
    words = f"would write over {name}, which holds weights of outside.onnx"
    check(invoke(command, "outside.onnx", *option.split(), name), 2, words)
    assert bytes_in(Path()) == before


@pytest.mark.parametrize("option", ["-o", "--report", "--html", "--dump-dir", "--save-repro"])
@pytest.mark.usefixtures("no_work")
def test_no_path_is_empty(invoke: Invoke, small: Path, option: str) -> None:
    check(invoke("optimize", small, option, ""), 2, f"'{option}'", "it is empty")


@pytest.mark.parametrize(
    "arguments",
    """optimize IN -o P.onnx; optimize IN -o o.onnx --report P; optimize IN -o o.onnx --dump-dir P
    optimize IN -o o.onnx --save-repro P; optimize P -o o.onnx; convert IN P.onnx; convert P o.onnx
    run IN -o P; run IN --input x:P.npy; dump IN -o P; bisect IN -o P; replay P
    bench IN --plot P; inspect P; verify IN P; reduce IN -o P""".replace("\n", ";").split(";"),
    ids=str.strip,
)
@pytest.mark.parametrize(
    ("path", "reason"), [("n" * 300, "File name too long"), ("loop", "Too many levels of symbolic links")]
)
def test_paths_that_no_file_can_have(
    invoke: Invoke, small: Path, arguments: str, path: str, reason: str
) -> None:
    Path("loop").symlink_to("loop")
    for suffix in ("onnx", "npy"):
        Path(f"loop.{suffix}").symlink_to(f"loop.{suffix}")
    words = arguments.replace("P", path).split()
    before = sorted(os.listdir())
    result = invoke(*(str(small) if word == "IN" else word for word in words))
    assert result.status == 2 and reason in result.err and len(result.err.splitlines()) <= 2
    assert path[:60] in result.err, "the path is named"
    assert sorted(os.listdir()) == before


def test_dangling_links_allow_no_folder(invoke: Invoke, small: Path) -> None:
    Path("loop").symlink_to("loop")
    assert invoke("inspect", small, "--allow-external", "loop").status == 0


def test_long_names_of_wide_characters(invoke: Invoke, small: Path) -> None:
    assert invoke("convert", small, "\N{GRINNING FACE}" * 58 + ".onnx").status == 0


def test_result_may_overwrite_its_model(invoke: Invoke, small: Path) -> None:
    assert invoke("optimize", small, "-o", small).status == 0
    assert invoke("optimize", small, "-o", small.parent).status == 0
    assert invoke("convert", small, small).status == 0


@pytest.mark.usefixtures("no_work")
def test_unwritable_paths(invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode, **more: mode != os.W_OK)
    check(
        invoke("optimize", small, "-o", "out.onnx"),
        2,
        "can't write out.onnx: . is not writable",
        "hint: chmod u+w ., or",
    )
    check(invoke("dump", small, "-o", "folder"), 2, "can't write folder: ")


def test_failures_leave_no_new_folders(invoke: Invoke, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_text("no model")
    before = bytes_in(tmp_path), sorted(tmp_path.rglob("*"))
    assert invoke("optimize", bad, "-o", "new/").status == 3
    assert invoke("optimize", bad, tmp_path / "other.onnx", "-o", "new").status == 3
    assert invoke("optimize", bad, "-o", "out.onnx", "--dump-dir", "stages").status == 3
    assert invoke("dump", bad, "-o", "stages").status == 3
    assert (bytes_in(tmp_path), sorted(tmp_path.rglob("*"))) == before


@pytest.mark.usefixtures("no_work")
def test_several_models_need_a_folder(invoke: Invoke, small: Path) -> None:
    check(invoke("optimize", small, "b.onnx", "-o", "out.onnx"), 2, "can't go into the file", "name a folder")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [["passes"], ["--help"], ["passes", "--json"], ["nothing", "--json"]])
def test_a_full_disk(arguments: list[str]) -> None:
    code = "from graphopt.cli.main import run; run()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert done.returncode == (2 if "nothing" in arguments else 5) and "Traceback" not in done.stderr
    if "nothing" not in arguments:
        assert done.stderr == "graphopt: can't write the output: No space left on device\n"


def test_write_protected_files_stay(invoke: Invoke, small: Path) -> None:
    before = small.read_bytes()
    small.chmod(0o444)
    told = invoke("optimize", small, "-o", small)
    assert told.status == 2 and "it is write-protected" in told.err
    assert small.read_bytes() == before and small.stat().st_mode & 0o777 == 0o444


def test_a_folder_is_read_and_one_is_written(invoke: Invoke, small: Path) -> None:
    Path("models").mkdir()
    shutil.copy(small, "models/one.onnx")
    report = invoke("models")
    assert report.status == 0 and "nodes" in report.out
    assert sorted(path.name for path in Path("models").iterdir()) == ["one.onnx"]
    assert invoke("optimize", "models", "-o", "out", "--no-verify").status == 0
    assert Path("out/one.onnx").is_file()


def test_no_result_of_a_missing_model_is_announced(invoke: Invoke) -> None:
    outcome = invoke("optimize", "nosuch.onnx")
    assert outcome.status == 2 and "→" not in outcome.err
    assert "no such file: nosuch.onnx" in outcome.err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the system has no /proc")
@pytest.mark.parametrize("option", ["-o", "--report", "--html", "--dump-dir"])
@pytest.mark.usefixtures("no_work")
def test_folders_that_refuse_files(invoke: Invoke, small: Path, option: str) -> None:
    path = {
        "-o": "/proc/x.onnx",
        "--report": "/proc/x.json",
        "--html": "/proc/x.html",
        "--dump-dir": "/proc/x",
    }[option]
    check(invoke("optimize", small, option, path), 2, f"can't write {path}: ", "/proc")


_PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")


@_PIPES
@pytest.mark.parametrize(
    "arguments",
    [
        "optimize IN -o PIPE",
        "optimize IN -o out.onnx --report PIPE",
        "convert IN PIPE",
        "run IN -o PIPE",
        "run IN --inputs x.npz --compile-log PIPE",
        "profile IN -o PIPE",
        "dump IN -o PIPE",
        "grad IN --loss y -o PIPE",
        "partition IN --plot PIPE",
        "calibrate -o PIPE",
    ],
)
@pytest.mark.usefixtures("no_work")
def test_pipes_without_a_reader(invoke: Invoke, small: Path, tmp_path: Path, arguments: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    words = {"IN": str(small), "PIPE": str(tmp_path / "pipe")}
    np.savez("x.npz", x=np.ones((1, 4), np.float32))
    outcome = invoke(*(words.get(word, word) for word in arguments.split()))
    check(outcome, 2, "it is a pipe, and no process reads it", "hint: first run: cat")


@_PIPES
@pytest.mark.parametrize(
    "arguments",
    [
        "run IN --input PIPE",
        "run IN --input x:PIPE",
        "profile IN --inputs PIPE",
        "optimize IN --profile PIPE",
    ],
)
@pytest.mark.usefixtures("no_work")
def test_pipes_are_no_files_of_arrays(invoke: Invoke, small: Path, tmp_path: Path, arguments: str) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    text = arguments.replace("IN", str(small)).replace("PIPE", str(tmp_path / "pipe.npz"))
    check(invoke(*text.split()), 2, "is a device or a pipe, not a file", "hint: save its contents")


@_PIPES
@pytest.mark.parametrize("arguments", [["optimize", "--no-verify"], ["run"]], ids=lambda words: words[0])
def test_a_reader_of_a_pipe_receives_the_whole_file(
    invoke: Invoke, small: Path, tmp_path: Path, arguments: list[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        while True:  # until the reader has opened the pipe
            try:
                held = os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:
                continue
        assert invoke(arguments[0], small, "-o", tmp_path / "pipe", *arguments[1:]).status == 0
        os.close(held)
        received = reader.communicate(timeout=20)[0]
    suffix = {"optimize": "onnx", "run": "npz"}[arguments[0]]
    assert invoke(arguments[0], small, "-o", tmp_path / f"file.{suffix}", *arguments[1:]).status == 0
    assert len(received) == (tmp_path / f"file.{suffix}").stat().st_size


def test_arrays_can_be_written_to_a_device(invoke: Invoke, small: Path) -> None:
    assert invoke("run", small, "-o", "/dev/null").status == 0


@pytest.mark.parametrize("arguments", [["--json", "-o", "out.onnx"], ["-o", "-"]], ids=str)
def test_text_printed_by_passes_is_not_on_stdout(small: Path, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "own.py").write_text(_TALKATIVE)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "graphopt",
            "optimize",
            small,
            "--no-verify",
            "--pre-pass",
            "own:Talk",
            *arguments,
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        capture_output=True,
        check=True,
    )
    assert b"talking" not in done.stdout and b"talking" in done.stderr
    if arguments[0] == "--json":
        json.loads(done.stdout)
    else:
        onnx.load_from_string(done.stdout)


_TALKATIVE = """
from dataclasses import dataclass
from typing import ClassVar
from graphopt import Pass

@dataclass(frozen=True)
class Talk(Pass):
    name: ClassVar[str] = "talk"

    def run(self, model, cx):
        print("talking")
"""


@pytest.mark.parametrize("command", ["optimize", "compile", "inspect"])
def test_links_to_missing_files(invoke: Invoke, command: str) -> None:
    Path("m.onnx").symlink_to("gone.onnx")
    output = {"optimize": ["-o", "out.onnx"], "compile": ["-o", "out"], "inspect": []}[command]
    result = invoke(command, "m.onnx", *output)
    check(result, 2, "m.onnx is a symbolic link to gone.onnx, which does not exist")
    assert os.listdir() == ["m.onnx"]


@pytest.mark.parametrize("command", ["optimize", "compile"])
@pytest.mark.parametrize(
    "path",
    [
        "a b.onnx",
        "\N{CJK UNIFIED IDEOGRAPH-6A21} \u00fc.onnx",
        "./-x.onnx",
        ".//m.onnx",
        "with\\back.onnx",
        "q\"'.onnx",
        "new\nline.onnx",
        ".hidden.onnx",
        "link.onnx",
    ],
)
def test_odd_names_of_models(invoke: Invoke, small: Path, command: str, path: str) -> None:
    Path("link.onnx" if path != "link.onnx" else "target.onnx").write_bytes(small.read_bytes())
    if path == "link.onnx":
        Path(path).symlink_to("target.onnx")
    else:
        Path(path).write_bytes(small.read_bytes())
    output = "r.onnx" if command == "optimize" else "r"
    assert invoke(command, path, "-o", output).status == 0
    assert Path(output).exists()
    Path(output).rename("done")
