"""The events of a trace, and their fields, from which the JSON schema and the documentation are derived."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from graphopt.util.lazy_dataclass import dataclass

#: The position of an event in the activity that it describes; a ``point`` has no duration.
Phase = Literal["start", "end", "point"]

#: Version of the schema; a new version may remove or rename fields.
VERSION = 1

_NUMBER = {"type": "number"}
_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_OPTIONAL_TEXT = {"type": ["string", "null"]}
_FLAG = {"type": "boolean"}
_COUNTS = {"type": "object", "additionalProperties": {"type": "integer"}}


@dataclass(frozen=True)
class Field:
    """A field of an event.

    Attributes:
        name: its key.
        type: its JSON schema.
        meaning: its description.
        phases: the phases with this field, which is required in them.
    """

    name: str
    type: dict[str, Any]
    meaning: str
    phases: tuple[Phase, ...]


def _fields(phases: tuple[Phase, ...], /, **fields: tuple[dict[str, Any], str]) -> tuple[Field, ...]:
    return tuple(Field(name, kind, meaning, phases) for name, (kind, meaning) in fields.items())


@dataclass(frozen=True)
class Event:
    """A kind of event.

    Attributes:
        meaning: its description.
        fields: its fields besides those of all events.
    """

    meaning: str
    fields: tuple[Field, ...]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases in which the event occurs."""
        found = dict.fromkeys(phase for field in self.fields for phase in field.phases)
        return ("start", "end") if "start" in found or "end" in found else ("point",)


_START: tuple[Phase, ...] = ("start",)
_END: tuple[Phase, ...] = ("end",)
_BOTH: tuple[Phase, ...] = ("start", "end")
_POINT: tuple[Phase, ...] = ("point",)

#: Fields of every event.
COMMON = _fields(
    ("start", "end", "point"),
    version=(_COUNT, "the version of this schema"),
    event=(_TEXT, "the kind of event"),
    phase=({"enum": ["start", "end", "point"]}, "start or end of an activity, or a point in time"),
    time=(_NUMBER, "seconds since 1970, UTC"),
    process=(_COUNT, "the id of the process"),
    thread=(_COUNT, "the id of the thread in the system"),
    graph=({"type": ["integer", "null"]}, "the number of the current graph within the process, or null"),
)

#: Fields of every event of phase ``end``.
OF_END = _fields(
    _END,
    seconds=(_NUMBER, "the duration"),
    error=(_OPTIONAL_TEXT, "the exception that ended the activity, or null"),
)

EVENTS: dict[str, Event] = {
    "command": Event("A command of the command line.", _fields(_BOTH, name=(_TEXT, "its name"))),
    "operation": Event(
        "An operation on a model, such as optimize.", _fields(_BOTH, name=(_TEXT, "its name in Python"))
    ),
    "graph": Event(
        "A graph is optimized; later events of the operation have its number.",
        _fields(_POINT, name=(_TEXT, "its name"), nodes=(_COUNT, "its nodes, including bodies")),
    ),
    "pass": Event(
        "A pass runs.",
        (
            *_fields(
                _BOTH,
                name=(_TEXT, "its name"),
                index=(_COUNT, "its position in the run, from 1"),
                nodes=(_COUNT, "nodes before (start) or after (end) the pass"),
            ),
            *_fields(
                _END,
                rewrites=(_COUNT, "the number of rewrites"),
                changes=(_COUNTS, "edits by kind"),
            ),
        ),
    ),
    "cache": Event(
        "A stored result was searched for.",
        _fields(
            _POINT,
            outcome=({"enum": ["hit", "miss", "bypass"]}, "hit, miss, or bypass: not searched for"),
            key=(_OPTIONAL_TEXT, "the key of the result, or null"),
            reason=(_OPTIONAL_TEXT, "the reason of a bypass, or null"),
        ),
    ),
    "kernels": Event(
        "A library of native kernels is found or built.",
        (
            *_fields(_BOTH, kernels=(_COUNT, "the number of kernels")),
            *_fields(_END, library=(_OPTIONAL_TEXT, "the path of the library; null without one")),
        ),
    ),
    "verification": Event(
        "A result is compared with the original.",
        _fields(
            _END,
            equal=({"type": ["boolean", "null"]}, "whether outputs agree; null if nothing was compared"),
            runs=(_COUNT, "the number of comparisons"),
        ),
    ),
    "session": Event(
        "onnxruntime creates a session in this process.",
        _fields(
            _BOTH,
            device=(_TEXT, "the device"),
            optimizations=(_TEXT, "onnxruntime's optimization level"),
        ),
    ),
    "child": Event(
        "A child process runs a function.",
        _fields(_BOTH, child=(_COUNT, "the id of the child process"), function=(_TEXT, "the function")),
    ),
    "compilation": Event(
        "An executor compiles a plan.",
        (
            *_fields(
                _BOTH,
                id=(_COUNT, "the number of the compilation"),
                kind=(_TEXT, "general, profiled, optimized or fallback"),
                cause=(_TEXT, "the reason for the compilation, such as `2 profiled runs`"),
                pipeline=(_TEXT, "the name or the text of the pipeline"),
            ),
            *_fields(
                _END,
                guard=(_TEXT, "the assumptions of a specialization"),
                profile=(_OPTIONAL_TEXT, "a digest of the profile of a specialization, or null"),
                passes=(
                    {"type": "array", "items": {"type": "object", "required": ["pass", "seconds"]}},
                    "the passes that ran, each with its duration in seconds",
                ),
                not_guarded=(
                    _COUNTS,
                    "numbers of nodes that the profile affects but that are in no guarded group, by reason",
                ),
                outcome=(_TEXT, "`ready`, or the reason of a failure or of a replacement by the original"),
                peak_bytes=(
                    {"type": "integer"},
                    "growth of the process's resident memory up to the peak; approximate if other threads"
                    " allocate memory",
                ),
            ),
        ),
    ),
    "hint": Event(
        "A hint was recorded.",
        _fields(
            _POINT,
            code=(_TEXT, "its code"),
            message=(_TEXT, "the fact"),
            remedy=(_TEXT, "the next step"),
        ),
    ),
    "counters": Event(
        "The counters of an operation or a command.", _fields(_POINT, values=(_COUNTS, "by name"))
    ),
}


def fields_of(name: str, phase: Phase) -> Iterator[Field]:
    """All fields of the event ``name`` in ``phase``."""
    yield from COMMON
    if phase == "end":
        yield from OF_END
    yield from (field for field in EVENTS[name].fields if phase in field.phases)


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of one line of a trace."""
    kinds = []
    for name, event in EVENTS.items():
        for phase in event.phases:
            fields = [*fields_of(name, phase)]
            properties = {field.name: {**field.type, "description": field.meaning} for field in fields}
            properties |= {"event": {"const": name}, "phase": {"const": phase}, "version": {"const": VERSION}}
            kinds.append(
                {
                    "title": f"{name}, {phase}",
                    "description": event.meaning,
                    "type": "object",
                    "properties": properties,
                    "required": [field.name for field in fields],
                    "additionalProperties": False,
                }
            )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a trace of graphopt",
        "oneOf": kinds,
    }
