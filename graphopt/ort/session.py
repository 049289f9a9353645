"""onnxruntime sessions: silent creation, and runs on all types within a time limit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from graphopt.diagnostics import record, tracer
from graphopt.errors import ResourceLimit, RuntimeFailure
from graphopt.ort.devices import CPU, Device
from graphopt.ort.error_text import as_failure
from graphopt.ort.session_options import SessionChoice
from graphopt.ort.silence import quiet, unlogged
from graphopt.ort.utf8_path import utf8_path
from graphopt.process.threads import start_thread
from graphopt.util.ort_array_conversion import LOW_TYPES, from_ort_value, native_feeds, to_ort_value

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions, SessionOptions

Optimizations = Literal["off", "basic", "default"]
#: A serialized model, or the path of one. A model with external data needs the path, or is a
#: :class:`ModelInFolder`.
Source = bytes | str | os.PathLike[str]

#: onnxruntime's key (onnxruntime_session_options_config_keys.h) of the folder of external data of models in
#: memory.
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"


class ModelInFolder(bytes):
    """A serialized model whose external data is in files of a folder, which onnxruntime maps.

    Models are equal only if their folders and the states of their data files are also equal.

    Attributes:
        folder: the folder.
        data_bytes: the total size of the tensors in these files.
        state: the identity, size and modification time of each file (:attr:`graphopt.ir.KeptData.state`).
    """

    folder: str
    data_bytes: int
    state: str

    def __new__(cls, model: bytes, folder: str, data_bytes: int, state: str = "") -> ModelInFolder:
        made = super().__new__(cls, model)
        made.folder, made.data_bytes, made.state = folder, data_bytes, state
        return made

    def __getnewargs__(self) -> tuple[bytes, str, int, str]:  # type: ignore[override]
        return bytes(self), self.folder, self.data_bytes, self.state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelInFolder) and self.data_key == other.data_key and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.data_key))

    @property
    def data_key(self) -> str:
        """A key of the data: its folder and state."""
        return repr((self.folder, self.state))


#: Seconds between two checks of the CPU time of a run.
_TICK = 0.02
FATAL = 4  # onnxruntime's log severity; errors are reported as exceptions


def create(
    model: Source,
    *,
    optimizations: Optimizations = "default",
    device: Device = CPU,
    threads: int | None = None,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, str] | None = None,
    choice: SessionChoice | None = None,
) -> InferenceSession:
    """Create a session that logs nothing.

    Args:
        model: the serialized model, or its path.
        optimizations: ``default``: as for users (ORT_ENABLE_ALL); ``basic``: without fusions
            (ORT_ENABLE_BASIC); ``off``: the nodes unchanged (ORT_DISABLE_ALL).
        device: the device. On CUDA an error is raised instead of falling back to the CPU.
        threads: threads inside one operator; by default onnxruntime's choice, one per core.
        options: session options to extend, modified in place.
        provider_options: options of the CUDA provider, which override those of ``device``.
        choice: session options for the model; the other arguments take precedence.

    Raises:
        RuntimeFailure: onnxruntime refuses the model, the device or a library.
        SystemExhausted: the memory of the GPU does not suffice.
    """
    import onnxruntime

    options = options or onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = {
        "off": level.ORT_DISABLE_ALL,
        "basic": level.ORT_ENABLE_BASIC,
        "default": level.ORT_ENABLE_ALL,
    }[optimizations]
    options.log_severity_level = FATAL
    extra: dict[str, Any] = {}
    if choice is not None and not choice.plain:
        choice.apply(options, device)
        extra = {"disabled_optimizers": list(choice.disabled)} if choice.disabled else {}
    if threads is not None:
        options.intra_op_num_threads = threads
    source = model if isinstance(model, bytes) else utf8_path(model)
    if isinstance(model, ModelInFolder):
        source = bytes(model)
        options.add_session_config_entry(_DATA_FOLDER, model.folder)
    providers = device.providers(provider_options)
    try:
        record.count("sessions")
        with tracer.span("session", device=str(device), optimizations=optimizations):
            if device.capabilities.is_host:
                with unlogged(onnxruntime):
                    made = onnxruntime.InferenceSession(source, options, providers=providers, **extra)
            else:
                with quiet(onnxruntime):
                    made = onnxruntime.InferenceSession(
                        source, options, providers=providers, enable_fallback=0, **extra
                    )
    except Exception as error:  # onnxruntime's errors have no common base class
        on_gpu = not device.capabilities.is_host
        raise as_failure(error, "onnxruntime can't load the model", on_gpu=on_gpu) from error
    if isinstance(source, bytes):
        # onnxruntime keeps the serialized model for a change of providers; it is as large as the weights
        vars(made)["_model_bytes"] = None
    return made


def run(
    session: InferenceSession,
    feeds: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
    *,
    seconds: float | None = None,
) -> list[Any]:
    """Run ``session`` and return the results, in the order of ``outputs`` (default: all).

    Tensors are numpy arrays, with dtypes of ``ml_dtypes`` for element types that numpy lacks and dtype object
    for strings; sequences are lists, maps are dicts, an absent optional is ``None``.

    Args:
        seconds: limit on the CPU seconds of this process; the run is stopped between two operators.

    Raises:
        UsageError: an array is masked, or contains Python objects other than strings.
        RuntimeFailure: the run fails, or a value has an unsupported type.
        ResourceLimit: the time limit is exceeded.
        SystemExhausted: the memory of the GPU does not suffice.
    """
    import onnxruntime

    feeds = native_feeds(feeds)
    options = onnxruntime.RunOptions()
    options.log_severity_level = FATAL
    done = threading.Event()
    if seconds is not None:
        start_thread(_stop_late, options, seconds, done)
    types = {arg.name: arg.type for arg in session.get_inputs()}
    results = [arg for arg in session.get_outputs() if outputs is None or arg.name in outputs]
    names = [arg.name for arg in results] if outputs is None else list(outputs)
    try:
        with unlogged(onnxruntime):
            if all(type_ not in LOW_TYPES for type_ in (*types.values(), *(arg.type for arg in results))):
                found: list[Any] = session.run(names, dict(feeds), options)
                return found
            types |= {arg.name: arg.type for arg in session.get_overridable_initializers()}
            values = {name: to_ort_value(feed, types.get(name, "")) for name, feed in feeds.items()}
            return [from_ort_value(value) for value in session.run_with_ort_values(names, values, options)]
    except RuntimeFailure:
        raise
    except Exception as error:  # onnxruntime's errors have no common base class
        if options.terminate:
            raise ResourceLimit(f"it took more than {seconds:g} s of CPU time") from error
        raise as_failure(error, "onnxruntime failed", on_gpu=is_on_gpu(session)) from error
    finally:
        done.set()


def is_on_gpu(session: InferenceSession) -> bool:
    """Whether ``session`` was created for a device other than the CPU."""
    return bool(session.get_providers()[0] != CPU.capabilities.provider)


def _stop_late(options: RunOptions, seconds: float, done: threading.Event) -> None:
    """Terminate the run of ``options`` after ``seconds`` of CPU time."""
    last = time.process_time() + seconds
    while (left := last - time.process_time()) > 0:
        if done.wait(max(left / (os.cpu_count() or 1), _TICK)):
            return
    options.terminate = True
