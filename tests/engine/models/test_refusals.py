"""What a model may not be: one test for each thing that is refused, each error naming the culprit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from poot.devices.base import Weight
from poot.devices.formats import Format
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models import read_spec
from poot.errors import CheckpointError, NotAvailableError, StartupError
from tests.engine.models.checkpoints import gguf_checkpoint, hub_checkpoint


def refusal(checkpoint: Checkpoint, kind: type[StartupError] = CheckpointError) -> str:
    """The message `checkpoint` is refused with."""
    with pytest.raises(kind) as caught:
        read_spec(checkpoint)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_unchanged_models_are_served() -> None:
    assert read_spec(hub_checkpoint()).family == "llama"
    assert read_spec(gguf_checkpoint()).family == "llama"


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("GPT2LMHeadModel", "not known"),
        ("MixtralForCausalLM", "not known"),
        ("Gemma3ForConditionalGeneration", "vision-language"),
        ("T5ForConditionalGeneration", "encoder-decoder"),
        ("BertModel", "encoder"),
        ("LlamaModel", "encoder"),
        ("XLMRobertaForSequenceClassification", "encoder"),
    ],
)
def test_other_hub_architectures_are_refused_with_what_is_served(architecture: str, reason: str) -> None:
    message = refusal(hub_checkpoint(architecture))
    assert repr(architecture) in message
    assert reason in message
    assert "LlamaForCausalLM, MistralForCausalLM" in message


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [("mamba", "not known"), ("qwen3moe", "not known"), ("bert", "encoder"), ("clip", "vision-language")],
)
def test_other_gguf_architectures_are_refused_with_what_is_served(architecture: str, reason: str) -> None:
    message = refusal(gguf_checkpoint(architecture))
    assert repr(architecture) in message
    assert reason in message
    assert "llama, qwen2, qwen3" in message


def test_a_hub_name_is_not_a_gguf_architecture() -> None:
    assert "'LlamaForCausalLM'" in refusal(gguf_checkpoint("LlamaForCausalLM"))


def test_a_mixtral_that_calls_itself_llama_is_told_by_its_experts() -> None:
    message = refusal(gguf_checkpoint(metadata={"expert_count": 8, "expert_used_count": 2}), NotAvailableError)
    assert "mixture of experts" in message
    assert "8 experts" in message


def test_a_llama_that_says_it_has_no_experts_is_served() -> None:
    assert read_spec(gguf_checkpoint(metadata={"expert_count": 0, "expert_used_count": 0})).family == "llama"


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"]
)
@pytest.mark.parametrize("value", [None, 0, -1, 2.5, "12", True, 10**20])
def test_hub_sizes_must_be_sane_integers(key: str, value: Any) -> None:
    assert key in refusal(hub_checkpoint(config={key: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_position_embeddings", 0),
        ("num_key_value_heads", 3),
        ("head_dim", 0),
        ("rms_norm_eps", -1e-5),
        ("rms_norm_eps", float("nan")),
        ("hidden_act", "gelu"),
        ("hidden_act", "relu2"),
        ("hidden_act", 3),
        ("attention_bias", "yes"),
        ("mlp_bias", 1),
        ("tie_word_embeddings", "false"),
        ("rope_theta", 0.0),
        ("rope_theta", 1),
        ("rope_scaling", "linear"),
        ("is_encoder_decoder", True),
        ("num_local_experts", 8),
        ("num_experts", 4),
        ("n_routed_experts", 64),
        ("clip_qkv", 8.0),
        ("alibi", True),
        ("position_embedding_type", "nope"),
        ("logit_scale", 0.0625),
        ("logits_scaling", 8),
        ("embedding_multiplier", 12.0),
        ("residual_multiplier", 0.22),
        ("attention_multiplier", 0.5),
        ("query_pre_attn_scalar", 256),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("use_bidirectional_attention", True),
        ("use_qk_norm", True),
        ("qk_layernorm", True),
        ("sliding_window", 4096),
        ("no_rope_layers", [1, 0]),
        ("compression_config", {"format": "pack-quantized"}),
    ],
)
def test_hub_fields_that_change_the_computation_are_refused(field: str, value: Any) -> None:
    assert field in refusal(hub_checkpoint(config={field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_local_experts", 0),
        ("sliding_window", None),
        ("logit_scale", 1.0),
        ("alibi", False),
        ("attention_dropout", 0.1),
        ("pretraining_tp", 4),
        ("torch_dtype", "bfloat16"),
        ("dtype", "bfloat16"),
        ("auto_map", {"AutoModel": "modeling.Custom"}),
        ("hidden_act", "swish"),
    ],
)
def test_hub_fields_that_change_nothing_are_no_reason_to_refuse(field: str, value: Any) -> None:
    assert read_spec(hub_checkpoint(config={field: value})) == read_spec(hub_checkpoint())


def test_quantized_safetensors_are_not_available_yet() -> None:
    message = refusal(hub_checkpoint(config={"quantization_config": {"quant_method": "awq"}}), NotAvailableError)
    assert "'awq'" in message


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic'"),
        ({"rope_type": "proportional"}, "'proportional'"),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, "'mrope'"),
        ({"rope_type": 3}, "rope_type"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3.0}, "beta_fast"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0}, "high_freq_factor"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}, "high_freq_factor"),
        ({"rope_type": "yarn", "factor": 4.0, "extrapolation_factor": 0.5}, "extrapolation_factor"),
        ({"rope_type": "longrope", "long_factor": [2.0, 2.0]}, "short_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "short_factor"),
        ({"partial_rotary_factor": 0.1}, "dimensions"),
        ({"partial_rotary_factor": 0.8}, "dimensions"),
    ],
)
def test_rope_that_is_not_understood_is_refused(parameters: dict[str, Any], named: str) -> None:
    assert named in refusal(hub_checkpoint(config={"rope_parameters": parameters}))
    without_new = hub_checkpoint(config={"rope_scaling": parameters})
    assert named in refusal(without_new)


def test_unknown_layer_types_are_refused() -> None:
    config = {"layer_types": ["full_attention", "chunked_attention"], "sliding_window": 8}
    assert "chunked_attention" in refusal(hub_checkpoint("Qwen2ForCausalLM", config=config))


def test_sliding_layers_need_the_switch_and_a_window() -> None:
    sliding = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}
    assert "use_sliding_window" in refusal(hub_checkpoint("Qwen2ForCausalLM", config=sliding))
    no_window = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": None}
    assert "sliding_window" in refusal(hub_checkpoint("Gemma3ForCausalLM", config=no_window))


def test_gemma_over_both_directions_is_refused() -> None:
    message = refusal(hub_checkpoint("Gemma3ForCausalLM", config={"use_bidirectional_attention": True}))
    assert "use_bidirectional_attention" in message


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_gguf_keys_that_are_needed(key: str) -> None:
    assert key in refusal(gguf_checkpoint(without=(key,)))
    assert key in refusal(gguf_checkpoint(metadata={key: "1"}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 2**31),
        ("attention.head_count", [4, 4, 4]),
        ("attention.head_count", [4, 0]),
        ("attention.head_count_kv", 3),
        ("attention.value_length", 8),
        ("attention.causal", False),
        ("attention.clamp_kqv", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("attention.scale", -1.0),
        ("attention.sliding_window", -4),
        ("attention.sliding_window_pattern", 2),
        ("logit_scale", 0.5),
        ("attn_logit_softcapping", 50.0),
        ("pooling_type", 3),
        ("use_parallel_residual", True),
        ("vocab_size", 41),
        ("rope.freq_base", 0.0),
        ("rope.dimension_count", 3),
        ("rope.dimension_count", 6),
        ("rope.dimension_sections", [8, 8, 8, 0]),
        ("rope.scaling.type", "dynamic"),
        ("rope.scaling.type", "linear"),
        ("rope.unheard_of", 1),
    ],
)
def test_gguf_keys_that_change_the_computation_are_refused(key: str, value: Any) -> None:
    assert key.replace("scaling.type", "scaling") in refusal(gguf_checkpoint(metadata={key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.scaling.yarn_ext_factor", 0.5),
        ("rope.scaling.yarn_attn_factor", 1.0),
        ("rope.scaling.yarn_log_multiplier", 0.1),
    ],
)
def test_gguf_yarn_settings_of_doubtful_meaning_are_refused(key: str, value: float) -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    assert read_spec(gguf_checkpoint(metadata=yarn)).family == "llama"
    assert key in refusal(gguf_checkpoint(metadata={**yarn, key: value}))


def test_gguf_long_rope_needs_its_short_factors_and_context() -> None:
    shapes = {"rope_factors_long.weight": (2,)}
    context = {"rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": 1.2}
    assert "rope.scaling.original_context_length" in refusal(gguf_checkpoint("phi3", shapes=shapes))
    assert "rope_factors_short.weight" in refusal(gguf_checkpoint("phi3", metadata=context, shapes=shapes))


def test_gguf_rope_factors_must_fit_and_stand_alone() -> None:
    assert "rope_freqs.weight" in refusal(gguf_checkpoint(shapes={"rope_freqs.weight": (3,)}))
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    message = refusal(gguf_checkpoint(metadata=linear, shapes={"rope_freqs.weight": (2,)}))
    assert "rope.scaling.type" in message


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_gguf_rope_factors_out_of_range_are_refused(factor: float) -> None:
    checkpoint = gguf_checkpoint()
    name = "rope_freqs.weight"
    factors = Weight(name, (2,), Format.F32, torch.tensor([1.0, factor]))
    assert name in refusal(replace(checkpoint, tensors={**checkpoint.tensors, name: factors}))


def test_gguf_without_an_embedding_table_is_refused() -> None:
    assert "token_embd.weight" in refusal(gguf_checkpoint(shapes={"token_embd.weight": None}))
    assert "token_embd.weight" in refusal(gguf_checkpoint(shapes={"token_embd.weight": (16,)}))


def test_an_olmo3_that_calls_itself_olmo2_is_refused() -> None:
    message = refusal(gguf_checkpoint("olmo2", metadata={"attention.sliding_window": 4096}))
    assert "attention.sliding_window" in message
