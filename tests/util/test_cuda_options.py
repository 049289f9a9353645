"""Options of the CUDA provider: names, values, and the names in the installed library."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import graphopt
from graphopt import config
from graphopt.errors import UsageError
from graphopt.util.cuda_options import CUDA_OPTIONS, parse_cuda_options


def test_values_of_users_become_values_of_the_provider() -> None:
    given = [
        *("use_tf32=off", "prefer_nhwc=TRUE", "cudnn_conv_algo_search=heuristic", "gpu_mem_limit=4GiB"),
        *("arena_extend_strategy=as-requested", "sdpa_kernel=5", "enable_cudnn=1"),
    ]
    assert parse_cuda_options(given) == {
        "use_tf32": "0",
        "prefer_nhwc": "1",
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": str(4 << 30),
        "arena_extend_strategy": "kSameAsRequested",
        "enable_cudnn": "1",
        "sdpa_kernel": "5",
    }
    assert parse_cuda_options({"use_tf32": True, "gpu_mem_limit": 1024}) == {
        "use_tf32": "1",
        "gpu_mem_limit": "1024",
    }
    for name, option in CUDA_OPTIONS.items():  # values of the provider are accepted as such
        for value in option.words.values():
            assert parse_cuda_options({name: value}) == {name: value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("use_tf23=1", "no CUDA option is called 'use_tf23'; nearest: use_tf32 "),
        ("prefer_nhwc", "the CUDA option 'prefer_nhwc' is not of the form KEY=VALUE"),
        ("prefer_nhwc=2", "the CUDA option 'prefer_nhwc' can't be '2': give one of 1, 0"),
        ("cudnn_conv_algo_search=best", "give one of exhaustive, heuristic, default"),
        ("gpu_mem_limit=0", "give a positive number of bytes below 2⁶⁴, or a size such as 4GiB"),
        ("gpu_mem_limit=4XB", "give a positive number of bytes below 2⁶⁴, or a size such as 4GiB"),
        ("gpu_mem_limit=18446744073709551616", "give a positive number of bytes below 2⁶⁴"),
        ("sdpa_kernel=-1", "give a natural number"),
        ("device_id=1", "the CUDA option 'device_id' is part of the device"),
        ("enable_cuda_graph=1", "has conditions, which --cuda-graph checks"),
        ("user_compute_stream=140", "is an address in one process"),
    ],
)
def test_other_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cuda_options([text])
    assert message in caught.value.message and "\n" not in caught.value.message


def test_two_values_are_refused() -> None:
    assert parse_cuda_options(["use_tf32=1", "use_tf32=on"]) == {"use_tf32": "1"}
    with pytest.raises(UsageError, match="'use_tf32' has two values, 1 and 0"):
        parse_cuda_options(["use_tf32=1", "use_tf32=0"])


def test_the_installed_library_has_each_name() -> None:
    library = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if not library.exists():
        pytest.skip("this onnxruntime is built without CUDA")
    words = [word for option in CUDA_OPTIONS.values() for word in option.words.values() if len(word) > 1]
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        missing = [name for name in (*CUDA_OPTIONS, *words) if content.find(name.encode()) < 0]
    assert missing == []


def test_settings_have_the_values_of_the_provider(tmp_path: Path) -> None:
    (tmp_path / "graphopt.toml").write_text('cuda-options = ["use_tf32=on", "gpu_mem_limit=1KiB"]\n')
    assert config.load({}, tmp_path).cuda_options == ("use_tf32=1", "gpu_mem_limit=1024")
    environ = {"GRAPHOPT_CUDA_OPTIONS": "prefer_nhwc=1, fuse_conv_bias=0"}
    assert config.load(environ, tmp_path).cuda_options == ("prefer_nhwc=1", "fuse_conv_bias=0")
    with pytest.raises(UsageError, match="GRAPHOPT_CUDA_OPTIONS: no CUDA option is called 'prefer_nwhc'"):
        config.load({"GRAPHOPT_CUDA_OPTIONS": "prefer_nwhc=1"}, tmp_path)


@pytest.mark.parametrize("given", [{"use_tf32": 1}, ["use_tf32=1"], "use_tf32=1"])
def test_python_accepts_values_by_name_and_texts(given: Any) -> None:
    assert graphopt.Compiler(cuda_options=given).settings.cuda_options == ("use_tf32=1",)
    with pytest.raises(UsageError, match="no CUDA option is called 'tf32'; nearest: use_tf32"):
        graphopt.Compiler(cuda_options={"tf32": 1})


@pytest.mark.parametrize("given", [[5], [None], b"use_tf32=1"])
def test_python_refuses_options_that_are_no_texts(given: Any) -> None:
    with pytest.raises(UsageError, match="is not a text"):
        parse_cuda_options(given)
