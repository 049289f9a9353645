"""Options of the benchmarks that race kernels in fresh processes."""

from __future__ import annotations

import argparse

from benchmarks.measured_models import arguments


def race_arguments(
    description: str, only: str, *, processes: int, seconds: float, per: str
) -> argparse.ArgumentParser:
    """The options of a race.

    Args:
        only: the subjects that ``--only`` selects, for the help.
        processes, seconds: default number of processes, and time of measurement.
        per: the unit that ``--seconds`` is the time of.
    """
    parser = arguments(description, models=False)
    parser.add_argument("--only", default="", metavar="RE", help=f"only {only}")
    parser.add_argument("--threads", type=int, default=1, help="threads of onnxruntime (default: 1)")
    parser.add_argument(
        "--processes", type=int, default=processes, help=f"fresh processes (default: {processes})"
    )
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"seconds per {per} (default: {seconds:g})"
    )
    return parser


def thread_count(options: argparse.Namespace) -> str:
    """The number of threads, for the line below a table."""
    return f"{options.threads} thread{'s' * (options.threads != 1)}"
