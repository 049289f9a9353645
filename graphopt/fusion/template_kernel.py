"""Template kernels: an operator with a hand-written schedule, and an epilogue in the loop IR.

A product, a recurrence or an attention is not a loop nest of the loop IR: its speed depends on register
blocks, packed weights and cached tiles, which a template fixes. Elementwise nodes after it are its
*epilogue*, which the template applies to each part of its result while that part is in a cache.

The scheme follows Inductor's templates (``torch/_inductor/select_algorithm.py``): a schedule with a place for
the code of fused nodes.
"""

from __future__ import annotations

from typing import Any

from graphopt.fusion.loops.ir import Kernel, Port, Symbol
from graphopt.util.lazy_dataclass import dataclass

#: In :attr:`Epilogue.sources`: the result of the template.
RESULT = -1


@dataclass(frozen=True)
class Epilogue:
    """Elementwise nodes that are applied to the result of a template.

    Attributes:
        kernel: the loops over the elements of the result, in row-major order.
        sources: for each input of ``kernel``, an input of the group, or :data:`RESULT`.
    """

    kernel: Kernel
    sources: tuple[int, ...]


@dataclass(frozen=True)
class TemplateKernel:
    """A group that a template computes.

    Attributes:
        name: name of the function that it implements; an identifier of C.
        template: name of the template, and of the modules that match and print it.
        inputs, outputs: the inputs and outputs of the group. Without an epilogue, outputs have no dims: the
            template computes them.
        symbols: sizes of the inputs, known when the kernel runs.
        parameters: the static parameters of the template, a frozen dataclass.
        operands: for each operand of the template, an input of the group; ``None`` if it is omitted.
        results: for each result of the template, an output of the group; ``None`` if nothing reads it.
        epilogue: applied to the only result.
        in_place: no pairs: templates read their operands repeatedly.
    """

    name: str
    template: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    symbols: tuple[Symbol, ...]
    parameters: Any
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    epilogue: Epilogue | None = None
    in_place: tuple[tuple[int, int], ...] = ()


#: Any native kernel.
NativeKernel = Kernel | TemplateKernel
