"""Small decoders with key-value caches and random weights, as three exporters write them.

- ``torchscript`` and ``dynamo``: torch's exporters, attention as separate operators and as
  scaled_dot_product_attention. Seven architectures in float16 and float32, eight more in float32.
- ``optimum``: ``optimum-cli export onnx``; it needs the package optimum-onnx, and a version of transformers
  that optimum supports.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Architectures that are exported in both types, and in float32 only.
BOTH = ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi", "gpt_neox")
MORE = ("gemma2", "gemma3", "phi3", "gpt2", "gptj", "opt", "mixtral", "qwen2_moe")
TORCH = ("torchscript", "dynamo")
EXPORTERS = (*TORCH, "optimum")
#: The opset of each of torch's exporters: its default.
OPSETS = {"torchscript": 17, "dynamo": 20}
#: Decoders that an exporter rejects.
_REJECTED = (("gemma2", "dynamo"), ("mixtral", "optimum"), ("qwen2_moe", "optimum"))
#: (architecture, type) by optimum.
_OPTIMUM = [(name, "float32") for name in (*BOTH, *MORE)]
_OPTIMUM += [(name, "float16") for name in ("llama", "qwen2", "gemma2", "gptj", "phi3")]
#: Architectures without rotary embedding.
_LEARNED_POSITIONS = ("gpt2", "opt")
WORDS, LAYERS, HEADS = 128, 2, 8
#: Batches, and past and new tokens, in the example that is traced.
BATCH, PAST, NEW = 2, 6, 3
#: The number of keys that a query attends to in layers with a sliding window.
WINDOW = 5


@dataclass(frozen=True)
class Decoder:
    """One exported model."""

    architecture: str
    dtype: str
    exporter: str

    @property
    def name(self) -> str:
        """The name of its file, without suffix."""
        return f"{self.architecture}_{self.dtype}_{self.exporter}"

    @property
    def is_timed(self) -> bool:
        """Whether its latency is measured on the CPU: graphs of separate operators in float32."""
        return self.dtype == "float32" and self.exporter in TORCH

    @property
    def expected(self) -> dict[str, int]:
        """The numbers of attentions, normalizations and rotary embeddings in the model."""
        norms = 2 * LAYERS + 1
        if self.architecture in ("qwen3", "gemma3"):
            norms += 2 * LAYERS  # of queries and keys
        if self.architecture in ("gemma2", "gemma3"):
            norms += 2 * LAYERS  # after attention and the feed-forward network
        if self.architecture in ("phi", "gptj"):
            norms = LAYERS + 1  # attention and the feed-forward network share one
        rotates = self.architecture not in _LEARNED_POSITIONS
        return {"attention": LAYERS, "norm": norms, "rotary": 2 * LAYERS if rotates else 0}


def decoders() -> Iterator[Decoder]:
    """All decoders."""
    for architecture in (*BOTH, *MORE):
        for dtype in ("float16", "float32") if architecture in BOTH else ("float32",):
            for exporter in TORCH:
                if (architecture, exporter) not in _REJECTED:
                    yield Decoder(architecture, dtype, exporter)
    for architecture, dtype in _OPTIMUM:
        if (architecture, "optimum") not in _REJECTED:
            yield Decoder(architecture, dtype, "optimum")


def _model(decoder: Decoder, width: int) -> Any:
    """The model of ``decoder``, with random weights."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    common: dict[str, Any] = {
        "vocab_size": WORDS, "hidden_size": width, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": 2 * width, "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0, "initializer_range": 0.1,  # 0.02, the default, makes attention almost uniform
    }  # fmt: skip
    if decoder.exporter in TORCH:
        common["attn_implementation"] = "eager" if decoder.exporter == "torchscript" else "sdpa"
    shared = {**common, "num_key_value_heads": 2}
    grouped = {**shared, "head_dim": width // HEADS}
    window = {"sliding_window": WINDOW}
    scaled = {**grouped, **window, "query_pre_attn_scalar": width // HEADS}
    experts = {"num_experts_per_tok": 2, "experts_implementation": "batched_mm"}
    old = {**common, "n_embd": width, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 2048}
    sizes = {"moe_intermediate_size": width // 2, "shared_expert_intermediate_size": width}
    kinds: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, grouped),
        "mistral": (hf.MistralForCausalLM, hf.MistralConfig, {**grouped, **window}),
        "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config, shared),
        "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config, grouped),
        "gemma": (hf.GemmaForCausalLM, hf.GemmaConfig, grouped),
        "phi": (hf.PhiForCausalLM, hf.PhiConfig, common),
        "gpt_neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, common),
        "gemma2": (hf.Gemma2ForCausalLM, hf.Gemma2Config, scaled),
        "gemma3": (hf.Gemma3ForCausalLM, hf.Gemma3TextConfig, scaled),
        "phi3": (hf.Phi3ForCausalLM, hf.Phi3Config, shared),
        "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config, old),
        "gptj": (hf.GPTJForCausalLM, hf.GPTJConfig, {**old, "rotary_dim": width // 16}),
        "opt": (hf.OPTForCausalLM, hf.OPTConfig, {**common, "ffn_dim": 2 * width, "init_std": 0.1}),
        "mixtral": (hf.MixtralForCausalLM, hf.MixtralConfig, {**grouped, **experts, "num_local_experts": 4}),
        "qwen2_moe": (
            hf.Qwen2MoeForCausalLM, hf.Qwen2MoeConfig, {**shared, **experts, **sizes, "num_experts": 4},
        ),
    }  # fmt: skip
    kind, configuration, options = kinds[decoder.architecture]
    if decoder.architecture == "opt":
        options["word_embed_proj_dim"] = width
    model = kind(configuration(**options))
    for parameter in model.parameters():
        if parameter.ndim == 1:  # scales of 1 and biases of 0 would be folded
            parameter.data += 0.1 * torch.randn(parameter.shape)
    return model.to(getattr(torch, decoder.dtype)).eval()


def export(decoder: Decoder, path: Path, width: int) -> None:
    """Write ``decoder``."""
    model = _model(decoder, width)
    if decoder.exporter == "optimum":
        _export_by_optimum(model, path)
    else:
        _export_by_torch(model, decoder, path, width)


def _export_by_optimum(model: Any, path: Path) -> None:
    from optimum.exporters.onnx import onnx_export_from_model  # type: ignore[import-not-found, unused-ignore]

    with tempfile.TemporaryDirectory() as folder:
        onnx_export_from_model(
            model=model, output=Path(folder), task="text-generation-with-past", do_validation=False
        )
        (Path(folder) / "model.onnx").rename(path)


def _export_by_torch(model: Any, decoder: Decoder, path: Path, width: int) -> None:
    import torch
    from transformers import DynamicCache

    configuration = model.config
    heads = getattr(configuration, "num_key_value_heads", None) or configuration.num_attention_heads

    class Step(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # torch may be missing
        """A decoder with caches as plain tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, *past: Any) -> Any:
            cache = DynamicCache()
            for layer in range(LAYERS):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            found = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            kept = found.past_key_values.layers
            return (found.logits, *(part for layer in kept for part in (layer.keys, layer.values)))

    ids = torch.randint(0, WORDS, (BATCH, NEW))
    mask = torch.ones(BATCH, PAST + NEW, dtype=torch.int64)
    positions = torch.arange(PAST, PAST + NEW).expand(BATCH, NEW).contiguous()
    dtype = next(model.parameters()).dtype
    past = [torch.randn(BATCH, heads, PAST, width // HEADS, dtype=dtype) for _ in range(2 * LAYERS)]
    caches = [f"past.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    present = [each.replace("past", "present") for each in caches]
    names = ["input_ids", "attention_mask", "position_ids", *caches]
    own = {name: {0: "batch", 1: "seq"} for name in ("input_ids", "position_ids")}
    own |= {"attention_mask": {0: "batch", 1: "total"}, **{name: {0: "batch", 2: "past"} for name in caches}}
    options: dict[str, Any] = {"opset_version": OPSETS[decoder.exporter], "input_names": names}
    options["output_names"] = ["logits", *present]
    with torch.no_grad():
        if decoder.exporter == "torchscript":
            axes = {
                **own,
                "logits": {0: "batch", 1: "seq"},
                **{name: {0: "batch", 2: "total"} for name in present},
            }
            torch.onnx.export(
                Step(), (ids, mask, positions, *past), str(path), dynamo=False, dynamic_axes=axes, **options
            )
            return
        shapes = [own[name] for name in names]
        program = torch.onnx.export(
            Step(), (ids, mask, positions, *past), dynamo=True, verbose=False,
            dynamic_shapes=(*shapes[:3], tuple(shapes[3:])), **options,
        )  # fmt: skip
    assert program is not None
    program.save(str(path))
