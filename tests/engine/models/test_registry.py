"""The table of families, and what older spellings of their configs mean."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import transformers

from poot.engine.models import model_families, read_spec
from poot.engine.models.spec import DecoderSpec
from tests.engine.models.checkpoints import gguf_checkpoint, hub_checkpoint
from tests.engine.models.small_models import COMMON


def test_every_family_names_architectures_that_exist() -> None:
    assert len(model_families()) == 10
    for family in model_families():
        assert hasattr(transformers, family.hub_architecture)
        assert family.gguf_architecture in gguf.MODEL_ARCH_NAMES.values()


def read(architecture: str, **config: Any) -> DecoderSpec:
    checkpoint = hub_checkpoint()
    sizes = {key: value for key, value in COMMON.items() if key != "rope_theta"}
    return read_spec(replace(checkpoint, architecture=architecture, config={**sizes, **config}))


def test_gemma3s_older_config_means_the_same() -> None:
    old = read(
        "Gemma3ForCausalLM",
        num_hidden_layers=12,
        head_dim=16,
        sliding_window=32,
        sliding_window_pattern=6,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    new = read(
        "Gemma3ForCausalLM",
        num_hidden_layers=12,
        head_dim=16,
        sliding_window=32,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 2,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )
    assert old == new
    assert [layer.window for layer in new.layers] == ([32] * 5 + [None]) * 2
    assert new.layers[5].rope is not None
    assert new.layers[5].rope.inverse_frequencies[0] == 1 / 8


@pytest.mark.parametrize(
    ("config_class", "architecture", "given"),
    [
        ("LlamaConfig", "LlamaForCausalLM", {}),
        ("MistralConfig", "MistralForCausalLM", {}),
        ("MistralConfig", "MistralForCausalLM", {"sliding_window": None}),
        ("Qwen2Config", "Qwen2ForCausalLM", {}),
        ("Qwen2Config", "Qwen2ForCausalLM", {"use_sliding_window": True}),
        ("Qwen2Config", "Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 7}),
        ("Qwen3Config", "Qwen3ForCausalLM", {}),
        ("Qwen3Config", "Qwen3ForCausalLM", {"use_sliding_window": True, "sliding_window": 64}),
        ("SmolLM3Config", "SmolLM3ForCausalLM", {}),
        ("SmolLM3Config", "SmolLM3ForCausalLM", {"no_rope_layer_interval": 3}),
        ("SmolLM3Config", "SmolLM3ForCausalLM", {"use_sliding_window": True, "sliding_window": 64}),
        ("Gemma2Config", "Gemma2ForCausalLM", {}),
        ("Gemma2Config", "Gemma2ForCausalLM", {"attn_logit_softcapping": None}),
        ("Gemma3TextConfig", "Gemma3ForCausalLM", {}),
        ("Gemma3TextConfig", "Gemma3ForCausalLM", {"sliding_window_pattern": 4}),
        ("Phi3Config", "Phi3ForCausalLM", {}),
        ("GraniteConfig", "GraniteForCausalLM", {}),
        ("Olmo2Config", "Olmo2ForCausalLM", {}),
    ],
)
def test_a_field_left_out_means_what_transformers_says(
    config_class: str, architecture: str, given: dict[str, Any]
) -> None:
    sizes = ("vocab_size", "intermediate_size", "max_position_embeddings")
    needed = {key: COMMON[key] for key in sizes}
    needed |= {"hidden_size": 128, "num_hidden_layers": 30, "num_attention_heads": 32, **given}
    written = getattr(transformers, config_class)(**needed)
    # Fields that transformers derives from others are spelled out here, layer_types among them.
    spelled_out = json.loads(json.dumps(written.to_dict()))
    specs = [
        read_spec(replace(hub_checkpoint(), architecture=architecture, config=config))
        for config in (needed, spelled_out)
    ]
    assert specs[0] == specs[1]


@pytest.mark.parametrize(
    ("architecture", "num_layers", "scalar"),
    [("gemma2", 46, 144), ("gemma2", 26, 256), ("gemma3", 62, 168), ("gemma3", 34, 256)],
)
def test_gemma_27b_scales_by_width_per_head(architecture: str, num_layers: int, scalar: int) -> None:
    # Gemma 2 27B: hidden 4608, 32 heads of 128; Gemma 3 27B: hidden 5376, 32 heads of 128 (their config.json).
    is_27b = num_layers in (46, 62)
    hidden = {"gemma2": 4608, "gemma3": 5376}[architecture]
    metadata = {
        "block_count": num_layers,
        "embedding_length": hidden,
        "attention.head_count": 32,
        "attention.head_count_kv": 16,
        "attention.key_length": 128 if is_27b else 256,
        "attention.value_length": 128 if is_27b else 256,
        "rope.dimension_count": 128 if is_27b else 256,
    }
    spec = read_spec(gguf_checkpoint(architecture, metadata=metadata))
    assert spec.attention_scale == pytest.approx(scalar**-0.5)


def test_the_documentation_lists_the_families() -> None:
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[:3] for line in text.splitlines() if line.startswith("| ") and "ForCausalLM" in line]
    assert [(name.removeprefix("| "), hub, gguf_name) for name, hub, gguf_name in rows] == [
        (family.name, family.hub_architecture, family.gguf_architecture) for family in model_families()
    ]
