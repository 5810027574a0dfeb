"""Whatever a config holds, reading it gives a spec or one typed error, quickly and without a giant allocation."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models import load_model, model_families
from poot.errors import StartupError
from tests.engine.models.checkpoints import GGUF_METADATA, HUB_CONFIG, gguf_checkpoint, hub_checkpoint
from tests.fakes.reference_device import ReferenceDevice

HUB_KEYS = sorted(
    {
        *HUB_CONFIG,
        "head_dim",
        "hidden_activation",
        "layer_types",
        "sliding_window",
        "use_sliding_window",
        "sliding_window_pattern",
        "max_window_layers",
        "no_rope_layers",
        "no_rope_layer_interval",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "attention_multiplier",
        "logits_scaling",
        "rope_parameters",
        "rope_scaling",
        "rope_local_base_freq",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "tie_word_embeddings",
        "attention_bias",
    }
)
GGUF_KEYS = sorted(
    {
        *(key.removeprefix("llama.") for key in GGUF_METADATA if key.startswith("llama.")),
        "attention.key_length",
        "attention.value_length",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.scale",
        "attn_logit_softcapping",
        "logit_scale",
        "residual_scale",
        "expert_count",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.freq_base_swa",
    }
)

ROPE_SECTIONS = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["default", "linear", "llama3", "yarn", "longrope", "other"])},
    optional={
        key: st.one_of(st.floats(), st.integers(-2, 2**64), st.none(), st.lists(st.floats(), max_size=3))
        for key in (
            "rope_theta",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "attention_factor",
            "short_factor",
            "partial_rotary_factor",
        )
    },
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 64),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["yarn", "linear", "longrope", "full_attention", "silu", "gelu_pytorch_tanh"]),
    st.lists(st.one_of(st.integers(-1, 9), st.booleans(), st.sampled_from(["sliding_attention"])), max_size=4),
    ROPE_SECTIONS,
    st.fixed_dictionaries({"full_attention": ROPE_SECTIONS, "sliding_attention": ROPE_SECTIONS}),
)


def load(checkpoint: Checkpoint) -> None:
    message = ""
    try:
        load_model(checkpoint, ReferenceDevice(), max_positions=32)
    except StartupError as error:
        message = str(error)
    assert len(message) < 400
    assert "\n" not in message


@settings(max_examples=400, deadline=None)
@given(
    architecture=st.sampled_from([family.hub_architecture for family in model_families()]),
    config=st.dictionaries(st.sampled_from(HUB_KEYS), VALUES, max_size=4),
)
def test_any_hub_config_is_read_or_refused(architecture: str, config: dict[str, Any]) -> None:
    load(hub_checkpoint(architecture, config=config))


@settings(max_examples=400, deadline=None)
@given(
    architecture=st.sampled_from([family.gguf_architecture for family in model_families()]),
    metadata=st.dictionaries(st.sampled_from(GGUF_KEYS), VALUES, max_size=4),
)
def test_any_gguf_metadata_is_read_or_refused(architecture: str, metadata: dict[str, Any]) -> None:
    load(gguf_checkpoint(architecture, metadata=metadata))
