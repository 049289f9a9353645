"""Events in the trace-event format of Chrome, which Perfetto and chrome://tracing open.

Processes and threads are tracks; each child process has a track of its own. The format is described in "Trace
Event Format" (Google, 2016): ``B`` and ``E`` begin and end a slice, ``i`` is an instant, ``C`` a counter, and
``M`` names a track. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_PHASES = {"start": "B", "end": "E", "point": "i"}
#: Fields that are part of the track, the time or the name.
_ELSEWHERE = ("version", "event", "phase", "time", "process", "thread", "name")


def chrome_events(event: Mapping[str, Any], named: set[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """``event``, preceded by the names of tracks that are new.

    Args:
        event: an event of a trace.
        named: the tracks that have names, as pairs of process and thread; extended in place.
    """
    process, thread = event["process"], event["thread"]
    owner = f"graphopt {process}"
    if event["event"] == "child":
        owner, process, thread = f"child of {process}", event["child"], event["child"]
    track = {"pid": process, "tid": thread}
    if (process, thread) not in named:
        named.add((process, thread))
        yield {"name": "process_name", "ph": "M", **track, "args": {"name": owner}}
        yield {"name": "thread_name", "ph": "M", **track, "args": {"name": f"thread {thread}"}}
    found: dict[str, Any] = {
        "name": _label(event),
        "cat": event["event"],
        "ph": _PHASES[event["phase"]],
        "ts": round(event["time"] * 1e6),
        **track,
    }
    if event["event"] == "counters":
        yield {**found, "ph": "C", "args": dict(event["values"])}
        return
    if event["phase"] == "point":
        found["s"] = "t"
    yield {**found, "args": {key: value for key, value in event.items() if key not in _ELSEWHERE}}


def _label(event: Mapping[str, Any]) -> str:
    """The name of a slice or an instant."""
    kind = str(event["event"])
    if kind == "compilation":
        return f"{kind} {event['id']}"
    key = next((key for key in ("name", "function", "code", "outcome") if key in event), None)
    if key is None:
        return kind
    return str(event[key]) if kind in ("command", "operation", "pass") else f"{kind}: {event[key]}"
