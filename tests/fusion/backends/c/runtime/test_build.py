"""Building libraries: compilers, the store, reproducibility, and failures."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from graphopt.errors import NoCompiler, ResourceLimit, RuntimeFailure
from graphopt.fusion.backends.c import build_library, c_compiler
from graphopt.fusion.backends.c.c_compiler import Compiler, find_compiler
from graphopt.fusion.backends.c.source_file import source
from graphopt.fusion.group_functions import kernels_of
from graphopt.util.disk_store import Store
from tests.fusion.backends.c.runtime import samples
from tests.fusion.backends.c.runtime.groups import fused

UNITS = [samples.unit({"one": "x"}), samples.unit({"two": "x * x"})]


def made(store, command=None, units=UNITS, progress=None):
    return build_library.build(units, len(units), store, compiler=command, progress=progress)


@samples.compiled
def test_equal_sources_build_equal_bytes(tmp_path):
    told = []
    first = made(Store(tmp_path / "a"), progress=lambda done, text: told.append((done, text)))
    second = made(Store(tmp_path / "somewhere" / "else"))
    assert first.read_bytes() == second.read_bytes()
    assert str(tmp_path).encode() not in first.read_bytes()
    assert first.parent.name == second.parent.name  # the key
    fractions = [done for done, _ in told]
    assert fractions == sorted(fractions) and fractions[0] == 0.0 and told[-1] == (1.0, "linked")


@samples.compiled
def test_damaged_library_is_rebuilt(tmp_path):
    store, told = Store(tmp_path), []
    path = made(store, progress=lambda done, text: told.append(text))
    whole, calls = path.read_bytes(), len(told)
    assert made(store, progress=lambda done, text: told.append(text)) == path and len(told) == calls
    for damage in (whole[:-1], b"", whole[:100] + b"\0" + whole[101:]):
        path.write_bytes(damage)
        assert made(store).read_bytes() == whole
    path.unlink()
    assert made(store).read_bytes() == whole
    path.with_name("sha256sums").write_bytes(b"\xff")
    assert made(store).read_bytes() == whole


@samples.compiled
def test_key_depends_on_sources_compiler_and_flags(tmp_path):
    store, name = Store(tmp_path), find_compiler().command[0]
    paths = {
        made(store),
        made(store, units=[*UNITS, samples.unit({"six": "x"})]),
        made(store, f"{name} -DX=1"),
    }
    assert len(paths) == 3


def test_missing_compiler_error_has_a_hint(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoCompiler, match="there is no C compiler for native kernels") as error:
        made(Store(tmp_path))
    assert "graphopt[native]" in error.value.hint


def test_failing_compiler_command_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(NoCompiler, match="the setting 'compiler' names does not run: /nowhere/cc"):
        made(Store(tmp_path), "/nowhere/cc")
    monkeypatch.setenv("CC", "no-such-cc -m64")
    with pytest.raises(NoCompiler, match=r"\$CC names does not run: no-such-cc -m64"):
        find_compiler()


def _fake(folder, body):
    """A program that answers --version like a compiler, and runs ``body`` otherwise."""
    script = folder / "fakecc"
    script.write_text(f"#!/bin/sh\ncase $1 in --version) echo fake 1.0; exit 0;; esac\n{body}\n")
    script.chmod(0o755)
    return str(script)


posix = pytest.mark.skipif(sys.platform == "win32", reason="a shell script")


@posix
def test_first_compiler_error_is_reported(tmp_path):
    command = _fake(tmp_path, "echo 'In file x:'; echo 'unit0.c:3: error: no'; echo 'error: more'; exit 1")
    with pytest.raises(
        RuntimeFailure, match=r"fakecc \(fake 1.0\) can't compile kernels: unit0.c:3: error: no"
    ):
        made(Store(tmp_path), command)
    assert not list(Store(tmp_path).entries())
    assert not list(tmp_path.glob("kernels/*/.*"))  # no partial entry


@posix
def test_hanging_compiler_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(build_library, "_TIMEOUT", 0.2)
    with pytest.raises(ResourceLimit, match=r"took more than 0\.2 s"):
        made(Store(tmp_path), _fake(tmp_path, "sleep 100"))


@posix
def test_killed_compiler_leaves_no_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(build_library, "_TIMEOUT", 0.5)
    for folder in ("tmp", "store"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    script = _fake(tmp_path, f'echo half > "$TMPDIR/cc.s"; echo "$TMPDIR" >> {tmp_path}/where; sleep 100')
    with pytest.raises(ResourceLimit, match="took more than"):
        made(Store(tmp_path / "store"), script)
    where = set((tmp_path / "where").read_text().split())
    assert where and all(line.startswith(str(tmp_path / "tmp")) for line in where)
    assert not list((tmp_path / "tmp").iterdir())


@posix
def test_full_disk_is_a_resource_limit(tmp_path):
    script = _fake(tmp_path, "echo 'error: error writing to x.s: No space left on device'; exit 1")
    with pytest.raises(ResourceLimit, match="fakecc can't compile kernels: No space left on device") as error:
        made(Store(tmp_path), script)
    assert "TMPDIR" in error.value.hint


@posix
def test_failure_stops_running_compilations(tmp_path):
    start = time.monotonic()
    with pytest.raises(RuntimeFailure, match="can't compile"):
        made(Store(tmp_path), _fake(tmp_path, 'case "$*" in *registration.c*) exit 1;; esac\nsleep 100'))
    assert time.monotonic() - start < 20


def _interrupt_after(file):
    """Interrupt this process, once ``file`` exists."""
    while not file.exists():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)


@posix
@pytest.mark.parametrize("call", ["registration.c", "-shared"])
def test_interrupt_stops_running_compilations(tmp_path, call):
    begun = tmp_path / "begun"
    body = f'case "$*" in *{call}*) touch {begun}; sleep 100;; esac'
    command = _fake(tmp_path, body)
    start = time.monotonic()
    threading.Thread(target=_interrupt_after, args=[begun], daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        made(Store(tmp_path / "store"), command)
    assert time.monotonic() - start < 20


@posix
def test_compilation_in_a_daemon_thread_does_not_delay_the_exit(tmp_path):
    begun = tmp_path / "begun"
    command = _fake(tmp_path, f"echo $$ >> {begun}; sleep 100")
    program = f"""
