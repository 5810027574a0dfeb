"""Reads a decoder's GGUF metadata, whatever architecture it names.

Keys are those of the GGUF specification (ggml's docs/gguf.md) and gguf-py's constants; what they mean where the
documents are silent follows llama.cpp's loader, which the files are made for. Every key under the architecture's
prefix must be understood: one that nothing reads is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from poot.engine.checkpoint.fields import ConfigReader, quote
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models import rope
from poot.engine.models.families.bounds import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_MULTIPLIER,
    MAX_POSITIONS,
    MAX_WIDTH,
)
from poot.engine.models.families.noted import Noted
from poot.engine.models.spec import Activation, DecoderSpec, LayerSpec, RopeSpec
from poot.errors import CheckpointError, NotAvailableError

# Keys that say nothing about the computation: provenance, and how the tensors were laid out by old converters.
HARMLESS_KEYS = frozenset({"tensor_data_layout", "rope.scaling.finetuned", "expert_used_count"})

# The scalings of GGUF's rope.scaling.type.
NO_SCALING, LINEAR, YARN, LONGROPE = "none", "linear", "yarn", "longrope"

ROPE_FACTORS = "rope_freqs.weight"
# LongRoPE's factors within the original context, and beyond it; the latter are not served yet.
SHORT_FACTORS = "rope_factors_short.weight"
LONG_FACTORS = "rope_factors_long.weight"


class GgufMetadata:
    """Metadata of one decoder in a GGUF file. Per-layer values are tuples with an entry for each layer.

    Args:
        family: the family's name, for messages and logs.
        is_interleaved: whether this architecture's query and key rows are stored for interleaved rope.

    Raises:
        CheckpointError: a key is missing, has the wrong type, or is out of range.
        NotAvailableError: a mixture of experts.
    """

    def __init__(self, checkpoint: Checkpoint, family: str, *, is_interleaved: bool) -> None:
        self.where = f"{display_path(checkpoint.path)}: {checkpoint.architecture}"
        self.family = family
        self.is_interleaved = is_interleaved
        self.tensors = checkpoint.tensors
        prefix = f"{checkpoint.architecture}."
        self._noted = Noted(
            {key[len(prefix) :]: value for key, value in checkpoint.config.items() if key.startswith(prefix)}
        )
        self.reader = reader = ConfigReader(self._noted, where=self.where)
        if num_experts := reader.optional_int("expert_count", 0):
            raise NotAvailableError(f"a mixture of experts ({checkpoint.architecture} with {num_experts} experts)")
        self.num_layers = reader.require_int("block_count", minimum=1, maximum=MAX_LAYERS)
        self.hidden_size = reader.require_int("embedding_length", minimum=1, maximum=MAX_WIDTH)
        self.max_positions = reader.require_int("context_length", minimum=1, maximum=MAX_POSITIONS)
        self.norm_eps = reader.require_float("attention.layer_norm_rms_epsilon", minimum=0.0, maximum=1.0)
        self.intermediate_sizes = self._per_layer("feed_forward_length", None, MAX_WIDTH)
        self.nums_heads = self._per_layer("attention.head_count", None, MAX_HEADS)
        self.nums_kv_heads = self._per_layer("attention.head_count_kv", self.nums_heads, MAX_HEADS)
        for num_heads, num_kv_heads in zip(self.nums_heads, self.nums_kv_heads, strict=True):
            if num_heads % num_kv_heads:
                raise reader.refuse("attention.head_count_kv", f"a divisor of attention.head_count, {num_heads}")
        head_dim = reader.optional_int("attention.key_length", None, minimum=1, maximum=MAX_HEAD_DIM)
        if head_dim is None:
            if self.hidden_size % self.nums_heads[0]:
                raise reader.refuse("embedding_length", f"a multiple of attention.head_count, {self.nums_heads[0]}")
            head_dim = self.hidden_size // self.nums_heads[0]
        self.head_dim = head_dim
        if reader.optional_int("attention.value_length", head_dim) != head_dim:
            raise reader.refuse("attention.value_length", f"the key length, {head_dim}")
        if not reader.optional_bool("attention.causal", True):
            raise reader.refuse("attention.causal", "true")

    def _per_layer(self, key: str, default: tuple[int, ...] | None, maximum: int) -> tuple[int, ...]:
        """An integer for each layer: GGUF allows one for all or a list."""
        if not self.reader.has(key) and default is not None:
            return default
        if isinstance(self.reader.mapping.get(key), (list, tuple)):
            return self.reader.int_list(key, length=self.num_layers, minimum=1, maximum=maximum)
        return (self.reader.require_int(key, minimum=1, maximum=maximum),) * self.num_layers

    def has_tensor(self, name: str) -> bool:
        """Whether the first layer has the tensor `name`."""
        return f"blk.0.{name}" in self.tensors

    def multiplier(self, key: str, default: float) -> float:
        """The factor at `key`; 0 is llama.cpp's spelling of "not set"."""
        value = self.reader.optional_float(key, default, minimum=0.0, maximum=MAX_MULTIPLIER)
        return value or default

    def windows(self, period: int, size: int | None) -> tuple[int | None, ...]:
        """Each layer's sliding window: all but the last of every `period` layers slide, over `size` positions.

        `attention.sliding_window_pattern`, a period or a list of booleans, goes before `period`.
        """
        key = "attention.sliding_window_pattern"
        pattern = self.reader.mapping.get(key)
        if isinstance(pattern, (list, tuple)):
            if len(pattern) != self.num_layers or not all(type(slides) is bool for slides in pattern):
                raise self.reader.refuse(key, f"a period or a list of {self.num_layers} booleans")
            slides = tuple(pattern)
        else:
            period = self.reader.optional_int(key, period, minimum=1, maximum=MAX_LAYERS)
            slides = tuple((index + 1) % period != 0 for index in range(self.num_layers))
        if size is None:
            return (None,) * self.num_layers
        return tuple(size if slide else None for slide in slides)

    def window_size(self, default: int | None) -> int | None:
        """`attention.sliding_window`; 0 is none."""
        return self.reader.optional_int("attention.sliding_window", default, maximum=MAX_POSITIONS) or None

    def rope(
        self, *, theta_key: str = "rope.freq_base", default_theta: float = 10000.0, is_scaled: bool = True
    ) -> RopeSpec:
        """Rotary embedding from the `rope.*` keys and the rope_freqs tensor.

        Args:
            is_scaled: whether `rope.scaling.*` is meant for the layers in question.

        LongRoPE lowers `max_positions` to the original context, up to which it is exact.
        """
        reader = self.reader
        theta = reader.optional_float(theta_key, default_theta)
        if not 1.0 < theta <= 1e15:
            raise reader.refuse(theta_key, "above 1 and at most 1e15")
        rotary_dim = reader.optional_int("rope.dimension_count", self.head_dim, minimum=2, maximum=self.head_dim)
        if rotary_dim % 2:
            raise reader.refuse("rope.dimension_count", "even")
        frequencies = rope.base_frequencies(theta, rotary_dim)
        attention_factor = 1.0
        kind = reader.optional_str("rope.scaling.type", NO_SCALING)
        # Files older than rope.scaling.* spell linear scaling so.
        old_factor = reader.optional_float("rope.scale_linear", 0.0, minimum=0.0, maximum=1e6)
        if old_factor and kind == NO_SCALING:
            kind = LINEAR
        factor = reader.optional_float("rope.scaling.factor", old_factor, minimum=0.0, maximum=1e6)
        original = reader.optional_int(
            "rope.scaling.original_context_length", self.max_positions, minimum=1, maximum=MAX_POSITIONS
        )
        if kind == LONGROPE or SHORT_FACTORS in self.tensors or LONG_FACTORS in self.tensors:
            return self._long_rope(frequencies)
        if kind not in (NO_SCALING, LINEAR, YARN):
            raise reader.refuse("rope.scaling.type", f"one of {NO_SCALING}, {LINEAR}, {YARN}, {LONGROPE}")
        factor_tensor = self.tensors.get(ROPE_FACTORS)
        if factor_tensor is not None:
            if kind != NO_SCALING:
                raise reader.refuse("rope.scaling.type", f"{NO_SCALING} beside a {ROPE_FACTORS} tensor")
            frequencies = rope.divided(frequencies, self._rope_factors(ROPE_FACTORS, rotary_dim // 2))
        if kind == NO_SCALING or not is_scaled:
            pass
        elif not factor:
            raise reader.refuse("rope.scaling.factor", f"above 0 with {kind} scaling")
        elif kind == LINEAR:
            frequencies = rope.linear(frequencies, factor)
        else:
            frequencies = rope.yarn(
                theta,
                rotary_dim,
                factor=factor,
                original_max_positions=original,
                beta_fast=self._yarn_bound("beta_fast", rope.YARN_BETA_FAST),
                beta_slow=self._yarn_bound("beta_slow", rope.YARN_BETA_SLOW),
            )
            attention_factor = rope.yarn_attention_factor(factor)
            self._check_yarn(attention_factor)
        return RopeSpec(
            inverse_frequencies=frequencies,
            rotary_dim=rotary_dim,
            attention_factor=attention_factor * self.multiplier("rope.scaling.attn_factor", 1.0),
            interleaved=self.is_interleaved,
        )

    def _yarn_bound(self, name: str, default: float) -> float:
        value = self.reader.optional_float(f"rope.scaling.{name}", default, minimum=1e-3, maximum=1e6)
        return self.reader.optional_float(f"rope.scaling.yarn_{name}", value, minimum=1e-3, maximum=1e6)

    def _check_yarn(self, attention_factor: float) -> None:
        """Refuses YaRN settings whose meaning differs between converter and runtime, unless they change nothing."""
        key = "rope.scaling.yarn_ext_factor"
        if self.reader.optional_float(key, 1.0) != 1.0:
            raise self.reader.refuse(key, "1")
        key = "rope.scaling.yarn_attn_factor"
        if abs(self.reader.optional_float(key, attention_factor) - attention_factor) > 1e-5:
            raise self.reader.refuse(key, f"what the scaling factor gives, {attention_factor:g}")
        key = "rope.scaling.yarn_log_multiplier"
        if self.reader.optional_float(key, 0.0) != 0.0:
            raise self.reader.refuse(key, "0")

    def _long_rope(self, frequencies: Sequence[float]) -> RopeSpec:
        key = "rope.scaling.original_context_length"
        original = self.reader.require_int(key, minimum=2, maximum=MAX_POSITIONS)
        attention_factor = self.reader.require_float("rope.scaling.attn_factor", minimum=1e-6, maximum=1e6)
        self.max_positions = min(self.max_positions, original)
        return RopeSpec(
            inverse_frequencies=rope.divided(frequencies, self._rope_factors(SHORT_FACTORS, len(frequencies))),
            rotary_dim=2 * len(frequencies),
            attention_factor=attention_factor,
            interleaved=self.is_interleaved,
        )

    def _rope_factors(self, name: str, length: int) -> tuple[float, ...]:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"tensor {name} is missing", path=self.where)
        if tensor.shape != (length,) or not tensor.format.is_dense:
            raise CheckpointError(
                f"tensor {name} has shape {list(tensor.shape)} and type {tensor.format.label}; "
                f"it must hold {length} plain numbers",
                path=self.where,
            )
        factors = tuple(float(value) for value in tensor.data.to(torch.float64))
        if not all(1e-6 <= factor <= 1e6 for factor in factors):  # NaN fails too
            raise CheckpointError(f"tensor {name} has values outside 1e-6 to 1e6", path=self.where)
        return factors

    def layers(
        self, ropes: Sequence[RopeSpec | None], windows: Sequence[int | None] | None = None
    ) -> tuple[LayerSpec, ...]:
        """The layers; `ropes` and `windows` have an entry for each."""
        return tuple(
            LayerSpec(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=self.head_dim,
                intermediate_size=intermediate_size,
                rope=rope_spec,
                window=window,
            )
            for num_heads, num_kv_heads, intermediate_size, rope_spec, window in zip(
                self.nums_heads,
                self.nums_kv_heads,
                self.intermediate_sizes,
                ropes,
                windows or (None,) * self.num_layers,
                strict=True,
            )
        )

    def spec(
        self,
        layers: tuple[LayerSpec, ...],
        *,
        activation: Activation,
        attention_scale: float | None = None,
        **parts: Any,
    ) -> DecoderSpec:
        """The finished spec; `parts` are fields of `DecoderSpec` that the family read itself.

        The vocabulary is as large as the embedding table; biases and tied embeddings show in which tensors there are.

        Raises:
            CheckpointError: no embedding table, or a key that nothing has read.
        """
        embedding = self.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise CheckpointError("tensor token_embd.weight is missing or not a table", path=self.where)
        vocab_size = embedding.shape[0]
        if self.reader.optional_int("vocab_size", vocab_size) != vocab_size:
            raise self.reader.refuse("vocab_size", f"the rows of token_embd.weight, {vocab_size}")
        is_fused = self.has_tensor("attn_qkv.weight")
        spec = DecoderSpec(
            family=self.family,
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            max_positions=self.max_positions,
            layers=layers,
            norm_eps=self.norm_eps,
            activation=activation,
            attention_scale=self.head_dim**-0.5 if attention_scale is None else attention_scale,
            tied_embeddings="output.weight" not in self.tensors,
            output_bias=self.has_tensor("attn_output.bias"),
            mlp_bias=self.has_tensor("ffn_up.bias"),
            fused_qkv=is_fused,
            **{"attention_bias": self.has_tensor("attn_qkv.bias" if is_fused else "attn_q.bias"), **parts},
        )
        self._refuse_unread()
        return spec

    def _refuse_unread(self) -> None:
        for key, value in self._noted.values_by_key.items():
            if key not in self._noted.asked and key not in HARMLESS_KEYS:
                raise CheckpointError(
                    f"metadata key {quote(key)} = {quote(value)} is not one poot understands for a {self.family} model",
                    path=self.where,
                )
