"""Child processes: results, errors, crashes and limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from graphopt.errors import ResourceLimit, RuntimeFailure, SystemExhausted, UsageError
from graphopt.process import fork_server
from graphopt.process.child import Child, ProcessCrashed, run_in_child

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are enforced on Linux")


def double(x):
    return x * 2


def refuse(text):
    raise UsageError(text, hint="try again")


class Unpicklable(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def raise_unpicklable():
    raise Unpicklable(1, 2)


def die(number):
    os.kill(os.getpid(), number)


def hang():
    time.sleep(60)


def spin():
    while True:
        pass


def devour(size):
    return np.ones(size, np.uint8).nbytes


def fail_to_start_thread():
    raise RuntimeError("pthread_create failed, error code: 11 error msg: Resource temporarily unavailable")


def die_with_text(text):
    print(text, file=sys.stderr, flush=True)
    os.abort()


def shout():
    os.write(1, b"noise on the result channel")
    print("more noise", flush=True)
    return "quiet"


class Counter:
    def __init__(self, start):
        self.value = start

    def add(self, amount):
        self.value += amount
        return self.value


@pytest.fixture(scope="module")
def child():
    with Child() as child:
        yield child


def test_results_are_returned(child):
    assert child.call(double, 21) == 42
    array = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(child.call(double, array), array * 2)
    assert child.peak_bytes > 2**20


def test_errors_are_returned_with_their_hint(child):
    with pytest.raises(UsageError, match="no such thing") as caught:
        child.call(refuse, "no such thing")
    assert caught.value.hint == "try again"
    with pytest.raises(RuntimeFailure, match="Unpicklable: 1 and 2"):
        child.call(raise_unpicklable)


def test_output_on_stdout_is_harmless(child):
    assert child.call(shout) == "quiet"


def test_an_object_is_kept_between_calls():
    with Child() as child:
        child.new(Counter, 5)
        assert [child.invoke("add", 1), child.invoke("add", 10)] == [6, 16]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGFPE", "SIGABRT"])
def test_a_crash_is_named_and_the_next_call_works(child, name):
    with pytest.raises(RuntimeFailure, match=name):
        child.call(die, getattr(signal, name))
    assert not child.alive
    assert child.call(double, 1) == 2


def test_time_limit(child):
    with pytest.raises(ResourceLimit, match=r"more than 0\.2 s"):
        child.call(hang, timeout=0.2)
    assert child.call(double, 1, timeout=60) == 2


@linux_only
def test_memory_limit():
    with Child(memory=64 << 20) as child:
        assert child.call(devour, 1 << 20) == 1 << 20
        with pytest.raises(ResourceLimit, match="memory"):
            child.call(devour, 1 << 30)
        assert child.call(double, 1) == 2


@linux_only
def test_lack_of_memory_of_the_system_is_not_a_limit_on_the_model():
    """Neither are limits on this process, or on threads."""
    with Child(memory=64 << 20, is_scarce=True) as child:
        with pytest.raises(SystemExhausted, match="there is not enough memory for onnxruntime"):
            child.call(devour, 1 << 30)
        with pytest.raises(SystemExhausted, match="no thread could be started"):
            child.call(fail_to_start_thread)
    with Child(memory=64 << 20) as child:
        with pytest.raises(ResourceLimit) as caught:
            child.call(devour, 1 << 30)
        assert not isinstance(caught.value, SystemExhausted)
        with pytest.raises(SystemExhausted, match="no thread could be started"):
            child.call(fail_to_start_thread)


@linux_only
def test_messages_about_memory_name_the_work():
    with Child(memory=64 << 20, is_scarce=True) as child:
        with pytest.raises(SystemExhausted, match=r"memory for onnxruntime timing a\.onnx$"):
            child.call(devour, 1 << 30, doing="timing a.onnx")
        with pytest.raises(SystemExhausted, match=r"started by onnxruntime timing a\.onnx$"):
            child.call(fail_to_start_thread, doing="timing a.onnx")
    with Child(memory=64 << 20) as child, pytest.raises(ResourceLimit, match=r"limit timing a\.onnx"):
        child.call(devour, 1 << 30, doing="timing a.onnx")


@linux_only
@pytest.mark.parametrize(
    "text",
    [
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "cannot allocate memory for thread-local data: ABORT",
        "libgomp: Thread creation failed: Resource temporarily unavailable\nfurther text",
    ],
)
def test_death_for_lack_of_memory_is_no_crash(child, text):
    with pytest.raises(SystemExhausted):
        child.call(die_with_text, text)


@linux_only
def test_a_process_killed_from_outside_counts_as_a_limit(child):
    with pytest.raises(ResourceLimit, match="memory"):
        child.call(die, signal.SIGKILL)


def test_calls_run_in_the_folder_of_the_caller(child, tmp_path, monkeypatch):
    child.call(os.getcwd)
    monkeypatch.chdir(tmp_path)
    assert child.call(os.getcwd) == str(tmp_path)
    assert run_in_child(os.getcwd) == str(tmp_path)


def test_run_in_child():
    assert run_in_child(double, 4) == 8


def test_closing_ends_the_process():
    child = Child()
    pid = child.call(os.getpid)
    child.close()
    assert not child.alive
    if sys.platform != "win32":
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@linux_only
def test_cpu_time_and_wall_clock_time_are_limited_separately(child):
    with pytest.raises(ResourceLimit, match="CPU time running the model and was stopped"):
        child.call(spin, cpu=0.01, timeout=300, doing="running the model")
    assert child.call(double, 1, cpu=60) == 2


@linux_only
def test_errors_name_the_crashed_operation(child):
    with pytest.raises(ProcessCrashed, match=r"crashed \(SIGSEGV\) loading the model"):
        child.call(die, signal.SIGSEGV, doing="loading the model")


@linux_only
def test_processes_are_forked_by_one_server():
    with Child() as first, Child() as second, Child(fresh=True) as third:
        parents = [child.call(os.getppid) for child in (first, second, third)]
    assert parents[0] == parents[1] != os.getpid() == parents[2]


@linux_only
def test_calls_do_not_query_the_server(child, monkeypatch):
    asked = []
    status = fork_server.Server.status
    monkeypatch.setattr(
        fork_server.Server, "status", lambda *args, **wait: asked.append(args) or status(*args, **wait)
    )
    assert child.call(double, 3) == 6 and child.alive
    assert asked == []
    os.kill(child._process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while child.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.alive and asked


@linux_only
def test_a_dead_server_is_replaced():
    with Child() as child:
        server = child.call(os.getppid)
        os.kill(server, signal.SIGKILL)
        child.close()
    with Child() as child:
        assert child.call(os.getppid) not in (server, os.getpid())


@linux_only
def test_forked_process_has_its_own_server(child):
    server = child.call(os.getppid)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with Child() as own:
            os.write(writer, str(own.call(os.getppid)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert int(os.read(reader, 99)) not in (server, os.getpid())
    assert child.call(double, 1) == 2


_ALONE = """
from graphopt.process.fork_safety import claim_process
from graphopt.process.child import Child
from graphopt.process.threads import start_thread
import os, threading
if {claim}: claim_process()
{thread}
with Child() as child:
    server = child.call(os.getppid)
with open(f"/proc/{{server}}/cmdline") as a, open("/proc/self/cmdline") as b:
    print(a.read() == b.read())
os.kill(os.getpid(), 9) if {kill} else None
"""


_DAEMON = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
_UNCOUNTED = "start_thread(threading.Event().wait)"


@linux_only
@pytest.mark.parametrize(
    ("claim", "thread", "forks"),
    [(1, "", True), (1, _DAEMON, False), (1, _UNCOUNTED, False), (0, "", False)],
)
def test_only_a_single_threaded_process_of_graphopt_is_forked(claim, thread, forks):
    code = _ALONE.format(claim=claim, thread=thread, kill=0)
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(forks)), done.stderr


@linux_only
def test_the_server_ends_with_a_process_that_is_killed():
    # subprocess waits until the pipe is closed
    code = _ALONE.format(claim=1, thread="", kill=1)
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
