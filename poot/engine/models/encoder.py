"""Runs any `EncoderSpec` through a device's `Ops`: the only model code there is for encoders.

Layers are closures over prepared weights. The residual stream is a tensor of its own; everything else is used at once,
as `Ops` asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from poot.devices.base import Activation, Embedding, Linear, Ops, RopeTable
from poot.devices.encode import EncodeTensors
from poot.engine.models.encoder_spec import EncoderLayerSpec, EncoderSpec

# One layer: the residual stream `[num_tokens, hidden_size]` and positions `[num_tokens]` in, the stream out.
LayerForward = Callable[[Ops, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Norm:
    """A LayerNorm's weight and, where it has one, bias."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderLayerWeights:
    """One layer's prepared weights. `up` is gate and up together where the MLP is gated."""

    qkv: Linear
    output: Linear
    attention_norm: Norm | None
    up: Linear
    down: Linear
    mlp_norm: Norm
    rope: RopeTable | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierWeights:
    dense: Linear | None
    norm: Norm | None
    output: Linear


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderWeights:
    """An encoder's prepared weights. `distance_bias` is as `Ops.text_attention` wants it."""

    token_embedding: Embedding
    position_embedding: Embedding | None
    type_embedding: Embedding | None
    embedding_norm: Norm
    layers: Sequence[EncoderLayerWeights]
    output_norm: Norm | None
    distance_bias: torch.Tensor | None
    classifier: ClassifierWeights | None


class EncoderModel:
    """A loaded encoder.

    Attributes:
        spec: what it is.
        num_weight_bytes: device memory its weights and tables hold.
        display_name: the name the file gives it, or None.
    """

    def __init__(
        self, spec: EncoderSpec, weights: EncoderWeights, *, num_weight_bytes: int, display_name: str | None = None
    ) -> None:
        self.spec = spec
        self.num_weight_bytes = num_weight_bytes
        self.display_name = display_name
        self._weights = weights
        make = _pre_norm_layer if spec.pre_norms else _post_norm_layer
        self._layers = tuple(
            make(spec, layer, prepared, weights.distance_bias)
            for layer, prepared in zip(spec.layers, weights.layers, strict=True)
        )

    @property
    def has_classifier(self) -> bool:
        return self._weights.classifier is not None

    def encode(self, ops: Ops, tensors: EncodeTensors) -> torch.Tensor:
        """One encode pass: final hidden states f32 `[num_tokens, hidden_size]` of every token."""
        spec, weights = self.spec, self._weights
        hidden = ops.embed(weights.token_embedding, tensors.token_ids)
        if weights.position_embedding is not None:
            rows = tensors.positions + spec.position_offset if spec.position_offset else tensors.positions
            hidden = ops.embed_added(weights.position_embedding, rows, hidden)
        if weights.type_embedding is not None:
            hidden = ops.embed_added(weights.type_embedding, tensors.token_types, hidden)
        hidden = _normalize(ops, hidden, weights.embedding_norm, spec.norm_eps)
        for layer in self._layers:
            hidden = layer(ops, hidden, tensors.positions)
        return hidden if weights.output_norm is None else _normalize(ops, hidden, weights.output_norm, spec.norm_eps)

    def classify(self, ops: Ops, pooled: torch.Tensor) -> torch.Tensor:
        """Logits f32 `[num_texts, 1]` of pooled hidden states `[num_texts, hidden_size]`. Only with a classifier."""
        classifier, spec = self._weights.classifier, self.spec.classifier
        assert classifier is not None
        assert spec is not None
        if classifier.dense is not None:
            pooled = ops.linear_activated(classifier.dense, pooled, spec.activation)
        if classifier.norm is not None:
            pooled = _normalize(ops, pooled, classifier.norm, self.spec.norm_eps)
        return ops.linear(classifier.output, pooled)


def _normalize(ops: Ops, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
    return ops.layer_norm(x, norm.weight, norm.bias, eps)


def _post_norm_layer(
    spec: EncoderSpec, layer: EncoderLayerSpec, weights: EncoderLayerWeights, distance_bias: torch.Tensor | None
) -> LayerForward:
    attention = _attention(spec, layer, weights, distance_bias)
    mlp = _mlp_inner(spec, weights)
    attention_norm, mlp_norm, eps = weights.attention_norm, weights.mlp_norm, spec.norm_eps
    assert attention_norm is not None

    def forward(ops: Ops, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        attended = attention(ops, hidden, positions)
        hidden = _normalize(ops, ops.linear_added(weights.output, attended, hidden), attention_norm, eps)
        inner = mlp(ops, hidden)
        return _normalize(ops, ops.linear_added(weights.down, inner, hidden), mlp_norm, eps)

    return forward


def _pre_norm_layer(
    spec: EncoderSpec, layer: EncoderLayerSpec, weights: EncoderLayerWeights, distance_bias: torch.Tensor | None
) -> LayerForward:
    attention = _attention(spec, layer, weights, distance_bias)
    mlp = _mlp_inner(spec, weights)
    attention_norm, mlp_norm, eps = weights.attention_norm, weights.mlp_norm, spec.norm_eps

    def forward(ops: Ops, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = hidden if attention_norm is None else _normalize(ops, hidden, attention_norm, eps)
        hidden = ops.linear_added(weights.output, attention(ops, x, positions), hidden)
        return ops.linear_added(weights.down, mlp(ops, _normalize(ops, hidden, mlp_norm, eps)), hidden)

    return forward


def _attention(
    spec: EncoderSpec, layer: EncoderLayerSpec, weights: EncoderLayerWeights, distance_bias: torch.Tensor | None
) -> LayerForward:
    """Projections, rope and attention, up to the output projection."""
    num_heads, head_dim = spec.num_heads, spec.head_dim
    scale = head_dim**-0.5
    qkv, table, reach = weights.qkv, weights.rope, layer.reach

    def forward(ops: Ops, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # [num_tokens, 3 * num_heads, head_dim]: queries, keys, values
        heads = ops.linear(qkv, x).view(len(x), -1, head_dim)
        query_key, value = heads[:, : 2 * num_heads], heads[:, 2 * num_heads :]
        if table is not None:
            query_key = ops.rope(query_key, table, positions)
        query, key = query_key[:, :num_heads], query_key[:, num_heads:]
        return ops.text_attention(query, key, value, scale=scale, reach=reach, distance_bias=distance_bias)

    return forward


def _mlp_inner(spec: EncoderSpec, weights: EncoderLayerWeights) -> Callable[[Ops, torch.Tensor], torch.Tensor]:
    """The MLP up to its second projection."""
    up, kind = weights.up, spec.activation
    if not spec.is_gated:
        return lambda ops, x: ops.linear_activated(up, x, kind)
    match kind:
        case Activation.GELU:
            return lambda ops, x: ops.gated_gelu(ops.linear(up, x))
        case Activation.GELU_TANH:
            return lambda ops, x: ops.gated_gelu_tanh(ops.linear(up, x))
        case Activation.SILU:
            return lambda ops, x: ops.gated_silu(ops.linear(up, x))
        case Activation.RELU | Activation.TANH:
            raise AssertionError(f"no family gates by {kind}")
