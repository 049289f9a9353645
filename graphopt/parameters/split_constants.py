"""Models whose constants are computed from weights by a separate model, so that weights can be replaced.

Source: ``split_const_gm`` and ``use_runtime_constant_folding`` of ``compile_fx.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, cast

from graphopt import ir, publish
from graphopt.errors import InvalidModel, UsageError
from graphopt.model_arguments import copy
from graphopt.parameters.check_folded_constants import check_folded_constants
from graphopt.parameters.framework_names import NameMap, name_from_json
from graphopt.parameters.lifting import Parameters, check_fits, update_record
from graphopt.parameters.run_constants_model import compute_constants
from graphopt.util.file_sums import CHECKSUM, FileSum, checksum
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.missing_files import no_such_file

#: The files of a folder.
MAIN, CONSTANTS, WEIGHTS, DESCRIPTION = "main.onnx", "constants.onnx", "weights.bin", "split.json"
#: Version of the format of the description.
_FORMAT = "graphopt.constants/2"
#: Attempts to load a folder that is being replaced.
_TRIES = 10


@dataclass(frozen=True)
class SplitConstants:
    """An optimized model, and a model that computes its constants from weights.

    Attributes:
        main: the optimized model. Its initializers are weights, constants computed from weights, and other
            constants.
        constants: the constants model. Its inputs are weights; its outputs are the initializers of ``main``
            of the same names.
        contents: the present contents of the inputs of ``constants``.
        conditions: the name of the constant for each output of ``constants`` that is false if the computation
            of the constant is not valid.
        weights: the names of all weights that can be replaced.
        names: the names of weights in a framework, if they differ.
    """

    main: ir.Model = field(repr=False)
    constants: ir.Model = field(repr=False)
    contents: Mapping[str, ir.TensorProtocol] = field(repr=False)
    conditions: Mapping[str, str] = field(repr=False)
    weights: tuple[str, ...]
    names: NameMap = field(default_factory=NameMap)

    @classmethod
    def of(cls, main: ir.Model) -> SplitConstants:
        """Split an optimized model whose constants were recorded in a constant graph."""
        graph = ir.constant_graph_of(main.graph)
        assert graph is not None
        edit = ir.Editor(main)
        for value in list(main.graph.initializers.values()):
            if value.name in graph.original and graph.computes(value):  # it reuses the name of another
                edit.rename(value, f"{value.name}_computed")
        constants, conditions = graph.model(main)
        read = {value.name for value in constants.graph.inputs}
        contents = {name: value.const_value for value, name in graph.weights.items() if name in read}
        used = read | {value.name for value in graph.weights if value.graph is main.graph}
        weights = tuple(name for name in graph.weights.values() if name in used)
        return cls(main, constants, cast(dict[str, ir.TensorProtocol], contents), conditions, weights)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> SplitConstants:
        """The models in ``folder``.

        Raises:
            UsageError: ``folder`` was not written by :meth:`save`.
            InvalidModel: a file is missing, or does not match its size or checksum.
        """
        folder = Path(folder)
        for tries_left in reversed(range(_TRIES)):
            before = _text_of(folder / DESCRIPTION)
            try:
                return cls._load(folder)
            except InvalidModel:
                if not tries_left or before == _text_of(folder / DESCRIPTION):
                    raise
        raise AssertionError("the last attempt returns or raises")

    @classmethod
    def _load(cls, folder: Path) -> SplitConstants:
        if not folder.exists():
            raise no_such_file(folder, "folder")
        if not _is_split(folder):
            raise UsageError(
                f"{folder} has no {DESCRIPTION}", hint="graphopt split-constants MODEL -o FOLDER writes one"
            )
        file = folder / DESCRIPTION
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if data["format"] != _FORMAT:
                raise InvalidModel(
                    f"{file} has the format {data['format']!r} of another version of graphopt",
                    hint="graphopt split-constants MODEL writes the folder again",
                )
            if data[CHECKSUM] != checksum(data):
                raise ValueError("its checksum does not match")
            sums = {
                str(name): FileSum(entry["sha256"], entry["bytes"]) for name, entry in data["files"].items()
            }
            if not {MAIN, CONSTANTS} <= sums.keys() <= {MAIN, CONSTANTS, WEIGHTS}:
                raise ValueError("it lists other files")
            weights = tuple(map(str, data["weights"]))
            conditions = {str(name): str(constant) for name, constant in data["conditions"].items()}
            names = {str(weight): name_from_json(name) for weight, name in data["names"].items()}
            unmatched = tuple(map(str, data["unmatched"]))
        except OSError as error:
            raise UsageError(f"can't read {file}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidModel(f"{file} is damaged: {error}") from error
        for name, expected in sums.items():
            _check_file(folder, name, expected)
        main, constants = ir.load(folder / MAIN), ir.load(folder / CONSTANTS)
        own = {*main.graph.initializers, *(value.name for value in constants.graph.inputs)}
        outputs = [value.name or "" for value in constants.graph.outputs]
        computed = [name for name in outputs if name not in conditions]
        missing = [name for name in weights if name not in own]
        missing += [name for name in computed if name not in main.graph.initializers]
        missing += [name for name in conditions if name not in outputs]
        if missing:
            raise InvalidModel(f"{folder} is damaged: {MAIN} has no {missing[0]!r}")
        contents = {}
        for value in constants.graph.inputs:
            default = constants.graph.initializers.pop(value.name or "", None)
            if default is None or default.const_value is None:
                raise InvalidModel(f"{folder} is damaged: {CONSTANTS} has no contents for {value.name!r}")
            contents[value.name or ""], value.const_value = default.const_value, None
        return cls(main, constants, contents, conditions, weights, NameMap(names, unmatched))

    @property
    def description(self) -> dict[str, Any]:
        """The contents of ``split.json``: files, weights with their names, outputs of computed constants."""
        outputs = [value.name or "" for value in self.constants.graph.outputs]
        return {
            "format": _FORMAT,
            "main": MAIN,
            "constants": CONSTANTS,
            "weights": list(self.weights),
            "computed": {name: i for i, name in enumerate(outputs) if name not in self.conditions},
            "conditions": dict(self.conditions),
            "names": {weight: name.to_json() for weight, name in self.names.names.items()},
            "unmatched": list(self.names.unmatched),
        }

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the models to ``folder``; returns the files, the description first.

        The folder is published as a whole: it contains either the old or the new models.

        Raises:
            UsageError: the folder contains other files, or it can't be written.
            ResourceLimit: the disk is full.
        """
        folder = Path(folder)
        with publish.writing_folder(folder, check_replaceable) as new:
            written = ir.save_together({MAIN: self.main, CONSTANTS: self._with_defaults()}, new, WEIGHTS)
            sums = {path.name: FileSum.of(path) for path in written}
            data = {
                **self.description,
                "files": {name: {"bytes": one.bytes, "sha256": one.sha256} for name, one in sums.items()},
            }
            data[CHECKSUM] = checksum(data)
            text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
            (new / DESCRIPTION).write_text(text, encoding="utf-8")
        return [folder / DESCRIPTION, *(folder / path.name for path in written)]

    def _with_defaults(self) -> ir.Model:
        """The constants model with the contents of weights as defaults of its inputs."""
        model = copy(self.constants)
        for value in model.graph.inputs:
            value.const_value = self.contents[value.name or ""]
            model.graph.register_initializer(value)
        return model

    def named(self, weights: Parameters) -> Parameters:
        """``weights`` with the names of the model."""
        return self.names.apply(weights)

    def ignored(self, weights: Parameters) -> list[str]:
        """The names of tensors that are neither weights nor other initializers of the model."""
        known = {*self.weights, *self.main.graph.initializers}
        known |= {name for source in self.names.names.values() for name in source.tensors}
        return [name for name in weights.tensors if name not in known]

    def having(self, weights: Parameters, *, partial: bool = False) -> SplitConstants:
        """The same models with new contents of ``weights``, and the constants computed from them.

        Tensors of the name of another initializer must have its contents; other tensors are ignored.

        Args:
            weights: tensors with the names of the model or of the framework.
            partial: accept ignored tensors although weights are not given, and keep weights without a name
                in the framework.

        Raises:
            UsageError: no tensor is a weight, or tensors are ignored although weights are not given; a weight
                without a name in the framework is not given; a tensor has another shape or element type than
                the weight, or belongs to an initializer that is not a weight; or a constant can't be
                computed from the new contents.
            RuntimeFailure: the constants model fails.
        """
        ignored = self.ignored(weights)
        weights = self.named(weights)
        main, contents = copy(self.main), dict(self.contents)
        inputs = {value.name or "": value for value in self.constants.graph.inputs}
        given = {name: weights.tensors[name] for name in self.weights if name in weights.tensors}
        if not given:
            there, here = next(iter(weights.tensors), "nothing"), next(iter(self.weights), "nothing")
            raise UsageError(
                "no tensor has the name of a weight",
                hint=f"the file has {there!r} and so on, the model {here!r}",
            )
        missing = [name for name in self.weights if name not in given]
        if ignored and missing and not partial:
            raise UsageError(
                f"{ignored[0]!r} is not a weight of the model, and {missing[0]!r} is not given",
                hint="map names with graphopt split-constants --framework, or add --partial",
            )
        underived = [name for name in self.names.unmatched if name in missing]
        if underived and not partial:
            raise UsageError(
                f"{underived[0]!r} is not given, and may derive from weights of the framework that change",
                hint="give it under this name, or keep it with graphopt update-weights --partial",
            )
        check_folded_constants(
            main, {name: tensor for name, tensor in weights.tensors.items() if name not in given}
        )
        for name, tensor in given.items():
            if name in inputs:
                check_fits(inputs[name], tensor)
                contents[name] = tensor
            if name in main.graph.initializers:
                check_fits(main.graph.initializers[name], tensor)
                main.graph.initializers[name].const_value = tensor
        for name, tensor in compute_constants(self.constants, contents, self.conditions).items():
            main.graph.initializers[name].const_value = tensor
        update_record(main, given)
        return replace(self, main=main, contents=contents)

    def settle(self) -> bool:
        """Replace the constants of the optimized model by those that the constants model computes.

        Returns:
            Whether some bits changed: onnxruntime may add the terms of a sum in another order than numpy.
        """
        is_changed = False
        for name, tensor in compute_constants(self.constants, self.contents, self.conditions).items():
            value = self.main.graph.initializers[name]
            assert value.const_value is not None
            if tensor.tobytes() != value.const_value.tobytes():
                value.const_value, is_changed = tensor, True
        return is_changed


