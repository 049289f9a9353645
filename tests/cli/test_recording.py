"""``--save-repro`` on every command, and ``replay`` of its folders."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphopt import config
from graphopt.cli.main import cli
from graphopt.cli.reproducer.recorded_command import Recorded
from graphopt.cli.reproducer.rerun import rerun
from graphopt.cost import shipped
from graphopt.cost.cost_model import read
from graphopt.cost.select_table import store_measured_table
from graphopt.errors import UsageError
from graphopt.ort.devices import CPU
from graphopt.util.disk_store import Store
from tests.cli.conftest import Invoke

BROKEN = "tests.cli.broken_passes"


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model with weights in another file."""
    array = np.arange(8, dtype=np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["w"], ["v"]), onnx.helper.make_node("Add", ["x", "v"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 8])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 8])],
        [onnx.numpy_helper.from_array(array, "w")],
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "external.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


COMMANDS = {
    "optimize": ["optimize", "M", "-o", "out.onnx", "-O1", "--report", "r.json"],
    "optimize-several": ["optimize", "M", "W", "-o", "o/", "--no-verify"],
    "dump": ["dump", "M", "--pass-by-pass", "--diff", "--passes", "cse,dce", "-o", "stages"],
    "run": ["run", "M", "--input-shape", "x:2,4", "-o", "y.npz"],
    "run-checked": ["run", "M", "--check-sizes", "--trace", "t.json"],
    "trace": ["optimize", "M", "-o", "out.onnx", "--trace", "t", "--trace-format", "chrome", "--fresh-cache"],
    "hints": ["doctor", "--hints", "M"],
    "split-constants": ["split-constants", "W", "-o", "parts"],
    "verify": ["verify", "M", "M", "--no-signature"],
    "verify-different": ["verify", "M", "W"],
    "compare": ["compare", "M", "M", "--rtol", "1e-3"],
    "lineage": ["lineage", "M", "y", "-O3"],
    "inspect": ["inspect", "M", "-vv", "--json"],
    "bench": [
        "bench",
        "M",
        "--rounds",
        "1",
        "--processes",
        "1",
        "--warmup",
        "1",
        "--plot",
        "p.svg",
    ],
    "compile": ["compile", "M", "-o", "out.gopt", "--zip", "--report", "r.json"],
    "calibrate": ["calibrate", "--show", "-o", "costs.json"],
    "convert": ["convert", "M", "m.json", "--threshold", "64KiB"],
    "bisect": ["bisect", "M", "--check", "valid", "--post-pass", f"{BROKEN}:RenameInput"],
    "reduce": ["reduce", "M", "-o", "s.onnx", "--check", "valid", "--post-pass", f"{BROKEN}:RenameInput"],
    "passes": ["passes", "peephole"],
    "pipelines": ["pipelines", "show", "O2"],
    "no-such-model": ["inspect", "nowhere.onnx"],
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_every_command_is_kept_and_replayed(
    arguments: list[str], invoke: Invoke, small: Path, weights: Path
) -> None:
    words = [{"M": str(small), "W": str(weights)}.get(word, word) for word in arguments]
    first = invoke(*words, "--save-repro", "kept")
    recorded = Recorded.load(Path("kept"))
    assert recorded.outcome is not None and recorded.outcome.status == first.status
    assert first.status == (2 if "nowhere.onnx" in words else 0) or words[0] in ("bisect", "verify"), first
    assert recorded.command == ("graphopt", *words, "--save-repro", "kept")
    assert not any(str(small.parent) in word for word in recorded.arguments)
    assert recorded.versions["onnx"] == onnx.__version__ and "onnxruntime" in " ".join(recorded.versions)
    small.unlink()
    shutil.move("kept", "moved")
    again = invoke("replay", "moved")
    assert again.status == 0 and "as recorded" in again.out, again


def test_reproducer_has_all_input_files(invoke: Invoke, small: Path) -> None:
    np.save("x.npy", np.ones((3, 4), np.float32))
    environ = {"GRAPHOPT_SEED": "7"}
    words = ["optimize", small, "-o", "out.onnx", "--input", "x:x.npy", "--skip", "cse,dce", "-q"]
    assert invoke(*words, "--set", "fold-limit=5", "--save-repro", "kept", environ=environ).status == 0
    kept = Path("kept")
    assert Recorded.load(kept).arguments == (
        *("optimize", "--quiet", "--output", "out/out.onnx", "--skip", "cse,dce"),
        *("--input", "x:in/2/x.npy", "in/1/small.onnx"),
    )
    assert "cse" in (Recorded.load(kept).pipeline or "")
    assert (kept / "in/1/small.onnx").read_bytes() == small.read_bytes()
    settings = config.load({}, kept)
    assert (settings.seed, settings.fold_limit, settings.skip) == (7, 5, ("cse", "dce"))
    assert "graphopt replay ." in (kept / "README.md").read_text()


def test_a_trace_of_a_setting_is_not_written_again(invoke: Invoke, small: Path) -> None:
    environ = {"GRAPHOPT_TRACE": "t.jsonl"}
    assert invoke("inspect", small, "--save-repro", "kept", environ=environ).status == 0
    assert config.load({}, Path("kept")).trace is None
    with Path("kept/graphopt.toml").open("a") as file:
        file.write(f'trace = "{Path("elsewhere.jsonl").absolute()}"\n')  # a folder from an untrusted source
    assert invoke("replay", "kept").status == 0
    assert not Path("elsewhere.jsonl").exists()


def test_different_outcome_is_reported(invoke: Invoke, small: Path) -> None:
    invoke("optimize", small, "-o", "out.onnx", "--no-verify", "--save-repro", "kept")
    data = json.loads(Path("kept/command.json").read_text())
    data["outcome"] |= {"status": 3, "written": [["out.onnx", "0"]]}
    Path("kept/command.json").write_text(json.dumps(data))
    again = invoke("replay", "kept")
    assert again.status == 1 and "it ended with status 3" in again.out
    assert "other bytes than recorded: out.onnx" in again.out
    data["outcome"] = None
    Path("kept/command.json").write_text(json.dumps(data))
    assert "it did not end" in invoke("replay", "kept").out
    assert json.loads(invoke("replay", "kept", "--json").out)["replayed"]["status"] == 0


def test_external_data_is_kept(invoke: Invoke, external: Path, tmp_path: Path) -> None:
    arguments = ["optimize", "-o", "out.onnx", "--save-repro"]
    invoke(*arguments, "kept", external)
    assert Path("kept/in/1/weights.bin").read_bytes() == (tmp_path / "weights.bin").read_bytes()
    assert invoke("replay", "kept").status == 0
    # from elsewhere: the model is written anew
    far = tmp_path / "far"
    far.mkdir()
    shutil.move(tmp_path / "weights.bin", far)
    proto = onnx.load(external, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = str(far / "weights.bin")
    onnx.save(proto, external)
    first = invoke(*arguments, "second", external, "--allow-external", far)
    assert first.status == 0, first.err
    shutil.rmtree(far)
    again = invoke("replay", "second")
    assert again.status == 0, again
    # what can't be loaded is kept with the files that it names
    shutil.copy("kept/in/1/external.onnx", external)
    (tmp_path / "weights.bin").write_bytes(b"cut")
    assert invoke(*arguments, "third", external).status == 3
    assert Path("third/in/1/weights.bin").read_bytes() == b"cut"
    assert invoke("replay", "third").status == 0


def test_a_command_that_is_a_check(invoke: Invoke, small: Path) -> None:
    Path("check.sh").write_text("exit 1\n")
    assert invoke("bisect", small, "--check", "sh check.sh {model}", "--save-repro", "kept").status == 1
    Path("check.sh").unlink()
    refused = invoke("replay", "kept")
    assert refused.status == 2 and "--allow-command" in refused.err
    assert "as recorded" in invoke("replay", "kept", "--allow-command").out


def test_internal_errors_are_kept(invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["dump", small, "--pass-by-pass", "--post-pass", f"{BROKEN}:Crash"]
    with monkeypatch.context() as patched:
        patched.setattr(
            "graphopt.optimization_attempt.own_passes", lambda passes: []
        )  # as if graphopt's own pass failed
        outcome = invoke(*words)
        assert outcome.status == 70 and "--save-repro FOLDER records the command and its files" in outcome.err
    outcome = invoke(*words, "--save-repro", "kept")
    assert outcome.status == 2 and "--save-repro" not in outcome.err
    error = (Recorded.load(Path("kept")).outcome or pytest.fail()).error or ""
    assert error and error in outcome.err
    assert invoke("replay", "kept").status == 0


def test_reproducer_does_not_overwrite_files(invoke: Invoke, small: Path) -> None:
    Path("taken").mkdir()
    Path("taken/file").write_text("")
    outcome = invoke("inspect", small, "--save-repro", "taken")
    assert outcome.status == 2 and "taken is not empty" in outcome.err
    assert [path.name for path in Path("taken").iterdir()] == ["file"]
    assert invoke("inspect", small, "--save-repro", "taken/file").status == 2


def test_reproducer_with_paths_outside_its_folder_is_refused(invoke: Invoke, small: Path) -> None:
    invoke("convert", small, "a.json", "--save-repro", "kept")
    data = json.loads(Path("kept/command.json").read_text())
    for target in (str(Path("a.json").absolute()), "../a.json", "out/../../a.json"):
        data["arguments"] = ["convert", "in/1/small.onnx", target]
        Path("kept/command.json").write_text(json.dumps(data))
        with pytest.raises(UsageError, match="not in it"):
            rerun(Path("kept"), cli)
    for text in ("{", "[]", '{"format": 1}'):
        Path("kept/command.json").write_text(text)
        assert invoke("replay", "kept").status in (2, 3)


def test_settings_of_a_folder_run_no_command_and_choose_no_store(invoke: Invoke, small: Path) -> None:
    assert invoke("optimize", small, "-o", "o.onnx", "--fuser", "native", "--save-repro", "r").status == 0
    settings = Path("r/graphopt.toml")
    text = settings.read_text()
    program = Path("evil").absolute()
    program.write_text("#!/bin/sh\necho ran >> " + str(Path("ran").absolute()))
    program.chmod(0o755)

    settings.write_text(text.replace('compiler = "auto"', f'compiler = "{program}"'))
    refused = invoke("replay", "r")
    assert refused.status == 2 and "would run the C compiler" in refused.err and not Path("ran").exists()

    settings.write_text(f'{text}allow_external = ["/"]\n')
    assert invoke("replay", "r").status == 2

    assert not any(name in text for name in ("cache_dir", "cache_url", "allow_external"))
    settings.write_text(f'{text}cache_dir = "{Path("theirs").absolute()}"\n')
    assert invoke("replay", "r").status == 0 and not Path("theirs").exists()

    data = json.loads(Path("r/command.json").read_text())
    data["arguments"] += ["--set", f"compiler={program}"]
    Path("r/command.json").write_text(json.dumps(data))
    assert invoke("replay", "r").status == 2 and not Path("ran").exists()


@pytest.mark.parametrize("setting", ["auto", "FILE"])
def test_the_table_of_costs_in_force_is_kept(
    setting: str, invoke: Invoke, small: Path, tmp_path: Path
) -> None:
    measured = replace(shipped("cpu"), name="made up")
    file = tmp_path / "mine.json"
    file.write_text(measured.text())
    store_measured_table(Store(tmp_path / "cache" / "graphopt"), CPU, measured)
    chosen = str(file) if setting == "FILE" else setting
    done = invoke(
        "optimize", small, "-o", "o.onnx", "--device", "cpu", "--set", f"costs={chosen}", "--save-repro", "r"
    )
    assert done.status == 0, done.err
    (costs,) = Path("r").glob("in/*/*.json")
    assert read(costs) == measured
    assert f'costs = "{costs.relative_to("r").as_posix()}"' in Path("r/graphopt.toml").read_text()
    assert rerun(Path("r"), cli).status == 0


def test_without_a_calibration_the_shipped_table_is_recorded(invoke: Invoke, small: Path) -> None:
    assert invoke("optimize", small, "-o", "o.onnx", "--save-repro", "r").status == 0
    assert 'costs = "shipped"' in Path("r/graphopt.toml").read_text()
