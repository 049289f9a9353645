"""The error tree. Each error carries the exit status that the command line ends with.

An error is one sentence that tells what is wrong, and a hint that tells what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar


class ExitStatus(IntEnum):
    """Exit statuses of the command line."""

    OK = 0
    VERIFICATION_FAILED = 1
    USAGE = 2
    INVALID_MODEL = 3
    UNSUPPORTED_MODEL = 4
    RESOURCE_LIMIT = 5
    RUNTIME_FAILURE = 6
    INTERNAL = 70


class GraphoptError(Exception):
    """Base of every error that graphopt raises on purpose.

    Args:
        message: one sentence, no trailing full stop, that names the thing at fault.
        hint: what the user can do next, if anything is known to help.
    """

    status: ClassVar[ExitStatus] = ExitStatus.INTERNAL

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class VerificationFailed(GraphoptError):
    """Two models that should compute the same do not."""

    status = ExitStatus.VERIFICATION_FAILED


class UsageError(GraphoptError):
    """The request itself is wrong: an unknown pass, a bad option, an unwritable path."""

    status = ExitStatus.USAGE


class InvalidModel(GraphoptError):
    """The file is not a model, or the model breaks the rules of ONNX."""

    status = ExitStatus.INVALID_MODEL


class UnsupportedModel(GraphoptError):
    """The model is valid, but uses something that graphopt or the runtime can't handle."""

    status = ExitStatus.UNSUPPORTED_MODEL


class ResourceLimit(GraphoptError):
    """A limit on time, memory or size was reached."""

    status = ExitStatus.RESOURCE_LIMIT


class RuntimeFailure(GraphoptError):
    """The runtime (onnxruntime, a device, a child process) failed."""

    status = ExitStatus.RUNTIME_FAILURE


def unknown(kind: str, name: str, known: Iterable[str], where: str) -> UsageError:
    """The error for a name that nothing bears, which names the nearest that something does."""
    nearest = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=0.4)
    hint = f"nearest: {', '.join(nearest)}  ({where})" if nearest else where
    return UsageError(f"no {kind} is called {name!r}; {hint}")
