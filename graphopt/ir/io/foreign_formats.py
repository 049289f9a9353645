"""Recognize files of other formats that were passed as ONNX models, for better messages.

:func:`recognized` looks up a file in the table :data:`KINDS`. It is called after loading has failed, and does
not decide whether a file is a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import onnx

from graphopt.errors import UsageError
from graphopt.ir.io.codecs import ONNX, codec_of
from graphopt.util.lazy_dataclass import dataclass

#: Files in a bundle of ``graphopt compile``, and the commands that accept one.
_BUNDLE = ("manifest.json", "general.onnx")
_ACCEPTING = "graphopt run, bench, inspect, and verify MODEL BUNDLE accept bundles"
#: Bytes at the start of a file that tests receive; archives and tensors are opened.
HEAD = 4096
#: Maximum number of models of a folder or archive listed in a hint.
_LISTED = 3


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        name: its name with an article, as in "is not an ONNX model, but NAME".
        hint: the next step; ``{path}``, ``{stem}`` and ``{note}`` are replaced.
        test: whether a file is of this kind, by its first :data:`HEAD` bytes and its path; a string result
            replaces ``{note}``.
    """

    name: str
    hint: str
    test: Callable[[bytes, Path], bool | str]


def recognized(path: Path, head: bytes) -> Kind | None:
    """The kind of the file at ``path``, with its hint filled in; ``None`` if unknown."""
    for kind in KINDS:
        found = kind.test(head[:HEAD], path)
        if found:
            note = found if isinstance(found, str) else ""
            # not str.format: paths and notes may contain braces
            hint = kind.hint
            for field, text in (("{path}", str(path)), ("{stem}", path.stem), ("{note}", note)):
                hint = hint.replace(field, text)
            return Kind(kind.name, hint, kind.test)
    return None


def folder_error(folder: Path) -> UsageError:
    """The error for ``folder`` passed as a model."""
    if all((folder / name).is_file() for name in _BUNDLE):
        return bundle_error(folder)
    if (folder / "split.json").is_file() and (folder / "main.onnx").is_file():
        return UsageError(
            f"{folder} is a folder of split-constants, not a model",
            hint=f"the optimized model is {folder / 'main.onnx'}; update-weights replaces its weights",
        )
    return UsageError(f"{folder} is a folder, not a model", hint=folder_hint(folder))


def bundle_error(path: Path) -> UsageError:
    """The error for the bundle at ``path``, passed where only models are accepted."""
    if path.is_dir():
        step = f"one of its models is {path / 'general.onnx'}"
    else:
        step = f"it is a zip file: unzip {path} extracts its models"
    return UsageError(f"{path} is a bundle, not a model", hint=f"{_ACCEPTING}; {step}")


def folder_hint(folder: Path) -> str:
    """A hint for ``folder`` passed as a model."""
    if (folder / "saved_model.pb").is_file():
        return (
            "it is a TensorFlow SavedModel:"
            f" python -m tf2onnx.convert --saved-model {folder} --output model.onnx"
        )
    models = sorted(str(path) for path in folder.glob("*.onnx") if path.is_file())
    models = models or sorted(map(str, islice(folder.glob("*/*.onnx"), _LISTED)))
    if models:
        more = f" and {len(models) - _LISTED} more" if len(models) > _LISTED else ""
        return f"models in it: {', '.join(models[:_LISTED])}{more}"
    if (folder / "config.json").is_file() or any(folder.glob("*.safetensors")):
        return (
            f"it holds no .onnx file; for one of Hugging Face: optimum-cli export onnx --model {folder} OUT"
        )
    return "name a .onnx file"


def _starts(*magic: bytes) -> Callable[[bytes, Path], bool]:
    return lambda head, path: head.startswith(magic)


def _identifier(text: bytes) -> Callable[[bytes, Path], bool]:
    """Whether a file is FlatBuffers with this identifier, at byte 4."""
    return lambda head, path: head[4:8] == text


