"""Weights as onnxruntime packs them for its kernels, in the store: mapped, instead of packed at each start.

onnxruntime writes the model as its own optimizations leave it, with packed weights in a file beside
(``session.save_external_prepacked_constant_initializers``). A session of that model packs nothing, and its
weights are pages of a file that all processes share. The layout is that of one processor and one version
of onnxruntime, so that it never leaves the machine.
"""

from __future__ import annotations

from pathlib import Path

from graphopt.ort import session
from graphopt.ort.paths import utf8_path
from graphopt.ort.processor import features, processor
from graphopt.ort.session_options import SessionChoice
from graphopt.ort.target import Target
from graphopt.process.child import Child
from graphopt.util.store import Store, key_of

#: In the store; its number changes with what is written.
_KIND, _FORM = "prepacked", 1
_MODEL, _WEIGHTS = "model.onnx", "weights.bin"
#: Smaller weights stay in the file of the model.
_LEAST = 1024


def prepacked(model: Path, weights: str, choice: SessionChoice, store: Store, *, check: bool = True) -> Path:
    """The file of a model that computes what ``model`` does, with weights that are packed for this machine.

    It is made if the store does not have it, or has a damaged one. A session of it is to be made with
    onnxruntime's optimizations off: they are in it.

    Args:
        model: the file of the model.
        weights: what tells the contents of its external data from others.
        choice: session options, some of which say how it is optimized.
        check: compare contents with their checksums, not only sizes.

    Raises:
        RuntimeFailure: onnxruntime can't load or write it.
        ResourceLimit: the store can't be written.
    """
    machine = (Target().version, processor(), features())
    key = key_of(_FORM, *machine, ",".join(choice.disabled + choice.libraries), weights, model.read_bytes())
    return store.folder(_KIND, key, lambda folder: _write(model, folder, choice), check=check) / _MODEL


def _write(model: Path, folder: Path, choice: SessionChoice) -> None:
    with Child(preload=("graphopt.specialization.bundle.prepacked",)) as child:
        child.call(write, model, folder, choice, doing="packing the weights of the model")


def write(model: Path, folder: Path, choice: SessionChoice) -> None:
    """Write the model and its packed weights; in a child, which onnxruntime may kill."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = utf8_path(folder / _MODEL)
    for key, value in (
        ("session.optimized_model_external_initializers_file_name", _WEIGHTS),
        ("session.optimized_model_external_initializers_min_size_in_bytes", str(_LEAST)),
        ("session.save_external_prepacked_constant_initializers", "1"),
    ):
        options.add_session_config_entry(key, value)
    session.create(model, options=options, choice=choice)
