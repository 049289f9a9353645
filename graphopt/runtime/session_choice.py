"""Session options that were measured to suit a model: applied, printed, and kept in its metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from graphopt.runtime.devices import Device

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

    from graphopt import ir

#: The model's metadata entry that recommends session options. It does not lie in the private namespace
#: ``graphopt.``, which saving strips: it is meant to stay.
KEY = "graphopt:session-options"
_SPINNING = "session.intra_op.allow_spinning"


@dataclass(frozen=True)
class SessionChoice:
    """Session options that differ from onnxruntime's defaults.

    Attributes:
        threads: inside one operator; ``None`` for onnxruntime's choice, one a core.
        spinning: idle threads wait busily for the next operator.
        arena: the CPU's memory is kept for the next run.
        disabled: names of onnxruntime's own optimizers that do not run.
    """

    threads: int | None = None
    spinning: bool = True
    arena: bool = True
    disabled: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether it says nothing that onnxruntime does not do anyway."""
        return self == SessionChoice()

    def __str__(self) -> str:
        words = [] if self.threads is None else [f"{self.threads} thread{'s' * (self.threads != 1)}"]
        words += [] if self.spinning else ["no spinning"]
        words += [] if self.arena else ["no arena"]
        words += [f"no {name}" for name in self.disabled]
        return ", ".join(words) or "defaults"

    def __or__(self, other: SessionChoice) -> SessionChoice:
        """Both together; where both say something, ``other`` wins."""
        return SessionChoice(
            self.threads if other.threads is None else other.threads,
            self.spinning and other.spinning,
            self.arena and other.arena,
            tuple(dict.fromkeys([*self.disabled, *other.disabled])),
        )

    def apply(self, options: SessionOptions) -> None:
        """Put it into ``options``; ``disabled`` is an argument of the session instead."""
        if self.threads is not None:
            options.intra_op_num_threads = self.threads
        if not self.spinning:
            options.add_session_config_entry(_SPINNING, "0")
        if not self.arena:
            options.enable_cpu_mem_arena = False

    def python(self) -> Iterator[str]:
        """Lines of Python that make such a session, for those who run the model themselves."""
        yield "options = onnxruntime.SessionOptions()"
        if self.threads is not None:
            yield f"options.intra_op_num_threads = {self.threads}"
        if not self.spinning:
            yield f'options.add_session_config_entry("{_SPINNING}", "0")'
        if not self.arena:
            yield "options.enable_cpu_mem_arena = False"
        disabled = f", disabled_optimizers={list(self.disabled)!r}" if self.disabled else ""
        yield f"session = onnxruntime.InferenceSession(path, options, providers=providers{disabled})"

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, for JSON."""
        plain = asdict(SessionChoice())
        return {key: value for key, value in asdict(self).items() if value != plain[key]}

    @classmethod
    def from_dict(cls, data: Any) -> SessionChoice:
        """Read what :meth:`to_dict` made; what is not understood is left out."""
        if not isinstance(data, dict):
            return cls()
        threads, disabled = data.get("threads"), data.get("disabled", ())
        names = disabled if isinstance(disabled, list | tuple) else ()
        return cls(
            threads if type(threads) is int and threads > 0 else None,
            data.get("spinning") is not False,
            data.get("arena") is not False,
            tuple(name for name in names if isinstance(name, str)),
        )


def recommend(model: ir.Model, choice: SessionChoice, device: Device) -> None:
    """Note in the metadata of ``model`` that ``choice`` suits it on ``device``; a plain one ends the note."""
    if choice.plain:
        model.metadata_props.pop(KEY, None)
    else:
        model.metadata_props[KEY] = json.dumps({"device": device.kind} | choice.to_dict())


def recommended(model: ir.Model, device: Device) -> SessionChoice:
    """What the metadata of ``model`` recommends for ``device``; a plain choice if that is nothing."""
    return recommended_by(model.metadata_props.get(KEY), device)


def recommended_by(text: str | None, device: Device) -> SessionChoice:
    """The same, by the ``text`` of the metadata entry, if there is one."""
    try:
        data = json.loads(text or "{}")
    except ValueError:  # somebody else wrote it: the model means the same without
        return SessionChoice()
    if not isinstance(data, dict) or data.get("device") != device.kind:
        return SessionChoice()
    return SessionChoice.from_dict(data)
