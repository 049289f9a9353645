"""Run risky work in a child process, with limits on time and memory.

onnxruntime may crash (integer division by zero, some operators on empty tensors, its own optimizer), diverge
(Loop) and allocate without bound. A :class:`Child` keeps its process over several calls. If the system
allows, it is forked by a :mod:`server <graphopt.process.fork_server>`.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import IO, Any, TypeVar

from graphopt import config
from graphopt.diagnostics import record, tracer
from graphopt.errors import (
    MEMORY_HINT,
    GraphoptError,
    ResourceLimit,
    RuntimeFailure,
    SystemExhausted,
    exhausted,
    lacks_memory,
    lacks_threads,
)
from graphopt.process import fork_server
from graphopt.process import memory as ram
from graphopt.process.interpreter_command import command
from graphopt.process.resource_usage import peak_resident
from graphopt.process.threads import THREADS_HINT, start_thread

T = TypeVar("T")
_is_child: ContextVar[bool] = ContextVar("is_child", default=False)
#: Seconds of CPU time beyond a limit, after which the system kills the process.
_GRACE = 1.0


class ProcessCrashed(RuntimeFailure):
    """The child process died."""


class NoProcess(SystemExhausted):
    """No child process could be started."""


#: The first bytes that a child sends when it is ready for requests.
_READY = b"graphopt\n"


def is_child() -> bool:
    """Whether this process is a child."""
    return _is_child.get()


class Child:
    """A process that runs picklable functions, one call at a time; restarted after a crash.

    Args:
        memory: maximum private memory of calls in bytes, beyond the process's own memory; ``None`` for no
            limit. Enforced on Linux only.
        is_scarce: whether ``memory`` is a share of the available memory, and not a limit on the model.
        preload: modules that the process imports before the first call.
        fresh: start an interpreter instead of a fork. Measurements need an interpreter, because all forks of
            a server share its memory layout. Devices need an interpreter, because they do not survive a fork.

    Attributes:
        made: number of objects created by :meth:`new`; the process keeps only the last.

    Raises:
        NoProcess: the system or the program does not allow child processes.
    """

    def __init__(
        self,
        *,
        memory: int | None = None,
        is_scarce: bool = False,
        preload: Sequence[str] = (),
        fresh: bool = False,
    ) -> None:
        self._memory, self._is_scarce = memory, is_scarce
        self._preload = list(preload)
        self._fresh = fresh
        self._process: subprocess.Popen[bytes] | fork_server.Forked | None = None
        self._errors: IO[bytes] | None = None
        self._peak = 0
        self.made = 0
        self._start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether the process still runs, with the object created by :meth:`new`."""
        return self._process is not None and self._process.poll() is None

    @property
    def peak_bytes(self) -> int:
        """Peak resident memory of the process over all calls so far."""
        return self._peak

    def call(
        self,
        function: Callable[..., T],
        *args: Any,
        timeout: float | None = None,
        cpu: float | None = None,
        doing: str = "",
    ) -> T:
        """Return ``function(*args)``, evaluated in the child, in the current folder of this process.

        The function is pickled by module and name.

        Args:
            timeout: limit in seconds of wall-clock time.
            cpu: limit in seconds of CPU time, enforced on Linux and macOS.
            doing: description of the call for messages, such as ``loading the model``.

        Raises:
            NoProcess: no process can be started, or it fails to load graphopt.
            ProcessCrashed: the process died.
            ResourceLimit: the process exceeded ``timeout``, ``cpu`` or its limit on memory.
            SystemExhausted: the system has no memory or threads left for the process.
            Exception: any exception of ``function``.
        """
        result: T = self._request(("call", function, args), timeout, cpu, doing)
        return result

    def new(self, factory: Callable[..., Any], *args: Any, timeout: float | None = None) -> None:
        """Create an object by ``factory(*args)`` and keep it in the process, for :meth:`invoke`."""
        self.made += 1
        self._request(("new", factory, args), timeout, None, "")

    def invoke(
        self, method: str, *args: Any, timeout: float | None = None, cpu: float | None = None, doing: str = ""
    ) -> Any:
        """Call a method of the object created by :meth:`new`; limits and errors as for :meth:`call`."""
        return self._request(("invoke", method, args), timeout, cpu, doing)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):  # the buffer may still contain a request
                pipe.close()
        if self._errors is not None:
            self._errors.close()

    def _start(self) -> None:
        limits = [self._memory, self._preload]
        self._is_ready = False
        try:
            self._errors = _scratch_file()
            if not self._fresh:
                self._process = fork_server.start((__name__, "serve", limits), self._errors)
            if self._process is None:
                self._process = subprocess.Popen(
                    command(__name__, "serve", limits),
                    env=config.environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                )
        except OSError as error:
            raise _no_process(str(error)) from error

    def _request(
        self, request: tuple[str, Any, tuple[Any, ...]], timeout: float | None, cpu: float | None, doing: str
    ) -> Any:
        if not self.alive:
            self.close()
            self._start()
        process = self._process
        assert process is not None
        record.count("calls of child processes")
        with tracer.span("child", child=process.pid, function=_name(request)):
            return self._reply(process, request, timeout, cpu, doing)

    def _reply(
        self,
        process: subprocess.Popen[bytes] | fork_server.Forked,
        request: tuple[str, Any, tuple[Any, ...]],
        timeout: float | None,
        cpu: float | None,
        doing: str,
    ) -> Any:
        """The reply of ``process`` to ``request``."""
        data = pickle.dumps((*request, cpu, _folder()), protocol=5)
        assert process.stdin is not None and process.stdout is not None
        expired, replied = threading.Event(), threading.Event()

        def stop() -> None:
            if not replied.wait(timeout):
                expired.set()
                process.kill()

        if timeout is not None:
            start_thread(stop)
        try:
            process.stdin.write(data)
            process.stdin.flush()
            if not self._is_ready and process.stdout.read(len(_READY)) != _READY:
                raise EOFError
            self._is_ready = True
            succeeded, result, peak = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            if not self._is_ready:
                process.kill()  # the child may be in any state
            status = process.wait()
            if expired.is_set():
                raise _late(f"{timeout:g} s", doing) from None
            if status == -getattr(signal, "SIGXCPU", 24):
                raise _late(f"{cpu or 0:g} s of CPU time", doing) from None
            raise self._crash(status, doing) from error
        finally:
            replied.set()
        self._peak = max(self._peak, peak)
        if succeeded:
            return result
        if exhausted(result) is not None and not isinstance(result, SystemExhausted):
            raise self._no_memory(str(result), doing) from result
        raise result

    def _crash(self, status: int, doing: str) -> GraphoptError:
        """The error for a process that ended unexpectedly."""
        assert self._errors is not None
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        last = lines[-1].strip()[:200] if lines else ""
        if not self._is_ready:
            return _no_process(last or "it ended at once")
        is_killed = status == -getattr(signal, "SIGKILL", 9)  # by the system, for lack of memory
        if is_killed or any(map(lacks_memory, lines)):
            return self._no_memory("\n".join(lines), doing, stopped=" and was stopped", is_killed=is_killed)
        name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return ProcessCrashed(
            f"onnxruntime crashed ({name})" + (f" {doing}" if doing else "") + (f": {last}" if last else "")
        )

    def _no_memory(
        self, text: str, doing: str, *, stopped: str = "", is_killed: bool = False
    ) -> ResourceLimit:
        """The error for a process without memory: :class:`SystemExhausted` unless its own limit is the cause.

        Args:
            text: the error as the process reports it.
            doing, stopped: the work of the process and its end, for the message.
            is_killed: whether the system killed it. Beyond its own limit, an allocation fails instead.
        """
        work = f" {doing}" if doing else ""
        if lacks_threads(text):
            return SystemExhausted(f"no thread could be started by onnxruntime{work}", hint=THREADS_HINT)
        if self._memory is None or self._is_scarce or is_killed or ram.is_limited():
            return SystemExhausted(f"there is not enough memory for onnxruntime{work}", hint=MEMORY_HINT)
        return ResourceLimit(f"onnxruntime exceeded the memory limit{work}{stopped}")


