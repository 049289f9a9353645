"""Attention in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.expressions import float_literal
from graphopt.fusion.backends.c.template_printer import TemplatePrinter
from graphopt.fusion.templates.attention import KEY, MASK, QUERY, VALUE, AttentionParameters

_RESULT = 3


class AttentionPrinter(TemplatePrinter):
    """Prints softmax(scale · Q · Kᵀ + mask) · V; the schedule is in ``attention.h``."""

    headers = ("products/gemm_tiles.h", "products/attention.h")
    state = "go_attention attention;"

    @property
    def _parameters(self) -> AttentionParameters:
        found: AttentionParameters = self.kernel.parameters
        return found

    def _heads(self, operand: int) -> int:
        found = self._parameters
        return found.key_heads if operand in (KEY, VALUE) else found.heads

    def _length(self, operand: int) -> str:
        return f"in{operand}[{2 if self._parameters.by_heads[operand] else 1}]"

    def _depth(self, operand: int) -> str:
        """The number of elements of a head."""
        if self._parameters.by_heads[operand]:
            return f"in{operand}[3]"
        return f"in{operand}[2] / {self._heads(operand)}"

    def _strides(self, operand: int, length: str, depth: str) -> tuple[str, str, str]:
        """The strides of batches, heads and rows, in elements."""
        heads = self._heads(operand)
        batch = f"{heads} * ({length}) * ({depth})"
        if self._parameters.by_heads[operand]:
            return batch, f"({length}) * ({depth})", depth
        return batch, depth, f"{heads} * ({depth})"

    def dims(self) -> Sequence[Sequence[str]]:
        heads, batch, queries = self._parameters.heads, "in0[0]", self._length(QUERY)
        if self._parameters.by_heads[_RESULT]:
            return [[batch, str(heads), queries, self._depth(VALUE)]]
        return [[batch, queries, f"{heads} * ({self._depth(VALUE)})"]]

    def checks(self) -> Iterator[str]:
        found = self._parameters
        conditions = ["in1[0] == in0[0]", "in2[0] == in0[0]", f"{self._length(KEY)} == {self._length(VALUE)}"]
        conditions.append(f"{self._depth(QUERY)} == {self._depth(KEY)}")
        for operand in (QUERY, KEY, VALUE):
            heads = self._heads(operand)
            by_heads = found.by_heads[operand]
            conditions.append(f"in{operand}[1] == {heads}" if by_heads else f"in{operand}[2] % {heads} == 0")
        for axis, size in zip(found.mask_axes, self._sizes(), strict=False):
            if axis is not None:
                conditions.append(f"(in{MASK}[{axis}] == 1 || in{MASK}[{axis}] == {size})")
        if found.is_causal:
            conditions.append(f"{self._length(QUERY)} == {self._length(KEY)}")
        yield from self.require(*conditions)

    def _sizes(self) -> list[str]:
        """Batch, heads, queries and keys."""
        return ["in0[0]", str(self._parameters.heads), self._length(QUERY), self._length(KEY)]

    def functions(self) -> str:
        return self.chunk_function("go_attention_chunk", "attention")

    def run(self) -> Iterator[str]:
        found = self._parameters
        batch, heads, queries, keys = self._sizes()
        yield "    go_attention *const a = &run->attention;"
        values = {
            "batch": batch,
            "heads": heads,
            "group": str(found.heads // found.key_heads),
            "queries": queries,
            "keys": keys,
            "depth": self._depth(QUERY),
            "width": self._depth(VALUE),
            "is_causal": str(int(found.is_causal)),
        }
        for operand, name in ((QUERY, "q"), (KEY, "k"), (VALUE, "v")):
            values[name] = f"run->in[{operand}]"
            strides = self._strides(operand, self._length(operand), self._depth(operand))
            values |= dict(zip((f"{name}_batch", f"{name}_head", f"{name}_row"), strides, strict=True))
        strides = self._strides(_RESULT, queries, self._depth(VALUE))
        values |= dict(zip(("out_batch", "out_head", "out_row"), strides, strict=True))
        if found.mask_axes:
            values |= {"mask": f"run->in[{MASK}]", "is_boolean": str(int(found.is_boolean))}
            values |= {"is_zero": str(int(found.is_zero))}
            names = ("mask_batch", "mask_head", "mask_row", "mask_key")
            for name, axis in zip(names, found.mask_axes, strict=True):
                if axis is not None:
                    values[name] = f"in{MASK}[{axis}] == 1 ? 0 : {self.stride(MASK, axis)}"
        for name, value in values.items():
            yield f"    a->{name} = {value};"
        scale = "1 / __builtin_sqrtf((float)a->depth)" if found.scale is None else float_literal(found.scale)
        yield f"    a->scale = {scale};"
        yield f"    go_parallel(call, {self.name}_chunk, run, go_attention_plan(a));"
        yield from self.memory_check()


PRINTER = AttentionPrinter
