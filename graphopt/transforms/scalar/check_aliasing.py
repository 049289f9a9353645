"""check-aliasing: check that inputs and outputs may share a buffer, in any order of execution.

The counterpart of ``CheckInplace`` in PyTorch's JIT executor, which finds operators that overwrite values
with later readers. ONNX has no such operators. If a caller binds an input and an output to one buffer, as for
the key-value cache of a decoder, the effect is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

from graphopt import ir
from graphopt.analysis.symbolic import at_least
from graphopt.context import Context
from graphopt.errors import VerificationFailed
from graphopt.inputs.shared_buffer_pairs import parse_pair, resolve_pairs
from graphopt.ops import traits
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass

_OWN_BUFFERS = "give them buffers of their own"
#: Operators whose kernels in onnxruntime read each element before they write the one at the same position.
_ELEMENTWISE = frozenset({
    *("Abs", "Add", "And", "Ceil", "Clip", "Div", "Exp", "Floor", "LeakyRelu", "Log", "Mul", "Neg", "Not"),
    *("Or", "Reciprocal", "Relu", "Sigmoid", "Sqrt", "Sub", "Tanh", "Where", "Xor"),
})  # fmt: skip
#: Operators that work in place: the input whose buffer each output may share.
_IN_PLACE = {
    ("", "ScatterElements"): {0: 0},
    ("", "ScatterND"): {0: 0},
    ("", "TensorScatter"): {0: 0},
    (ir.MICROSOFT, "GroupQueryAttention"): {3: 1, 4: 2},
}


@dataclass(frozen=True)
class CheckAliasing(Pass):
    """Check that outputs may be written over inputs, as in ``check-aliasing{share=past=present}``.

    The pairs that share a buffer are given by ``share`` (``a=b+c=d``) and ``--share-buffers``; a ``*``
    matches any text, so that ``past.*=present.*`` names all pairs of a cache. Nodes may run in any
    topological order, and in each order all reads of the input must precede the write of the output: the
    output must depend on each reader of the input, or the reader must compute the output in place. Reads in
    bodies and through views count. Sizes that are known to differ are also an error. The model is not
    changed.

    Attributes:
        share: pairs of an input and the output that is written over it.

    Raises:
        UsageError: the input or the output does not exist.
        VerificationFailed: the output may overwrite elements before they are read, or the sizes differ.
    """

    name: ClassVar[str] = "check-aliasing"
    share: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in self.share:
            parse_pair(text)

    def run(self, model: ir.Model, cx: Context) -> None:
        """Check each pair of names."""
        inputs = {value.name or "": value for value in model.graph.inputs}
        outputs = {value.name or "": value for value in model.graph.outputs}
        given = [*map(parse_pair, self.share), *cx.options.share_buffers]
        pairs = resolve_pairs(given, inputs, outputs)
        if pairs:
            _check([(inputs[source], outputs[target]) for target, source in pairs.items()], cx)


def _check(pairs: list[tuple[ir.Value, ir.Value]], cx: Context) -> None:
    """Raise VerificationFailed if one of ``pairs`` must not share a buffer."""
    for (source, target), refusal in zip(pairs, refusals(pairs, cx), strict=True):
        if refusal is not None:
            raise refusal.error(source.name, target.name)


class Refusal(NamedTuple):
    """The reason why an output must not overwrite an input, and the next step."""

    reason: str
    hint: str

    def error(self, source: str | None, target: str | None) -> VerificationFailed:
        """The error about the input ``source`` and the output ``target``."""
        return VerificationFailed(
            f"input {source!r} and output {target!r} must not share a buffer: {self.reason}", hint=self.hint
        )


def refusals(pairs: Sequence[tuple[ir.Value, ir.Value]], cx: Context) -> list[Refusal | None]:
    """For each pair of input and output of the main graph, the reason why they must not share a buffer.

    ``None`` means that they may share one.
    """
    for output in cx.model.graph.outputs:  # facts about one output refine those about others
        cx.shape(output)
    reads = _Reads.of(cx.model.graph, dict.fromkeys(source for source, _ in pairs), cx)
    found: list[Refusal | None] = []
    for source, target in pairs:
        refusal = None
        if source is not target:  # an input returned as output is not written
            reason, hint = _size_obstacle(source, target, cx), _OWN_BUFFERS
            if reason is None:
                reason = _overwrite_reason(source, target, reads, cx)
                hint = f"{_OWN_BUFFERS}, or make each reader of the input an operand of the output"
            refusal = None if reason is None else Refusal(reason, hint)
        found.append(refusal)
    return found


@dataclass(frozen=True)
class _Reads:
    """The nodes of a graph that read elements of some values, and their order.

    Attributes:
        readers: the nodes that read each value, also in bodies and through views.
        bits: a bit for each of these nodes.
        before: for each node of the graph, the bits of all nodes on which it depends.
    """

    readers: dict[ir.Value, list[ir.Node]]
    bits: dict[ir.Node, int]
    before: dict[ir.Node | None, int]

    @classmethod
    def of(cls, graph: ir.Graph, sources: Iterable[ir.Value], cx: Context) -> _Reads:
        """The reads of ``sources`` in ``graph``."""
        readers = {source: list(dict.fromkeys(_reads(source, graph, cx))) for source in sources}
        bits: dict[ir.Node, int] = {}
        for node in (node for nodes in readers.values() for node in nodes):
            bits.setdefault(node, 1 << len(bits))
        return cls(readers, bits, _dependencies(graph, bits))

    def may_follow(self, node: ir.Node, writer: ir.Node) -> bool:
        """Whether ``node`` may run after ``writer``, which does not depend on it."""
        return not self.before.get(writer, 0) & self.bits[node]


def _overwrite_reason(source: ir.Value, target: ir.Value, reads: _Reads, cx: Context) -> str | None:
    """The reason why ``target`` may overwrite elements of ``source`` before they are read."""
    writer = target.producer()
    if writer is None:
        return f"{target.name!r} is another input, and may be written at any time"
    for node in reads.readers[source]:
        if node is writer:
            reason = _in_place_obstacle(node, source, target, cx)
            if reason is not None:
                return reason
        elif reads.may_follow(node, writer):
            return f"{_named(node)} reads it, and may run after {_named(writer)} has written {target.name!r}"
    if source.is_graph_output():
        return "it is also an output itself, and would be overwritten"
    return None


def _reads(source: ir.Value, graph: ir.Graph, cx: Context) -> Iterator[ir.Node]:
    """The nodes of ``graph`` that read elements of ``source``, also in bodies and through views."""
    pending, visited = [source], {source: None}
    while pending:
        value = pending.pop()
        for reader in ir.readers(value):
            if traits.reads_only_shape(reader):
                continue
            top: ir.Node | None = reader
            while top is not None and top.graph is not graph:
                top = None if top.graph is None else cx.edit.scopes.holder(top.graph)
            if top is not None:
                yield top
            if traits.is_alias(reader):
                fresh = [] if reader.inputs[0] is not value else reader.outputs[:1]
                pending += [output for output in fresh if output not in visited]
                visited |= dict.fromkeys(fresh)


def _dependencies(graph: ir.Graph, bits: dict[ir.Node, int]) -> dict[ir.Node | None, int]:
    """For each node, the bits of all nodes on which it depends, directly or indirectly."""
    before: dict[ir.Node | None, int] = {}
    for node in graph:
        needed = 0
        for value in ir.reads(node):
            producer = value.producer()
            if producer is not None and producer in before:
                needed |= before[producer] | bits.get(producer, 0)
        before[node] = needed
    return before


def _size_obstacle(source: ir.Value, target: ir.Value, cx: Context) -> str | None:
    """The reason why the sizes prevent sharing; onnxruntime checks sizes that are unknown."""
    dtypes = [cx.dtype(value) or value.dtype for value in (source, target)]
    if None in dtypes or dtypes[0] is not dtypes[1]:
        return "they are not known to be tensors of one dtype"
    one, other = cx.shape(source), cx.shape(target)
    if one is None or other is None:
        return None
    gaps = [a - b for a, b in zip(one, other, strict=False)]
    if len(one) == len(other) and not any(at_least(gap, 1) or at_least(-gap, 1) for gap in gaps):
        return None
    types = f"the input is {ir.type_text(dtypes[0], one)}, the output {ir.type_text(dtypes[1], other)}"
    fixed = "; only a cache of fixed size can" if len(one) == len(other) else ""
    return f"their sizes differ: {types}{fixed}"


def _in_place_obstacle(node: ir.Node, source: ir.Value, target: ir.Value, cx: Context) -> str | None:
    """The reason why ``node``, which reads ``source`` and writes ``target``, can't compute in place."""
    shared = _shared_operands(node, source)
    if traits.is_alias(node) and shared == [0]:
        return None
    if node.op_type in _ELEMENTWISE and node.domain == "":
        unlike = [index for index in shared if not cx.facts.shape_equal(node.inputs[index], target)]  # type: ignore[arg-type]
        return f"{_named(node)} reads it element by element, but in another shape" if unlike else None
    if node.op_type == "If" and node.domain == "":
        return _overwrite_reason_in_branch(node, source, node.outputs.index(target), cx)
    outputs = _IN_PLACE.get((node.domain, node.op_type), {})
    if shared and all(outputs.get(index) == node.outputs.index(target) for index in shared):
        return None
    return f"{_named(node)} reads it while it writes {target.name!r}"


def _overwrite_reason_in_branch(node: ir.Node, source: ir.Value, index: int, cx: Context) -> str | None:
    """The reason why output ``index`` of a branch of the If ``node`` may overwrite ``source``.

    onnxruntime writes the outputs of a branch directly to the buffers of the If.
    """
    for branch in ir.bodies(node):
        target = branch.outputs[index]
        if target is source:
            continue  # the buffer would be copied to itself
        reads = _Reads.of(branch, [source], cx)
        reason = _overwrite_reason(source, target, reads, cx)
        if reason is not None:
            return f"in {branch.name or 'a branch'} of {_named(node)}, {reason}"
    return None


def _shared_operands(node: ir.Node, source: ir.Value) -> list[int]:
    """The indices of the inputs of ``node`` that are ``source`` or views of it."""
    return [index for index, value in enumerate(node.inputs) if value is not None and _root(value) is source]


def _root(value: ir.Value) -> ir.Value:
    """The source of the view ``value``, or ``value`` itself."""
    while (node := value.producer()) is not None and traits.is_alias(node):
        if node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def _named(node: ir.Node) -> str:
    return f"{node.op_type} {ir.label(node)!r}"
