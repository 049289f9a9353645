"""A section of the check: its items, measured one after the other in a process of its own."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.gpu_check.rows import Column, Row, Status
from graphopt.errors import GraphoptError
from graphopt.ort.devices import CPU, Device

#: Exit status of a section's process after an item that failed: a failed kernel may leave the device unusable
#: for the process, so that the remaining items need a new one.
RESTART = 75


class NotApplicable(Exception):
    """An item, or a whole section, that does not apply to the device; the message is the reason."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of an item.

    Attributes:
        figures: measurements, by name of the column.
        wrong: the reason why values are wrong; empty if they are right.
        failure: the error of a part that could not be measured; empty without one.
        note: a remark.
    """

    figures: Mapping[str, Any]
    wrong: str = ""
    failure: str = ""
    note: str = ""


@dataclass(frozen=True)
class Bench:
    """The circumstances of a section.

    Attributes:
        device: the device to check.
        deadline: the time of :func:`time.monotonic` after which no item starts.
        scratch: a folder for models and kernels, which the processes of a check share.
        models: a folder of models to measure instead of the generated ones.
    """

    device: Device
    deadline: float
    scratch: Path
    models: Path | None = None

    @property
    def is_rehearsal(self) -> bool:
        """Whether the check is a rehearsal on the CPU, with small models and few repetitions."""
        return self.device == CPU

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


#: Measures one item.
Measure = Callable[[], Outcome]


@dataclass(frozen=True)
class Section:
    """A part of the check.

    Attributes:
        name: its name on the command line, and of its module.
        title: the heading of its table.
        seconds: its time; unused time is left to later sections.
        columns: the columns of its table.
        items: returns the items by name, cheaply: an item does its work when it is called.
    """

    name: str
    title: str
    seconds: float
    columns: tuple[Column, ...]
    items: Callable[[Bench], Mapping[str, Measure]]


def measure_items(
    section: Section, bench: Bench, events: IO[str], done: Sequence[str], chosen: Sequence[str]
) -> int:
    """Measure the items of ``section``, and write events as JSON lines; returns the exit status.

    Args:
        events: receives ``{"begin": NAME}`` before an item, and its :class:`Row` after it.
        done: items that earlier processes measured.
        chosen: the items to measure; all if empty.
    """

    def write(text: str) -> None:
        events.write(f"{text}\n")
        events.flush()

    try:
        items = section.items(bench)
    except NotApplicable as reason:
        write(Row(section.name, "all", "skipped", note=str(reason)).json())
        return 0
    except GraphoptError as failure:
        write(Row(section.name, "all", "failed", note=failure.message).json())
        return 0
    for name, measure in items.items():
        if name in done or (chosen and name not in chosen):
            continue
        if bench.seconds_left <= 0:
            write(Row(section.name, name, "late", note="no time was left").json())
            continue
        write(json.dumps({"begin": name}))
        row = _measured(section.name, name, measure)
        write(row.json())
        if row.status == "failed":
            return RESTART
    return 0


def _measured(section: str, name: str, measure: Measure) -> Row:
    begin = time.monotonic()
    try:
        outcome = measure()
    except NotApplicable as reason:
        return Row(section, name, "skipped", note=str(reason))
    except GraphoptError as failure:
        return Row(section, name, "failed", note=failure.message)
    except Exception as fault:  # a fault of an item is a result of the check
        traceback.print_exc()
        return Row(section, name, "failed", note=f"{type(fault).__name__}: {fault}")
    status: Status = "failed" if outcome.failure else "wrong" if outcome.wrong else "ok"
    # JSON has no infinities; notes name them
    figures = {name: value for name, value in outcome.figures.items() if value not in (math.inf, -math.inf)}
    figures["seconds"] = round(time.monotonic() - begin, 2)
    note = "; ".join(filter(None, (outcome.failure, outcome.wrong, outcome.note)))
    return Row(section, name, status, figures, note)
