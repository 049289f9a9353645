"""Attention in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.expressions import float_literal
from graphopt.fusion.backends.c.requirements import require
from graphopt.fusion.backends.c.template_printer import TemplatePrinter
from graphopt.fusion.templates.attention import (
    COSINES,
    KEY,
    LENGTHS,
    MASK,
    PAST_KEY,
    PAST_VALUE,
    QUERY,
    SINES,
    TOTAL,
    VALUE,
    AttentionParameters,
)

_RESULT = 3
#: Messages about the operands of GroupQueryAttention.
_DEPTH = "heads of query have %lld elements"
_DEPTHS = f"{_DEPTH}, those of value %lld"
_TOTAL = "total_sequence_length is %lld, with %lld past and %lld new keys"
_QUERIES = "%lld queries after a past in %lld batches: several are supported in one batch only"
_ANGLES = "cos_cache is %lld long on axis 1, for heads of %lld elements"


class AttentionPrinter(TemplatePrinter):
    """Prints softmax(scale · Q · Kᵀ + mask) · V, and the present; the schedule is in ``attention.h``."""

    names = (
        *("query", "key", "value", "mask", "past_key", "past_value"),
        *("seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"),
    )
    headers = ("products/shuffles.h", "products/gemm_tiles.h", "products/attention.h")
    state = "go_attention attention;"

    @property
    def runs_empty(self) -> bool:  # type: ignore[override]
        return self._has_present

    @property
    def _parameters(self) -> AttentionParameters:
        found: AttentionParameters = self.kernel.parameters
        return found

    @property
    def _has_present(self) -> bool:
        return len(self.kernel.results) > 1

    @property
    def _is_packed(self) -> bool:
        """Whether the queries are packed with the keys and values: heads of each, side by side."""
        return self.operand(KEY) is None

    def _heads(self, operand: int) -> int:
        found = self._parameters
        return found.key_heads if operand in (KEY, VALUE) else found.heads

    def _length(self, operand: int) -> str:
        if self._is_packed:
            return "in0[1]"
        return f"in{operand}[{2 if self._parameters.by_heads[operand] else 1}]"

    def _depth(self, operand: int) -> str:
        """The number of elements of a head."""
        if self._is_packed:
            return f"in0[2] / {self._packed_heads}"
        if self._parameters.by_heads[operand]:
            return f"in{operand}[3]"
        return f"in{operand}[2] / {self._heads(operand)}"

    @property
    def _packed_heads(self) -> int:
        return self._parameters.heads + 2 * self._parameters.key_heads

    def _strides(self, operand: int, length: str, depth: str) -> tuple[str, str, str]:
        """The strides of batches, heads and rows, in elements."""
        heads = self._heads(operand)
        if self._is_packed and operand != _RESULT:
            return "in0[1] * in0[2]", depth, "in0[2]"
        batch = f"{heads} * ({length}) * ({depth})"
        if self._parameters.by_heads[operand]:
            return batch, f"({length}) * ({depth})", depth
        return batch, depth, f"{heads} * ({depth})"

    def dims(self) -> Sequence[Sequence[str]]:
        heads, batch, queries, width = self._parameters.heads, "in0[0]", "queries", self._depth(VALUE)
        shape = [batch, queries, f"{heads} * ({width})"]
        if self._parameters.by_heads[_RESULT]:
            shape = [batch, str(heads), queries, width]
        if not self._has_present:
            return [shape]
        present = [batch, str(self._parameters.key_heads), "present"]
        return [shape, [*present, self._depth(QUERY)], [*present, width]]

    def checks(self) -> Iterator[str]:
        found = self._parameters
        past = f"in{PAST_KEY}[2]" if self.operand(PAST_KEY) is not None else "0"
        yield f"    const int64_t queries = {self._length(QUERY)}, added = {self._length(KEY)};"
        yield f"    const int64_t past = {past};"
        if found.is_grouped:
            yield from self.shapes.shape(TOTAL, [1] * self.rank_of(TOTAL))
            yield f"    const int64_t total = *(const int32_t *)run->in[{TOTAL}];"
            yield "    const int64_t present = total > past ? total : past;"
        else:
            yield "    const int64_t present = past + added;"
        yield from self._size_checks()
        if found.is_grouped:
            yield from self._grouped_checks()

    def _size_checks(self) -> Iterator[str]:
        """Statements that check the sizes of the operands that all operators have."""
        found, shapes = self._parameters, self.shapes
        if self._is_packed:
            yield from shapes.multiple(QUERY, 2, self._packed_heads)
        else:
            for operand in (QUERY, KEY, VALUE):
                heads, by_heads = self._heads(operand), found.by_heads[operand]
                yield from shapes.size(operand, 0, "in0[0]") if operand != QUERY else ()
                yield from shapes.size(operand, 1, heads) if by_heads else shapes.multiple(operand, 2, heads)
            yield from shapes.size(VALUE, 2 if found.by_heads[VALUE] else 1, "added")
            depths = self._depth(QUERY), self._depth(KEY)
            message = "heads of query have %lld elements, those of key %lld"
            yield from require(f"{depths[0]} == {depths[1]}", message, *depths)
        for operand in (PAST_KEY, PAST_VALUE):
            if self.operand(operand) is not None:
                depth = self._depth(QUERY if operand == PAST_KEY else VALUE)
                yield from shapes.shape(operand, ("in0[0]", found.key_heads, "past", depth))
        for axis, size in zip(found.mask_axes[:2], ("in0[0]", str(found.heads)), strict=False):
            if axis is not None:
                yield from shapes.size_or_one(MASK, axis, size)
        for axis, size in zip(found.mask_axes[2:], ("queries", "present"), strict=False):
            if axis is not None:
                yield from shapes.size(MASK, axis, size)
        if found.is_causal:
            message = "%lld queries and %lld keys, which causal attention requires to be equal"
            yield from require("queries == added", message, "queries", "added")

    def _grouped_checks(self) -> Iterator[str]:
        """The conditions of GroupQueryAttention, by which all accesses are in bounds."""
        depth, width, shapes = self._depth(QUERY), self._depth(VALUE), self.shapes
        yield from shapes.size(LENGTHS, 0, "in0[0]")
        yield from require(f"{depth} == {width}", _DEPTHS, depth, width)
        yield from require(f"{depth} % 8 == 0", f"{_DEPTH}, a multiple of 8 expected", depth)
        yield from require("total == past + added || total <= past", _TOTAL, "total", "past", "added")
        yield from require("total == queries || queries == 1 || in0[0] == 1", _QUERIES, "queries", "in0[0]")
        positions = "present"
        if self.operand(COSINES) is not None:
            positions = f"in{COSINES}[0]"
            yield from require(f"{depth} % 16 == 0", f"{_DEPTH}, a multiple of 16 expected", depth)
            yield from shapes.multiple(COSINES, 1, 8)
            angles = f"in{COSINES}[1]"
            yield from require(f"2 * {angles} <= {depth}", _ANGLES, angles, depth)
            yield from shapes.shape(SINES, [f"in{COSINES}[{axis}]" for axis in range(2)])
            message = "cos_cache has %lld positions, total_sequence_length is %lld"
            yield from require(f"{positions} >= total", message, positions, "total")
        yield "    for (int64_t batch = 0; batch < in0[0]; batch++) {"
        yield f"        const int64_t length = ((const int32_t *)run->in[{LENGTHS}])[batch] + (int64_t)1;"
        yield f"        if (length >= 1 && length <= present && length <= {positions} &&"
        yield "            (total == queries || (length >= queries && length - queries <= past))) continue;"
        yield from require("0", "seqlens_k contains %lld, which is out of range", "length - 1")
        yield "    }"

    def functions(self) -> str:
        text = self.chunk_function("go_attention_chunk", "attention")
        if not self._has_present:
            return text
        return f"""\
{text}static void {self.name}_append(void *data, size_t index) {{
    go_attention_append(&(({self.name}_run *)data)->attention, index);
}}
"""

    def run(self) -> Iterator[str]:
        values = self._values()
        yield from (f"    run->attention.{name} = {value};" for name, value in values.items())
        yield "    const size_t chunks = go_attention_plan(&run->attention);"
        if self._has_present:
            count = f"(size_t)(in0[0] * {self._parameters.key_heads})"
            yield f"    go_parallel(call, {self.name}_append, run, {count});"
        yield f"    go_parallel(call, {self.name}_chunk, run, chunks);"
        yield from self.memory_check()

    def _values(self) -> dict[str, str]:
        """The members of ``go_attention``."""
        found = self._parameters
        depth, width = self._depth(QUERY), self._depth(VALUE)
        scale = (
            f"1 / __builtin_sqrtf((float)({depth}))" if found.scale is None else float_literal(found.scale)
        )
        values = {
            "batch": "in0[0]",
            "heads": str(found.heads),
            "group": str(found.heads // found.key_heads),
            "queries": "queries",
            "added": "added",
            "past": "past",
            "present": "present",
            "depth": depth,
            "width": width,
            "scale": scale,
            "cap": float_literal(found.softcap),
            "window": str(found.window),
            "is_causal": str(int(found.is_causal)),
            "is_exact": str(int(found.is_grouped)),
            "is_guarded": str(int(found.is_guarded)),
        }
        offsets = {KEY: found.heads, VALUE: found.heads + found.key_heads} if self._is_packed else {}
        for operand, name in ((QUERY, "q"), (KEY, "k"), (VALUE, "v")):
            heads = offsets.get(operand)
            values[name] = (
                f"run->in[{operand}]"
                if heads is None
                else f"(const float *)run->in[{QUERY}] + {heads} * ({depth})"
            )
            strides = self._strides(operand, self._length(operand), self._depth(operand))
            values |= dict(zip((f"{name}_batch", f"{name}_head", f"{name}_row"), strides, strict=True))
        strides = self._strides(_RESULT, "queries", width)
        values |= dict(zip(("out_batch", "out_head", "out_row"), strides, strict=True))
        if self.operand(PAST_KEY) is not None:
            values |= {"past_k": f"run->in[{PAST_KEY}]", "past_v": f"run->in[{PAST_VALUE}]"}
        if self._has_present:
            values |= {"present_k": "run->out[1]", "present_v": "run->out[2]"}
        if found.is_grouped:
            values |= {"lengths": f"run->in[{LENGTHS}]", "is_prompt": "total == queries"}
            values |= {
                "zeros": "total > 1"
            }  # in onnxruntime 1.31, which computes a single key by another function
        if self.operand(COSINES) is not None:
            values |= {"cosines": f"run->in[{COSINES}]", "sines": f"run->in[{SINES}]"}
            values |= {"turned": f"in{COSINES}[1]", "is_interleaved": str(int(found.is_interleaved))}
        return values | self._mask_values()

    def _mask_values(self) -> dict[str, str]:
        found = self._parameters
        if not found.mask_axes:
            return {}
        values = {"mask": f"run->in[{MASK}]", "is_boolean": str(int(found.is_boolean))}
        values |= {"is_zero": str(int(found.is_zero))}
        names = ("mask_batch", "mask_head", "mask_row", "mask_key")
        for name, axis in zip(names, found.mask_axes, strict=True):
            if axis is not None:
                values[name] = f"in{MASK}[{axis}] == 1 ? 0 : {self.stride(MASK, axis)}"
        return values


PRINTER = AttentionPrinter
