"""Constant evaluation: compute nodes with constant inputs by the runtime's own kernels.

All nodes run in one onnxruntime session if possible. Failing nodes are found by halving the list, and are
omitted. Nodes that may crash are refused, or each runs alone in a child. A session with any node that is not
:func:`plain <graphopt.folding.evaluation_risks.is_plain>` also runs in a child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.errors import ResourceLimit, RuntimeFailure
from graphopt.folding.evaluation_risks import Constant, FoldingRisk, Functions, folding_risk, is_plain
from graphopt.folding.run_constant_model import run_constant_model
from graphopt.ort.model_runs import SLACK, START
from graphopt.process import memory as ram
from graphopt.process.child import Child
from graphopt.util.ort_array_conversion import LOW_TYPES
from graphopt.util.resource_budget import Budget

#: Bytes beyond which constants are passed to onnxruntime without a copy.
_LARGE = 1 << 16
#: The newest IR version used for evaluation.
_NEWEST_IR = 10

Tensors = dict[ir.Value, ir.TensorProtocol]
Refused = Callable[[ir.Node, str], None]


class Evaluator:
    """Computes constants.

    Args:
        imports: returns the opset imports of a graph.
        ir_version: IR version of the model.
        functions: the model's functions, by identifier; read at each evaluation.
        constant: returns the tensor of a constant value.
        limit: maximum size of a result in bytes.
        timeout: wall-clock seconds for each risky computation.
        child: an existing process for risky work; by default, a process is started on demand.
        budget: limits on time and memory.
        filled: whether a value is known to have elements, because some nodes are risky on empty tensors.
    """

    def __init__(
        self,
        imports: Callable[[ir.Graph], Mapping[str, int]],
        ir_version: int,
        functions: Functions | None = None,
        *,
        constant: Constant = ir.constant_of,
        limit: int = 1 << 28,
        timeout: float = 10.0,
        child: Child | None = None,
        budget: Budget | None = None,
        filled: Callable[[ir.Value], bool] = lambda value: False,
    ) -> None:
        self._imports = imports
        self._ir_version = ir_version
        self._functions = functions if functions is not None else {}
        self._constant = constant
        self._limit = limit
        self._timeout = timeout
        self.budget = budget or Budget()
        self._filled = filled
        self._child = child
        self._owns_child = False
        self.sessions = 0

    @classmethod
    def of(cls, model: ir.Model, scopes: ir.Scopes | None = None, **settings: Any) -> Evaluator:
        """An evaluator for nodes of ``model``; ``settings`` are the keyword arguments."""
        return cls((scopes or ir.Scopes(model)).imports, model.ir_version, model.functions, **settings)

    def close(self) -> None:
        """End the child process, if one was started."""
        if self._child is not None and self._owns_child:
            self._child.close()
            self._child = None

    def evaluate(
        self,
        nodes: Sequence[ir.Node],
        outputs: Iterable[ir.Value],
        *,
        refused: Refused | None = None,
    ) -> Tensors:
        """Compute ``outputs`` of ``nodes``.

        Args:
            nodes: nodes of one graph in topological order; their inputs are constants or outputs of earlier
                nodes. Bodies may read constants and outputs of earlier nodes.
            outputs: the values to compute; sequences and optionals are not returned.
            refused: called with each node that could not be computed, and the reason.

        Returns:
            The tensors of all outputs that could be computed, in their exact element types.
        """
        evaluation = _Evaluation(self, nodes, list(outputs), refused or (lambda node, reason: None))
        with self.budget:
            return evaluation.run()

    # Used by _Evaluation ----------------------------------------------------------------------

    def _run(
        self, data: bytes, large: Mapping[str, tuple[Any, str]], *, plain: bool, risky: bool
    ) -> dict[str, tuple[Any, str]]:
        self.sessions += 1
        left = self.budget.left
        if plain and not risky:
            return run_constant_model(data, large, left)
        if self._child is None:
            results = min(self._limit * 4, self.budget.nbytes or self._limit * 4)
            memory = max(results, ram.SESSION_BYTES)
            preload = ("onnxruntime", "graphopt.folding.run_constant_model")
            self._child = Child(memory=memory, preload=preload)
            self._owns_child = True
        if risky:
            timeout = self._timeout if left is None else min(self._timeout, left)
            return self._child.call(run_constant_model, data, dict(large), timeout=timeout)
        longest = None if left is None else START + SLACK * left
        return self._child.call(run_constant_model, data, dict(large), left, timeout=longest)


class _Evaluation:
    """One call of :meth:`Evaluator.evaluate`."""

    def __init__(
        self, evaluator: Evaluator, nodes: Sequence[ir.Node], outputs: list[ir.Value], refused: Refused
    ) -> None:
        self._evaluator = evaluator
        self._nodes = nodes
        self._outputs = dict.fromkeys(outputs)
        self._refused = refused
        self._known: Tensors = {}
        self._dtypes: dict[ir.Value, ir.DataType | None] = {}

    def run(self) -> Tensors:
        """Evaluate in stages: a node whose risk depends on computed values waits until these are known."""
        remaining = list(self._nodes)
        lost: set[ir.Value] = set()
        while remaining:
            stage: list[ir.Node] = []
            risky: list[ir.Node] = []
            later: list[ir.Node] = []
            waiting: set[ir.Value] = set()
            for node in remaining:
                reads = ir.reads(node)
                if any(value in lost for value in reads):
                    self._drop(node, "an operand could not be computed", lost)
                    continue
                risk = self._risk(node)
                if risk.kind == "refused":
                    self._drop(node, risk.reason, lost)
                elif risk.kind == "open" or any(value in waiting for value in reads):
                    later.append(node)
                    waiting.update(node.outputs)
                elif risk.kind == "risky":
                    risky.append(node)
                    waiting.update(node.outputs)
                else:
                    stage.append(node)
            if not stage and not risky:
                for node in later:
                    self._drop(node, "its inputs are not constant", lost)
                break
            for node in risky:
                self._compute([node], {}, lost, risky=True)
            needed = dict.fromkeys(value for node in later for value in ir.reads(node))
            self._compute(stage, needed, lost)
            remaining = later
        return {value: self._known[value] for value in self._outputs if value in self._known}

    def _risk(self, node: ir.Node) -> FoldingRisk:
        evaluator = self._evaluator
        known = (self._constant, evaluator._functions, self._dtypes, evaluator._limit)
        return folding_risk(node, *known, evaluator._filled)

    def _constant(self, value: ir.Value) -> ir.TensorProtocol | None:
        known = self._known.get(value)
        return self._evaluator._constant(value) if known is None else known

    def _drop(self, node: ir.Node, reason: str, lost: set[ir.Value]) -> None:
        self._refused(node, reason)
        lost.update(node.outputs)

    def _compute(
        self, nodes: list[ir.Node], needed: dict[ir.Value, None], lost: set[ir.Value], *, risky: bool = False
    ) -> None:
        """Run ``nodes`` in one session, or, if that fails, each half separately."""
        nodes = [node for node in nodes if not self._is_lost(node, lost)]
        wanted = [
            value
            for node in nodes
            for value in node.outputs
            if value.name and (value in self._outputs or value in needed or risky)
        ]
        if not nodes or not wanted:
            return
        if self._evaluator.budget.over:
            for node in nodes:
                self._evaluator.budget.unfolded.add(ir.label(node))
                self._drop(node, "the time is up", lost)
            return
        try:
            self._known |= self._session(nodes, wanted, risky)
        except (RuntimeFailure, ResourceLimit, _Unfit) as failure:
            if len(nodes) == 1:
                self._drop(nodes[0], str(failure), lost)
                return
            half = len(nodes) // 2
            first, second = nodes[:half], nodes[half:]
            crossing = dict.fromkeys(value for node in second for value in ir.reads(node))
            self._compute(first, needed | crossing, lost)
            self._compute(second, needed, lost)
        for value in wanted:
            if value not in self._known:
                lost.add(value)

    def _is_lost(self, node: ir.Node, lost: set[ir.Value]) -> bool:
        if not any(value in lost for value in ir.reads(node)):
            return False
        self._drop(node, "an operand could not be computed", lost)
        return True

    def _session(self, nodes: list[ir.Node], wanted: list[ir.Value], risky: bool) -> Tensors:
        model = _ConstantModel(nodes, wanted, self._constant)
        evaluator = self._evaluator
        graph = nodes[0].graph
        imports = dict(evaluator._imports(graph)) if graph is not None else {"": 17}
        data = model.serialized(
            imports, min(evaluator._ir_version, _NEWEST_IR), evaluator._functions.values()
        )
        results = evaluator._run(data, model.large, plain=all(map(is_plain, nodes)), risky=risky)
        tensors: Tensors = {}
        for value, name in model.names.items():
            if name in results:
                tensor = to_tensor(*results[name])
                if tensor is not None and tensor.nbytes <= evaluator._limit:
                    tensors[value] = tensor
        return tensors


class _Unfit(Exception):
    """The nodes can't be combined in one model."""


