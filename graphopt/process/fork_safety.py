"""Whether this process runs nothing but graphopt's command line, and whether it may be forked."""

from __future__ import annotations

from contextvars import ContextVar

from graphopt.process.threads import has_one_thread

#: Set by the console script.
_own_process: ContextVar[bool] = ContextVar("own_process", default=False)


def claim_process() -> None:
    """Declare that this process runs nothing but graphopt, so that it may be forked by this thread."""
    _own_process.set(True)


def is_claimed() -> bool:
    """Whether the process runs nothing but graphopt, as declared by :func:`claim_process`."""
    return _own_process.get()


def may_be_forked() -> bool:
    """Whether the process was claimed, and has no second Python thread."""
    return _own_process.get() and has_one_thread()
