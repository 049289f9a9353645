"""Templates in C: the common part of their printers.

A template has a printer in :mod:`graphopt.fusion.backends.c.templates`, in a module of its name that binds
``PRINTER`` to a subclass of :class:`TemplatePrinter`. Its schedule is C in a header. Static parameters are
arguments of its functions, which compilers propagate.

In the functions of a template, ``run`` is a ``NAME_run *`` with the operands ``run->in[k]`` (NULL for omitted
ones), the results ``run->out[k]``, a flag ``run->failed`` for threads, and the template's ``state``.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from typing import ClassVar

from graphopt.fusion.backends.c.epilogue_printer import EpiloguePrinter
from graphopt.fusion.backends.c.requirements import ShapeRequirements, require
from graphopt.fusion.c_code.input_checks import input_checks, size_definitions
from graphopt.fusion.c_code.size_variables import SizeVariables
from graphopt.fusion.loops.ir import Port
from graphopt.fusion.template_kernel import RESULT, TemplateKernel
from graphopt.util.lazy_dataclass import dataclass

_PACKAGE = "graphopt.fusion.backends.c.templates"
#: ``GO_MOST_DIMS`` of ``packed.h``, and ``GO_MOST_CONSTANTS`` of ``runtime.h``.
_MOST_DIMS, _MOST_CONSTANTS = 16, 8
#: The message after a failed allocation.
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class PackedConstant:
    """An operand that is packed once per session if it is constant (``go_constant`` of ``runtime.h``).

    Attributes:
        operand: its number.
        size, pack: names of C functions.
    """

    operand: int
    size: str
    pack: str


class TemplatePrinter(ABC):
    """Prints the kernel of a template.

    Attributes:
        names: the names of the operands in messages, from the schemas of ONNX and onnxruntime.
        headers: files in ``include``, which define the C functions of the template, in order of dependence.
        state: members of ``NAME_run`` for the template.
        runs_empty: whether :meth:`run` has work although the first result is empty.
    """

    names: ClassVar[tuple[str, ...]] = ()
    headers: ClassVar[tuple[str, ...]] = ()
    state: ClassVar[str] = ""
    runs_empty: ClassVar[bool] = False

    def __init__(self, kernel: TemplateKernel) -> None:
        self.kernel = kernel
        self.name = kernel.name
        self.epilogue = None if kernel.epilogue is None else EpiloguePrinter(kernel.epilogue, kernel.name)

    # Implemented by templates

    @abstractmethod
    def dims(self) -> Sequence[Sequence[str]]:
        """C expressions of the shape of each result; ``inK[axis]`` are the dims of operand K."""

    @abstractmethod
    def run(self) -> Iterator[str]:
        """Statements of ``NAME_main`` that compute the results.

        They use ``call``, ``run``, the dims ``inK`` of operands and ``dimsK`` of results. All results
        have memory, and the first one is not empty unless :attr:`runs_empty`. Failures are those of
        :func:`graphopt.fusion.backends.c.requirements.require`.
        """

    def functions(self) -> str:
        """C functions before ``NAME_main``, such as that for ``go_parallel``."""
        return ""

    def checks(self) -> Iterator[str]:
        """Statements that check the shapes of operands beyond their types; first in ``NAME_main``."""
        return iter(())

    def label(self, operand: int) -> str:
        """The name of an operand in messages."""
        return self.names[operand] if operand < len(self.names) else f"operand {operand}"

    def constants(self) -> Sequence[PackedConstant]:
        """Operands that are packed once per session."""
        return ()

    # For templates

    @property
    def finish(self) -> str:
        """Name of the C function that stores a run of elements of the first result, after the epilogue.

        ``(void *run, int64_t at, int64_t count, const void *values)``: elements ``at`` to ``at + count`` in
        row-major order, contiguous at ``values``. Threads may call it for disjoint runs.
        """
        return f"{self.name}_finish"

    @property
    def is_direct(self) -> bool:
        """Whether there is no epilogue, so that results may be written directly to ``run->out``."""
        return self.epilogue is None

    def operand(self, number: int) -> Port | None:
        """The port of an operand; ``None`` if it is omitted."""
        index = self.kernel.operands[number]
        return None if index is None else self.kernel.inputs[index]

    def rank_of(self, operand: int) -> int:
        """The number of axes of an operand that is not omitted."""
        port = self.operand(operand)
        assert port is not None
        return len(port.dims)

    def packed(self, operand: int) -> str:
        """The C expression of a packed operand, ``NULL`` after a failure."""
        places = [constant.operand for constant in self.constants()]
        return f"go_packed_operand(call, {places.index(operand)})"

    @property
    def shapes(self) -> ShapeRequirements:
        """Requirements for the shapes of operands."""
        return ShapeRequirements([self.label(operand) for operand in range(len(self.kernel.operands))])

    def stride(self, operand: int, axis: int) -> str:
        """The distance in memory between two neighbours along an axis of an operand, in elements."""
        return " * ".join(f"in{operand}[{each}]" for each in range(axis + 1, self.rank_of(operand))) or "1"

    def chunk_function(self, function: str, member: str) -> str:
        """``NAME_chunk`` for ``go_parallel``: ``function`` computes a chunk of a member of the run."""
        return f"""\
