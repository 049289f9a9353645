"""Every error: one clear line, the correct status, no output file, an unchanged input, no traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

from graphopt.cli.output.error_messages import report_error
from tests.cli.conftest import SMALL, Invoke, Outcome


def check(outcome: Outcome, status: int, *words: str) -> None:
    lines = outcome.err.strip().splitlines()
    assert outcome.status == status, outcome.err
    assert lines[0].startswith("graphopt: ")
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: ")), outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    for word in words:
        assert word in outcome.err


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def cut_to_a_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def not_a_model(path: Path) -> None:
    path.write_text("Dear reader, this is a letter.")


def an_image(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))


def cyclic(path: Path) -> None:
    proto = onnx.load(path)
    proto.graph.node[0].input[0] = proto.graph.node[1].output[0]
    path.write_bytes(proto.SerializeToString())


def dangling(path: Path) -> None:
    proto = onnx.load(path)
    proto.graph.node[0].input[0] = "nobody"
    path.write_bytes(proto.SerializeToString())


def defined_twice(path: Path) -> None:
    proto = onnx.load(path)
    proto.graph.node[1].output[0] = proto.graph.node[0].output[0]
    path.write_bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    "damage",
    [truncated, cut_to_a_byte, empty, not_a_model, an_image, cyclic, dangling, defined_twice],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("command", ["optimize", "dump", "inspect", "run"])
def test_files_that_are_no_models(
    invoke: Invoke, small: Path, damage: Callable[[Path], None], command: str
) -> None:
    damage(small)
    before = bytes_in(small.parent)
    arguments = ["-o", small.parent / "out.onnx"] if command == "optimize" else []
    check(invoke(command, small, *arguments), 3)
    assert bytes_in(small.parent) == before


def test_text_that_is_not_a_model(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "model.onnxtxt"
    path.write_text("<ir_version: 8> agraph (float[N] x => (float[N] y) {}")
    check(invoke("inspect", path), 3, "is not ONNX text")


def test_missing_paths(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    check(invoke("optimize", tmp_path / "none.onnx", "-o", tmp_path / "out.onnx"), 2, "no such file")
    check(invoke("inspect", tmp_path), 2, "is a folder")
    check(invoke("verify", small, tmp_path / "none.onnx"), 2, "no such file")
    assert not (tmp_path / "out.onnx").exists()


def test_missing_paths_suggest_the_nearest(invoke: Invoke, small: Path) -> None:
    check(invoke("inspect", small.with_name("smal.onnx")), 2, "no such file", "nearest in", "small.onnx")
    check(invoke("inspect", "none/small.onnx"), 2, "hint: there is no folder none")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipes_are_no_models(invoke: Invoke, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for arguments in (["inspect"], ["optimize", "-o", "out.onnx"]):
        check(invoke(*arguments, tmp_path / "pipe.onnx"), 2, "is a device or a pipe, not a model")


# External data ----------------------------------------------------------------------------


def externalized(weights: Path, location: str = "weights.bin") -> Path:
    """Store the weight of ``weights`` in a separate file; the model declares ``location``."""
    data = weights.with_name("weights.bin")
    proto = onnx.load(weights)
    tensor = proto.graph.initializer[0]
    data.write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    weights.write_bytes(proto.SerializeToString())
    return data


def test_missing_external_data(invoke: Invoke, weights: Path) -> None:
    externalized(weights).unlink()
    before = bytes_in(weights.parent)
    check(invoke("optimize", weights, "-o", weights.parent / "out.onnx"), 3, "'w' is missing")
    assert bytes_in(weights.parent) == before


def test_short_external_data(invoke: Invoke, weights: Path) -> None:
    externalized(weights).write_bytes(b"short")
    check(invoke("optimize", weights, "-o", weights.parent / "out.onnx"), 3, "at byte 5")


@pytest.mark.parametrize("kind", ["parent", "absolute", "symlink"])
def test_external_data_outside_the_folder(invoke: Invoke, weights: Path, kind: str) -> None:
    outside = weights.parent / "outside"
    inside = weights.parent / "inside"
    outside.mkdir()
    inside.mkdir()
    location = {
        "parent": "../outside/weights.bin",
        "absolute": str(outside / "weights.bin"),
        "symlink": "link.bin",
    }
    data = externalized(weights, location[kind])
    data.rename(outside / "weights.bin")
    weights = weights.rename(inside / "weights.onnx")
    if kind == "symlink":
        os.symlink(outside / "weights.bin", inside / "link.bin")
    target = inside / "out.onnx"
    outcome = invoke("optimize", weights, "-o", target)
    check(
        outcome, 3, "outside the model's folder", f"hint: if you trust the model: --allow-external {outside}"
    )
    assert not target.exists()
    outcome = invoke("optimize", weights, "-o", target, "--allow-external", outside, "--json")
    assert outcome.status == 0
    # onnxruntime would not read such data by itself
    assert json.loads(outcome.out)["verification"]["equal"] and "not verified" not in outcome.err
    assert len(onnx.load(target).graph.initializer) == 1


# Output -----------------------------------------------------------------------------------


def test_outputs_that_cannot_be_written(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    before = bytes_in(tmp_path)
    check(invoke("optimize", small, "-o", tmp_path / "no" / "out.onnx"), 2, "no folder")
    check(invoke("optimize", small, "-o", small / "out.onnx"), 2)
    check(invoke("optimize", small, small, "-o", tmp_path / "folder"), 2, "two of the models")
    check(invoke("optimize", small, tmp_path / "b.onnx", "-o", small), 2, "is a file, not a folder")
    check(invoke("optimize", small, "-o", "/dev/null/out.onnx"), 2)
    assert bytes_in(tmp_path) == before


def test_an_unwritable_folder(
    invoke: Invoke, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    check(invoke("optimize", small, "-o", tmp_path / "out.onnx"), 2, "can't write", "Permission denied")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["small.onnx"]


# Names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--passes", "dce,csee"], ["no pass or pipeline is called 'csee'", "nearest: cse"]),
        (["--pipeline", "fixpoint(cse"], ["not closed"]),
        (["--pipeline", "O7"], ["no pass or pipeline is called 'O7'"]),
        (["--passes", "constant-propagation{limt=1}"], ["no option 'limt'", "limit"]),
        (["--skip", "peephol"], ["nearest: peephole"]),
        (["--only", "drop-idntity"], ["nearest: drop-identity"]),
        (["--passes", "drop-identity"], ["names rewrite rules", "--passes peephole --only drop-identity"]),
        (["--passes", "identities"], ["names rewrite rules", "--passes peephole --only identities"]),
        (["--only", "dce"], ["is a pass", "--passes dce"]),
        (["--pipeline", "O9"], ["nearest: O3", "graphopt pipelines"]),
        (["--exact", "--fast-math"], ["exclude each other"]),
        (
            ["--only", "drop-identity", "--skip", "identities"],
            ["no rule remains: all selected rules are skipped"],
        ),
        (["-O2", "--pipeline", "noopt"], ["-O and --pipeline exclude each other"]),
        (["--passes", "dce", "--pipeline", "noopt"], ["--pipeline and --passes exclude each other"]),
        (["--input-shape", "x:1,4", "--input-shape", "x:2,4"], ["input 'x' has several shapes"]),
        (["--input", "x:a.npy", "--input", "x:b.npy"], ["input 'x' has several files"]),
        (["--seed", "-1"], ["seed"]),
        (["--set", "seed=abc"], ["write a whole number"]),
        (["-O2", "--passes", "dce"], ["exclude each other"]),
        (["--log", "peephol"], ["nearest: peephole"]),
        (["--log", ">>>dce"], ["log specification"]),
        (["--fold-limit", "64 parsec"], ["64 parsec"]),
        (["--pre-pass", "tests.cli.nowhere:Pass"], ["No module named"]),
        (["--pre-pass", "tests.cli.broken_passes:Nix"], ["has no Nix"]),
        (["--pre-pass", "tests.cli.broken_passes:dataclass"], ["is a function, neither a pass nor a rule"]),
        (["--input-shape", "x"], ["NAME:1x3x224x224"]),
        (["--input-shape", "z:1,4"], ["'z'"]),
        (["--input", "x:none.npy"], ["no such file"]),
        (["--device", "gpu"], ["auto, cpu, cuda"]),
        (["--set", "fold_limt=1"], ["nearest: fold-limit"]),
        (["--frobnicate"], ["no such option"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_unknown_names_in_options_are_refused(
    invoke: Invoke, small: Path, arguments: list[str], words: list[str]
) -> None:
    target = small.parent / "out.onnx"
    check(invoke("optimize", small, "-o", target, *arguments), 2, *words)
    assert not target.exists()


def test_settings_from_the_environment_are_checked(invoke: Invoke, small: Path) -> None:
    check(invoke("inspect", small, environ={"GRAPHOPT_SED": "1"}), 2, "nearest: seed")


def test_unknown_command_suggests_the_nearest(invoke: Invoke) -> None:
    check(invoke("optimise"), 2, "no command is called 'optimise'", "nearest: optimize")
    check(invoke("passes", "peephol"), 2, "nearest: peephole")
    check(invoke("pipelines", "show", "nopt"), 2, "nearest: noopt")
    check(invoke("pipelines", "O9"), 2, "nearest: O3")
    check(invoke("pipelines", "show", "O2", "O1"), 2)
    check(invoke("pipelines", "O2", "O1"), 2, "pipelines show NAME")
    check(
        invoke("pipelines", "shw", "O2"), 2, "shows one pipeline, not 'shw' and 'O2'", "pipelines show NAME"
    )
    check(invoke("verify"), 2, "missing argument", "such as: graphopt verify model.onnx model.opt.onnx")


def test_names_of_another_kind_have_hints(invoke: Invoke, small: Path) -> None:
    check(invoke("pipelines", "show", ""), 2, "which pipeline?", "hint: graphopt pipelines lists")
    check(invoke("pipelines", ""), 2, "which pipeline?")
    check(invoke("passes", ""), 2, "which pass or rule?")
    for arguments in (["pipelines", "show", "jit"], ["optimize", small, "--pipeline", "jit"]):
        told = "'jit' is a value of --pipelines, not a pass or pipeline"
        check(invoke(*arguments), 2, told, "hint: graphopt run MODEL --inputs FOLDER --pipelines jit")
    check(invoke("pipelines", "builtin"), 2, "'builtin' is a value of --fuser", "--fuser builtin")
    pipeline = "'O2' is a pipeline, not a pass or rule"
    for arguments in (
        ["passes", "O2"],
        ["optimize", small, "--skip", "O2"],
        ["optimize", small, "--only", "O2"],
    ):
        check(invoke(*arguments), 2, pipeline, "hint: graphopt pipelines show O2")


# What the model can't do --------------------------------------------------------------------


def test_wrong_results_are_not_written(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    arguments = [
        "optimize",
        small,
        "-o",
        target,
        "--post-pass",
        "tests.cli.broken_passes:ReluToSigmoid",
        "-O0",
    ]
    check(invoke(*arguments, "--strict"), 1, "is not the same", "graphopt bisect")
    check(invoke(*arguments, "--verify-each"), 1, "pass 1 (relu-to-sigmoid) changed the results")
    assert not target.exists()
    assert invoke(*arguments, "--no-verify").status == 0
    assert target.exists()


def test_another_interface_is_refused_even_without_verification(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    outcome = invoke(
        *("optimize", small, "-o", target, "--no-verify", "--strict"),
        *("--pre-pass", "tests.cli.broken_passes:RenameInput"),
    )
    check(outcome, 1, "called differently", "'x'")
    assert not target.exists()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("os:path", "'os:path' is a module, neither a pass nor a rule"),
        ("os:F_OK", "'os:F_OK' is an int, neither a pass nor a rule"),
        ("builtins:dict", "'builtins:dict' is a class, neither a pass nor a rule"),
        ("fails:Class", "importing fails fails at fails.py:1: ZeroDivisionError"),
        ("/tmp/foo.py", "name your own passes as module:Class"),
        ("folder/foo.py", "name your own passes as module:Class"),
        ("foo.py", "hint: use foo:Class"),
    ],
)
def test_names_that_are_not_passes(
    invoke: Invoke, small: Path, named: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("fails.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(Path.cwd())
    outcome = invoke("optimize", small, "-o", "o.onnx", "--pre-pass", named)
    assert outcome.status == 2 and message in outcome.err


def test_validate_each_names_the_pass(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    arguments = ["--pipeline", "dce", "--post-pass", "tests.cli.broken_passes:Unsort", "--validate-each"]
    outcome = invoke("optimize", small, "-o", target, *arguments)
    assert outcome.status == 1
    assert "pass 2 (unsort) broke the model" in outcome.err.splitlines()[0]
    assert "Traceback" not in outcome.err and not target.exists()


def test_unexpected_errors(invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "graphopt.optimization_attempt.own_passes", lambda passes: []
    )  # as if graphopt's own pass failed
    arguments = [
        "optimize",
        small,
        "-o",
        small.parent / "o.onnx",
        "--pre-pass",
        "tests.cli.broken_passes:Crash",
        "--strict",
    ]
    check(invoke(*arguments), 70, "pass 1 (crash): ZeroDivisionError: division by zero", "--debug shows")
    debug = invoke(*arguments, "--debug")
    assert debug.status == 70 and "Traceback" in debug.err and "--debug shows" not in debug.err


def test_failing_custom_passes_are_reported(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    arguments = ["optimize", small, "-o", target, "--pre-pass", "tests.cli.broken_passes:Fail"]
    check(invoke(*arguments), 2, "broken_passes:Fail}) raised KeyError at ", "broken_passes.py:", "'missing'")
    assert not target.exists()


def test_unavailable_device(invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.ort import devices

    monkeypatch.setattr(devices, "probe_cuda", lambda index=0: devices.CudaStatus(False, "no driver"))
    check(invoke("run", small, "--device", "cuda"), 6, "CUDA can't be used: no driver", "--allow-fallback")
    assert invoke("run", small, "--device", "cuda", "--allow-fallback").status == 0


def test_an_unknown_input_is_reported_before_its_missing_file(invoke: Invoke, small: Path) -> None:
    outcome = invoke("run", small, "--input", "nosuch:none.npy")
    assert outcome.status == 2 and "no input is called 'nosuch'" in outcome.err
    assert "none.npy" not in outcome.err


def test_interruption(invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("graphopt.ir.io.interoperability.load", interrupt)
    outcome = invoke("inspect", small)
    assert outcome.status == 130 and "Traceback" not in outcome.err


def test_interruption_of_an_import(invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extension module that Ctrl-C interrupts while it loads raises an ImportError."""

    def interrupt(*arguments: object, **more: object) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr("graphopt.ir.io.interoperability.load", interrupt)
    outcome = invoke("inspect", small)
    assert (outcome.status, outcome.err.strip()) == (130, "graphopt: interrupted")


