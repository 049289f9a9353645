"""Create sessions in a process that must survive crashes of onnxruntime: a child creates each one first.

Executors, bundles and trainers run models in the program that uses them, for speed. onnxruntime's optimizer
may crash while loading; if a child survives, this process also survives. Runs are not tried: the program
provides their inputs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from graphopt import ir
from graphopt.errors import ResourceLimit
from graphopt.ort import session
from graphopt.ort.devices import CPU, Device
from graphopt.ort.model_runs import LEVELS
from graphopt.ort.session import ModelInFolder, Optimizations, Source
from graphopt.ort.session_options import SessionChoice
from graphopt.process import memory
from graphopt.process.child import Child, NoProcess, is_child
from graphopt.util.disk_store import Store, key_of

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

#: Kind of the entries in the store, and version of their keys.
_KIND, _FORM = "loaded", 2
#: Memory of a session, in multiples of the bytes of its model.
_SESSION = 3


def create(
    model: Source,
    *,
    optimizations: Optimizations = "default",
    device: Device = CPU,
    threads: int | None = None,
    choice: SessionChoice | None = None,
    store: Store | None = None,
    provider_options: Mapping[str, str] | None = None,
) -> InferenceSession:
    """:func:`graphopt.ort.session.create` for a model that may crash onnxruntime.

    Args:
        model, optimizations, device, threads, choice, provider_options: as for
            :func:`graphopt.ort.session.create`.
        store: records loaded models, so that each is tried once. The key is the hash of the model file,
            without external data, and the state of the data of a :class:`ModelInFolder`.

    Raises:
        ProcessCrashed: the child died.
        RuntimeFailure: onnxruntime refuses the model, the device or a library.
    """
    try_load(model, optimizations=optimizations, device=device, choice=choice, store=store)
    return session.create(
        model,
        optimizations=optimizations,
        device=device,
        threads=threads,
        choice=choice,
        provider_options=provider_options,
    )


def try_load(
    model: Source,
    *,
    optimizations: Optimizations = "default",
    device: Device = CPU,
    choice: SessionChoice | None = None,
    store: Store | None = None,
) -> None:
    """Create a session in a child, which then ends; arguments and errors as for :func:`create`.

    Skipped on other devices than the CPU, in a child, and without memory for two sessions or for a process.
    """
    if not device.capabilities.forkable or is_child():
        return
    key = None if store is None else _key(model, optimizations, choice)
    if store is not None and key is not None and store.get(_KIND, key) is not None:
        return
    doing = f"loading the model {LEVELS[optimizations]}"
    if not in_child(load, model, optimizations, choice, device=device, doing=doing):
        return
    if store is not None and key is not None:
        with contextlib.suppress(ResourceLimit):  # an unwritable store is not a failure
            store.put(_KIND, b"", key)


def in_child(
    function: Callable[..., None], model: Source, *arguments: Any, device: Device, doing: str
) -> bool:
    """Call ``function(model, *arguments)``, which creates a session, in a child; returns whether it ran.

    No child is available on devices other than the CPU, within a child, or if memory does not suffice for
    two sessions or for a process.
    """
    if not device.capabilities.forkable or is_child():
        return False
    available = memory.available()
    if available is not None and 2 * _SESSION * _size(model) > available:
        return False
    try:
        with Child(preload=("graphopt.ort.preflight",)) as child:
            child.call(function, model, *arguments, doing=doing)
    except NoProcess:
        return False
    return True


def load(model: Source, optimizations: Optimizations, choice: SessionChoice | None) -> None:
    """Create a session, in the child."""
    session.create(model, optimizations=optimizations, threads=1, choice=choice)


def _key(model: Source, optimizations: Optimizations, choice: SessionChoice | None) -> str | None:
    import onnxruntime

    try:
        content = model if isinstance(model, bytes) else _read(model)
    except OSError:  # onnxruntime reports the error
        return None
    data = model.data_key if isinstance(model, ModelInFolder) else ""
    return key_of(_FORM, str(onnxruntime.__version__), optimizations, repr(choice), data, content)


def _read(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _size(model: Source) -> int:
    """Bytes of the model and of its external data files."""
    if isinstance(model, bytes):
        return len(model) + (model.data_bytes if isinstance(model, ModelInFolder) else 0)
    size = 0
    for path in (model, *ir.data_files(model)):
        with contextlib.suppress(OSError):  # onnxruntime reports the error
            size += os.path.getsize(path)
    return size