def check_replaceable(folder: Path) -> None:
    """Check that ``folder`` does not exist, is empty, or was written by :meth:`SplitConstants.save`.

    Raises:
        UsageError: ``folder`` has other contents, or is the current folder.
    """
    publish.check_replaceable(folder, "a split model", _files_of)


def _files_of(folder: Path) -> tuple[str, ...] | None:
    """The names of the files in the folder of a split model; ``None`` for other folders."""
    return (MAIN, CONSTANTS, WEIGHTS, DESCRIPTION) if _is_split(folder) else None


def _check_file(folder: Path, name: str, expected: FileSum) -> None:
    """Compare a file with its size and checksum in the description.

    Raises:
        UsageError: the file can't be read.
        InvalidModel: the file is missing or differs.
    """
    try:
        found = FileSum.of(folder / name)
    except FileNotFoundError as error:
        raise InvalidModel(f"{folder} is damaged: {name} is missing") from error
    except OSError as error:
        raise UsageError(f"can't read {folder / name}: {error.strerror}") from error
    if found != expected:
        raise InvalidModel(
            f"{folder} is damaged: {name} does not match its size or checksum in {DESCRIPTION}",
            hint="split the model again, or copy the folder again completely",
        )


def _text_of(file: Path) -> bytes | None:
    """The contents of a file; ``None`` if it can't be read."""
    try:
        return file.read_bytes()
    except OSError:
        return None


def _is_split(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file()
