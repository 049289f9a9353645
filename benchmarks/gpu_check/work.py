"""The process of one section: measures its items, and writes events to stdout."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check.plan import SECTIONS
from benchmarks.gpu_check.section import Bench, Section, measure_items
from graphopt.ort.devices import choose


def main(sections: Sequence[Section] = SECTIONS) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", choices=[section.name for section in sections])
    parser.add_argument("--device", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--done", nargs="*", default=[])
    parser.add_argument("--items", nargs="*", default=[])
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    # onnxruntime and its libraries print to stdout
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    section = next(section for section in sections if section.name == options.section)
    bench = Bench(choose(options.device)[0], deadline, options.scratch, options.models)
    return measure_items(section, bench, events, options.done, options.items)


if __name__ == "__main__":
    sys.exit(main())
