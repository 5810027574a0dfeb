"""Reads config.json as Hugging Face's transformers means it, whatever family it describes.

Fields that change what a model computes and that its family does not read are refused by name unless they hold the
value that changes nothing. Defaults are those of transformers' own configuration classes (5.x).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poot.engine.checkpoint.fields import ConfigReader, quote
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.families.bounds import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_MULTIPLIER,
    MAX_POSITIONS,
    MAX_WIDTH,
)
from poot.engine.models.families.hub_rope import HubRope
from poot.engine.models.families.noted import Noted
from poot.engine.models.spec import Activation, DecoderSpec, LayerSpec, RopeSpec
from poot.errors import CheckpointError, NotAvailableError

ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
}

# Fields that change what is computed, with the values that change nothing. Families that read one are exempt.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "quantization_config": (),
    "compression_config": (),
    "is_encoder_decoder": (False,),
    "num_local_experts": (0,),
    "num_experts": (0,),
    "n_routed_experts": (0,),
    "clip_qkv": (),
    "alibi": (False,),
    "position_embedding_type": ("rope", "rotary"),
    "logit_scale": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "embedding_multiplier": (1, 1.0),
    "residual_multiplier": (1, 1.0),
    "attention_multiplier": (),
    "query_pre_attn_scalar": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "use_bidirectional_attention": (False,),
    "is_causal": (True,),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "sliding_window": (),
    "no_rope_layers": (),
    "attention_bias": (False,),
    "mlp_bias": (False,),
}


class HubConfig:
    """config.json of one decoder.

    Args:
        family: the family's name, for messages and logs.
        default_head_dim: head_dim of a config that names none; None derives it from hidden_size.
        default_num_kv_heads: likewise; None stands for as many as there are query heads.

    Raises:
        CheckpointError: a field is missing, has the wrong type, or is out of range.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        family: str,
        *,
        default_head_dim: int | None = None,
        default_num_kv_heads: int | None = None,
    ) -> None:
        self.where = f"{display_path(checkpoint.path)}: config.json"
        self.family = family
        self._noted = Noted(checkpoint.config)
        self.reader = reader = ConfigReader(self._noted, where=self.where)
        self.num_layers = reader.require_int("num_hidden_layers", minimum=1, maximum=MAX_LAYERS)
        self.hidden_size = reader.require_int("hidden_size", minimum=1, maximum=MAX_WIDTH)
        self.intermediate_size = reader.require_int("intermediate_size", minimum=1, maximum=MAX_WIDTH)
        self.num_heads = reader.require_int("num_attention_heads", minimum=1, maximum=MAX_HEADS)
        self.num_kv_heads = reader.optional_int(
            "num_key_value_heads", default_num_kv_heads or self.num_heads, minimum=1, maximum=MAX_HEADS
        )
        if self.num_heads % self.num_kv_heads:
            raise reader.refuse("num_key_value_heads", f"a divisor of num_attention_heads, {self.num_heads}")
        head_dim = reader.optional_int("head_dim", default_head_dim, minimum=1, maximum=MAX_HEAD_DIM)
        if head_dim is None:
            if self.hidden_size % self.num_heads:
                raise reader.refuse("hidden_size", f"a multiple of num_attention_heads, {self.num_heads}")
            head_dim = self.hidden_size // self.num_heads
        self.head_dim = head_dim
        self.max_positions = reader.require_int("max_position_embeddings", minimum=1, maximum=MAX_POSITIONS)

    def multiplier(self, key: str, default: float) -> float:
        """The positive factor at `key`."""
        value = self.reader.optional_float(key, default, minimum=0.0, maximum=MAX_MULTIPLIER)
        if value == 0.0:
            raise self.reader.refuse(key, "above 0")
        return value

    def softcap(self, key: str, default: float | None) -> float | None:
        """The positive cap at `key`; an explicit null means none, an absent key the default."""
        if key in self.reader.mapping and not self.reader.has(key):
            return None
        cap = self.reader.optional_float(key, default, minimum=0.0, maximum=MAX_MULTIPLIER)
        if cap == 0.0:
            raise self.reader.refuse(key, "above 0, or null")
        return cap

    def activation(self, key: str, default: str) -> Activation:
        """The gate's activation at `key`."""
        return ACTIVATIONS[self.reader.optional_str(key, default, choices=ACTIVATIONS)]

    def windows(self, default: Sequence[bool], *, default_size: int | None = None) -> tuple[int | None, ...]:
        """Each layer's sliding window in positions.

        Args:
            default: which layers slide where the config has no `layer_types`.
            default_size: the window where `sliding_window` is absent; None makes it required.
        """
        slides = tuple(default)
        if self.reader.has("layer_types"):
            kinds = self.reader.string_list("layer_types", length=self.num_layers)
            for kind in kinds:
                if kind not in ("full_attention", "sliding_attention"):
                    raise CheckpointError(
                        f"layer_types has {quote(kind)}; full_attention and sliding_attention are supported",
                        path=self.where,
                    )
            slides = tuple(kind == "sliding_attention" for kind in kinds)
        if not any(slides):
            self.reader.has("sliding_window")  # read, and without effect
            return (None,) * self.num_layers
        key = "sliding_window"
        if default_size is None or key in self.reader.mapping:
            size = self.reader.require_int(key, minimum=1, maximum=MAX_POSITIONS)
        else:
            size = default_size
        return tuple(size if slide else None for slide in slides)

    def rope(
        self,
        *,
        default_theta: float = 10000.0,
        layer_type: str | None = None,
        theta_key: str = "rope_theta",
        is_scaled: bool = True,
        long_rope_names: Sequence[str] = ("longrope",),
    ) -> RopeSpec:
        """Rotary embedding of the layers of `layer_type`, or of all layers.

        LongRoPE lowers `max_positions` to the original context, up to which it is exact.

        Args:
            theta_key: where configs older than `rope_parameters` keep this layer type's base.
            is_scaled: whether an old config's `rope_scaling` is meant for this layer type.
            long_rope_names: rope types that mean LongRoPE.
        """
        spec, self.max_positions = HubRope(
            self.reader,
            layer_type=layer_type,
            theta_key=theta_key,
            default_theta=default_theta,
            is_scaled=is_scaled,
            head_dim=self.head_dim,
            max_positions=self.max_positions,
        ).read(long_rope_names)
        return spec

    def layers(
        self, ropes: Sequence[RopeSpec | None], windows: Sequence[int | None] | None = None
    ) -> tuple[LayerSpec, ...]:
        """The layers, all of one geometry; `ropes` and `windows` have an entry for each."""
        return tuple(
            LayerSpec(
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                intermediate_size=self.intermediate_size,
                rope=rope_spec,
                window=window,
            )
            for rope_spec, window in zip(ropes, windows or (None,) * self.num_layers, strict=True)
        )

    def spec(
        self,
        layers: tuple[LayerSpec, ...],
        *,
        activation: Activation,
        is_tied_by_default: bool = False,
        default_norm_eps: float = 1e-6,
        attention_scale: float | None = None,
        **parts: Any,
    ) -> DecoderSpec:
        """The finished spec; `parts` are fields of `DecoderSpec` that the family read itself.

        Raises:
            CheckpointError, NotAvailableError: a field that changes the computation was not read by the family.
        """
        spec = DecoderSpec(
            family=self.family,
            vocab_size=self.reader.require_int("vocab_size", minimum=1, maximum=MAX_WIDTH),
            hidden_size=self.hidden_size,
            max_positions=self.max_positions,
            layers=layers,
            norm_eps=self.reader.optional_float("rms_norm_eps", default_norm_eps, minimum=0.0, maximum=1.0),
            activation=activation,
            attention_scale=self.head_dim**-0.5 if attention_scale is None else attention_scale,
            tied_embeddings=self.reader.optional_bool("tie_word_embeddings", is_tied_by_default),
            **parts,
        )
        self._refuse_unread()
        return spec

    def _refuse_unread(self) -> None:
        values = self._noted.values_by_key
        if isinstance(quantization := values.get("quantization_config"), Mapping):
            raise NotAvailableError(f"quantization method {quote(quantization.get('quant_method'))} in safetensors")
        for key, neutral in NEUTRAL_VALUES.items():
            value = values.get(key)
            if value is not None and key not in self._noted.asked and value not in neutral:
                raise CheckpointError(
                    f"{key} = {quote(value)} changes what a {self.family} model computes, and poot does not know how",
                    path=self.where,
                )
