"""The work of a measuring process: sessions that are timed alternately.

All arguments can be pickled and all results are plain numbers, because each measurement runs in a fresh
process.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.errors import RuntimeFailure
from graphopt.ort import session
from graphopt.ort.devices import CPU, Device
from graphopt.ort.error_text import as_failure
from graphopt.ort.session import Optimizations, Source
from graphopt.ort.session_options import SessionChoice
from graphopt.ort.silence import quiet
from graphopt.ort.utf8_path import utf8_path
from graphopt.timing import ratios
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.ort_array_conversion import LOW_TYPES, to_ort_value

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

#: Minimum seconds of a turn for fast models, and bounds on the number of runs of a turn; the fastest run
#: counts.
_LEAST_TURN = 0.01
_LEAST_RUNS, _MOST_RUNS = 3, 50
#: Seconds of a run beyond which a turn has a single run.
_LONG = 0.2
#: Minimum number of rounds, regardless of time.
_LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Setup:
    """Settings of the sessions that are timed.

    Attributes:
        shapes: shape and dtype of each output of the original, if all are plain tensors; on CUDA, buffers for
            them are kept on the device.
        threads: threads inside one operator; by default onnxruntime's choice.
        provider_options: options of the CUDA provider, which override those of ``device``.
        optimizations: level of onnxruntime's own optimizations.
        choices: session options by name of the model; other models use onnxruntime's defaults.
        share: by name of an output, the input that the output overwrites in each run.
    """

    feeds: Mapping[str, Any]
    shapes: tuple[tuple[tuple[int, ...], str], ...] | None = None
    device: Device = CPU
    threads: int | None = None
    provider_options: Mapping[str, str] = field(default_factory=dict)
    optimizations: Optimizations = "default"
    choices: Mapping[str, SessionChoice] = field(default_factory=dict)
    share: Mapping[str, str] = field(default_factory=dict)

    def eager(self, **options: str) -> Setup:
        """A copy with ``options`` and without CUDA graphs, which hide kernels and require bound buffers."""
        kept = {key: value for key, value in self.provider_options.items() if key != "enable_cuda_graph"}
        return replace(self, provider_options=kept | options)

    def session(
        self, source: Source, name: str = "", profile: str | None = None, optimized: str | None = None
    ) -> InferenceSession:
        """A session of the model ``name`` as users create it.

        Args:
            name: its name in ``choices``.
            profile: prefix of the path of its profile.
            optimized: path for the graph after onnxruntime's optimizations.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Several sessions are alive: idle threads of one must not occupy the cores while another runs.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if profile is not None:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
            options.enable_profiling = True
            options.profile_file_prefix = utf8_path(profile)
        if optimized is not None:
            options.optimized_model_filepath = utf8_path(optimized)
        if not self.device.capabilities.is_host:
            with quiet(onnxruntime):
                onnxruntime.preload_dlls()
        return session.create(
            source,
            optimizations=self.optimizations,
            device=self.device,
            threads=self.threads,
            options=options,
            provider_options=self.provider_options,
            choice=self.choices.get(name),
        )


@dataclass(frozen=True)
class RaceLimits:
    """The extent of a measurement.

    Attributes:
        rounds: number of rounds per process; every model has one turn in each round.
        processes: number of fresh processes.
        warmup: runs of each model before the first round.
        seconds: wall-clock seconds after which no process is started.
    """

    rounds: int = 40
    processes: int = 7
    warmup: int = 5
    seconds: float = 120.0


def race(
    sources: Mapping[str, Source], setup: Setup, limits: RaceLimits, index: int
) -> dict[str, list[list[float]]]:
    """Time models alternately; returns the seconds of each run, by model and round.

    Args:
        sources: the models; all ratios are relative to the first.
        index: number of the process, which determines the order of sessions and turns.

    Raises:
        RuntimeFailure: a model does not run.
    """
    first, *others = sources
    running: dict[str, Callable[[], object]] = {}
    for name in ratios.turn_order(list(sources), index):
        running[name] = runner(setup.session(sources[name], name), setup)
    begin = time.perf_counter()
    quickest = min(_time(running[name], 1)[0] for _ in range(max(1, limits.warmup)) for name in sources)
    least = 1 if quickest > _LONG else _LEAST_RUNS
    runs = max(least, min(_MOST_RUNS, math.ceil(_LEAST_TURN / quickest)))
    stop = begin + limits.seconds / max(1, limits.processes)
    times: dict[str, list[list[float]]] = {name: [] for name in sources}
    gc.collect()
    gc.disable()
    for number in range(limits.rounds):
        if number >= _LEAST_ROUNDS and time.perf_counter() > stop:
            break
        for name in ratios.turn_order(list(sources), index + number):
            times[name].append(_time(running[name], runs))
        if number % 5 == 4 and ratios.is_precise([round_ratios(times, name, first) for name in others]):
            break
    return times


