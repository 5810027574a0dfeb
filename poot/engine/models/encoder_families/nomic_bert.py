"""NomicBERT (Nussbaum et al. 2024): BERT with rope and a gated MLP, without biases.

Two forms of the same model: that of nomic-ai's own code (config.json in GPT-2's words), which the published checkpoints
have, and that of transformers 5.
"""

from __future__ import annotations

from poot.devices.base import Activation
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models import rope
from poot.engine.models.encoder_families.bert import WORDS
from poot.engine.models.encoder_families.hub import HubEncoder, SizeKeys
from poot.engine.models.encoder_spec import (
    Blueprint,
    ClassifierSpec,
    EncoderLayerNames,
    EncoderLayerSpec,
    EncoderNames,
    EncoderSpec,
)
from poot.engine.models.families.hub_rope import HubRope
from poot.engine.models.spec import RopeSpec

OWN_KEYS = SizeKeys(hidden="n_embd", layers="n_layer", heads="n_head", intermediate="n_inner", positions="n_positions")
DEFAULT_THETA = 1000.0


def from_hub(checkpoint: Checkpoint) -> Blueprint:
    """A `NomicBert...` checkpoint of either form."""
    return _own_form(checkpoint) if "n_embd" in checkpoint.config else _transformers_form(checkpoint)


def _own_form(checkpoint: Checkpoint) -> Blueprint:
    config = HubEncoder(checkpoint, "nomic_bert", OWN_KEYS)
    reader = config.reader
    reader.optional_str("activation_function", "swiglu", choices=("swiglu",))
    for key in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved"):
        if reader.optional_bool(key, False):
            raise reader.refuse(key, "false")
    if reader.optional_float("rotary_emb_scale_base", 0.0) != 0.0:
        raise reader.refuse("rotary_emb_scale_base", "null")
    head_dim = config.hidden_size // config.num_heads
    share = reader.optional_float("rotary_emb_fraction", 1.0, minimum=0.0, maximum=1.0)
    rotary_dim = int(head_dim * share)
    if rotary_dim < 2 or rotary_dim % 2:
        raise reader.refuse("rotary_emb_fraction", "an even number of dimensions from 2")
    theta = reader.optional_float("rotary_emb_base", 10000.0, minimum=1.0001)
    turning = RopeSpec(inverse_frequencies=rope.base_frequencies(theta, rotary_dim), rotary_dim=rotary_dim)
    prefix = config.prefix(("bert.", "nomic_bert."), WORDS)

    def layer(index: int) -> EncoderLayerNames:
        block = f"{prefix}encoder.layers.{index}"
        return EncoderLayerNames(
            qkv=(f"{block}.attn.Wqkv",),
            output=f"{block}.attn.out_proj",
            attention_norm=f"{block}.norm1",
            # fc12 is the gate of the published code: fc11(x) * silu(fc12(x)).
            up=(f"{block}.mlp.fc12", f"{block}.mlp.fc11"),
            down=f"{block}.mlp.fc2",
            mlp_norm=f"{block}.norm2",
        )

    return _blueprint(
        config,
        prefix,
        turning,
        norm_eps=config.norm_eps("layer_norm_epsilon", 1e-5),
        activation=Activation.SILU,
        embedding_norm=f"{prefix}emb_ln",
        layers=tuple(layer(index) for index in range(config.num_layers)),
        fused_qkv=True,
    )


def _transformers_form(checkpoint: Checkpoint) -> Blueprint:
    config = HubEncoder(checkpoint, "nomic_bert")
    head_dim = config.reader.optional_int("head_dim", None)
    if head_dim is not None and head_dim * config.num_heads != config.hidden_size:
        raise config.reader.refuse("head_dim", "hidden_size / num_attention_heads")
    turning, _ = HubRope(
        config.reader,
        layer_type=None,
        theta_key="rope_theta",
        default_theta=DEFAULT_THETA,
        is_scaled=True,
        head_dim=config.hidden_size // config.num_heads,
        max_positions=config.num_positions,
    ).read(())
    prefix = config.prefix(("nomic_bert.",), WORDS)
    # transformers writes its own names, or those of the published code, which it renames as it reads.
    has_own_names = f"{prefix}layers.0.self_attn.q_proj.weight" in checkpoint.tensors

    def layer(index: int) -> EncoderLayerNames:
        block = f"{prefix}layers.{index}" if has_own_names else f"{prefix}encoder.layers.{index}"
        if not has_own_names:
            return EncoderLayerNames(
                qkv=(f"{block}.attn.Wqkv",),
                output=f"{block}.attn.out_proj",
                attention_norm=f"{block}.norm1",
                up=(f"{block}.mlp.fc12", f"{block}.mlp.fc11"),
                down=f"{block}.mlp.fc2",
                mlp_norm=f"{block}.norm2",
            )
        return EncoderLayerNames(
            qkv=tuple(f"{block}.self_attn.{part}_proj" for part in "qkv"),
            output=f"{block}.self_attn.o_proj",
            attention_norm=f"{block}.post_attention_layernorm",
            up=(f"{block}.mlp.gate_proj", f"{block}.mlp.up_proj"),
            down=f"{block}.mlp.down_proj",
            mlp_norm=f"{block}.post_mlp_layernorm",
        )

    return _blueprint(
        config,
        prefix,
        turning,
        norm_eps=config.norm_eps("layer_norm_eps", 1e-12),
        activation=config.activation("hidden_act", "silu"),
        embedding_norm=f"{prefix}embeddings.LayerNorm" if has_own_names else f"{prefix}emb_ln",
        layers=tuple(layer(index) for index in range(config.num_layers)),
        fused_qkv=not has_own_names,
    )


def _blueprint(
    config: HubEncoder,
    prefix: str,
    turning: RopeSpec,
    *,
    norm_eps: float,
    activation: Activation,
    embedding_norm: str,
    layers: tuple[EncoderLayerNames, ...],
    fused_qkv: bool,
) -> Blueprint:
    num_token_types = config.reader.optional_int("type_vocab_size", 2, minimum=0, maximum=65536)
    has_classifier = config.has_classifier
    spec = EncoderSpec(
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        max_positions=config.num_positions,
        num_token_types=num_token_types,
        layers=(EncoderLayerSpec(rope=turning),) * config.num_layers,
        norm_eps=norm_eps,
        activation=activation,
        is_gated=True,
        fused_qkv=fused_qkv,
        classifier=ClassifierSpec(has_dense=True, activation=Activation.TANH) if has_classifier else None,
    )
    config.refuse_unread()
    unused = ["cls."] if has_classifier else ["cls.", f"{prefix}pooler."]
    names = EncoderNames(
        token_embedding=f"{prefix}embeddings.word_embeddings",
        position_embedding=None,
        type_embedding=f"{prefix}embeddings.token_type_embeddings",
        embedding_norm=embedding_norm,
        layers=layers,
        classifier_dense=f"{prefix}pooler.dense",
        classifier_output="classifier",
        unused=tuple(unused),
    )
    return Blueprint(spec=spec, names=names)
