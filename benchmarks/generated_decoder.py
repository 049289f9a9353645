"""Generate decoder-only models of any size, as torch's TorchScript exporter writes them, with sparse weights.

The graph is that of a Llama model with a key-value cache: RMSNorm in float32, rotary embeddings, grouped
attention with repeated keys and values, and a mask, all written out in standard operators. The axes batch,
seq, past and total are dynamic. Weights are external data in files with holes: each weight begins with random
numbers, so that no two weights are equal, and the rest reads as zeros and occupies no disk space. The
embedding is random as a whole up to :data:`_DENSE_BYTES`, so that most tokens have nonzero states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Bytes of random numbers at the beginning of each weight.
_HEAD_BYTES = 1 << 16
#: Bytes up to which an embedding is random as a whole.
_DENSE_BYTES = 300_000_000
#: Boundary of the weights in a file, in bytes; mapped files require it.
_PAGE = 4096
_OPSET = 17


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder.

    Attributes:
        layers, hidden, inner, heads, cached_heads, words: numbers of layers, features, features inside the
            MLP, attention heads, heads of keys and values, and tokens.
        block: elements of a block of MatMulNBits in 4 bits; 0 for fp16 products.
        is_split: whether each weight has a file of its own.
    """

    layers: int
    hidden: int
    inner: int
    heads: int
    cached_heads: int
    words: int
    block: int = 0
    is_split: bool = False

    @property
    def width(self) -> int:
        """Features of a head."""
        return self.hidden // self.heads


def write(shape: Shape, path: Path, *, element: type[np.generic] = np.float16) -> Path:
    """Write the decoder and its weights beside it; returns ``path``."""
    writer = _Weights(path, element, is_split=shape.is_split)
    graph = _Decoder(shape, writer, element).graph()
    imports = [helper.make_opsetid("", _OPSET)]
    imports += [helper.make_opsetid("com.microsoft", 1)] if shape.block else []
    model = helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name="pytorch")
    path.write_bytes(model.SerializeToString())
    return path


