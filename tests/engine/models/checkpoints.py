"""Checkpoints built by hand, for tests that change one thing of a model and see it refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from poot.devices.base import Weight
from poot.devices.formats import Format
from poot.engine.checkpoint.types import Checkpoint, FileFormat

HIDDEN, WIDTH, HEADS, KV_HEADS, VOCAB, LAYERS = 16, 24, 4, 2, 40, 2
HEAD_DIM = HIDDEN // HEADS

HUB_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "max_position_embeddings": 64,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
}

GGUF_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.block_count": LAYERS,
    "llama.context_length": 64,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": WIDTH,
    "llama.rope.dimension_count": HEAD_DIM,
    "llama.rope.freq_base": 10000.0,
    "llama.vocab_size": VOCAB,
}

HUB_SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    "lm_head.weight": (VOCAB, HIDDEN),
}
GGUF_SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (VOCAB, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "output.weight": (VOCAB, HIDDEN),
}
for _index in range(LAYERS):
    for _hub_name, _gguf_name, _shape in (
        ("input_layernorm", "attn_norm", (HIDDEN,)),
        ("self_attn.q_proj", "attn_q", (HIDDEN, HIDDEN)),
        ("self_attn.k_proj", "attn_k", (KV_HEADS * HEAD_DIM, HIDDEN)),
        ("self_attn.v_proj", "attn_v", (KV_HEADS * HEAD_DIM, HIDDEN)),
        ("self_attn.o_proj", "attn_output", (HIDDEN, HIDDEN)),
        ("post_attention_layernorm", "ffn_norm", (HIDDEN,)),
        ("mlp.gate_proj", "ffn_gate", (WIDTH, HIDDEN)),
        ("mlp.up_proj", "ffn_up", (WIDTH, HIDDEN)),
        ("mlp.down_proj", "ffn_down", (HIDDEN, WIDTH)),
    ):
        HUB_SHAPES[f"model.layers.{_index}.{_hub_name}.weight"] = _shape
        GGUF_SHAPES[f"blk.{_index}.{_gguf_name}.weight"] = _shape


def weight(name: str, shape: tuple[int, ...], kind: Format = Format.F32) -> Weight:
    """Random values in `shape`, or packed zeros."""
    if kind.is_dense:
        generator = torch.Generator().manual_seed(sum(name.encode()))
        return Weight(name, shape, kind, torch.randn(shape, generator=generator))
    rows = int(torch.tensor(shape[:-1]).prod())
    return Weight(name, shape, kind, torch.zeros((rows, kind.row_bytes(shape[-1])), dtype=torch.uint8))


def _checkpoint(
    file_format: FileFormat,
    architecture: str,
    config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...] | None],
) -> Checkpoint:
    return Checkpoint(
        path=Path("tiny"),
        file_format=file_format,
        architecture=architecture,
        config=config,
        tensors={name: weight(name, shape) for name, shape in shapes.items() if shape is not None},
    )


def hub_checkpoint(
    architecture: str = "LlamaForCausalLM",
    *,
    config: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    shapes: Mapping[str, tuple[int, ...] | None] | None = None,
) -> Checkpoint:
    """A tiny llama as safetensors: fields of `config` replaced, fields `without` removed, `shapes` replaced (or, with
    None, removed)."""
    fields = {key: value for key, value in {**HUB_CONFIG, **(config or {})}.items() if key not in without}
    return _checkpoint(FileFormat.SAFETENSORS, architecture, fields, {**HUB_SHAPES, **(shapes or {})})


def gguf_checkpoint(
    architecture: str = "llama",
    *,
    metadata: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    shapes: Mapping[str, tuple[int, ...] | None] | None = None,
) -> Checkpoint:
    """The same as GGUF; keys are given without the architecture's prefix."""
    fields = {key.removeprefix("llama."): value for key, value in GGUF_METADATA.items() if key.startswith("llama.")}
    fields = {key: value for key, value in {**fields, **(metadata or {})}.items() if key not in without}
    config = {f"{architecture}.{key}": value for key, value in fields.items()}
    config.update({"general.architecture": architecture, "general.name": "Tiny", "tokenizer.ggml.model": "gpt2"})
    return _checkpoint(FileFormat.GGUF, architecture, config, {**GGUF_SHAPES, **(shapes or {})})