def _suffix(*suffixes: str) -> Callable[[bytes, Path], bool]:
    return lambda head, path: path.suffix.lower() in suffixes


def _names(head: bytes, path: Path) -> list[str]:
    """The names of the files in a zip archive; empty for another file."""
    if not head.startswith(b"PK\x03\x04"):
        return []
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return [""]


def _zip_with(*endings: str) -> Callable[[bytes, Path], bool]:
    """Whether a zip archive contains a file for each of ``endings``."""

    def test(head: bytes, path: Path) -> bool:
        names = _names(head, path)
        return all(any(name.endswith(ending) for name in names) for ending in endings)

    return test


def _only_arrays(head: bytes, path: Path) -> bool:
    names = _names(head, path)
    return bool(names) and all(name.endswith(".npy") for name in names)


def _bundle(head: bytes, path: Path) -> bool:
    names = _names(head, path)
    return all(name in names for name in _BUNDLE)


def _bundle_in_folder(head: bytes, path: Path) -> bool | str:
    """The folder of a bundle in an archive, or ``False``."""
    names = _names(head, path)
    folders = (name.removesuffix(_BUNDLE[0]) for name in names if name.endswith(f"/{_BUNDLE[0]}"))
    return next((folder for folder in folders if folder + _BUNDLE[1] in names), False)


def _archive(head: bytes, path: Path) -> bool | str:
    models = [name for name in _names(head, path) if name.endswith(".onnx")]
    return f" ({', '.join(models[:_LISTED])} in it)" if models else head.startswith(b"PK\x03\x04")


def _safetensors(head: bytes, path: Path) -> bool:
    size = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and 2 <= size <= max(0, path.stat().st_size - 8)


def _tensor(head: bytes, path: Path) -> bool:
    """Whether the file is a TensorProto, as in the test data of ONNX."""
    if path.suffix != ".pb":
        return False
    try:
        tensor = onnx.TensorProto.FromString(path.read_bytes())
    except Exception:  # an error of protobuf
        return False
    return bool(tensor.data_type) and not tensor.HasField("segment")


def _markup(pattern: bytes) -> Callable[[bytes, Path], bool]:
    return lambda head, path: re.match(pattern, head.lstrip(b"\xef\xbb\xbf \t\r\n"), re.I | re.S) is not None


def _text(head: bytes, path: Path) -> bool:
    """Whether the file is a text file in no text format of models."""
    if codec_of(path) is not ONNX:
        return False
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # an error at the end may be a character that was cut off
            return False
        text = head[: error.start].decode("utf-8-sig")
    return bool(text.strip()) and all(char.isprintable() or char in "\t\r\n" for char in text)


_is_onnx_text = _markup(rb"<\s*ir_version\s*:")

_PYTORCH = "torch.onnx.export(model, inputs, 'model.onnx', dynamo=True) makes an ONNX model"

