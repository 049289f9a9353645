"""Worker processes forked from a small, clean server process.

A fresh interpreter with numpy and onnxruntime costs 0.2 s of CPU time; a fork of a process that has imported
them costs a few milliseconds. So each process of graphopt has one *server* that forks all workers. The server
never creates a session, because onnxruntime's thread pools do not survive a fork, and it has a single thread,
so that no lock is held while it forks.

The server is a fork of this process only if the process runs nothing but graphopt's command line, on one
Python thread. Otherwise graphopt is part of a program with arbitrary threads, locks and devices, which a fork
would copy in an undefined state. In this case, the server is a fresh interpreter.

Linux only. The server ends with its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import lru_cache
from typing import IO, Any

from graphopt import config
from graphopt.process.fork_safety import may_be_forked
from graphopt.process.interpreter_command import command, search_path

#: Modules that workers need.
_IMPORTS = ("numpy", "onnxruntime", "graphopt.folding.run_constant_model", "graphopt.ort.model_runs")
#: Maximum size of a message in bytes; the longest contains ``sys.path``.
_MESSAGE = 1 << 16

#: The task of a worker: module and name of a function, and its arguments, which must be JSON.
Task = tuple[str, str, Sequence[Any]]


class Forked:
    """A worker, with the part of the interface of :class:`subprocess.Popen` that a child process needs.

    Attributes:
        returncode: exit status, negative for a signal; ``None`` until the worker is known to have ended.
        stdin, stdout: this process's ends of the pipes.
    """

    def __init__(self, server: Server, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None
        self.stdin, self.stdout = stdin, stdout

    def poll(self) -> int | None:
        """The exit status, if the worker has ended."""
        if self.returncode is None and self._hung_up():
            self.returncode = self._server.status(self.pid, wait=False)
        return self.returncode

    def wait(self) -> int:
        """Wait until the worker has ended; returns its exit status."""
        if self.returncode is None:
            self.returncode = self._server.status(self.pid, wait=True)
        return self.returncode or 0

    def _hung_up(self) -> bool:
        """Whether the worker's end of the pipe is closed; cheaper than a request to the server."""
        if self.stdout.closed:
            return True
        pipe = select.poll()
        pipe.register(self.stdout, 0)  # only POLLHUP and POLLERR, which are always reported
        return bool(pipe.poll(0))

    def kill(self) -> None:
        """Kill the worker; it remains a zombie until its status is read, so that its number is not reused."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Server:
    """The connection of this process to the server.

    Args:
        join: waits for the end of the server.
    """

    def __init__(self, channel: socket.socket, join: Callable[[], object]) -> None:
        self._channel, self._join = channel, join
        self._lock = threading.Lock()
        self._requests = 0
        self._owner = os.getpid()
        atexit.register(self.close)

    def fork(self, task: Task, errors: IO[bytes]) -> Forked:
        """A new worker that runs ``task``, with ``errors`` as its stderr.

        Raises:
            OSError: the server died, or can't fork.
        """
        ours = [-1, -1]
        theirs = [-1, -1, errors.fileno()]
        theirs[0], ours[0] = os.pipe()
        ours[1], theirs[1] = os.pipe()
        try:
            pid = self._request(["fork", search_path(), task], theirs)
        except BaseException:  # also an interrupt
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            os.close(theirs[0])
            os.close(theirs[1])
        return Forked(self, pid or 0, os.fdopen(ours[0], "wb"), os.fdopen(ours[1], "rb"))

    def status(self, pid: int, *, wait: bool) -> int | None:
        """The exit status of a worker; ``None`` if it runs, and -SIGKILL if the server died."""
        try:
            return self._request(["status", pid, wait])
        except OSError:
            return -signal.SIGKILL

    def close(self) -> None:
        """End the server, unless this is a fork of the owner with a copy of this object."""
        if os.getpid() == self._owner:
            with contextlib.suppress(OSError):  # the server died
                self._channel.shutdown(socket.SHUT_RDWR)  # forks of this process may have the channel open
            self._channel.close()
            self._join()
            atexit.unregister(self.close)

    def _request(self, request: list[Any], descriptors: Sequence[int] = ()) -> int | None:
        with self._lock:
            self._requests += 1
            message = json.dumps([self._requests, *request]).encode()
            socket.send_fds(self._channel, [message], list(descriptors))
            answer: dict[str, Any] = {}
            while answer.get("to") != self._requests:  # skip answers to interrupted requests
                reply = self._channel.recv(_MESSAGE)
                if not reply:
                    raise ConnectionError("the fork server died")
                answer = json.loads(reply)
        if "error" in answer:
            raise OSError(answer["error"])
        value: int | None = answer["value"]
        return value


def prepare() -> None:
    """Start the server of this process now, while the memory that it shares with its workers is small."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError), _starting[os.getpid()]:
            _server_of(os.getpid())


