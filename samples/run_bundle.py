"""Run a bundle of `graphopt compile` with onnxruntime and numpy only: copy this file into your program.

    graphopt compile model.onnx -o model.gopt --profile profile.json
    python run_bundle.py model.gopt inputs.npz outputs.npz [--kernels]

--kernels also loads the bundle's library of native kernels, which is code: only for bundles that you trust.
"""

import hashlib
import json
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

#: The inputs by name: arrays, or lists for sequences.
Feeds = Mapping[str, Any]
#: Element types whose names differ in numpy.
DTYPES = {"float": "float32", "double": "float64", "string": "object"}


class Bundle:
    """The models of a bundle, a folder or a zip file; `run` selects the first whose guard holds."""

    def __init__(self, path: str | Path, kernels: bool = False) -> None:
        self.folder = Path(path)
        if not self.folder.exists():
            raise ValueError(f"there is no bundle {path}")
        if self.folder.is_file():  # a zip file
            self._copy = tempfile.TemporaryDirectory()
            self.folder = Path(self._copy.name)
            zipfile.ZipFile(path).extractall(self.folder)
        if not (self.folder / "manifest.json").is_file():
            raise ValueError(f"{path} is not a bundle: it has no manifest.json")
        try:
            self.manifest = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"manifest.json of {path} is damaged: {error}") from error
        if self.manifest.get("graphopt_bundle") != 3:
            raise ValueError("the format version of the bundle is not 3")
        for name, item in self.manifest["files"].items():
            if not (self.folder / name).is_file():
                raise ValueError(f"{name} is missing in {path}")
            if hashlib.sha256((self.folder / name).read_bytes()).hexdigest() != item["sha256"]:
                raise ValueError(f"{name} is damaged")
        entries = [self.manifest["general"], *self.manifest["variants"], *self.manifest["kernels"]]
        for name in [self.manifest["weights"], *(entry["file"] for entry in entries)]:
            if name is not None and name not in self.manifest["files"]:
                raise ValueError(f"the manifest has no checksum of {name}")
        self.kernels = kernels
        self.sessions: dict[str, onnxruntime.InferenceSession] = {}

    def choose(self, feeds: Feeds) -> Any:
        """The entry of the manifest that runs for the arrays `feeds`, by name."""
        roles = {value["name"]: value.get("role") for value in self.manifest["inputs"]}
        for name in feeds:
            if roles.get(name, "constant") == "constant":
                raise ValueError(f"the model has no input {name!r}, only {', '.join(roles)}")
        for value in self.manifest["inputs"]:
            if "role" not in value and value["name"] not in feeds and "optional(" not in value["type"]:
                raise ValueError(f"the model needs a value for input {value['name']!r}")
        variants = (variant for variant in self.manifest["variants"] if holds(variant["guard"], feeds))
        return next(variants, self.manifest["general"])

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """The outputs by name."""
        entry = self.choose(feeds)
        session = self.sessions.get(entry["file"])
        if session is None:
            session = self.sessions[entry["file"]] = self._session(entry)
        read = {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}
        outputs = session.run(None, {name: value for name, value in feeds.items() if name in read})
        return dict(zip((value.name for value in session.get_outputs()), outputs, strict=True))

    def _session(self, entry: Any) -> onnxruntime.InferenceSession:
        text = entry.get("session_options") or self.manifest["session_options"] or "{}"
        chosen, options, target = json.loads(text), onnxruntime.SessionOptions(), self.manifest["target"]
        if chosen.get("device") == target["device"]:
            options.intra_op_num_threads = chosen.get("threads", 0)
            options.enable_cpu_mem_arena = chosen.get("arena", True)
            options.add_session_config_entry(
                "session.intra_op.allow_spinning", str(int(chosen.get("spinning", True)))
            )
        for library in self.manifest["kernels"] if self.kernels else ():
            options.register_custom_ops_library(str((self.folder / library["file"]).resolve()))
        providers = dict.fromkeys([target["provider"], "CPUExecutionProvider"])
        return onnxruntime.InferenceSession(
            self.folder / entry["file"],
            options,
            providers=list(providers),
            disabled_optimizers=chosen.get("disabled", []),
        )


def holds(guard: Any, feeds: Feeds) -> bool:
    """Whether `feeds` satisfy a guard: types, sizes (equal symbols are equal sizes) and contents."""
    sizes: dict[str, int] = {}
    if any(name in feeds for name in guard.get("absent", [])):
        return False
    for name, expected in guard["inputs"].items():
        shape = expected.get("shape")
        if name not in feeds:
            if expected.get("always", True):
                return False
            continue
        value, element = feeds[name], expected["type"][len("tensor(") : -1]
        if not isinstance(value, np.ndarray):  # a sequence or a map
            if shape is not None:
                return False
            continue
        if element and str(value.dtype) != DTYPES.get(element, element):
            return False
        if shape is None:
            continue
        if value.ndim != len(shape):
            return False
        for size, dim in zip(value.shape, shape, strict=True):
            if size != (dim if isinstance(dim, int) else size if dim == "?" else sizes.setdefault(dim, size)):
                return False
        if "ints" in expected and value.ravel().tolist() != expected["ints"]:
            return False
    return True


def main() -> None:
    """The command line; an error is one line."""
    arguments = [text for text in sys.argv[1:] if text != "--kernels"]
    if len(arguments) != 3 or any(text.startswith("-") for text in arguments):
        sys.exit("usage: python run_bundle.py BUNDLE INPUTS.npz OUTPUTS.npz [--kernels]")
    bundle, inputs, outputs = arguments
    try:
        loaded = Bundle(bundle, "--kernels" in sys.argv)
        if Path(inputs).is_file() and not zipfile.is_zipfile(inputs):
            raise ValueError(f"{inputs} is not an .npz file")
        np.savez(outputs, **loaded.run(dict(np.load(inputs))))
    except KeyError as error:
        sys.exit(f"error: the manifest has no {error}")
    except Exception as error:  # those of onnxruntime have no common base
        sys.exit(f"error: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