def test_text_models_can_be_optimized(invoke: Invoke, tmp_path: Path) -> None:
    source = tmp_path / "small.onnxtxt"
    source.write_text(SMALL)
    target = tmp_path / "out.onnxtxt"
    assert invoke("optimize", source, "-o", target).status == 0
    assert [node.op_type for node in onnx.parser.parse_model(target.read_text()).graph.node] == ["Relu"]


def test_replay_of_a_file(invoke: Invoke, small: Path) -> None:
    outcome = invoke("replay", small)
    assert outcome.status == 2 and "is a file, and reproducers are folders" in outcome.err
    assert "Errno" not in outcome.err
    (empty := small.parent / "empty").mkdir()
    outcome = invoke("replay", empty)
    assert outcome.status == 2 and "it has neither command.json nor case.json\n" in outcome.err
    outcome = invoke("replay", empty / "nope")
    assert outcome.status == 2 and f"graphopt: there is no folder {empty / 'nope'}\n" in outcome.err


def test_sources_of_settings_are_named(invoke: Invoke, small: Path) -> None:
    file = Path.cwd() / "graphopt.toml"
    file.write_text('pipeline = "O9"\n')
    outcome = invoke("optimize", small)
    assert outcome.err.startswith(f"graphopt: pipeline in {file}:1: no pass or pipeline is called 'O9'")
    file.write_text("exact = true\nfast-math = true\n")
    outcome = invoke("inspect", small)
    assert outcome.err == (
        f"graphopt: exact in {file}:1 and fast-math in {file}:2 exclude each other\n"
        "hint: leave one of them out\n"
    )
    assert invoke("inspect", small, "--set", "fast-math=false").status == 0
    file.write_text("exact = true\n")
    outcome = invoke("inspect", small, environ={"GRAPHOPT_FAST_MATH": "1"})
    assert f"graphopt: exact in {file}:1 and GRAPHOPT_FAST_MATH exclude each other" in outcome.err
    outcome = invoke("optimize", small, "--fast-math")
    assert f"graphopt: exact in {file}:1 and --fast-math exclude each other" in outcome.err
    file.unlink()
    outcome = invoke("optimize", small, "--set", "pipeline=O9")
    assert outcome.err.startswith("graphopt: --set pipeline: no pass or pipeline is called 'O9'")


