"""Cache weights in the packed layout of onnxruntime, and map them instead of packing at each start.

onnxruntime writes its optimized model with packed weights in an external file
(``session.save_external_prepacked_constant_initializers``). A session of that model packs nothing, and its
weights are pages of a file that processes share. The layout is specific to the processor and the version of
onnxruntime, so it is kept in the store of the machine.
"""

from __future__ import annotations

from pathlib import Path

from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from graphopt.ort.target import Target
from graphopt.ort.utf8_path import utf8_path
from graphopt.process.child import Child
from graphopt.util.cpu_features import features, processor
from graphopt.util.disk_store import Store, key_of

#: Kind of the entries in the store, and version of their contents.
_KIND, _FORM = "prepacked", 1
_MODEL, _WEIGHTS = "model.onnx", "weights.bin"
#: Minimum size of an external weight, in bytes.
_LEAST = 1024


def prepacked(model: Path, weights: str, choice: SessionChoice, store: Store, *, check: bool = True) -> Path:
    """The file of an optimized model equivalent to ``model``, with weights packed for this machine.

    It is created if it is missing in the store, or damaged. Create its session with onnxruntime's
    optimizations off, because the model is already optimized.

    Args:
        model: the file of the model.
        weights: a key that identifies the contents of its external data.
        choice: session options; some options affect optimization.
        check: verify checksums of cached files, not only sizes.

    Raises:
        RuntimeFailure: onnxruntime can't load or write the model.
        ResourceLimit: the store can't be written.
    """
    machine = (Target().version, processor(), features())
    key = key_of(_FORM, *machine, ",".join(choice.disabled + choice.libraries), weights, model.read_bytes())
    return store.folder(_KIND, key, lambda folder: _write(model, folder, choice), check=check) / _MODEL


def _write(model: Path, folder: Path, choice: SessionChoice) -> None:
    with Child(preload=("graphopt.specialization.bundle.prepacked_weights",)) as child:
        child.call(write, model, folder, choice, doing="packing the weights of the model")


def write(model: Path, folder: Path, choice: SessionChoice) -> None:
    """Write the model and its packed weights; runs in a child, because onnxruntime may crash."""
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