def _name(request: tuple[str, Any, tuple[Any, ...]]) -> str:
    """The name of the requested function."""
    target = request[1]
    return target if isinstance(target, str) else f"{target.__module__}.{target.__qualname__}"


def _folder() -> str | None:
    """The current folder, if it still exists."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _late(spent: str, doing: str) -> ResourceLimit:
    took = f"took more than {spent} {doing}" if doing else f"ran for more than {spent}"
    return ResourceLimit(f"onnxruntime {took} and was stopped")


def _no_process(reason: str) -> NoProcess:
    return NoProcess(f"no child process could be started: {reason}")


def _scratch_file() -> IO[bytes]:
    """A file without a name; in memory if the system supports this: there may be no writable folder."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError):
            return os.fdopen(os.memfd_create("graphopt"), "w+b")
    return tempfile.TemporaryFile()


def run_in_child(function: Callable[..., T], *args: Any, timeout: float | None = 60) -> T:
    """``function(*args)`` in a fresh process; see :meth:`Child.call`."""
    with Child() as child:
        return child.call(function, *args, timeout=timeout)


def serve(memory: int | None, preload: Sequence[str]) -> None:
    """The main loop of the child: requests on stdin, replies on the original stdout."""
    _is_child.set(True)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # native code may print to stdout
    requests = os.fdopen(os.dup(0), "rb")
    inbox: list[Any] = []
    arrived = threading.Semaphore(0)

    def receive() -> None:
        """Read ahead, so that the end of the parent is also detected during a call."""
        while True:
            try:
                inbox.append(pickle.load(requests))
            except EOFError:
                os._exit(0)
            except Exception as error:  # an unreadable request is answered with the error
                inbox.append(("fail", error, (), None, None))
            arrived.release()

    for module in preload:
        importlib.import_module(module)
    start_thread(receive)
    replies.write(_READY)
    replies.flush()
    kept: Any = None
    limited = memory is None
    while True:
        arrived.acquire()
        kind, target, args, cpu, folder = inbox.pop(0)
        if not limited:
            ram.limit_data(memory or 0)
            limited = True
        try:
            if kind == "fail":
                raise target
            if folder is not None:
                with contextlib.suppress(OSError):  # the folder was removed
                    os.chdir(folder)
            function = getattr(kept, target) if kind == "invoke" else target
            with _limited_cpu(cpu):
                result = function(*args)
            if kind == "new":
                kept, result = result, None
            data = pickle.dumps((True, result, peak_resident()), protocol=5)
        except Exception as error:
            data = _pickled_error(error)
        replies.write(data)
        replies.flush()


@contextlib.contextmanager
def _limited_cpu(seconds: float | None) -> Iterator[None]:
    """Let the system kill this process if the ``with`` block exceeds ``seconds`` of CPU time, rounded up."""
    if seconds is None or sys.platform == "win32":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    most = math.ceil(time.process_time() + seconds + _GRACE)
    bounds = [value for value in (soft, hard) if value != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_CPU, (min([most, *bounds]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _pickled_error(error: Exception) -> bytes:
    try:
        pickle.loads(pickle.dumps(error, protocol=5))
    except Exception:  # an error that can't be pickled is replaced by its text
        error = RuntimeFailure(f"{type(error).__name__}: {error}")
    return pickle.dumps((False, error, peak_resident()), protocol=5)