class _Weights:
    """Writes weights to sparse files beside the model."""

    def __init__(self, path: Path, element: type[np.generic], *, is_split: bool) -> None:
        self._path, self._element, self._is_split = path, np.dtype(element), is_split
        self._random = np.random.default_rng(0)
        self._end = 0
        self._data = path.with_name(f"{path.name}.data")
        if not is_split:
            self._data.write_bytes(b"")
        self.tensors: list[TensorProto] = []

    def add(self, name: str, dims: Sequence[int], *, scale: float, packed: bool = False) -> str:
        """Declare a weight, or packed bytes, and write its random numbers."""
        dtype = np.dtype(np.uint8) if packed else self._element
        nbytes = dtype.itemsize * int(np.prod(dims))
        is_dense = name.endswith("embed_tokens.weight") and nbytes <= _DENSE_BYTES
        count = (nbytes if is_dense else min(nbytes, _HEAD_BYTES)) // dtype.itemsize
        if packed:
            head = self._random.integers(0, 256, count, np.uint8)
        else:
            head = (self._random.standard_normal(count, np.float32) * scale).astype(dtype)
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(dtype), dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        file, offset = self._data, self._end
        if self._is_split:
            file, offset = self._path.with_name(name), 0
            file.write_bytes(b"")
        with open(file, "r+b") as stream:
            stream.seek(offset)
            stream.write(head.tobytes())
            stream.truncate(offset + nbytes)
        self._end = -(-(offset + nbytes) // _PAGE) * _PAGE
        for key, value in (("location", file.name), ("offset", offset), ("length", nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        self.tensors.append(tensor)
        return name


class _Decoder:
    """Builds the graph node by node, with the names that the exporter uses."""

    def __init__(self, shape: Shape, weights: _Weights, element: type[np.generic]) -> None:
        self._shape, self._weights, self._element = shape, weights, element
        self._float = helper.np_dtype_to_tensor_dtype(np.dtype(element))
        self._nodes: list[onnx.NodeProto] = []
        self._scope = "/model"
        self._count: dict[str, int] = {}

    def graph(self) -> onnx.GraphProto:
        shape, width = self._shape, self._shape.width
        cache = [("batch", shape.cached_heads, total, width) for total in ("past", "total")]
        names = [f"{layer}.{part}" for layer in range(shape.layers) for part in ("key", "value")]
        integer = TensorProto.INT64
        inputs = [
            helper.make_tensor_value_info("input_ids", integer, ("batch", "seq")),
            helper.make_tensor_value_info("attention_mask", integer, ("batch", "total")),
            helper.make_tensor_value_info("position_ids", integer, ("batch", "seq")),
            *(
                helper.make_tensor_value_info(f"past_key_values.{name}", self._float, cache[0])
                for name in names
            ),
        ]
        logits = ("batch", "seq", shape.words)
        outputs = [
            helper.make_tensor_value_info("logits", self._float, logits),
            *(helper.make_tensor_value_info(f"present.{name}", self._float, cache[1]) for name in names),
        ]
        self._body()
        return helper.make_graph(self._nodes, "main_graph", inputs, outputs, self._weights.tensors)

    def _op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node of one output; returns the name of the output."""
        base = f"{self._scope}/{kind}"
        number = self._count[base] = self._count.get(base, -1) + 1
        name = f"{base}_{number}" if number else base
        output = output or f"{name}_output_0"
        self._nodes.append(helper.make_node(kind, inputs, [output], name, **attributes))
        return output

    def _constant(self, value: object, dtype: type[np.generic] = np.int64) -> str:
        return self._op("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def _dim(self, value: str, axis: int) -> str:
        return self._op("Gather", self._op("Shape", value), self._constant(axis), axis=0)

    def _concat(self, *parts: str | int) -> str:
        """The shape of ``parts``, sizes or names of scalars."""
        vectors = [
            self._constant([part])
            if isinstance(part, int)
            else self._op("Unsqueeze", part, self._constant([0]))
            for part in parts
        ]
        return self._op("Concat", *vectors, axis=0)

    def _cast(self, value: str, to: int) -> str:
        return self._op("Cast", value, to=to)

    def _linear(self, x: str, name: str, rows: int, columns: int) -> str:
        """A product with the weight ``name``, in 4 bits if the shape has blocks."""
        block = self._shape.block
        if not block:
            weight = self._weights.add(f"{name}.weight", (rows, columns), scale=0.05)
            return self._op("MatMul", x, weight)
        dims = (columns, rows // block, block // 2)
        packed = self._weights.add(f"{name}.qweight", dims, scale=1, packed=True)
        # holes read as -8 in units of the scale, so that sums are large, and larger scales amplify rounding
        scales = self._weights.add(f"{name}.scales", (columns * (rows // block),), scale=0.0003)
        sizes: dict[str, Any] = {"K": rows, "N": columns, "bits": 4, "block_size": block}
        return self._op("MatMulNBits", x, packed, scales, domain="com.microsoft", **sizes)

    def _norm(self, x: str, name: str) -> str:
        """RMSNorm, in float32."""
        wide = self._cast(x, TensorProto.FLOAT)
        square = self._op("Pow", wide, self._constant(2, np.float32))
        mean = self._op("ReduceMean", square, axes=[-1])
        root = self._op("Sqrt", self._op("Add", mean, self._constant(1e-5, np.float32)))
        scaled = self._op("Mul", wide, self._op("Div", self._constant(1, np.float32), root))
        weight = self._weights.add(f"{name}.weight", (self._shape.hidden,), scale=1)
        return self._op("Mul", weight, self._cast(scaled, self._float))

    def _body(self) -> None:
        shape = self._shape
        table = self._weights.add("model.embed_tokens.weight", (shape.words, shape.hidden), scale=1)
        x = self._op("Gather", table, "input_ids")
        batch, seq = self._dim("input_ids", 0), self._dim("input_ids", 1)
        past = self._dim("past_key_values.0.key", 2)
        total = self._op("Add", past, seq)
        mask = self._mask(batch, seq, past, total)
        angles = self._angles(batch)
        for layer in range(shape.layers):
            self._scope = f"/model/layers.{layer}"
            name = f"model.layers.{layer}"
            inside = self._norm(x, f"{name}.input_layernorm")
            x = self._op("Add", x, self._attention(inside, layer, mask, angles))
            inside = self._norm(x, f"{name}.post_attention_layernorm")
            x = self._op("Add", x, self._mlp(inside, name))
        self._scope = "/model/norm"
        x = self._norm(x, "model.norm")
        self._scope = "/lm_head"
        logits = self._weights.add("lm_head.weight", (shape.hidden, shape.words), scale=0.05)
        self._op("MatMul", x, logits, output="logits")

    def _mask(self, batch: str, seq: str, past: str, total: str) -> str:
        """The additive mask ``[batch, 1, seq, total]`` of later and of padded tokens."""
        least = self._constant(np.finfo(np.dtype(self._element)).min, self._element)
        keys = self._op("Range", self._constant(0), total, self._constant(1))
        queries = self._op("Range", past, total, self._constant(1))
        later = self._op("Greater", keys, self._op("Reshape", queries, self._constant([-1, 1])))
        full = self._op("Expand", least, self._concat(seq, total))
        causal = self._op("Mul", full, self._cast(later, self._float))
        causal = self._op(
            "Unsqueeze", self._op("Unsqueeze", causal, self._constant([0])), self._constant([1])
        )
        causal = self._op("Expand", causal, self._concat(batch, 1, seq, total))
        given = self._op("Unsqueeze", "attention_mask", self._constant([1]))
        given = self._cast(self._op("Unsqueeze", given, self._constant([2])), self._float)
        padded = self._op("Equal", self._op("Add", causal, given), self._constant(0, self._element))
        return self._op("Where", padded, least, causal)

    def _angles(self, batch: str) -> tuple[str, str]:
        """Cosines and sines ``[batch, 1, seq, width]`` of the positions."""
        self._scope = "/model/rotary_emb"
        width = self._shape.width
        frequencies = 10000.0 ** -(np.arange(0, width, 2, dtype=np.float32) / width)
        table = self._constant(frequencies[None, :, None], np.float32)
        table = self._op("Expand", table, self._concat(batch, width // 2, 1))
        positions = self._op("Unsqueeze", "position_ids", self._constant([1]))
        product = self._op("MatMul", table, self._cast(positions, TensorProto.FLOAT))
        half = self._op("Transpose", product, perm=[0, 2, 1])
        angles = self._op("Concat", half, half, axis=-1)
        found = []
        for kind in ("Cos", "Sin"):
            scaled = self._op("Mul", self._op(kind, angles), self._constant(1, np.float32))
            found.append(self._op("Unsqueeze", self._cast(scaled, self._float), self._constant([1])))
        return found[0], found[1]

    def _rotate(self, x: str, angles: tuple[str, str]) -> str:
        half = self._shape.width // 2
        axis, step = self._constant([3]), self._constant([1])
        low = self._op("Slice", x, self._constant([0]), self._constant([half]), axis, step)
        high = self._op("Slice", x, self._constant([half]), self._constant([2**63 - 1]), axis, step)
        turned = self._op("Concat", self._op("Neg", high), low, axis=-1)
        return self._op("Add", self._op("Mul", x, angles[0]), self._op("Mul", turned, angles[1]))

    def _heads(self, x: str, batch: str, seq: str, heads: int) -> str:
        apart = self._op("Reshape", x, self._concat(batch, seq, heads, self._shape.width))
        return self._op("Transpose", apart, perm=[0, 2, 1, 3])

    def _repeat(self, x: str) -> str:
        """Keys or values, repeated for the heads that share them."""
        shape = self._shape
        times = shape.heads // shape.cached_heads
        if times == 1:
            return x
        batch, total = self._dim(x, 0), self._dim(x, 2)
        dims = self._concat(batch, shape.cached_heads, times, total, shape.width)
        ones = self._op("ConstantOfShape", self._constant([5]), value=_one())
        given = self._op("Equal", dims, self._op("Mul", ones, self._constant(-1)))
        dims = self._op("Where", given, ones, dims)
        wide = self._op("Expand", self._op("Unsqueeze", x, self._constant([2])), dims)
        return self._op("Reshape", wide, self._concat(batch, shape.heads, total, shape.width))

    def _attention(self, x: str, layer: int, mask: str, angles: tuple[str, str]) -> str:
        shape, name = self._shape, f"model.layers.{layer}.self_attn"
        scope, self._scope = self._scope, f"{self._scope}/self_attn"
        kept = shape.cached_heads * shape.width
        batch, seq = self._dim(x, 0), self._dim(x, 1)
        query = self._linear(x, f"{name}.q_proj", shape.hidden, shape.hidden)
        key = self._linear(x, f"{name}.k_proj", shape.hidden, kept)
        value = self._linear(x, f"{name}.v_proj", shape.hidden, kept)
        query = self._rotate(self._heads(query, batch, seq, shape.heads), angles)
        key = self._rotate(self._heads(key, batch, seq, shape.cached_heads), angles)
        value = self._heads(value, batch, seq, shape.cached_heads)
        cached = []
        for part, new in (("key", key), ("value", value)):
            past = f"past_key_values.{layer}.{part}"
            cached.append(self._op("Concat", past, new, output=f"present.{layer}.{part}", axis=2))
        keys, values = map(self._repeat, cached)
        scores = self._op("MatMul", query, self._op("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = self._op("Div", scores, self._constant(shape.width**0.5, self._element))
        length = self._op("Unsqueeze", self._dim(keys, 2), self._constant([0]))
        cut = self._op("Slice", mask, self._constant([0]), length, self._constant([3]), self._constant([1]))
        wide = self._cast(self._op("Add", scores, cut), TensorProto.FLOAT)
        weights = self._cast(self._op("Softmax", wide, axis=-1), self._float)
        mixed = self._op("Transpose", self._op("MatMul", weights, values), perm=[0, 2, 1, 3])
        joined = self._op("Reshape", mixed, self._concat(batch, seq, shape.hidden))
        result = self._linear(joined, f"{name}.o_proj", shape.hidden, shape.hidden)
        self._scope = scope
        return result

    def _mlp(self, x: str, name: str) -> str:
        shape = self._shape
        scope, self._scope = self._scope, f"{self._scope}/mlp"
        gate = self._linear(x, f"{name}.mlp.gate_proj", shape.hidden, shape.inner)
        gate = self._op("Mul", gate, self._op("Sigmoid", gate))
        up = self._linear(x, f"{name}.mlp.up_proj", shape.hidden, shape.inner)
        result = self._linear(self._op("Mul", gate, up), f"{name}.mlp.down_proj", shape.inner, shape.hidden)
        self._scope = scope
        return result


def _one() -> TensorProto:
    return numpy_helper.from_array(np.ones(1, np.int64))


def weight_files(path: Path) -> Iterator[Path]:
    """The external data files of the model at ``path``, each once."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    names = {item.value: None for each in tensors for item in each.external_data if item.key == "location"}
    yield from (path.with_name(name) for name in names)