def round_ratios(times: Mapping[str, Sequence[Sequence[float]]], name: str, first: str) -> list[float]:
    """The time of ``name`` over that of ``first``, by round.

    The fastest run of a turn counts: in slower runs, the machine also did other work, which affects longer
    runs more often and would exaggerate differences.
    """
    return [min(a) / min(b) for a, b in zip(times[name], times[first], strict=True)]


def runner(made: InferenceSession, setup: Setup) -> Callable[[], object]:
    """A function that runs the session once; on CUDA inputs and outputs remain on the device.

    Raises:
        RuntimeFailure: the model does not run, or has other inputs.
        SystemExhausted: the memory of the GPU does not suffice.
    """
    try:
        is_bound = setup.share or not setup.device.capabilities.is_host
        run = _runner_on_device(made, setup) if is_bound else _runner_on_arrays(made, setup)
        run()
    except RuntimeFailure:
        raise
    except Exception as error:  # onnxruntime's errors have no common base
        on_gpu = not setup.device.capabilities.is_host
        raise as_failure(error, "onnxruntime failed", on_gpu=on_gpu) from error
    return run


def _time(run: Callable[[], object], runs: int) -> list[float]:
    clock = time.perf_counter
    seconds = []
    for _ in range(runs):
        begin = clock()
        run()
        seconds.append(clock() - begin)
    return seconds


def known_feeds(made: InferenceSession, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The subset of ``feeds`` for the inputs of the session; a model may have lost an unused input.

    Raises:
        RuntimeFailure: an input of the session is missing.
    """
    wanted = [argument.name for argument in made.get_inputs()]
    missing = [name for name in wanted if name not in feeds]
    if missing:
        raise RuntimeFailure(f"the model has an additional input, {missing[0]!r}")
    return {name: feeds[name] for name in wanted}


def _runner_on_arrays(made: InferenceSession, setup: Setup) -> Callable[[], object]:
    """Run on numpy arrays, like most users on the CPU."""
    feeds = known_feeds(made, setup.feeds)
    types = {argument.name: argument.type for argument in (*made.get_inputs(), *made.get_outputs())}
    if all(type_ not in LOW_TYPES for type_ in types.values()):
        return lambda: made.run(None, feeds)
    names = [argument.name for argument in made.get_outputs()]
    values = {name: to_ort_value(value, types[name]) for name, value in feeds.items()}
    return lambda: made.run_with_ort_values(names, values)


def _runner_on_device(made: InferenceSession, setup: Setup) -> Callable[[], object]:
    """Run with inputs and outputs bound on the device; ``run_with_iobinding`` waits for the results."""
    import onnxruntime

    kind, number = setup.device.kind, setup.device.index
    arguments = made.get_inputs()
    if not all(_is_plain_tensor(argument.type) for argument in (*arguments, *made.get_outputs())):
        if setup.share:
            raise RuntimeFailure("buffers can be shared only in models of plain tensors")
        return _runner_on_arrays(made, setup)
    binding = made.io_binding()
    feeds = known_feeds(made, setup.feeds)
    values: dict[str, OrtValue] = {}
    for name in dict.fromkeys((*feeds, *setup.share.values())):
        array = np.array(setup.feeds[name], order="C")  # a copy, which may be overwritten
        values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array, kind, number)
    for name in feeds:
        binding.bind_ortvalue_input(name, values[name])
    outputs = made.get_outputs()
    known = setup.shapes is not None and len(setup.shapes) == len(outputs) and setup.shapes
    for index, output in enumerate(outputs):
        if output.name in setup.share:
            binding.bind_ortvalue_output(output.name, values[setup.share[output.name]])
        elif known:
            shape, dtype = known[index]
            buffer = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
                list(shape), np.dtype(dtype), kind, number
            )
            binding.bind_ortvalue_output(output.name, buffer)
        else:
            binding.bind_output(output.name, kind, number)
    binding.synchronize_inputs()

    def run(_kept: object = values) -> None:
        made.run_with_iobinding(binding)

    return run


def _is_plain_tensor(type_: str) -> bool:
    return type_.startswith("tensor(") and type_ != "tensor(string)" and type_ not in LOW_TYPES


def output_shapes(outputs: Sequence[Any]) -> tuple[tuple[tuple[int, ...], str], ...] | None:
    """Shape and dtype of each output, if all are plain tensors."""
    if not all(isinstance(value, np.ndarray) and value.dtype.kind in "fiubc" for value in outputs):
        return None
    return tuple((value.shape, str(value.dtype)) for value in outputs)
