"""MatMul and Gemm in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.expressions import float_literal
from graphopt.fusion.backends.c.requirements import require
from graphopt.fusion.backends.c.template_printer import PackedConstant, TemplatePrinter
from graphopt.fusion.templates.matmul import MatMulParameters

_A, _B, _C = range(3)


class MatMulPrinter(TemplatePrinter):
    """Prints ``alpha · A · B + beta · C``; the schedule is in ``gemm.h``."""

    names = ("A", "B", "C")
    headers = ("products/gemm_tiles.h", "products/gemm.h")
    state = "go_gemm product;"

    @property
    def _parameters(self) -> MatMulParameters:
        found: MatMulParameters = self.kernel.parameters
        return found

    def _dim(self, operand: int, axis: int) -> str:
        """The dim of A or B on an axis in the order of the matrices, counted from the last one."""
        order = self._parameters.orders[operand]
        return f"in{operand}[{order[axis]}]" if -axis <= len(order) else "1"

    def _stride(self, operand: int, axis: int) -> str:
        """The distance between elements of A or B along an axis, in elements."""
        order = self._parameters.orders[operand]
        if -axis > len(order):
            return "0"
        return self.stride(operand, order[axis])

    # The matrices: a vector A is a row, a vector B a column.

    @property
    def _m(self) -> str:
        return self._dim(_A, -2) if self._is_matrix(_A) else "1"

    @property
    def _n(self) -> str:
        return self._dim(_B, -1) if self._is_matrix(_B) else "1"

    @property
    def _k(self) -> str:
        return self._dim(_A, -1)

    def _is_matrix(self, operand: int) -> bool:
        return len(self._parameters.orders[operand]) > 1

    @property
    def _axes(self) -> int:
        """The number of axes of the batch."""
        return max(0, *(len(order) - 2 for order in self._parameters.orders))

    def dims(self) -> Sequence[Sequence[str]]:
        shape = []
        for axis in range(-self._axes - 2, -2):
            a, b = (self._dim(operand, axis) for operand in (_A, _B))
            shape.append(b if a == "1" else a if b == "1" else f"({a} == 1 ? {b} : {a})")
        if self._is_matrix(_A):
            shape.append(self._m)
        if self._is_matrix(_B):
            shape.append(self._n)
        return [shape]

    def checks(self) -> Iterator[str]:
        orders = self._parameters.orders
        yield from self.shapes.size(_B, orders[_B][-2 if self._is_matrix(_B) else -1], self._k)
        for axis in range(-self._axes - 2, -2):
            a, b = (self._dim(operand, axis) for operand in (_A, _B))
            if "1" not in (a, b):
                place = f"on axis {orders[_A][axis]}, B %lld on axis {orders[_B][axis]}"
                yield from require(f"{a} == {b} || {a} == 1 || {b} == 1", f"A is %lld long {place}", a, b)
        port = self.operand(_C)
        for dim, size in zip(range(len(port.dims))[::-1] if port else (), (self._n, self._m), strict=False):
            yield from self.shapes.size_or_one(_C, dim, size)

    @property
    def _is_packed(self) -> bool:
        """Whether B is packed if it is constant: one matrix."""
        return len(self._parameters.orders[_B]) == 2

    def constants(self) -> Sequence[PackedConstant]:
        return [PackedConstant(_B, f"{self.name}_size", f"{self.name}_pack")] if self._is_packed else []

    def functions(self) -> str:
        name = self.name
        text = ""
        if self._is_packed:
            rows, columns = self._parameters.orders[_B]
            strides = "dims[1], 1" if columns == 1 else "1, dims[1]"
            text = f"""\
static size_t {name}_size(const int64_t *dims) {{
    return go_gemm_packed_size(dims[{rows}], dims[{columns}]);
}}
static void {name}_pack(const void *from, const int64_t *dims, void *to) {{
    go_gemm_pack(from, dims[{rows}], dims[{columns}], {strides}, to);
}}
"""
        return text + self.chunk_function("go_gemm_chunk", "product")

    def run(self) -> Iterator[str]:
        found, axes = self._parameters, self._axes
        yield "    go_gemm *const product = &run->product;"
        values = {"a": "run->in[0]", "b": "run->in[1]", "m": self._m, "n": self._n, "k": self._k}
        values |= {"a_m": self._stride(_A, -2) if self._is_matrix(_A) else "0", "a_k": self._stride(_A, -1)}
        if self._is_matrix(_B):
            values |= {"b_k": self._stride(_B, -2), "b_n": self._stride(_B, -1)}
        else:
            values |= {"b_k": "1", "b_n": "0"}
        values |= {"alpha": float_literal(found.alpha), "beta": float_literal(found.beta)}
        port = self.operand(_C)
        if port is not None:
            rank = len(port.dims)
            values["c"] = "run->in[2]"
            # onnxruntime 1.31 copies C if there is nothing to add
            values["beta"] = f"{self._k} == 0 ? 1 : {values['beta']}"
            values["c_n"] = f"in2[{rank - 1}] == 1 ? 0 : 1" if rank else "0"
            values["c_m"] = "in2[0] == 1 ? 0 : in2[1]" if rank > 1 else "0"
        if self.is_direct:
            values["out"] = "run->out[0]"
        for name, value in values.items():
            yield f"    product->{name} = {value};"
        if axes:
            yield f"    product->axes = {axes};"
        for number, axis in enumerate(range(-axes - 2, -2)):
            yield f"    product->batch[{number}] = dims0[{number}];"
            for operand, name in ((_A, "a"), (_B, "b")):
                if -axis <= len(found.orders[operand]):
                    stride = f"{self._dim(operand, axis)} == 1 ? 0 : {self._stride(operand, axis)}"
                    yield f"    product->{name}_batch[{number}] = {stride};"
        if self._is_packed:
            yield "    const void *const packed = go_packed_constant(call, 0);"
            yield "    if (packed) go_gemm_use_packed(product, packed);"
        yield f"    go_parallel(call, {self.name}_chunk, run, go_gemm_plan(product));"
        yield from self.memory_check()


PRINTER = MatMulPrinter
