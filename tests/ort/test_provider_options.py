"""The provider options of sessions on CUDA: runs, executors, bundles, verification, bench, training."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import config
from graphopt.ort import devices, session
from graphopt.ort.devices import CPU, Device, choose_device
from graphopt.timing.alternating_runs import Setup
from graphopt.timing.bench import Bench
from tests.cli.conftest import Invoke, invoke, small  # noqa: F401
from tests.model_testing import parse
from tests.recorded_cuda_sessions import cuda_sessions  # noqa: F401

Created = list[dict[str, str]]
_MODEL = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x)\n y = Exp(a) }"
_FEEDS = {"x": np.ones((2, 4), np.float32)}
_ON = {"device": "cuda:1", "cuda_options": {"use_tf32": 1, "gpu_mem_limit": "1GiB"}}
_RUN = {"device_id": "1", "use_tf32": "1", "gpu_mem_limit": str(1 << 30)}
_COMPARED = _RUN | {"use_tf32": "0"}


def test_runs(cuda_sessions: Created) -> None:  # noqa: F811
    graphopt.run(parse(_MODEL), _FEEDS, **_ON)  # type: ignore[arg-type]
    assert cuda_sessions == [_RUN]


def test_tf32_is_off_by_default(cuda_sessions: Created) -> None:  # noqa: F811
    graphopt.run(parse(_MODEL), _FEEDS, device="cuda")
    assert cuda_sessions == [{"device_id": "0", "use_tf32": "0"}]


def test_tf32_is_off_in_comparisons(cuda_sessions: Created) -> None:  # noqa: F811
    assert graphopt.verify(parse(_MODEL), parse(_MODEL), **_ON).ok  # type: ignore[arg-type]
    assert cuda_sessions and all(one == _COMPARED for one in cuda_sessions)
    cuda_sessions.clear()
    assert graphopt.optimize(parse(_MODEL), **_ON).report.verdict.ok  # type: ignore[arg-type,union-attr]
    assert cuda_sessions and all(one == _COMPARED for one in cuda_sessions)


def test_executors(cuda_sessions: Created) -> None:  # noqa: F811
    executor = graphopt.compile(parse(_MODEL), verify=False, **_ON)  # type: ignore[arg-type]
    for _ in range(3):
        executor(_FEEDS)
    assert len(cuda_sessions) >= 2 and all(one == _RUN for one in cuda_sessions)


def test_bundles(tmp_path: Path, cuda_sessions: Created) -> None:  # noqa: F811
    from graphopt.specialization.build_variants import Specialization

    profile = graphopt.record_profile(parse(_MODEL), [_FEEDS], device="cuda")
    found = graphopt.specialize(parse(_MODEL), Specialization(profile), bundle=True, device="cuda")
    graphopt.save_bundle(found, tmp_path / "b")
    cuda_sessions.clear()
    bundle = graphopt.Bundle(tmp_path / "b", **_ON)  # type: ignore[arg-type]
    bundle.run(_FEEDS)
    pickle.loads(pickle.dumps(bundle)).run(_FEEDS)
    assert cuda_sessions == [_RUN, _RUN]
    with config.patch(cuda_options=("prefer_nhwc=1", "use_tf32=0")):
        assert graphopt.Bundle(tmp_path / "b", **_ON).device.provider_options() == {  # type: ignore[arg-type]
            "use_tf32": "1",
            "gpu_mem_limit": str(1 << 30),
            "prefer_nhwc": "1",
        }


def test_settings_apply_to_all_devices_of_cuda(cuda_sessions: Created) -> None:  # noqa: F811
    with config.patch(cuda_options=("prefer_nhwc=1", "use_tf32=1")):
        found, _ = choose_device("cuda")
        assert found.provider_options() == {"use_tf32": "1", "prefer_nhwc": "1"}
        own, _ = choose_device(Device("cuda").having({"use_tf32": 0}))
        assert own.provider_options() == {"use_tf32": "0", "prefer_nhwc": "1"}
        assert choose_device("cpu") == (CPU, None)


def test_timed_sessions_have_the_default_of_onnxruntime(cuda_sessions: Created) -> None:  # noqa: F811
    cuda = Device("cuda")
    bench = Bench([], cuda, provider_options={"enable_cuda_graph": "1"})
    assert bench.all_provider_options == {"use_tf32": "1", "enable_cuda_graph": "1"}
    assert Bench([], cuda.having({"use_tf32": 0})).all_provider_options == {"use_tf32": "0"}
    assert Bench([], CPU).all_provider_options == {} and CPU.timed is CPU
    setup = Setup({}, device=cuda.timed, provider_options=bench.provider_options)
    source = graphopt.ir.to_bytes(parse(_MODEL))
    setup.session(source)
    setup.eager().session(source)
    session.create(source, device=cuda.having({"use_tf32": 1}).exact)
    assert cuda_sessions == [
        {"device_id": "0", "use_tf32": "1", "enable_cuda_graph": "1"},
        {"device_id": "0", "use_tf32": "1"},
        {"device_id": "0", "use_tf32": "0"},
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tf32", "--nhwc"], {"use_tf32": "1", "prefer_nhwc": "1"}),
        (["--no-tf32", "--no-nhwc", "--one-stream"], {"prefer_nhwc": "0", "use_ep_level_unified_stream": "1"}),
        (
            ["--conv-search", "Heuristic", "--gpu-memory", "2GiB", "--arena-growth", "as-requested"],
            {
                "cudnn_conv_algo_search": "HEURISTIC",
                "gpu_mem_limit": str(2 << 30),
                "arena_extend_strategy": "kSameAsRequested",
            },
        ),
        (["--cuda-option", "fuse_conv_bias=1", "--cuda-option", "sdpa_kernel=1"],
         {"fuse_conv_bias": "1", "sdpa_kernel": "1"}),
        (["--set", "cuda-options=use_tf32=1"], {"use_tf32": "1"}),
    ],
)  # fmt: skip
def test_flags(
    invoke: Invoke,  # noqa: F811
    small: Path,  # noqa: F811
    cuda_sessions: Created,  # noqa: F811
    words: list[str],
    expected: dict[str, str],
) -> None:
    done = invoke("run", small, "--device", "cuda", *words)
    assert done.status == 0, done.err
    assert cuda_sessions == [{"device_id": "0", "use_tf32": "0"} | expected]


@pytest.mark.parametrize(
    ("command", "words"), [("verify", ["{0}", "{0}"]), ("optimize", ["{0}", "-o", "out.onnx"])]
)
def test_flags_of_commands_that_compare(
    invoke: Invoke,  # noqa: F811
    small: Path,  # noqa: F811
    cuda_sessions: Created,  # noqa: F811
    command: str,
    words: list[str],
) -> None:
    done = invoke(command, *(word.format(small) for word in words), "--device", "cuda", "--nhwc", "--tf32")
    assert done.status == 0, done.err
    expected = {"device_id": "0", "use_tf32": "0", "prefer_nhwc": "1"}
    assert cuda_sessions and all(one == expected for one in cuda_sessions)


def test_flags_of_executors(
    invoke: Invoke,  # noqa: F811
    small: Path,  # noqa: F811
    tmp_path: Path,
    cuda_sessions: Created,  # noqa: F811
) -> None:
    np.savez(tmp_path / "x.npz", **_FEEDS)
    done = invoke("run", small, "--inputs", tmp_path / "x.npz", "--device", "cuda", "--tf32", "--no-optimize")
    assert done.status == 0, done.err
    assert cuda_sessions == [{"device_id": "0", "use_tf32": "1"}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cpu", "--nhwc"], "--nhwc is for CUDA, and the models run on the CPU"),
        (["--device", "cpu", "--no-tf32"], "--no-tf32 is for CUDA, and the models run on the CPU"),
        (["--device", "cpu", "--cuda-option", "use_tf32=1"], "--cuda-option is for CUDA"),
        (["--cuda-option", "use_tf23=1"], "no CUDA option is called 'use_tf23'; nearest: use_tf32"),
        (["--tf32", "--cuda-option", "use_tf32=0"], "'use_tf32' has two values, 0 and 1"),
    ],
)
@pytest.mark.parametrize("command", ["run", "bench", "optimize"])
def test_flags_without_effect(
    invoke: Invoke,  # noqa: F811
    small: Path,  # noqa: F811
    command: str,
    words: list[str],
    message: str,
) -> None:
    output = ["-o", "out.onnx"] if command == "optimize" else []
    done = invoke(command, small, *output, *words)
    assert done.status == 2 and done.out == "" and message in done.err
    assert not Path("out.onnx").exists()


def test_flags_after_a_fallback(invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(devices, "probe_cuda", lambda index=0: devices.CudaStatus(False, "no driver"))
    fallback = ("--device", "cuda", "--allow-fallback")
    done = invoke("run", small, *fallback, "--tf32")
    assert done.status == 2 and "--tf32 is for CUDA, and the models run on the CPU" in done.err
    done = invoke("run", small, *fallback, environ={"GRAPHOPT_CUDA_OPTIONS": "use_tf32=1"})
    assert done.status == 0, done.err


def test_settings_are_ignored_on_the_cpu(invoke: Invoke, small: Path) -> None:  # noqa: F811
    done = invoke("run", small, "--device", "cpu", environ={"GRAPHOPT_CUDA_OPTIONS": "use_tf32=1"})
    assert done.status == 0, done.err


def test_commands_have_the_flags_of_the_table() -> None:
    from graphopt.cli.commands import bench, optimize, run, verify
    from graphopt.util.cuda_options import CUDA_OPTIONS

    flags = {option.flag for option in CUDA_OPTIONS.values() if option.flag}
    for module in (bench, optimize, run, verify):
        params: list[Any] = module.command.params
        known = {"/".join([*one.opts, *one.secondary_opts]) for one in params if one.name != "help"}
        assert flags <= known and "--cuda-option" in known
