"""Run another optimizer the plainest way it offers: `python -m benchmarks.peer NAME IN OUT`.

`python -m benchmarks.peer` alone prints, as JSON, the versions of those that this interpreter has. Each
adapter imports only its own tool, so that the process costs what that tool costs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata


def onnxslim(source: str, target: str) -> None:
    import onnxslim

    onnxslim.slim(source, target)


def onnxsim(source: str, target: str) -> None:
    import onnx
    import onnxsim

    model, _checked = onnxsim.simplify(onnx.load(source))
    onnx.save(model, target)


def onnxoptimizer(source: str, target: str) -> None:
    import onnx
    import onnxoptimizer

    onnx.save(onnxoptimizer.optimize(onnx.load(source)), target)


def onnxscript(source: str, target: str) -> None:
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
    """Name and version of each peer that this interpreter has."""
    versions = {}
    for name in PEERS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(json.dumps(installed()))
    else:
        name, source, target = sys.argv[1:]
        PEERS[name](source, target)
