"""The error tree. Each error carries the exit status that the command line ends with.

An error is one sentence that tells what is wrong, and a hint that tells what to do next.
"""

from __future__ import annotations

import difflib
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


class GraphoptError(Exception):
    """Base of every error that graphopt raises on purpose.

    Args:
        message: one sentence, no trailing full stop, that names the thing at fault.
        hint: what the user can do next, if anything is known to help.
    """

    status: ExitStatus = ExitStatus.INTERNAL
    #: Lines that tell more than the message, where there is more to tell.
    details: tuple[str, ...] = ()

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class VerificationFailed(GraphoptError):
    """Two models that should compute the same do not.

    Args:
        row: the first comparison that failed, a ``graphopt.verification.verdict.Row``.
    """

    status = ExitStatus.VERIFICATION_FAILED

    def __init__(self, message: str, *, hint: str | None = None, row: Any = None) -> None:
        super().__init__(message, hint=hint)
        self.row = row


class NotFused(VerificationFailed):
    """Not all nodes of a scope became one fused operator.

    Args:
        details: a line for each node that is in none, with the reason.
    """

    def __init__(self, message: str, *, hint: str | None = None, details: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.details = tuple(details)


class PassFailed(GraphoptError):
    """A pass or a rule failed.

    Args:
        status: that of its own error, if it raised one of ours.
        owner: the rule or the pass at work, if it is known to be to blame.
        node: the node that it worked on; empty if it is no single one.
        endless: it did not come to an end.
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
        """``error``, which was raised in ``where``."""
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
        """Rewriting does not come to an end: ``owner`` makes ever more work, or ``rivals`` undo it.

        Args:
            owner: the rule or pass.
            count: the rewrites made so far.
            rivals: rules that may undo the rewrites of ``owner``.
        """
        others = f", along with {', '.join(rivals)}" if rivals else ""
        return cls(f"{owner} does not come to an end{others}: {count:,} rewrites", owner=owner, endless=True)


#: How notes begin that name the code of the user's that raised an exception.
_RAISED_BY = "graphopt: raised by "
#: How they continue where the line is known.
_AT = "\nat "


def blame(error: Exception, owner: str) -> Exception:
    """``error``, raised by code of the user's, with a note of ``owner``, the pass or rule, and the line."""
    place = raised_at(error)
    error.add_note(f"{_RAISED_BY}{owner}{_AT}{place}" if place else f"{_RAISED_BY}{owner}")
    return error


def blamed(error: BaseException) -> tuple[str, str] | None:
    """The pass or rule of the user's that raised ``error``, and the line, if :func:`blame` noted them."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(_RAISED_BY)]
    if not notes:
        return None
    owner, _, place = notes[0].removeprefix(_RAISED_BY).partition(_AT)
    return owner, place


def raised_at(error: BaseException) -> str:
    """``file.py:12``, the innermost line of the user's code in the traceback; empty if there is none."""
    import sysconfig
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    package = os.path.join(os.path.dirname(__file__), "")
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    for excluded in ([package, "<frozen", *installed], [package]):
        for frame in reversed(frames):
            if not any(frame.filename.startswith(path) for path in excluded):
                return f"{_shown(frame.filename)}:{frame.lineno}"
    return ""


def _shown(path: str) -> str:
    """``path``, relative if it is below the working folder."""
    return os.path.relpath(path) if path.startswith(os.path.join(os.getcwd(), "")) else path


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


class NoCompiler(RuntimeFailure):
    """There is no C compiler to build native kernels with; the model runs without them."""


#: Errors of the system when a disk, a quota or the largest size of a file is exhausted.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


#: Parts of messages of errors that mean that an allocation, a mapping or a thread failed.
_NO_MEMORY = (
    *("allocate memory", "Cannot allocate", "bad_alloc", "bad allocation"),
    *("can't start new thread", "failed to map segment"),
)


def causes(error: BaseException) -> Iterator[BaseException]:
    """``error``, its cause or context, and so on; each once, as exceptions raised anew may form a circle."""
    known: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and not any(following is one for one in known):
        yield following
        known.append(following)
        following = following.__cause__ or following.__context__


def exhausted(error: BaseException) -> str | None:
    """A message if ``error`` means that the process gets no more memory, threads or open files.

    Imports fail with many types of errors then, as libraries can't be mapped.
    """
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "there are too many open files"
    if isinstance(error, MemoryError) or any(part in str(error) for part in _NO_MEMORY):
        return "there is not enough memory"
    return None


def unwritable(path: str | os.PathLike[str], error: OSError, *, hint: str | None = None) -> GraphoptError:
    """The error for ``path``, which ``error`` kept from being written: a limit if the disk is full.

    Args:
        path: the file or folder.
        error: what the system said.
        hint: the next step, unless the disk is full; by default how to create a missing folder.
    """
    message = f"can't write {os.fspath(path)}: {error.strerror or error}"
    if error.errno in FULL:
        too_large = "the file system or ulimit -f allows no larger file"
        return ResourceLimit(
            message,
            hint=too_large if error.errno == errno.EFBIG else "free some space, or write to another disk",
        )
    folder = os.path.dirname(os.fspath(path))
    if hint is None and error.errno == errno.ENOENT and folder and not os.path.exists(folder):
        hint = f"create the folder: mkdir -p {folder}"
    return UsageError(message, hint=hint)


def not_downloaded(location: str) -> UsageError | None:
    """The error for a URL in the place of a file; ``None`` for other texts. Paths lose one of its slashes."""
    if re.match(r"[a-z][a-z0-9+.-]+:/", location, re.IGNORECASE) is None:
        return None
    url = re.sub(r":/+", "://", location, count=1)
    return UsageError(f"{url} is a URL, and graphopt does not download", hint=f"curl -LO {url}")


#: Names suggested in place of an unknown one, and names listed at most where there is no other list of them.
_SUGGESTED, _LISTED = 3, 8
#: Similarity required of a suggestion, of short names a little less: O3 for O9.
_ALIKE, _ALIKE_IF_SHORT, _SHORT = 0.6, 0.5, 3


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """The names of ``known`` near to ``name``: those that contain it, shortest first, then similar ones.

    Args:
        name: the unknown name.
        known: the names to choose from.
    """
    names, part = list(dict.fromkeys(known)), name.lower()
    holding = sorted((one for one in names if len(part) > 1 and part in one.lower()), key=len)
    alike = _ALIKE_IF_SHORT if len(name) <= _SHORT else _ALIKE
    similar = difflib.get_close_matches(name, names, n=_SUGGESTED, cutoff=alike)
    return list(dict.fromkeys([*holding, *similar]))


def unknown(
    kind: str, name: str, known: Iterable[str], where: str | None = None, *, plural: str | None = None
) -> UsageError:
    """The error for an unknown name, in one line that suggests the nearest known ones.

    Args:
        kind: the kind of thing that was named.
        name: the unknown name.
        known: the names that exist.
        where: where these are listed; ``None`` to list the first of them in the message.
        plural: the plural of ``kind``, if it takes more than an s.
    """
    names = list(dict.fromkeys(known))
    nearest = nearest_names(name, names)
    if where is None:
        where = f"{plural or f'{kind}s'}: {_first(names, _LISTED) or 'none'}"
    hint = f"nearest: {_first(nearest, _SUGGESTED)}  ({where})" if nearest else where
    return UsageError(f"no {kind} is called {name!r}; {hint}")


def _first(names: Sequence[str], limit: int) -> str:
    """The first ``limit`` names, and the number of the others."""
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
