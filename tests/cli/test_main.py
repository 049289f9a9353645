"""The console script: cost of the start, exit statuses, output on terminals and pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import graphopt
from graphopt.cli.main import cli
from graphopt.cli.output import console
from graphopt.debug.reproducer import versions
from graphopt.errors import ExitStatus
from graphopt.ort.installation import version_of
from graphopt.passes.pass_descriptions import options_of
from graphopt.passes.pipelines import make_pipeline, registry
from graphopt.rules import all_rules
from tests.cli.conftest import Invoke

COMMANDS = cli.list_commands(None)  # type: ignore[arg-type]
ROOT = Path(__file__).parents[2]


def modules_after(*arguments: object) -> set[str]:
    """The modules that a process has imported when the command is done."""
    code = (
        "import sys; from graphopt.cli.main import main; status = main(sys.argv[1:]); "
        "print(status, *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    status, *names = done.stderr.splitlines()[-1].split()
    assert status == "0"
    return set(names)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["help", "optimize"], ["optimize", "--help-all"], ["--version"]],
    ids=" ".join,
)
def test_help_imports_no_large_packages(arguments: list[str]) -> None:
    assert not modules_after(*arguments) & {"numpy", "onnx", "onnx_ir", "onnxruntime", "rich", "sympy"}


def test_onnxruntime_is_imported_only_where_something_is_run(small: Path) -> None:
    target = small.with_name("out.onnx")
    names = modules_after("optimize", small, "-o", target, "--no-verify")
    assert "onnx_ir" in names
    assert not names & {"onnxruntime", "rich", "sympy.core", "onnx.reference"}


def test_a_plain_run_imports_no_passes_but_its_own(small: Path) -> None:
    names = modules_after("optimize", small, "-o", small.with_name("out.onnx"), "--no-verify", "-O1")
    used = {step.name.replace("-", "_") for step in make_pipeline("O1").passes()}
    unused = {name.replace("-", "_") for name in registry().passes} - used - {"onnx_ir"}
    assert "convert_opset" in unused and "dce" in used
    assert not names & {f"graphopt.passes.{name}" for name in unused}


def test_plain_run_imports_no_optional_modules(small: Path) -> None:
    names = modules_after("optimize", small, "-o", small.with_name("out.onnx"), "--no-verify")
    others = ("graphopt.debug", "graphopt.tuning", "graphopt.rewrite.missed_fusions", "graphopt.timing")
    assert not [name for name in names if name.startswith(others)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(invoke: Invoke, name: str) -> None:
    outcome = invoke(name, "--help")
    assert outcome.status == 0
    assert f"graphopt {name}" in outcome.out.partition("Examples:")[2]
    assert "--json" in outcome.out and "--debug" in outcome.out


def test_version(invoke: Invoke) -> None:
    outcome = invoke("--version")
    assert outcome.status == 0 and outcome.out == f"graphopt {graphopt.__version__}\n"
    assert version_of("graphopt") == versions()["graphopt"] == graphopt.__version__


def test_closed_pipe_is_no_error(small: Path) -> None:
    code = "from graphopt.cli.main import run; run()"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code, "passes", "peephole"],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
        cwd=ROOT,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_standard_streams_may_be_closed(small: Path, closed: tuple[int, ...]) -> None:
    target = small.with_name("out.onnx")
    code = "from graphopt.cli.main import run; run()"
    redirections = " ".join(f"{number}>&-" for number in closed)
    command = [sys.executable, "-c", code, "optimize", str(small), "-o", str(target), "--no-verify"]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirections}', "sh", *command],
        capture_output=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    onnx.checker.check_model(target)  # nothing was printed into it


def test_output_that_the_encoding_lacks_is_no_error(small: Path) -> None:
    code = "from graphopt.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "optimize", small, "-o", small.with_name("out.onnx")],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0 and b"nodes" in done.stdout


def test_terminals_show_tables_and_progress(
    invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = invoke("inspect", small)
    monkeypatch.setattr(console, "_is_terminal", lambda stream: True)
    on_terminal = invoke("inspect", small)
    assert "\x1b" not in plain.out
    assert "[N, 4]" in on_terminal.out
    outcome = invoke("optimize", small, "-o", small.with_name("out.onnx"))
    assert outcome.status == 0 and "\x1b" not in outcome.out


def test_command_line_without_arguments_prints_the_help(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert invoke() == invoke("--help")
    summaries = invoke().out.partition("Everyday:")[2].splitlines()
    assert len(summaries) > 7 and not any(line.endswith("...") for line in summaries)


@pytest.mark.parametrize("arguments", [["passes"], ["passes", "peephole"]], ids=" ".join)
def test_tables_fit_the_terminal(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    told = [kind.summary() for kind in registry().passes.values()]
    if "peephole" in arguments:
        told = [rule.summary for rule in all_rules() if rule.pass_ == "peephole"]
    piped = invoke(*arguments).out
    assert all(sentence in piped for sentence in told)
    monkeypatch.setattr(console, "_is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "100")
    lines = [line.rstrip() for line in invoke(*arguments).out.splitlines()]
    assert 60 < max(map(len, lines)) <= 100


def test_names_stay_whole_on_terminals(invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "head/" + "very/" * 60 + "tail"
    proto = onnx.load(small)
    proto.graph.input[0].name = proto.graph.node[0].input[0] = name
    onnx.save(proto, small)
    for options in ([], ["--json"]):
        assert name in invoke("inspect", small, *options).out
    monkeypatch.setattr(console, "_is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.rstrip() for line in invoke("inspect", small).out.splitlines()]
    assert max(len(line) for line in lines if name not in line and str(small) not in line) <= 80
    assert any(name in line for line in lines) and any(line.endswith("[N, 4]") for line in lines)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_reason_for_the_cpu_is_reported_only_on_demand(
    invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    from graphopt.ort import devices

    monkeypatch.setattr(devices, "probe_cuda", lambda index=0: devices.CudaStatus(False, "no driver"))
    assert "no driver" not in invoke("run", small, "--device", device).err
    assert ("no driver" in invoke("run", small, "--device", device, "-v").err) == (device == "auto")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["optimise", "--json"], 2),
        (["inspect", "none.onnx", "--json"], 2),
        (["passes", "--json", "--frobnicate"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_failures_in_json(invoke: Invoke, arguments: list[str], status: int) -> None:
    outcome = invoke(*arguments)
    error = json.loads(outcome.out)["error"]
    assert outcome.status == error["status"] == status
    first, *rest = outcome.err.splitlines()
    assert first == f"graphopt: {error['message']}"
    assert rest == ([f"hint: {error['hint']}"] if error["hint"] else [])


def test_characters_outside_the_encoding_have_ascii_replacements(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert console._encodable("2 × max |Δ|", stream) == "2 x max |d|"


@pytest.mark.parametrize(
    ("environ", "colored"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"CLICOLOR_FORCE": "1"}, True),
        ({"GRAPHOPT_COLOR": "true"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
    ids=str,
)
def test_colors_follow_the_environment(
    invoke: Invoke, small: Path, environ: dict[str, str], colored: bool
) -> None:
    assert ("\x1b" in invoke("inspect", small, environ=environ).out) == colored
    failed = invoke("inspect", "none.onnx", environ=environ).err
    assert ("\x1b[31m" in failed) == colored and "graphopt:" in failed


def test_total_time_includes_process_start(small: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, sys; main = importlib.import_module('graphopt.cli.main'); "
        "main._process_age = lambda: 1000.0; sys.exit(main.main())"
    )
    command: list[str | Path] = [
        sys.executable,
        "-c",
        code,
        "optimize",
        small,
        "-o",
        tmp_path / "o.onnx",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout)["seconds"]["all"] > 1000


def test_each_pass_lists_its_options_and_rules(invoke: Invoke) -> None:
    for name, kind in registry().passes.items():
        assert all(option.meaning for option in options_of(kind)), f"an option of {name} has no meaning"
    out = invoke("passes", "peephole").out
    assert "``" not in out and "Attributes:" not in out and "approximates  the least strict class" in out
    assert "drop-identity" in out and "multi-head-attention" not in out
    fused = invoke("passes", "fuse-builtin").out
    assert "multi-head-attention" in fused and "drop-identity" not in fused


def _console_script(before: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    code = f"{before}\nfrom graphopt.cli.main import run\nrun()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def test_the_console_script_calls_exit_functions(small: Path) -> None:
    before = "import atexit; atexit.register(lambda: print('ended', flush=True))"
    done = _console_script(before, "optimize", small.with_name("missing.onnx"))
    assert (done.returncode, done.stdout) == (ExitStatus.USAGE, "ended\n")


def test_the_console_script_waits_for_threads() -> None:
    before = (
        "import threading\n"
        "wait = threading.main_thread().join\n"
        "threading.Thread(target=lambda: (wait(), print('ended', flush=True))).start()"
    )
    done = _console_script(before, "--version")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "ended")


#: Reports an exit without the teardown of the interpreter.
_REPORT = """
import os, threading
leave = os._exit
os._exit = lambda status: (os.write(1, b"left at once\\n"), leave(status))
"""


@pytest.mark.parametrize(
    ("thread", "at_once"),
    [
        ("", True),
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", False),
        ("from graphopt.process.threads import start_thread; start_thread(threading.Event().wait)", True),
    ],
    ids=["none", "daemon", "own"],
)
def test_only_other_threads_require_the_teardown_of_the_interpreter(thread: str, at_once: bool) -> None:
    done = _console_script(f"{_REPORT}{thread}\nprint('begun')", "--version")  # a pipe buffers the texts
    lines = ["begun", f"graphopt {graphopt.__version__}", *(["left at once"] if at_once else [])]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, lines, "")
    failed = _console_script(f"{_REPORT}{thread}", "optimize", "missing.onnx")
    assert (failed.returncode, failed.stdout) == (ExitStatus.USAGE, "left at once\n" if at_once else "")


def test_optimization_imports_only_the_modules_that_it_runs(small: Path) -> None:
    names = modules_after("optimize", small, "-o", small.with_name("out.onnx"), "--no-verify")
    unused = ("autodiff", "training", "executor", "specialization", "tuning", "debug", "verification", "api")
    assert [
        name for name in sorted(names) if name.startswith(tuple(f"graphopt.{one}" for one in unused))
    ] == []
