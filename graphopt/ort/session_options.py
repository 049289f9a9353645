"""Session options that were measured to suit a model: applied, printed, and stored in its metadata.

Operator libraries are not stored: opening a model must not run code that it names.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from graphopt.errors import RuntimeFailure
from graphopt.ort.devices import CPU, Device
from graphopt.ort.utf8_path import utf8_path
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

    from graphopt import ir

#: The metadata entry with recommended session options; outside the private namespace ``graphopt.``, which
#: saving strips.
KEY = "graphopt:session-options"
_SPINNING = "session.intra_op.allow_spinning"
_NOT_STORED = ("libraries", "cpu_level", "remark")
#: Maximum number of optimizer names read from a file: onnxruntime has about 200.
_MOST_DISABLED = 1000
#: Protects setting the switches of a library and registering it: switches are global to the process.
_switch_lock = threading.Lock()


@dataclass(frozen=True)
class SessionChoice:
    """Session options that differ from onnxruntime's defaults.

    Attributes:
        threads: threads inside one operator; ``None`` for onnxruntime's choice, one per core.
        spinning: whether idle threads spin until the next operator.
        arena: whether CPU memory is kept for the next run.
        disabled: names of onnxruntime's own optimizers that do not run.
        libraries: paths of shared libraries with operators, in separate domains: onnxruntime rejects two
            libraries with the same domain.
        cpu_level: the x86-64 level (2, 3 or 4) of the kernels in graphopt's libraries; ``None`` for the
            highest level of the CPU.
        remark: explanation if the options differ from the stored options; informative only.
    """

    threads: int | None = None
    spinning: bool = True
    arena: bool = True
    disabled: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    cpu_level: int | None = None
    remark: str | None = field(default=None, compare=False)

    @property
    def plain(self) -> bool:
        """Whether all options are onnxruntime's defaults."""
        return self == SessionChoice()

    def __str__(self) -> str:
        words = [] if self.threads is None else [f"{self.threads} thread{'s' * (self.threads != 1)}"]
        words += [] if self.spinning else ["no spinning"]
        words += [] if self.arena else ["no arena"]
        words += [f"no {name}" for name in self.disabled]
        words += [f"operators of {os.path.basename(path)}" for path in self.libraries]
        return ", ".join(words) or "defaults"

    def __or__(self, other: SessionChoice) -> SessionChoice:
        """The options of both; ``other`` takes precedence."""
        return SessionChoice(
            self.threads if other.threads is None else other.threads,
            self.spinning and other.spinning,
            self.arena and other.arena,
            tuple(dict.fromkeys([*self.disabled, *other.disabled])),
            tuple(dict.fromkeys([*self.libraries, *other.libraries])),
            self.cpu_level if other.cpu_level is None else other.cpu_level,
            other.remark or self.remark,
        )

    def apply(self, options: SessionOptions, device: Device = CPU) -> None:
        """Apply all but ``disabled``, which is an argument of the session, to ``options``.

        Libraries are skipped on devices that load none, because their kernels would cause copies there.

        Raises:
            RuntimeFailure: a library can't be loaded, or onnxruntime rejects it.
        """
        if self.threads is not None:
            options.intra_op_num_threads = self.threads
        if not self.spinning:
            options.add_session_config_entry(_SPINNING, "0")
        if not self.arena:
            options.enable_cpu_mem_arena = False
        if device.capabilities.loads_libraries:
            for path in self.libraries:
                _register(options, os.path.abspath(path), self.cpu_level, device)

    def python(self) -> Iterator[str]:
        """Lines of Python that create such a session, for use without graphopt."""
        yield "options = onnxruntime.SessionOptions()"
        if self.threads is not None:
            yield f"options.intra_op_num_threads = {self.threads}"
        if not self.spinning:
            yield f'options.add_session_config_entry("{_SPINNING}", "0")'
        if not self.arena:
            yield "options.enable_cpu_mem_arena = False"
        for path in self.libraries:
            yield f"options.register_custom_ops_library({_with_folder(path)!r})"
        disabled = f", disabled_optimizers={list(self.disabled)!r}" if self.disabled else ""
        yield f"session = onnxruntime.InferenceSession(path, options, providers=providers{disabled})"

    def to_dict(self) -> dict[str, Any]:
        """The options that differ from the defaults, without libraries, for JSON."""
        plain = asdict(SessionChoice())
        return {
            key: value
            for key, value in asdict(self).items()
            if value != plain[key] and key not in _NOT_STORED
        }

    @classmethod
    def from_dict(cls, data: Any) -> SessionChoice:
        """Parse the result of :meth:`to_dict`, or of another writer; unknown entries are ignored.

        The number of threads is limited to the number of cores, with a remark: onnxruntime needs minutes to
        start thousands.
        """
        if not isinstance(data, dict):
            return cls()
        threads, disabled = data.get("threads"), data.get("disabled", ())
        names = disabled if isinstance(disabled, list | tuple) else ()
        cores, remark = os.cpu_count() or 1, None
        if type(threads) is not int or threads <= 0:
            threads = None
        elif threads > cores:
            threads, remark = cores, f"{threads} threads are recommended, and this machine has {cores} cores"
        return cls(
            threads,
            data.get("spinning") is not False,
            data.get("arena") is not False,
            tuple(name for name in names if isinstance(name, str))[:_MOST_DISABLED],
            remark=remark,
        )


def _with_folder(path: str) -> str:
    """``path`` including a folder, because bare names are searched only among the system's libraries."""
    return path if os.path.dirname(path) else os.path.join(".", path)


def _register(options: SessionOptions, path: str, level: int | None, device: Device) -> None:
    import ctypes

    name = os.path.basename(path)
    try:
        with _switch_lock:
            # ctypes never unloads a library, so it outlives all sessions and their results
            library = ctypes.CDLL(path)
            switches = {"set_cpu_level": -1 if level is None else level, "use_cuda": device.kind == "cuda"}
            for key, value in switches.items():
                switch = getattr(library, f"graphopt_{key}", None)
                if switch is not None:
                    switch(ctypes.c_int(value))
            options.register_custom_ops_library(utf8_path(path))
    except OSError as error:
        raise RuntimeFailure(f"can't load the library {name}: {error}") from error
    except Exception as error:  # onnxruntime's errors have no common base class
        text = " ".join(str(error).split()).rpartition(" : ")[2]
        raise RuntimeFailure(f"onnxruntime rejects the library {name}: {text}") from error


def recommend(model: ir.Model, choice: SessionChoice, device: Device) -> None:
    """Store ``choice`` for ``device`` in the metadata of ``model``; a plain choice removes the entry."""
    if not choice.to_dict():
        model.metadata_props.pop(KEY, None)
    else:
        model.metadata_props[KEY] = json.dumps({"device": device.kind} | choice.to_dict())


def recommended(model: ir.Model, device: Device) -> SessionChoice:
    """The choice for ``device`` in the metadata of ``model``; a plain choice without an entry."""
    return recommended_by(model.metadata_props.get(KEY), device)


def recommended_by(text: str | None, device: Device) -> SessionChoice:
    """The choice for ``device`` in the ``text`` of a metadata entry; a plain choice without an entry."""
    try:
        data = json.loads(text or "{}")
    except (ValueError, RecursionError):  # malformed; the results of the model do not depend on it
        return SessionChoice()
    if not isinstance(data, dict) or data.get("device") != device.kind:
        return SessionChoice()
    return SessionChoice.from_dict(data)
