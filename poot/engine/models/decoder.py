"""Runs any `DecoderSpec` through a device's `Ops`: the only model code there is for dense decoders.

The same layers serve two passes: steps, which keep keys and values in the KV pool, and encode passes, in which
attention looks at the keys and values of the pass itself and nothing is kept.

Layers are closures over prepared weights, so that a decode step costs a handful of operations a layer and no look-up.
An operation's result may be overwritten by the next one of the same name and shape (see `Ops`): keys are finished and
written before queries are touched, and only the residual stream lives on from operation to operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from poot.devices.base import Embedding, Linear, Ops, RopeTable, StepTensors
from poot.devices.encode import EncodeTensors
from poot.engine.models.spec import Activation, DecoderSpec, QkNorm

# One layer: the residual stream `[num_tokens, hidden_size]` and positions `[num_tokens]` in, the stream out.
LayerForward = Callable[[Ops, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """One layer's prepared weights. Norm weights are f32 vectors, None where the layer has no such norm."""

    attention_norm: torch.Tensor | None
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear
    attention_post_norm: torch.Tensor | None
    mlp_norm: torch.Tensor | None
    gate_up: Linear
    down: Linear
    mlp_post_norm: torch.Tensor | None
    rope: RopeTable | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderWeights:
    """A decoder's prepared weights. `head` shares the embedding's memory where embeddings are tied."""

    embedding: Embedding
    layers: Sequence[LayerWeights]
    output_norm: torch.Tensor
    head: Linear


# Binds one layer's attention block, of a step or of an encode pass.
MakeAttention = Callable[[DecoderSpec, int, LayerWeights], LayerForward]