@pytest.mark.parametrize(
    ("attribute", "reads", "message"),
    [
        (
            {"int": [1, 0, 2]},
            "x",
            "attributes.perm: expects one int, found a list; the type of several is 'ints'",
        ),
        ({"ints": [1, 0, 2]}, "z", "reads 'z', which has no definition"),
    ],
)
def test_faults_of_documents_name_the_file(
    invoke: Invoke, attribute: dict[str, object], reads: str, message: str
) -> None:
    node = {"op": "Transpose", "inputs": [reads], "outputs": ["y"], "attributes": {"perm": attribute}}
    ports = {
        "inputs": [{"name": "x", "type": "f32[N,4,4]"}],
        "outputs": [{"name": "y", "type": "f32[4,N,4]"}],
    }
    document = {"graphopt": 1, "ir_version": 8, "opset_imports": {"": 17}}
    graph = {"name": "g", **ports, "nodes": [node]}
    Path("model.json").write_text(json.dumps({**document, "graph": graph}))
    outcome = invoke("inspect", "model.json")
    assert outcome.status == 3 and outcome.err.startswith("graphopt: model.json: ") and message in outcome.err


def test_error_about_an_invalid_model_is_attributed_to_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = '<ir_version: 9, opset_import: ["" : 17]> g (float[2] x) => (float[2] y)'
    for name, body in {"good": "y = Relu(x)", "bad": "y = Relu(x, x)"}.items():
        (tmp_path / f"{name}.onnx").write_bytes(
            onnx.parser.parse_model(f"{head} {{ {body} }}").SerializeToString()
        )
    for name, status in {"good": 70, "bad": 3, "none": 70}.items():
        files = ["explain", str(tmp_path), str(tmp_path / f"{name}.onnx")]
        failure = report_error(IndexError("tuple index out of range"), debug=False, files=files)
        assert failure.status == status, name
    said = capsys.readouterr().err
    assert (
        "the model breaks the rules of ONNX" in said
        and "has 2 inputs, a number that Relu does not support" in said
    )


def test_missing_files_have_hints_by_their_stems(invoke: Invoke, small: Path) -> None:
    assert f"nearest in {small.parent}: {small.name}" in invoke("inspect", small.with_name("smal.onx")).err
    assert "has a similar name" in invoke("inspect", small.with_name("nope.onnx")).err