class _ConstantModel:
    """A model without inputs from copies of ``nodes``, with values renamed to be unique."""

    def __init__(self, nodes: list[ir.Node], wanted: list[ir.Value], constant: Constant) -> None:
        self.large: dict[str, tuple[Any, str]] = {}
        self.names: dict[ir.Value, str] = {}
        self._copies: dict[ir.Value, ir.Value] = {}
        self._initializers: list[ir.Value] = []
        captured = {value: None for node in nodes for value in ir.captured(node)}
        captured_names = [value.name for value in captured]
        if len(set(captured_names)) != len(captured_names):
            raise _Unfit("two values of the same name are read by bodies")
        for value in captured:
            self._copies[value] = ir.Value(name=value.name)
        for node in nodes:
            for value in node.outputs:
                self._copy(value)
        produced = {value for node in nodes for value in node.outputs}
        for node in nodes:
            for value in ir.reads(node):
                if value not in produced:
                    self._set_constant(value, constant)
        self._nodes = [self._copied(node, index) for index, node in enumerate(nodes)]
        self._outputs = [self._copies[value] for value in wanted]
        self.names = {value: self._copies[value].name or "" for value in wanted}

    def _copy(self, value: ir.Value) -> ir.Value:
        copy = self._copies.get(value)
        if copy is None:
            copy = ir.Value(name=f"graphopt:{len(self._copies)}" if value.name else "")
            self._copies[value] = copy
        return copy

    def _set_constant(self, value: ir.Value, constant: Constant) -> None:
        copy = self._copy(value)
        if copy.const_value is not None:
            return
        tensor = constant(value)
        if tensor is None:
            raise _Unfit(f"{value.name!r} is not constant")
        name = copy.name or ""
        type_ = f"tensor({tensor.dtype.name.lower()})"
        in_bytes = type_ not in LOW_TYPES or LOW_TYPES[type_].bits >= 8
        if tensor.nbytes >= _LARGE and in_bytes and tensor.dtype != ir.DataType.STRING:
            self.large[name] = (tensor.numpy(), type_)
            tensor = ir.ExternalTensor(
                "given",
                0,
                tensor.nbytes,
                tensor.dtype,
                shape=tensor.shape,  # type: ignore[arg-type]
                name=name,
            )
        copy.const_value = tensor
        copy.type = ir.TensorType(tensor.dtype)
        copy.shape = ir.Shape(tensor.shape)  # type: ignore[arg-type]
        self._initializers.append(copy)

    def _copied(self, node: ir.Node, index: int) -> ir.Node:
        return ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else self._copies[value] for value in node.inputs],
            node.attributes.values(),
            overload=node.overload,
            outputs=[self._copy_output(value) for value in node.outputs],
            name=f"n{index}",
        )

    def _copy_output(self, value: ir.Value) -> ir.Value:
        return self._copies[value] if value.name else ir.Value(name="")

    def serialized(
        self, imports: Mapping[str, int], ir_version: int, functions: Iterable[ir.Function]
    ) -> bytes:
        """The serialized model."""
        graph = ir.Graph(
            [],
            self._outputs,
            nodes=self._nodes,
            initializers=self._initializers,
            opset_imports=dict(imports),
            name="g",
        )
        called = list(functions)
        model = ir.Model(graph, ir_version=max(ir_version, 8) if called else ir_version, functions=called)
        return ir.to_proto(model).SerializeToString()


def to_tensor(value: Any, type_: str) -> ir.TensorProtocol | None:
    """A result as a tensor; ``None`` if it is a sequence, a map or absent."""
    if not type_.startswith("tensor(") or value is None:
        return None
    if type_ == "tensor(string)":
        texts = [text.encode() if isinstance(text, str) else text for text in np.asarray(value).reshape(-1)]
        return ir.StringTensor(texts, shape=ir.Shape(np.shape(value)))
    low = LOW_TYPES.get(type_)
    array = np.asarray(value)
    dtype = ir.DataType(low.code) if low is not None else ir.DataType.from_numpy(array.dtype)
    return ir.Tensor(array, dtype=dtype)
