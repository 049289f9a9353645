"""Run another optimizer in its simplest way, in a separate process.

The file is executed by an interpreter that has the tool, but perhaps not graphopt. So it imports only the
standard library until a tool is selected.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata


def onnxslim(source: str, target: str) -> None:
    """Slim ``source`` into ``target``."""
    import onnxslim

    onnxslim.slim(source, target)


def onnxsim(source: str, target: str) -> None:
    """Simplify ``source`` into ``target``."""
    import onnx
    import onnxsim

    model, _checked = onnxsim.simplify(onnx.load(source))
    onnx.save(model, target)


def onnxoptimizer(source: str, target: str) -> None:
    """Run onnxoptimizer's default passes."""
    import onnx
    import onnxoptimizer

    onnx.save(onnxoptimizer.optimize(onnx.load(source)), target)


def onnxscript(source: str, target: str) -> None:
    """Run onnxscript's optimizer."""
    import onnx
    import onnxscript.optimizer

    onnx.save(onnxscript.optimizer.optimize(onnx.load(source)), target)


PEERS: dict[str, Callable[[str, str], None]] = {
    "onnxslim": onnxslim,
    "onnxsim": onnxsim,
    "onnxoptimizer": onnxoptimizer,
    "onnxscript": onnxscript,
}


def installed() -> dict[str, str]:
    """Names and versions of the peers installed for this interpreter."""
    versions = {}
    for name in PEERS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def command(python: str, name: str) -> tuple[str, ...]:
    """A command that runs the tool ``name`` with the interpreter ``python``; append IN and OUT."""
    return (python, "-c", _SOURCE, name)


def versions(python: str) -> dict[str, str]:
    """Names and versions of the peers installed for the interpreter ``python``.

    Raises:
        OSError: ``python`` can't be started.
        subprocess.CalledProcessError: ``python`` is no interpreter, or is too old.
    """
    done = subprocess.run([python, "-c", _SOURCE], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _main(arguments: list[str]) -> None:
    if not arguments:
        print(json.dumps(installed()))
        return
    name, source, target = arguments
    PEERS[name](source, target)


if __name__ == "__main__":
    _main(sys.argv[1:])
else:
    with open(__file__, encoding="utf-8") as _file:
        _SOURCE = _file.read()