class DecoderModel:
    """A loaded decoder.

    Attributes:
        spec: what it is.
        num_weight_bytes: device memory its weights and tables hold.
        display_name: the name the file gives it, or None.
    """

    def __init__(
        self, spec: DecoderSpec, weights: DecoderWeights, *, num_weight_bytes: int, display_name: str | None = None
    ) -> None:
        self.spec = spec
        self.num_weight_bytes = num_weight_bytes
        self.display_name = display_name
        self._embedding = weights.embedding
        self._layers = tuple(
            _layer_forward(spec, index, layer, _attention_forward) for index, layer in enumerate(weights.layers)
        )
        self._text_layers = tuple(
            _layer_forward(spec, index, layer, _text_attention_forward) for index, layer in enumerate(weights.layers)
        )
        self._output_norm = weights.output_norm
        self._head = weights.head

    @property
    def kv_layers(self) -> tuple[tuple[int, int], ...]:
        """(num_kv_heads, head_dim) of every layer, as `KvLayout` wants them."""
        return tuple((layer.num_kv_heads, layer.head_dim) for layer in self.spec.layers)

    def forward(self, ops: Ops, step: StepTensors) -> torch.Tensor:
        """One step: writes keys and values of all its tokens and gives logits f32 `[num_samples, vocab_size]`.

        Only rows at `sample_indices` pass the final norm and the head, whose cost would else rival all layers'.
        """
        spec = self.spec
        hidden = ops.embed(self._embedding, step.token_ids)
        if spec.embedding_multiplier != 1.0:
            hidden = ops.scale(hidden, spec.embedding_multiplier)
        positions = step.positions
        for layer in self._layers:
            hidden = layer(ops, hidden, positions)
        if step.scoring is not None:
            for indices in step.scoring.slices:
                step.scoring.take(self._logits(ops, hidden, indices))
        return self._logits(ops, hidden, step.sample_indices)

    def _logits(self, ops: Ops, hidden: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Logits f32 `[num_indices, vocab_size]` of some tokens of a step."""
        spec = self.spec
        sampled = ops.gather(hidden, indices)
        logits = ops.linear(self._head, ops.rms_norm(sampled, self._output_norm, spec.norm_eps))
        if spec.logits_multiplier != 1.0:
            logits = ops.scale(logits, spec.logits_multiplier)
        if spec.final_softcap is not None:
            logits = ops.softcap(logits, spec.final_softcap)
        return logits

    def encode(self, ops: Ops, tensors: EncodeTensors) -> torch.Tensor:
        """One encode pass: hidden states after the final norm, f32 `[num_tokens, hidden_size]`, of every token.

        Each token sees itself and the tokens before it in its own text, within the layer's window.
        """
        spec = self.spec
        hidden = ops.embed(self._embedding, tensors.token_ids)
        if spec.embedding_multiplier != 1.0:
            hidden = ops.scale(hidden, spec.embedding_multiplier)
        positions = tensors.positions
        for layer in self._text_layers:
            hidden = layer(ops, hidden, positions)
        return ops.rms_norm(hidden, self._output_norm, spec.norm_eps)


def _layer_forward(spec: DecoderSpec, index: int, weights: LayerWeights, make_attention: MakeAttention) -> LayerForward:
    """The layer as one function, everything that does not change from step to step bound."""
    attention = make_attention(spec, index, weights)
    eps = spec.norm_eps
    residual_multiplier = spec.residual_multiplier
    attention_norm, attention_post_norm = weights.attention_norm, weights.attention_post_norm
    mlp_norm, mlp_post_norm = weights.mlp_norm, weights.mlp_post_norm
    gate_up, down = weights.gate_up, weights.down
    is_silu = spec.activation is Activation.SILU

    def forward(ops: Ops, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = hidden if attention_norm is None else ops.rms_norm(hidden, attention_norm, eps)
        x = attention(ops, x, positions)
        if attention_post_norm is not None:
            x = ops.rms_norm(x, attention_post_norm, eps)
        hidden = ops.add(hidden, x, residual_multiplier)
        x = hidden if mlp_norm is None else ops.rms_norm(hidden, mlp_norm, eps)
        x = ops.linear(gate_up, x)
        x = ops.gated_silu(x) if is_silu else ops.gated_gelu_tanh(x)
        x = ops.linear(down, x)
        if mlp_post_norm is not None:
            x = ops.rms_norm(x, mlp_post_norm, eps)
        return ops.add(hidden, x, residual_multiplier)

    return forward


def _attention_forward(spec: DecoderSpec, index: int, weights: LayerWeights) -> LayerForward:
    """Projections, qk-norm, rope, KV write, attention and output projection of one layer."""
    layer = spec.layers[index]
    head_dim = layer.head_dim
    num_heads = layer.num_heads
    num_query_key_heads = num_heads + layer.num_kv_heads
    query_width = num_heads * head_dim
    query_key_width = num_query_key_heads * head_dim
    qkv, output, table = weights.qkv, weights.output, weights.rope
    query_norm, key_norm = weights.query_norm, weights.key_norm
    is_full_norm = spec.qk_norm is QkNorm.FULL
    scale, window, softcap, eps = spec.attention_scale, layer.window, spec.attention_softcap, spec.norm_eps

    def forward(ops: Ops, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        projected = ops.linear(qkv, x)
        num_tokens = projected.shape[0]
        # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]: queries, keys, values
        heads = projected.view(num_tokens, -1, head_dim)
        value = heads[:, num_query_key_heads:]
        if query_norm is None:
            # Queries and keys turn alike, so one operation rotates both.
            query_key = heads[:, :num_query_key_heads]
            if table is not None:
                query_key = ops.rope(query_key, table, positions)
            ops.kv_write(index, query_key[:, num_heads:], value)
            query = query_key[:, :num_heads]
        else:
            if is_full_norm:
                key = ops.rms_norm(projected[:, query_width:query_key_width], key_norm, eps)
                key = key.view(num_tokens, -1, head_dim)
            else:
                key = ops.rms_norm(heads[:, num_heads:num_query_key_heads], key_norm, eps)
            if table is not None:
                key = ops.rope(key, table, positions)
            ops.kv_write(index, key, value)
            if is_full_norm:
                query = ops.rms_norm(projected[:, :query_width], query_norm, eps)
                query = query.view(num_tokens, num_heads, head_dim)
            else:
                query = ops.rms_norm(heads[:, :num_heads], query_norm, eps)
            if table is not None:
                query = ops.rope(query, table, positions)
        attended = ops.attention(index, query, scale=scale, window=window, softcap=softcap)
        return ops.linear(output, attended)

    return forward


def _text_attention_forward(spec: DecoderSpec, index: int, weights: LayerWeights) -> LayerForward:
    """The same block in an encode pass: no KV is written, and attention looks within each text."""
    layer = spec.layers[index]
    head_dim = layer.head_dim
    num_heads = layer.num_heads
    num_query_key_heads = num_heads + layer.num_kv_heads
    query_width = num_heads * head_dim
    query_key_width = num_query_key_heads * head_dim
    qkv, output, table = weights.qkv, weights.output, weights.rope
    query_norm, key_norm = weights.query_norm, weights.key_norm
    is_full_norm = spec.qk_norm is QkNorm.FULL
    scale, softcap, eps = spec.attention_scale, spec.attention_softcap, spec.norm_eps
    reach = (None if layer.window is None else layer.window - 1, 0)

    def forward(ops: Ops, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        projected = ops.linear(qkv, x)
        num_tokens = projected.shape[0]
        heads = projected.view(num_tokens, -1, head_dim)
        query_key, value = heads[:, :num_query_key_heads], heads[:, num_query_key_heads:]
        if query_norm is None:
            if table is not None:
                query_key = ops.rope(query_key, table, positions)
            query, key = query_key[:, :num_heads], query_key[:, num_heads:]
        else:
            if is_full_norm:
                key = ops.rms_norm(projected[:, query_width:query_key_width], key_norm, eps)
                key = key.view(num_tokens, -1, head_dim)
            else:
                key = ops.rms_norm(query_key[:, num_heads:], key_norm, eps)
            if table is not None:
                key = ops.rope(key, table, positions)
            # Finished keys go back where the raw ones were: with as many key heads as query heads, the norm and rope
            # of the queries would overwrite the buffers they are in.
            key = query_key[:, num_heads:].copy_(key)
            if is_full_norm:
                query = ops.rms_norm(projected[:, :query_width], query_norm, eps)
                query = query.view(num_tokens, num_heads, head_dim)
            else:
                query = ops.rms_norm(query_key[:, :num_heads], query_norm, eps)
            if table is not None:
                query = ops.rope(query, table, positions)
        attended = ops.text_attention(query, key, value, scale=scale, reach=reach, softcap=softcap)
        return ops.linear(output, attended)

    return forward