def start(task: Task, errors: IO[bytes]) -> Forked | None:
    """Start a worker that runs ``task``; ``None`` on systems without fork servers."""
    if not sys.platform.startswith("linux"):
        return None
    for _ in range(2):
        try:
            with _starting[os.getpid()]:
                server = _server_of(os.getpid())
        except OSError:
            return None
        try:
            return server.fork(task, errors)
        except ConnectionError:  # the server was killed
            _forget(server)
        except OSError:  # the server can't fork
            return None
    return None


def _forget(server: Server) -> None:
    """Drop the dead ``server``, so that the next start replaces it, unless another thread has done so."""
    with _starting[os.getpid()]:
        if _server_of(os.getpid()) is server:
            _server_of.cache_clear()
            server.close()


#: Locks for starting the server, by process number: a fork of this process may have a copy of a locked lock,
#: which no thread of the fork would release.
_starting: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


@lru_cache(maxsize=1)
def _server_of(process: int) -> Server:
    """The server of this process, whose number is ``process``."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if may_be_forked():
        _import_all()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a harmless warning about numpy's threads
            pid = os.fork()
        if pid == 0:
            Context().run(_serve, theirs)
        theirs.close()
        return Server(ours, lambda: _wait(pid))
    process_ = subprocess.Popen(
        command(__name__, "boot", [theirs.fileno()]),
        env=config.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    return Server(ours, process_.wait)


def _wait(pid: int) -> None:
    """Wait for the end of a child; the child has no status if this process ignores SIGCHLD."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


# In the server -------------------------------------------------------------------------------------


def boot(descriptor: int) -> None:
    """Entry point of the server in a fresh interpreter."""
    _import_all()
    _serve(socket.socket(fileno=descriptor))


def _import_all() -> None:
    for module in _IMPORTS:
        importlib.import_module(module)


def _serve(channel: socket.socket) -> None:
    try:
        _detach(channel)
        gc.disable()
        gc.freeze()  # keeps these pages shared with workers
        while True:
            message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE, 3)
            if not message:
                break
            number, *request = json.loads(message)
            try:
                reply: dict[str, Any] = {"value": _answer(channel, request, descriptors)}
            except OSError as error:
                reply = {"error": str(error)}
            channel.send(json.dumps(reply | {"to": number}).encode())
    finally:
        os._exit(0)


def _detach(channel: socket.socket) -> None:
    """Release inherited files, pipes and signal handlers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # terminals send it to all processes; the parent decides
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if SIGCHLD is ignored, children have no status
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    kept = channel.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _answer(channel: socket.socket, request: list[Any], descriptors: list[int]) -> int | None:
    match request:
        case ["status", pid, wait]:
            try:
                ended, status = os.waitpid(pid, 0 if wait else os.WNOHANG)
            except ChildProcessError:
                return -signal.SIGKILL
            return os.waitstatus_to_exitcode(status) if ended else None
        case ["fork", path, task]:
            pid = os.fork()
            if pid == 0:
                _work(channel, path, task, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            return pid
    return None


def _work(channel: socket.socket, path: list[str], task: Task, descriptors: list[int]) -> None:
    """Run ``task`` in a new worker."""
    import resource

    try:
        channel.close()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="replace")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected
        sys.path[:] = path
        gc.enable()
        module, name, arguments = task
        getattr(importlib.import_module(module), name)(*arguments)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(1)