import threading, time
from pathlib import Path
from graphopt.fusion.backends.c import build_library
from graphopt.util.disk_store import Store
arguments = (["int x;"], 1, Store(Path({str(tmp_path / "store")!r})))
build = lambda: build_library.build(*arguments, compiler={command!r})
threading.Thread(target=build, daemon=True).start()
while not Path({str(begun)!r}).exists():
    time.sleep(0.02)
"""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=90, stderr=subprocess.DEVNULL)
    assert time.monotonic() - start < 60
    for pid in begun.read_text().split():
        assert not _runs(int(pid))


def _runs(pid):
    try:
        return "fakecc" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


@posix
def test_search_order_of_compilers(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "ziglang" or None)
    calls = []

    def answer(words, folder, seconds, stop):
        calls.append(words)
        return 0, {"gcc": "gcc (GCC) 14", "clang": "clang version 19"}.get(words[0], "clang version 19 (zig)")

    monkeypatch.setattr(c_compiler, "_call", answer)
    assert find_compiler().kind == "zig" and find_compiler().name == "ziglang"
    for name in ("clang", "gcc"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        assert find_compiler().kind == name
    monkeypatch.setenv("CC", "clang --target=x")
    assert find_compiler().command == ("clang", "--target=x")
    assert find_compiler("gcc").kind == "gcc"
    assert find_compiler("auto").command == ("clang", "--target=x")


@pytest.mark.parametrize("kind, flag", [("gcc", "-march=x86-64-v3"), ("zig", "-march=x86_64_v3")])
def test_levels_by_compiler(kind, flag, monkeypatch):
    monkeypatch.setattr(c_compiler, "is_x86", lambda: True)
    assert c_compiler.Compiler(("cc",), kind, "").level(3) == (flag,)
    monkeypatch.setattr(c_compiler, "is_x86", lambda: False)
    assert c_compiler.Compiler(("cc",), kind, "").level(0) == ()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="there is no ziglang")
@pytest.mark.parametrize("target", ["aarch64-linux-gnu", "aarch64-macos"])
def test_kernels_compile_for_other_machines(tmp_path, monkeypatch, target):
    monkeypatch.setattr(c_compiler, "is_x86", lambda: False)
    model = fused()[1]
    kernels = kernels_of(model)
    found = find_compiler(f"{sys.executable} -m ziglang cc --target={target}")
    build_library.Plan((source(kernels),), len(kernels), found, (0,)).make(tmp_path, tmp_path / "kernels.so")
    assert (tmp_path / "kernels.so").stat().st_size > 1000


def test_stop_event_ends_a_call(tmp_path):
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    sleeper = Compiler((sys.executable, "-c", "import time; time.sleep(60)"), "gcc", "none")
    begin = time.monotonic()
    with pytest.raises(ResourceLimit):
        sleeper.run([], tmp_path, 50.0, stop)
    assert time.monotonic() - begin < 20


def test_hanging_version_query_is_no_compiler():
    with pytest.raises(NoCompiler, match="does not run: 'gcc"):
        find_compiler("'gcc")


@pytest.mark.skipif(sys.platform == "win32", reason="a script is the compiler")
def test_invalid_compiler_output_is_discarded(tmp_path):
    junk = tmp_path / "junk"
    junk.write_text(
        '#!/bin/sh\nfor last; do :; done\n[ "$1" = --version ] && echo junk 1 && exit\necho junk > "$last"\n'
    )
    junk.chmod(0o755)
    store = Store(tmp_path / "store")
    with pytest.raises(RuntimeFailure, match="wrote no library"):
        made(store, str(junk))
    assert not [entry for entry in store.entries("kernels")]
