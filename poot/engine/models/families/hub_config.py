"""Reads config.json as Hugging Face's transformers means it, whatever family it describes.

Both spellings of rope are read: `rope_parameters` (transformers 5, per layer type where layers differ) and the older
`rope_theta` with `rope_scaling`. Fields that change what a model computes and that its family does not read are
refused by name unless they hold the value that changes nothing. Defaults are those of transformers' own
configuration classes (5.x), which leave a field out where it holds its default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poot.engine.checkpoint.fields import ConfigReader
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models import rope
from poot.engine.models.families.noted import Noted
from poot.engine.models.spec import Activation, DecoderSpec, LayerSpec, RopeSpec
from poot.errors import CheckpointError, NotAvailableError

# Bounds far above every model there is: they keep a hostile file from asking for giant lists before its tensors,
# which must match, were looked at.
MAX_LAYERS = 2048
MAX_HEADS = 65536
MAX_HEAD_DIM = 16384
MAX_WIDTH = 2**24
MAX_POSITIONS = 2**31 - 1
MAX_MULTIPLIER = 1e9

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

ROPE_FIELDS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "longrope": frozenset(
        {"factor", "original_max_position_embeddings", "short_factor", "long_factor", "attention_factor"}
    ),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
}
COMMON_ROPE_FIELDS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


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
                        f"layer_types has {kind!r}; full_attention and sliding_attention are supported", path=self.where
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

        Args:
            theta_key: where configs older than `rope_parameters` keep this layer type's base.
            is_scaled: whether an old config's `rope_scaling` is meant for this layer type.
            long_rope_names: rope types that mean LongRoPE. It lowers `max_positions` to the original context, up to
                which it is exact.
        """
        parameters = self.reader.optional_section("rope_parameters")
        if parameters is not None and layer_type is not None:
            parameters = parameters.require_section(layer_type)
        old = self.reader.optional_section("rope_scaling")
        if parameters is None:
            parameters = old if old is not None and is_scaled else ConfigReader({}, where=self.where)
        theta = self.reader.optional_float(theta_key, default_theta)
        theta = parameters.optional_float("rope_theta", theta)
        if not 1.0 < theta <= 1e15:
            raise CheckpointError(f"rope_theta is {theta:g}; it must be above 1 and at most 1e15", path=self.where)
        share = self.reader.optional_float("partial_rotary_factor", 1.0, minimum=0.0, maximum=1.0)
        share = parameters.optional_float("partial_rotary_factor", share, minimum=0.0, maximum=1.0)
        rotary_dim = int(self.head_dim * share)
        if rotary_dim < 2 or rotary_dim % 2:
            raise CheckpointError(
                f"rope turns {rotary_dim} dimensions of {self.head_dim}; it must be an even number from 2",
                path=self.where,
            )
        kind = parameters.optional_str("rope_type", parameters.optional_str("type", "default"))
        if kind in long_rope_names:
            kind = "longrope"
        if kind not in ROPE_FIELDS:
            raise CheckpointError(
                f"rope type {kind!r} is not supported; poot has {', '.join(ROPE_FIELDS)}", path=parameters.where
            )
        self._refuse_other_fields(parameters, kind)
        return self._scaled(parameters, kind, theta, rotary_dim)

    def _refuse_other_fields(self, parameters: ConfigReader, kind: str) -> None:
        known = COMMON_ROPE_FIELDS | ROPE_FIELDS[kind]
        if kind == "default":  # transformers reads none of these without scaling; some exporters leave them behind
            known |= {"original_max_position_embeddings", "factor"}
        for key in parameters.mapping:
            if key not in known and parameters.has(key):
                raise CheckpointError(f"{key} is not a field of rope type {kind}", path=parameters.where)

    def _scaled(self, parameters: ConfigReader, kind: str, theta: float, rotary_dim: int) -> RopeSpec:
        frequencies = rope.base_frequencies(theta, rotary_dim)
        if kind == "default":
            return RopeSpec(inverse_frequencies=frequencies, rotary_dim=rotary_dim)
        if kind == "longrope":
            return self._long_rope(parameters, frequencies)
        factor = parameters.require_float("factor", minimum=1e-6, maximum=1e6)
        if kind == "linear":
            return RopeSpec(inverse_frequencies=rope.linear(frequencies, factor), rotary_dim=rotary_dim)
        original = parameters.optional_int(
            "original_max_position_embeddings", self.max_positions, minimum=1, maximum=MAX_POSITIONS
        )
        if kind == "llama3":
            low = parameters.require_float("low_freq_factor", minimum=1e-6, maximum=1e6)
            high = parameters.require_float("high_freq_factor", minimum=1e-6, maximum=1e6)
            if high <= low:
                raise parameters.refuse("high_freq_factor", f"above low_freq_factor, {low:g}")
            scaled = rope.llama3(
                frequencies,
                factor=factor,
                low_freq_factor=low,
                high_freq_factor=high,
                original_max_positions=original,
            )
            return RopeSpec(inverse_frequencies=scaled, rotary_dim=rotary_dim)
        scaled = rope.yarn(
            theta,
            rotary_dim,
            factor=factor,
            original_max_positions=original,
            beta_fast=parameters.optional_float("beta_fast", rope.YARN_BETA_FAST, minimum=1e-3, maximum=1e6),
            beta_slow=parameters.optional_float("beta_slow", rope.YARN_BETA_SLOW, minimum=1e-3, maximum=1e6),
            truncate=parameters.optional_bool("truncate", True),
        )
        attention_factor = parameters.optional_float("attention_factor", None, minimum=1e-6, maximum=1e6)
        if attention_factor is None:
            mscale = parameters.optional_float("mscale", 0.0, minimum=0.0, maximum=1e6)
            mscale_all_dim = parameters.optional_float("mscale_all_dim", 0.0, minimum=0.0, maximum=1e6)
            attention_factor = rope.yarn_attention_factor(factor)
            if mscale and mscale_all_dim:
                attention_factor = rope.yarn_attention_factor(factor, mscale) / rope.yarn_attention_factor(
                    factor, mscale_all_dim
                )
        return RopeSpec(inverse_frequencies=scaled, rotary_dim=rotary_dim, attention_factor=attention_factor)

    def _long_rope(self, parameters: ConfigReader, frequencies: Sequence[float]) -> RopeSpec:
        original = self.reader.optional_int("original_max_position_embeddings", None, minimum=2, maximum=MAX_POSITIONS)
        if original is None:
            key = "original_max_position_embeddings"
            original = parameters.optional_int(key, self.max_positions, minimum=2, maximum=MAX_POSITIONS)
        short = parameters.float_list("short_factor", length=len(frequencies), minimum=1e-6, maximum=1e6)
        factor = parameters.optional_float("factor", self.max_positions / original, minimum=1e-6, maximum=1e6)
        attention_factor = parameters.optional_float(
            "attention_factor", rope.long_rope_attention_factor(factor, original), minimum=1e-6, maximum=1e6
        )
        self.max_positions = min(self.max_positions, original)
        return RopeSpec(
            inverse_frequencies=rope.divided(frequencies, short),
            rotary_dim=2 * len(frequencies),
            attention_factor=attention_factor,
        )

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
            raise NotAvailableError(f"quantization method {quantization.get('quant_method')!r} in safetensors")
        for key, neutral in NEUTRAL_VALUES.items():
            value = values.get(key)
            if value is not None and key not in self._noted.asked and value not in neutral:
                raise CheckpointError(
                    f"{key} = {value!r} changes what a {self.family} model computes, and poot does not know how",
                    path=self.where,
                )
