"""The class hierarchy of errors. Each error has an exit status for the command line.

The message is one sentence that names the fault; the hint is the next step.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any


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
    INTERRUPTED = 130


class GraphoptError(Exception):
    """Base class of all errors that graphopt raises deliberately.

    Args:
        message: one sentence without a full stop that names the object at fault.
        hint: the next step for the user, if a useful one is known.
    """

    status: ExitStatus = ExitStatus.INTERNAL
    #: Further lines below the message.
    details: tuple[str, ...] = ()

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class VerificationFailed(GraphoptError):
    """Two models compute different results.

    Args:
        row: the first comparison that failed, a ``graphopt.verification.verdict.Row``.
    """

    status = ExitStatus.VERIFICATION_FAILED

    def __init__(self, message: str, *, hint: str | None = None, row: Any = None) -> None:
        super().__init__(message, hint=hint)
        self.row = row


class NotFused(VerificationFailed):
    """Some nodes of a scope are not part of one fused operator.

    Args:
        details: a line for each such node, with the reason.
    """

    def __init__(self, message: str, *, hint: str | None = None, details: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.details = tuple(details)


class PassFailed(GraphoptError):
    """A pass or a rule failed.

    Args:
        status: the exit status of the raised error, if that is a :class:`GraphoptError`.
        owner: the rule or pass at fault, if known.
        node: the node at which it failed; empty if there is no single such node.
        endless: whether the pass or rule did not terminate.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        status: ExitStatus = ExitStatus.INTERNAL,
        owner: str | None = None,
        node: str = "",
        endless: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.owner = owner
        self.node = node
        self.endless = endless

    @classmethod
    def of(cls, error: Exception, where: str, *, owner: str | None = None, node: str = "") -> PassFailed:
        """Wrap ``error``, which was raised in ``where``."""
        if isinstance(error, PassFailed):
            message = f"{where}: {error.message}"
            return cls(
                message,
                hint=error.hint,
                status=error.status,
                owner=error.owner or owner,
                node=error.node or node,
                endless=error.endless,
            )
        if isinstance(error, GraphoptError):
            message, hint = f"{where}: {error.message}", error.hint
            return cls(message, hint=hint, status=error.status, owner=owner, node=node)
        text = " ".join(str(error).split())[:300]
        return cls(f"{where}: {type(error).__name__}: {text}", owner=owner, node=node)

    @classmethod
    def no_end(cls, owner: str, count: int, rivals: Sequence[str] = ()) -> PassFailed:
        """Rewriting does not terminate: ``owner`` creates matches forever, or ``rivals`` undo its rewrites.

        Args:
            owner: the rule or pass.
            count: the number of rewrites so far.
            rivals: rules that may undo the rewrites of ``owner``.
        """
        others = f", along with {', '.join(rivals)}" if rivals else ""
        return cls(f"{owner} does not come to an end{others}: {count:,} rewrites", owner=owner, endless=True)


#: Prefix of notes that name the user's code that raised an exception.
_RAISED_BY = "graphopt: raised by "
#: Separator in notes before the source line, if the line is known.
_AT = "\nat "


def blame(error: Exception, owner: str) -> Exception:
    """Add a note to ``error``, raised by user code: its ``owner`` (a pass or rule) and the source line."""
    place = raised_at(error)
    error.add_note(f"{_RAISED_BY}{owner}{_AT}{place}" if place else f"{_RAISED_BY}{owner}")
    return error


