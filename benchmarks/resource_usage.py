"""Run a command and report its resource usage: python benchmarks/resource_usage.py [--sample] COMMAND...

The last line on stdout is JSON: `status`, wall `seconds`, `cpu_seconds`, `peak_bytes` (resident, of the
largest process) and, with --sample on Linux, `anonymous_bytes`: the peak of pages that are neither shared nor
backed by a file, sampled every few milliseconds.

This is a separate process without large imports, because the peak that the system reports for a child
includes the memory of its parent at the fork.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

_INTERVAL = 0.003


def run(command: list[str], sample: bool) -> dict[str, object]:
    """Run `command`; the last line of its stderr becomes the `message`."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        said, anonymous = b"", 0
        pid, status, usage = 0, 0, None
        while not pid:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG if sample else 0)
            said = (said + (process.stderr.read() or b""))[-3000:]
            if sample and not pid:
                anonymous = max(anonymous, _anonymous_bytes(process.pid))
                time.sleep(_INTERVAL)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
    assert usage is not None
    lines = said.decode(errors="replace").strip().splitlines()
    return {
        "status": process.returncode,
        "message": lines[-1][:300] if lines else "",
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        **({"anonymous_bytes": anonymous} if sample else {}),
    }


def _anonymous_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            lines = [line for line in file if line.startswith("RssAnon:")]
    except OSError:
        return 0
    return int(lines[0].split()[1]) * 1024 if lines else 0


if __name__ == "__main__":
    sampled = sys.argv[1] == "--sample"
    print(json.dumps(run(sys.argv[1 + sampled :], sampled)))
