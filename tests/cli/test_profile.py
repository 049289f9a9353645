"""graphopt profile, and graphopt inspect of a profile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from graphopt.profile import Profile, ValueProfile

from .conftest import Invoke

#: The elements of x that are not 0, scaled; and a step that may be left out.
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
found (float[N, 4] x, int64[1] rate, float[1] scale = {1}) => (int64[2, M] places, float[N, 4] y, int64[1] r) {
  y = Mul(x, scale)
  places = NonZero(y)
  r = Neg(rate)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "found.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def _requests(folder: Path, *rows: int, **more: Any) -> Path:
    folder.mkdir()
    for number, count in enumerate(rows):
        x = np.ones((count, 4), np.float32)
        np.savez(folder / f"{number}.npz", x=x, rate=np.array([16000]), **more)
    return folder


def test_each_file_of_a_folder_is_a_run(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    requests = _requests(tmp_path / "requests", 1, 2, 2)
    done = invoke(
        "profile", model, "--inputs", requests, "--requires-grad", "x", "-o", tmp_path / "profile.json"
    )
    assert done.status == 0, done.err
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0] == "3 runs, 2 patterns"
    first, second = lines.index("1 2 x f32[2, 4]"), lines.index("2 1 x f32[1, 4]")
    assert first < second and lines[first + 1] == "rate i64[1] 16000"
    assert "x f32[d0, 4] requires a gradient" in lines
    assert "rate i64[1] always 16000" in lines
    assert "scale not fed" in lines
    assert "places i64[2, d1]" in lines
    profile = Profile.read(tmp_path / "profile.json")
    assert profile.runs == 3 and profile.requires_grad == {"x": True}
    shown = invoke("inspect", tmp_path / "profile.json")
    assert shown.status == 0 and "3 runs, 2 patterns" in shown.out and "places" in shown.out
    assert json.loads(invoke("inspect", tmp_path / "profile.json", "--json").out) == profile.to_dict()
    assert invoke("inspect", tmp_path / "profile.json", "--dim", "N=1").status == 2


def test_input_shapes_profile_runs_on_generated_inputs(invoke: Invoke, model: Path) -> None:
    done = invoke("profile", model, "--input-shape", "x:1x4,3x4", "--runs", 2, "--json")
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert [pattern["count"] for pattern in told["patterns"]] == [2, 2]
    assert told["values"]["rate"] == {"type": "tensor(int64)", "shape": [1]}
    assert told["inner_left_out"] == 0


def test_files_and_shapes_combine_and_missing_inputs_are_generated(
    invoke: Invoke, model: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((5, 4), np.float32))
    np.save(tmp_path / "rate.npy", np.array([8000]))
    done = invoke(
        "profile", model, "--inputs", tmp_path / "a.npz", "--input", f"rate:{tmp_path / 'rate.npy'}",
        "--input-shape", "x:2x4", "--json",
    )  # fmt: skip
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert [pattern["inputs"]["x"]["shape"] for pattern in told["patterns"]] == [[5, 4], [2, 4]]
    assert told["values"]["rate"]["ints"] == [8000]


def test_profiles_of_one_model_merge(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    one, two, both = tmp_path / "one.json", tmp_path / "two.json", tmp_path / "both.json"
    assert invoke("profile", model, "--inputs", _requests(tmp_path / "a", 1, 2), "-o", one).status == 0
    scaled = _requests(tmp_path / "b", 2, scale=np.ones(1, np.float32))
    assert invoke("profile", model, "--inputs", scaled, "--merge", one, "-o", two).status == 0
    assert Profile.read(two).runs == 3
    assert "absent in some" in invoke("inspect", two).out
    done = invoke("profile", model, "--merge", one, "--merge", two, "-o", both)
    assert done.status == 0 and Profile.read(both).runs == 5  # no run was made
    assert invoke("profile", model, "--merge", both, "-o", both, "--runs", 1).status == 0
    assert Profile.read(both).runs == 6


def _other(tmp_path: Path) -> str:
    (tmp_path / "other.json").write_text(json.dumps(Profile("another").to_dict()))
    return str(tmp_path / "other.json")


def _wrong_name(tmp_path: Path) -> str:
    np.savez(tmp_path / "wrong.npz", x=np.ones((1, 4), np.float32), rates=np.array([1]))
    return str(tmp_path / "wrong.npz")


def _wrong_shape(tmp_path: Path) -> str:
    np.savez(tmp_path / "shape.npz", x=np.ones((1, 5), np.float32))
    return str(tmp_path / "shape.npz")


def _no_zip(tmp_path: Path) -> str:
    (tmp_path / "no.npz").write_text("none")
    return str(tmp_path / "no.npz")


def _empty(tmp_path: Path) -> str:
    (tmp_path / "empty").mkdir()
    return str(tmp_path / "empty")


@pytest.mark.parametrize(
    ("option", "make", "said"),
    [
        ("--merge", _other, r"other\.json is a profile of another model\nhint: profiles merge if"),
        ("--merge", _wrong_shape, r"shape\.npz: not a profile"),
        ("--inputs", _wrong_name, r"wrong\.npz: no input is called 'rates'; nearest: rate "),
        ("--inputs", _wrong_shape, r"shape\.npz: input 'x' has shape \[N, 4\], not \[1, 5\]"),
        ("--inputs", _no_zip, r"no\.npz is no numpy file"),
        ("--inputs", _empty, r"there is no \.npz file in .*empty\nhint: numpy\.savez"),
        ("--inputs", lambda folder: folder / "found.onnx", r"found\.onnx is no \.npz file\nhint:"),
        ("--inputs", lambda folder: folder / "gone", r"no such file or folder: .*gone"),
        ("--requires-grad", lambda folder: "z", r"no input is called 'z'"),
        ("-o", lambda folder: folder / "p.txt", r"p\.txt needs the suffix \.json"),
    ],
)
def test_errors_are_one_line(
    invoke: Invoke, model: Path, tmp_path: Path, option: str, make: Any, said: str
) -> None:
    done = invoke("profile", model, option, make(tmp_path))
    assert done.status in (2, 3)
    assert re.search(said, done.err) and done.out == ""
    assert len(done.err.splitlines()) <= 2


def test_files_that_are_no_arrays_are_reported(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    requests = _requests(tmp_path / "requests", 1)
    (requests / "README.md").write_text("")
    done = invoke("profile", model, "--inputs", requests)
    assert done.status == 0 and "no .npz file: README.md" in done.err
    done = invoke("profile", model, "--inputs", requests, "--runs", 3)
    assert done.status == 2 and "--runs needs generated inputs" in done.err


def test_failing_run_is_named_by_its_file(invoke: Invoke, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] a, float[M] b) => (float[K] c) { c = Add(a, b) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "add.onnx")
    file, target = tmp_path / "apart.npz", tmp_path / "p.json"
    np.savez(file, a=np.zeros(2, np.float32), b=np.zeros(3, np.float32))
    done = invoke("profile", tmp_path / "add.onnx", "--inputs", file, "-o", target)
    assert done.status == 6 and not target.exists()
    assert "apart.npz: the model does not run on the given inputs: onnxruntime failed" in done.err
    assert "hint: leave it out, or run it alone: graphopt run MODEL --input" in done.err


def test_profile_does_not_overwrite_the_model(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    assert invoke("convert", model, tmp_path / "m.json").status == 0
    before = (tmp_path / "m.json").read_bytes()
    done = invoke("profile", tmp_path / "m.json", "-o", tmp_path / "m.json")
    assert done.status == 2 and "would write over" in done.err
    assert (tmp_path / "m.json").read_bytes() == before


def test_many_patterns_are_listed_with_v(invoke: Invoke, model: Path) -> None:
    shapes = ",".join(f"{rows}x4" for rows in range(1, 13))
    done = invoke("profile", model, "--input-shape", f"x:{shapes}")
    assert "and 2 patterns more (-v lists all)" in done.out and "[12, 4]" not in done.out
    assert "[12, 4]" in invoke("profile", model, "--input-shape", f"x:{shapes}", "-v").out


def test_reproducer_keeps_its_inputs(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    requests = _requests(tmp_path / "requests", 1)
    kept = tmp_path / "kept"
    done = invoke("profile", model, "--inputs", requests, "-o", tmp_path / "p.json", "--save-repro", kept)
    assert done.status == 0, done.err
    assert [file.name for file in kept.rglob("*.npz")] == ["0.npz"]
    assert invoke("replay", kept).status == 0


def test_profiles_page_has_a_valid_profile() -> None:
    page = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text()
    (text,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    profile = Profile.from_dict(json.loads(text))
    assert profile.to_dict() == json.loads(text)
    assert profile.values["mask"] == ValueProfile("tensor(float)", (1, 1, "d0"))