def blamed(error: BaseException) -> tuple[str, str] | None:
    """The user's pass or rule that raised ``error``, and the source line, if :func:`blame` noted them."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(_RAISED_BY)]
    if not notes:
        return None
    owner, _, place = notes[0].removeprefix(_RAISED_BY).partition(_AT)
    return owner, place


def raised_at(error: BaseException) -> str:
    """The innermost line of user code in the traceback, as ``file.py:12``; empty if there is none."""
    import sysconfig
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    package = os.path.join(os.path.dirname(__file__), "")
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    for excluded in ([package, "<frozen", *installed], [package]):
        for frame in reversed(frames):
            if not any(frame.filename.startswith(path) for path in excluded):
                return f"{_relative_path(frame.filename)}:{frame.lineno}"
    return ""


def _relative_path(path: str) -> str:
    """``path``, relative if it is below the working directory."""
    return os.path.relpath(path) if path.startswith(os.path.join(os.getcwd(), "")) else path


class UsageError(GraphoptError):
    """The request is invalid: an unknown pass, a bad option, an unwritable path."""

    status = ExitStatus.USAGE


class InvalidModel(GraphoptError):
    """The file is not a model, or the model violates the ONNX specification."""

    status = ExitStatus.INVALID_MODEL


class UnsupportedModel(GraphoptError):
    """The model is valid but uses a feature that graphopt or the runtime does not support."""

    status = ExitStatus.UNSUPPORTED_MODEL


class ResourceLimit(GraphoptError):
    """A limit on time, memory or size was reached."""

    status = ExitStatus.RESOURCE_LIMIT


class SystemExhausted(ResourceLimit):
    """The system has no memory, process or thread left, which is not a property of the model.

    Comparisons of models raise this error: it is no evidence of a difference.
    """


class RuntimeFailure(GraphoptError):
    """The runtime (onnxruntime, a device, a child process) failed."""

    status = ExitStatus.RUNTIME_FAILURE


class NoCompiler(RuntimeFailure):
    """No C compiler was found for native kernels; the model runs without them."""


#: ``errno`` values for an exhausted disk, quota or file-size limit.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


#: The next step if memory does not suffice.
MEMORY_HINT = "free memory, or raise its limit (ulimit, or that of the container)"
#: Substrings of messages about a thread that can't be started, by Python, onnxruntime, libgomp and OpenBLAS.
_NO_THREAD = (
    *("can't start new thread", "pthread_create failed", "Thread creation failed", "blas_thread_init"),
    "std::system_error",
)
#: Substrings of messages about a failed allocation, mapping or thread.
_NO_MEMORY = (
    *_NO_THREAD,
    *("allocate memory", "Cannot allocate", "bad_alloc", "bad allocation"),
    *("failed to map segment", "MemoryError"),
    # protobuf; models above its limit of 2 GB are refused earlier
    *("Arena alloc failed", "Failed to serialize proto"),
)


def causes(error: BaseException) -> Iterator[BaseException]:
    """``error`` and the chain of its causes or contexts, each once: reraised exceptions may form a cycle."""
    known: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and not any(following is one for one in known):
        yield following
        known.append(following)
        following = following.__cause__ or following.__context__


def is_interruption(error: BaseException) -> bool:
    """Whether the user interrupted the process.

    While an extension module is loaded, an interrupt turns into an ImportError with that cause.
    """
    return any(isinstance(cause, KeyboardInterrupt) for cause in causes(error))


def exhausted(error: BaseException) -> str | None:
    """A message if ``error`` means that memory, threads or file descriptors are exhausted.

    The type of the error does not matter: imports raise many types when libraries can't be mapped.
    """
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "there are too many open files"
    if isinstance(error, MemoryError) or lacks_memory(str(error)):
        return "there is not enough memory"
    return None


def lacks_memory(text: str) -> bool:
    """Whether ``text``, a message of any process, reports a lack of memory or threads."""
    return any(part in text for part in _NO_MEMORY)


def lacks_threads(text: str) -> bool:
    """Whether ``text`` reports that no thread can be started, also for lack of memory for its stack."""
    return any(part in text for part in _NO_THREAD)


class ConvertedInput(UserWarning):
    """An array given as an input was converted to the element type of the input."""


def unwritable(path: str | os.PathLike[str], error: OSError) -> GraphoptError:
    """The error for a failed write of ``path``: a :class:`ResourceLimit` if the disk is full.

    Args:
        path: the file or folder.
        error: the error of the system.
    """
    message = f"can't write {os.fspath(path)}: {error.strerror or error}"
    if error.errno in FULL:
        too_large = "the file system or ulimit -f allows no larger file"
        return ResourceLimit(
            message,
            hint=too_large if error.errno == errno.EFBIG else "free some space, or write to another disk",
        )
    folder = os.path.dirname(os.fspath(path))
    is_missing = error.errno == errno.ENOENT and folder and not os.path.exists(folder)
    return UsageError(message, hint=f"mkdir -p {folder}" if is_missing else None)


def not_downloaded(location: str) -> UsageError | None:
    """The error for a URL given as a file; ``None`` for other text. ``Path`` collapses the double slash."""
    if re.match(r"[a-z][a-z0-9+.-]+:/", location, re.IGNORECASE) is None:
        return None
    url = re.sub(r":/+", "://", location, count=1)
    return UsageError(f"{url} is a URL, and graphopt does not download", hint=f"curl -LO {url}")


#: Number of suggestions for an unknown name, and number of known names in a message that refers to no list.
_SUGGESTED, _LISTED = 3, 8
#: Minimum similarity (0 to 1) of a suggestion, lower for names of up to ``_SHORT`` letters, such as O3 for
#: O9.
_ALIKE, _ALIKE_IF_SHORT, _SHORT = 0.6, 0.5, 3


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """The names in ``known`` nearest to ``name``: those that contain it, shortest first, then similar ones.

    Args:
        name: the unknown name.
        known: the names to choose from.
    """
    import difflib

    names, part = list(dict.fromkeys(known)), name.lower()
    holding = sorted((one for one in names if len(part) > 1 and part in one.lower()), key=len)
    similar = difflib.get_close_matches(name, names, n=_SUGGESTED, cutoff=_ALIKE)
    short = [one for one in names if len(one) <= _SHORT] if len(name) <= _SHORT else []
    similar += difflib.get_close_matches(name, short, n=_SUGGESTED, cutoff=_ALIKE_IF_SHORT)
    return list(dict.fromkeys([*holding, *similar]))


def unknown(
    kind: str, name: str, known: Iterable[str], where: str | None = None, *, plural: str | None = None
) -> UsageError:
    """The error for an unknown name: one line, with the nearest known names.

    Args:
        kind: the kind of thing, such as ``pass``.
        name: the unknown name.
        known: the names that exist.
        where: the command or page that lists the names; ``None`` to list the first names in the message.
        plural: the plural of ``kind``, unless it only adds an s.
    """
    names = list(dict.fromkeys(known))
    nearest = nearest_names(name, names)
    if where is None:
        where = f"{plural or f'{kind}s'}: {_first(names, _LISTED) or 'none'}"
    hint = f"nearest: {_first(nearest, _SUGGESTED)}  ({where})" if nearest else where
    return UsageError(f"no {kind} is called {name!r}; {hint}")


def _first(names: Sequence[str], limit: int) -> str:
    """The first ``limit`` names and the number of the rest."""
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