static void {self.name}_chunk(void *data, size_t chunk) {{
    {self.name}_run *const run = data;
    {function}(&run->{member}, chunk, {self.finish}, run, &run->failed);
}}
"""

    def memory_check(self) -> Iterator[str]:
        """Statements that fail if a thread has set ``run->failed``."""
        return require("!run->failed", OUT_OF_MEMORY)

    # The text

    def text(self) -> str:
        """All functions of the kernel; the last one, ``NAME_main``, is the entry point."""
        parts = [self._state()]
        if self.epilogue is not None:
            parts += [self.epilogue.text(), self.epilogue.prepare()]
        else:
            parts.append(self._copy())
        parts += [self.functions(), "\n".join(self._main()) + "\n"]
        return "\n".join(part for part in parts if part)

    def _state(self) -> str:
        sizes = 0 if self.epilogue is None else len(self.epilogue.sizes)
        sources = 0 if self.kernel.epilogue is None else len(self.kernel.epilogue.sources)
        outputs = max(len(self.kernel.results), len(self.kernel.outputs))
        lines = [
            "typedef struct {",
            f"    const void *in[{max(len(self.kernel.operands), 1)}], *from[{max(sources, 1)}];",
            f"    void *out[{outputs}];",
            f"    int64_t n[{max(sizes, 1)}];",
            "    int failed;",
            "    uint8_t table[256];" if self.epilogue is not None and self.epilogue.has_table else "",
            f"    {self.state}" if self.state else "",
            f"}} {self.name}_run;",
        ]
        return "\n".join(line for line in lines if line) + "\n"

    def _copy(self) -> str:
        """``NAME_finish`` without an epilogue."""
        place = self.kernel.results[0]
        width = self.kernel.outputs[place].element.bytes if place is not None else 1
        return f"""\
static inline void {self.finish}(void *data, int64_t at, int64_t count, const void *values) {{
    {self.name}_run *const run = data;
    memcpy((char *)run->out[0] + at * {width}, values, (size_t)count * {width});
}}
"""

    def _main(self) -> Iterator[str]:
        kernel = self.kernel
        yield f"static int {self.name}_main(go_call *call) {{"
        yield f"    {self.name}_run memory = {{0}}, *const run = &memory;"
        yield from self._inputs()
        for number, index in enumerate(kernel.operands):
            if index is not None:
                yield f"    const int64_t *const in{number} = given{index};"
                yield f"    (void)in{number};"
                yield f"    run->in[{number}] = data{index};"
        yield from self.checks()
        shapes = self.dims()
        for number, shape in enumerate(shapes):
            yield f"    const int64_t dims{number}[] = {{{', '.join(shape) or '0'}}};"
            yield f"    (void)dims{number};"
        yield from self._outputs(shapes)
        empty = [
            f"dims{number}[{axis}] == 0"
            for number, shape in enumerate(shapes[:1])
            for axis in range(len(shape))
        ]
        if empty and not self.runs_empty:
            yield f"    if ({' || '.join(empty)}) return 0;"
        yield from self.run()
        yield "    return 0;"
        yield "}"

    def _inputs(self) -> Iterator[str]:
        """The inputs of the group, and checks of their shapes."""
        kernel, sizes = self.kernel, SizeVariables()
        for index, port in enumerate(kernel.inputs):
            rank = len(port.dims)
            yield f"    int64_t given{index}[{max(rank, 1)}];"
            yield f"    const void *const data{index} = go_input(call, {index}, {rank}, given{index});"
            yield f"    if (!data{index}) return 1;"
        labels = [f"input {index}" for index in range(len(kernel.inputs))]
        for operand, place in reversed([*enumerate(kernel.operands)]):
            if place is not None:
                labels[place] = self.label(operand)
        checks = list(input_checks(kernel, sizes, "given", labels))
        yield from size_definitions(kernel, sizes, dims="given")
        yield from checks

    def _outputs(self, shapes: Sequence[Sequence[str]]) -> Iterator[str]:
        kernel = self.kernel
        if kernel.epilogue is None:
            for number, place in enumerate(kernel.results):
                if place is not None:
                    shape = f"dims{number}" if shapes[number] else "NULL"
                    rank = len(shapes[number])
                    yield f"    run->out[{number}] = go_output(call, {place}, {rank}, {shape});"
                    yield f"    if (!run->out[{number}]) return 1;"
            return
        dims = []
        for place, source in enumerate(kernel.epilogue.sources):
            dims.append("dims0" if source == RESULT else f"given{source}")
            if source != RESULT:
                yield f"    run->from[{place}] = data{source};"
        yield f"    const int64_t *const sources[] = {{{', '.join(dims)}}};"
        yield f"    if ({self.name}_prepare(call, run, sources)) return 1;"

    def table(self) -> tuple[str, int]:
        """Declarations of the packed constants as ``NAME_constants``, and their number."""
        rows = []
        for constant in self.constants():
            index = self.kernel.operands[constant.operand]
            assert index is not None, "omitted operands are not packed"
            rank = len(self.kernel.inputs[index].dims)
            assert rank <= _MOST_DIMS, "packed operands have few dims"
            rows.append(f"    {{{index}, {rank}, {constant.size}, {constant.pack}}},")
        if not rows:
            return "", 0
        assert len(rows) <= _MOST_CONSTANTS, "few operands are packed"
        text = [f"static const go_constant {self.name}_constants[] = {{", *rows, "};"]
        return "\n".join(text), len(rows)


def printer_for(kernel: TemplateKernel) -> TemplatePrinter:
    """The printer of ``kernel``."""
    return _printers()[kernel.template](kernel)


def template_names() -> frozenset[str]:
    """The names of all templates with a printer."""
    return frozenset(_printers())


@cache
def _printers() -> dict[str, type[TemplatePrinter]]:
    package = importlib.import_module(_PACKAGE)
    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__))
    return {name: importlib.import_module(f"{_PACKAGE}.{name}").PRINTER for name in names}
