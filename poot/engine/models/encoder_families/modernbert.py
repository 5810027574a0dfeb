"""ModernBERT (Warner et al. 2024): pre-norm, gated GELU, rope, and local attention in all but every n-th layer."""

from __future__ import annotations

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.encoder_families.hub import HubEncoder
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

FULL, SLIDING = "full_attention", "sliding_attention"
# By kind of layer: where older configs keep theta, and its default.
THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
PROBE = "embeddings.tok_embeddings.weight"


def from_hub(checkpoint: Checkpoint) -> Blueprint:
    """A `ModernBert...` checkpoint."""
    config = HubEncoder(checkpoint, "modernbert")
    reader = config.reader
    # Biases are taken wherever the file has them; these say where that is.
    for key in ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"):
        reader.optional_bool(key, False)
    window = reader.optional_int("local_attention", 128, minimum=2)
    reach = (window // 2, window // 2)
    ropes = {kind: _rope(config, kind) for kind in THETAS}
    layer_specs = tuple(
        EncoderLayerSpec(reach=(None, None) if kind == FULL else reach, rope=ropes[kind], has_attention_norm=index > 0)
        for index, kind in enumerate(_layer_types(config))
    )
    has_classifier = config.has_classifier
    spec = EncoderSpec(
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        max_positions=config.num_positions,
        layers=layer_specs,
        norm_eps=config.norm_eps("norm_eps", 1e-5),
        activation=config.activation("hidden_activation", "gelu"),
        pre_norms=True,
        is_gated=True,
        fused_qkv=True,
        fused_gate_up=True,
        classifier=ClassifierSpec(
            has_dense=True, activation=config.activation("classifier_activation", "gelu"), has_norm=True
        )
        if has_classifier
        else None,
    )
    config.refuse_unread()
    prefix = config.prefix(("model.",), PROBE)

    def layer(index: int, layer_spec: EncoderLayerSpec) -> EncoderLayerNames:
        block = f"{prefix}layers.{index}"
        return EncoderLayerNames(
            qkv=(f"{block}.attn.Wqkv",),
            output=f"{block}.attn.Wo",
            attention_norm=f"{block}.attn_norm" if layer_spec.has_attention_norm else None,
            up=(f"{block}.mlp.Wi",),
            down=f"{block}.mlp.Wo",
            mlp_norm=f"{block}.mlp_norm",
        )

    names = EncoderNames(
        token_embedding=f"{prefix}embeddings.tok_embeddings",
        position_embedding=None,
        type_embedding=None,
        embedding_norm=f"{prefix}embeddings.norm",
        layers=tuple(layer(index, layer_spec) for index, layer_spec in enumerate(layer_specs)),
        output_norm=f"{prefix}final_norm",
        classifier_dense="head.dense",
        classifier_norm="head.norm",
        classifier_output="classifier",
        # With a masked-language head the same head.dense stands before the decoder.
        unused=() if has_classifier else ("head.", "decoder."),
    )
    return Blueprint(spec=spec, names=names)


def _layer_types(config: HubEncoder) -> tuple[str, ...]:
    reader = config.reader
    if reader.has("layer_types"):
        kinds = reader.string_list("layer_types", length=config.num_layers)
        if not set(kinds) <= set(THETAS):
            raise reader.refuse("layer_types", f"names out of {FULL} and {SLIDING}")
        return kinds
    every = reader.optional_int("global_attn_every_n_layers", 3, minimum=1)
    return tuple(SLIDING if index % every else FULL for index in range(config.num_layers))


def _rope(config: HubEncoder, kind: str) -> RopeSpec:
    theta_key, default_theta = THETAS[kind]
    spec, _ = HubRope(
        config.reader,
        layer_type=kind,
        theta_key=theta_key,
        default_theta=default_theta,
        is_scaled=True,
        head_dim=config.hidden_size // config.num_heads,
        max_positions=config.num_positions,
    ).read(())
    return spec
