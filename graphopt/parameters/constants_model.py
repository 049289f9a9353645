"""Models whose constants are computed from weights by a separate model, so that weights can be replaced.

Source: ``split_const_gm`` and ``use_runtime_constant_folding`` of ``compile_fx.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from graphopt import ir
from graphopt.errors import UsageError, VerificationFailed
from graphopt.folding.constant_evaluator import to_tensor
from graphopt.model_arguments import copy
from graphopt.ort import session
from graphopt.parameters.check_folded_constants import check_folded
from graphopt.parameters.framework_names import NameMap
from graphopt.parameters.lifting import Parameters, check_fits, update_record

_HINT = "optimize the model with the new weights"


@dataclass(frozen=True)
class SplitConstants:
    """An optimized model, and a model that computes its constants from weights.

    Attributes:
        main: the optimized model. Its initializers are weights, constants computed from weights, and other
            constants.
        constants: the constants model. Its inputs are weights, with their contents as defaults; its outputs
            are the initializers of ``main`` of the same names.
        weights: the names of all weights that can be replaced.
        names: the names of weights in a framework, if they differ.
    """

    main: ir.Model = field(repr=False)
    constants: ir.Model = field(repr=False)
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
        constants = graph.model(main)
        used = {value.name for value in constants.graph.inputs}
        used |= {value.name for value in graph.weights if value.graph is main.graph}
        return cls(main, constants, tuple(name for name in graph.weights.values() if name in used))

    def named(self, weights: Parameters) -> Parameters:
        """``weights`` with the names of the model."""
        return self.names.apply(weights)

    def having(self, weights: Parameters) -> SplitConstants:
        """The same models with new contents of ``weights``, and the constants computed from them.

        Tensors of the name of another initializer must have its contents; other tensors are ignored.

        Raises:
            UsageError: no tensor is a weight, a tensor has another shape or element type than the weight or
                belongs to an initializer that is not a weight, or a constant can't be computed from the new
                contents.
            RuntimeFailure: the constants model fails.
        """
        weights = self.named(weights)
        main, constants = copy(self.main), copy(self.constants)
        given = {name: weights.tensors[name] for name in self.weights if name in weights.tensors}
        if not given:
            there, here = next(iter(weights.tensors), "nothing"), next(iter(self.weights), "nothing")
            raise UsageError(
                "no tensor has the name of a weight",
                hint=f"the file has {there!r} and so on, the model {here!r}",
            )
        check_folded(main, {name: tensor for name, tensor in weights.tensors.items() if name not in given})
        for name, tensor in given.items():
            for model in (main, constants):
                if (value := model.graph.initializers.get(name)) is not None:
                    check_fits(value, tensor)
                    value.const_value = tensor
        for name, tensor in constants_of(constants).items():
            main.graph.initializers[name].const_value = tensor
        update_record(main, given)
        return replace(self, main=main, constants=constants)

    def settle(self) -> None:
        """Replace the constants of the optimized model by those that the constants model computes.

        Raises:
            VerificationFailed: a constant differs by more than rounding.
        """
        for name, tensor in constants_of(self.constants).items():
            value = self.main.graph.initializers[name]
            assert value.const_value is not None
            if tensor.tobytes() != value.const_value.tobytes():
                ours, theirs = tensor.numpy(), value.const_value.numpy()
                if not np.allclose(ours, theirs, rtol=2 * np.finfo(ours.dtype).eps, atol=0, equal_nan=True):
                    raise VerificationFailed(f"the constants model computes another {name!r}")
                value.const_value = tensor


def constants_of(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The constants that a constants model computes from its weights, by name.

    Raises:
        UsageError: a computation is not valid for the weights.
        RuntimeFailure: onnxruntime fails.
    """
    feeds = {}
    model = copy(model)
    for value in model.graph.inputs:
        name = value.name or ""
        tensor = model.graph.initializers.pop(name).const_value
        assert tensor is not None
        feeds[name] = tensor.numpy()
    names = [value.name or "" for value in model.graph.outputs]
    if not names:
        return {}
    made = session.create(ir.to_bytes(model), optimizations="off")
    types = {output.name: output.type for output in made.get_outputs()}
    results = dict(zip(names, session.run(made, feeds, names), strict=True))
    invalid = [
        name.removeprefix(ir.VALID)
        for name, valid in results.items()
        if name.startswith(ir.VALID) and not np.all(valid)
    ]
    if invalid:
        raise UsageError(
            f"{invalid[0]!r} can't be computed from the new weights: it is not finite, or loses digits",
            hint=_HINT,
        )
    tensors: dict[str, ir.TensorProtocol] = {}
    for name, array in results.items():
        tensor = None if name.startswith(ir.VALID) else to_tensor(array, types[name])
        if tensor is not None:
            tensors[name] = tensor
    return tensors