KINDS: tuple[Kind, ...] = (
    Kind(
        "a Git LFS pointer, which stands for the file",
        "git lfs pull, in its repository",
        _starts(b"version https://git-lfs"),
    ),
    # archives
    Kind("a TorchScript archive", _PYTORCH, _zip_with("data.pkl", "constants.pkl")),
    Kind("a PyTorch checkpoint", _PYTORCH, _zip_with("data.pkl")),
    Kind("a program of torch.export", _PYTORCH, _zip_with("serialized_exported_program.json")),
    Kind("a program of torch.export", _PYTORCH, _zip_with("archive_format", "models/model.json")),
    Kind(
        "a Keras model",
        "load it with keras and model.export('model.onnx', format='onnx')",
        _zip_with("config.json", ".weights.h5"),
    ),
    Kind("a file of numpy arrays", "arrays are inputs: --input {path}", _only_arrays),
    Kind("a zipped bundle", f"{_ACCEPTING}; unzip {{path}} extracts its models", _bundle),
    Kind("a zip archive with a bundle in a folder", "unzip {path}; the bundle is {note}", _bundle_in_folder),
    Kind("a zip archive", "unzip {path}{note}", _archive),
    Kind(
        "a compressed archive",
        "tar xzf {path}",
        lambda head, path: head.startswith(b"\x1f\x8b") and bool(re.search(r"\.(tgz|tar\.gz)$", path.name)),
    ),
    Kind("a file compressed by gzip", "gunzip -k {path}", _starts(b"\x1f\x8b")),
    Kind("a file compressed by bzip2", "bunzip2 -k {path}", _starts(b"BZh")),
    Kind("a file compressed by xz", "unxz -k {path}", _starts(b"\xfd7zXZ\x00")),
    Kind("a file compressed by zstd", "unzstd {path}", _starts(b"\x28\xb5\x2f\xfd")),
    Kind("a 7z archive", "7z x {path}", _starts(b"7z\xbc\xaf\x27\x1c")),
    Kind("a tar archive", "tar xf {path}", lambda head, path: head[257:262] == b"ustar"),
    # models of other frameworks
    Kind(
        "a Python pickle, as of an old PyTorch checkpoint",
        _PYTORCH,
        lambda head, path: re.match(rb"\x80[\x02-\x05]", head) is not None,
    ),
    Kind(
        "a TensorFlow Lite model",
        "python -m tf2onnx.convert --tflite {path} --output model.onnx",
        _identifier(b"TFL3"),
    ),
    Kind(
        "a model in onnxruntime's .ort format",
        "optimize the .onnx file that it was made of, and convert the result again",
        _identifier(b"ORTM"),
    ),
    Kind(
        "an HDF5 file, as of Keras",
        "load it with keras and model.export('model.onnx', format='onnx')",
        _starts(b"\x89HDF\r\n\x1a\n"),
    ),
    Kind(
        "a safetensors file: weights without a graph",
        "optimum-cli export onnx --model FOLDER OUT; or graphopt unlift-parameters MODEL {path}",
        _safetensors,
    ),
    Kind("a GGUF file, as of llama.cpp", "graphopt starts from ONNX", _starts(b"GGUF")),
    Kind("a numpy array", "arrays are inputs: --input NAME:{path}", _starts(b"\x93NUMPY")),
    Kind("an OpenVINO model", "optimize the .onnx file that it was made of", _markup(rb"<\?xml.*<net ")),
    Kind("a Core ML model", "optimize the .onnx file that it was made of", _suffix(".mlmodel")),
    Kind(
        "a TensorRT engine",
        "optimize the .onnx file that it was made of",
        _suffix(".engine", ".plan", ".trt"),
    ),
    Kind("a single tensor of ONNX", "name the model that it is an input or output of", _tensor),
    Kind(
        "a TensorFlow graph",
        "python -m tf2onnx.convert --graphdef {path} --output model.onnx --inputs NAMES --outputs NAMES",
        _suffix(".pb"),
    ),
    # remains of failed downloads, and other files
    Kind(
        "an HTML page",
        "a download that returned a web page: take the link to the file itself",
        _markup(rb"<!doctype html|<html"),
    ),
    Kind("a PNG image", "name a .onnx file", _starts(b"\x89PNG")),
    Kind("a JPEG image", "name a .onnx file", _starts(b"\xff\xd8\xff")),
    Kind("a PDF document", "name a .onnx file", _starts(b"%PDF")),
    Kind("a program", "name a .onnx file", _starts(b"\x7fELF", b"#!")),
    Kind(
        "ONNX text",
        "rename it: mv {path} {stem}.onnxtxt",
        lambda head, path: codec_of(path) is ONNX and _is_onnx_text(head, path),
    ),
    Kind("a text file", "name a .onnx file, or a model in text as .onnxtxt, .txt, .onnxjson or .json", _text),
)
