"""config.json as the models' own repositories publish it: every field they carry is understood or harmless."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from poot.engine.models import read_spec
from poot.engine.models.spec import DecoderSpec, QkNorm
from tests.engine.models.checkpoints import hub_checkpoint

HARMLESS = {
    "architectures": ["X"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "initializer_range": 0.02,
    "model_type": "x",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0",
    "use_cache": True,
    "_name_or_path": "x",
}

LLAMA_3_2_1B = {
    "attention_bias": False,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
MISTRAL_7B_V03 = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32768,
}
QWEN2_5_05B = {
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_06B = {
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SMOLLM3_3B = {
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "layer_types": ["full_attention"] * 36,
    "max_position_embeddings": 65536,
    "max_window_layers": 28,
    "mlp_bias": False,
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "pretraining_tp": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 128256,
}
GEMMA_2_2B = {
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "vocab_size": 256000,
}
GEMMA_3_270M = {
    "_sliding_window_pattern": 6,
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "use_bidirectional_attention": False,
    "vocab_size": 262144,
}
PHI_4_MINI = {
    "attention_bias": False,
    "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
    "embd_pdrop": 0.0,
    "full_attn_mod": 1,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "interpolate_factor": 1,
    "intermediate_size": 8192,
    "lm_head_bias": False,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 24,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "original_max_position_embeddings": 4096,
    "partial_rotary_factor": 0.75,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": True,
    "vocab_size": 200064,
}
GRANITE_3_3_2B = {
    "attention_bias": False,
    "attention_multiplier": 0.015625,
    "embedding_multiplier": 12.0,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "logits_scaling": 8.0,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49159,
}
OLMO_2_1B = {
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 16,
    "num_key_value_heads": 16,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}


def read(architecture: str, config: dict[str, Any]) -> DecoderSpec:
    return read_spec(replace(hub_checkpoint(), architecture=architecture, config={**HARMLESS, **config}))


@pytest.mark.parametrize(
    ("architecture", "config", "limit"),
    [
        ("LlamaForCausalLM", LLAMA_3_2_1B, 131072),
        ("MistralForCausalLM", MISTRAL_7B_V03, 32768),
        ("Qwen2ForCausalLM", QWEN2_5_05B, 32768),
        ("Qwen3ForCausalLM", QWEN3_06B, 40960),
        ("SmolLM3ForCausalLM", SMOLLM3_3B, 65536),
        ("Gemma2ForCausalLM", GEMMA_2_2B, 8192),
        ("Gemma3ForCausalLM", GEMMA_3_270M, 32768),
        ("Phi3ForCausalLM", PHI_4_MINI, 4096),
        ("GraniteForCausalLM", GRANITE_3_3_2B, 131072),
        ("Olmo2ForCausalLM", OLMO_2_1B, 4096),
    ],
)
def test_published_configs_are_served(architecture: str, config: dict[str, Any], limit: int) -> None:
    spec = read(architecture, config)
    assert spec.max_positions == limit
    assert len(spec.layers) == config["num_hidden_layers"]
    assert spec.tied_embeddings == config.get("tie_word_embeddings", True)


def test_windows_of_published_configs() -> None:
    assert {layer.window for layer in read("Qwen2ForCausalLM", QWEN2_5_05B).layers} == {None}
    assert {layer.window for layer in read("MistralForCausalLM", MISTRAL_7B_V03).layers} == {None}
    assert [layer.window for layer in read("Gemma2ForCausalLM", GEMMA_2_2B).layers] == [4096, None] * 13
    assert [layer.window for layer in read("Gemma3ForCausalLM", GEMMA_3_270M).layers] == ([512] * 5 + [None]) * 3


def test_factors_of_published_configs() -> None:
    granite = read("GraniteForCausalLM", GRANITE_3_3_2B)
    assert (granite.attention_scale, granite.embedding_multiplier) == (0.015625, 12.0)
    assert (granite.residual_multiplier, granite.logits_multiplier) == (0.22, 0.125)
    gemma = read("Gemma3ForCausalLM", GEMMA_3_270M)
    assert gemma.embedding_multiplier == pytest.approx(math.sqrt(640))
    assert (gemma.attention_scale, gemma.qk_norm) == (1 / 16, QkNorm.PER_HEAD)
    phi = read("Phi3ForCausalLM", PHI_4_MINI).layers[0].rope
    assert phi is not None
    # 1.1902 is what Phi-4-mini's GGUF files store as rope.scaling.attn_factor.
    assert (phi.rotary_dim, round(phi.attention_factor, 4)) == (96, 1.1902)
