"""A device in the plainest torch there is: f32 everywhere, one row at a time, no buffer ever reused.

It is the yardstick for real devices and lets model code be tested without them. Packed weights are unpacked by gguf-py
(`gguf.quants.dequantize`) when they are prepared. Slow on purpose: read it to see what an operation means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import gguf
import numpy as np
import torch

from poot.config import TimingConfig
from poot.devices.base import (
    KV_BLOCK_SIZE,
    Bucket,
    Embedding,
    Forward,
    KvLayout,
    Linear,
    MemoryBudget,
    Program,
    RopeTable,
    SampleLogprobs,
    Scoring,
    Step,
    StepResult,
    StepTensors,
    Weight,
)
from poot.devices.encode import EncodeBucket, EncodeForward, EncodeStep, EncodeTensors
from poot.devices.timing import TimingLog
from tests.fakes.reference_text_ops import ReferenceTextOps, ReferenceVectors


def unpack(weight: Weight) -> torch.Tensor:
    """The f32 values of a weight of any format, in its shape."""
    if weight.format.is_dense:
        return weight.data.to(torch.float32).reshape(weight.shape)
    packed = np.asarray(weight.data)
    values = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[weight.format.label])
    return torch.from_numpy(values).reshape(weight.shape)


@dataclass(frozen=True, slots=True)
class ReferenceLinear:
    weight: torch.Tensor  # [out_features, in_features]
    bias: torch.Tensor | None

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]


@dataclass(frozen=True, slots=True)
class ReferenceEmbedding:
    weight: torch.Tensor  # [num_embeddings, dim]

    @property
    def num_embeddings(self) -> int:
        return self.weight.shape[0]

    @property
    def dim(self) -> int:
        return self.weight.shape[1]


class ReferenceOps(ReferenceTextOps):
    """The operations of one step over a KV pool of `[num_slots, num_kv_heads, head_dim]` per layer."""

    def __init__(self, step: Step | None, keys: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        self._step = cast("Step", step)  # None in an encode pass, which never asks for the step
        self._keys = keys
        self._values = values

    def embed(self, table: Embedding, token_ids: torch.Tensor) -> torch.Tensor:
        assert isinstance(table, ReferenceEmbedding)
        return table.weight[token_ids]

    def linear(self, weight: Linear, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(weight, ReferenceLinear)
        return torch.nn.functional.linear(x, weight.weight, weight.bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        normed = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return normed if weight is None else normed * weight

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def add(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + scale * y

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    def rope(self, x: torch.Tensor, table: RopeTable, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = table.cos[positions].unsqueeze(1), table.sin[positions].unsqueeze(1)
        turned, rest = x[..., : table.rotary_dim], x[..., table.rotary_dim :]
        if table.interleaved:
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned.chunk(2, dim=-1)
        new_first, new_second = first * cos - second * sin, second * cos + first * sin
        if table.interleaved:
            turned = torch.stack((new_first, new_second), dim=-1).flatten(-2)
        else:
            turned = torch.cat((new_first, new_second), dim=-1)
        return torch.cat((turned, rest), dim=-1)

    def kv_write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        slots = torch.from_numpy(self._step.slots)
        self._keys[layer][slots] = key
        self._values[layer][slots] = value

    def attention(
        self, layer: int, query: torch.Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> torch.Tensor:
        step = self._step
        outputs = []
        for row in range(step.num_rows):
            context_length = int(step.context_lengths[row])
            query_rows = query[int(step.query_starts[row]) : int(step.query_starts[row + 1])]
            positions = torch.arange(context_length)
            blocks = torch.from_numpy(step.block_tables[row].astype(np.int64))
            slots = blocks[positions // KV_BLOCK_SIZE] * KV_BLOCK_SIZE + positions % KV_BLOCK_SIZE
            groups = query.shape[1] // self._keys[layer].shape[1]
            key = self._keys[layer][slots].repeat_interleave(groups, dim=1)
            value = self._values[layer][slots].repeat_interleave(groups, dim=1)
            scores = torch.einsum("qhd,khd->hqk", query_rows, key) * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            query_positions = positions[context_length - len(query_rows) :]
            distance = query_positions.unsqueeze(1) - positions.unsqueeze(0)
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            probabilities = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            outputs.append(torch.einsum("hqk,khd->qhd", probabilities, value).flatten(1))
        return torch.cat(outputs)

    def gated_silu(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    def gated_gelu_tanh(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.gelu(gate, approximate="tanh") * up

    def softcap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        return cap * torch.tanh(x / cap)

    def gather(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return x[indices]


@dataclass(frozen=True, slots=True)
class ReferencePending:
    """A finished step: its tokens, and the logits they were drawn from, f32 `[num_samples, vocab_size]`."""

    result: StepResult
    logits: torch.Tensor

    def tokens(self) -> StepResult:
        return self.result


class ReferenceProgram:
    """Runs the model code anew for every step."""

    def __init__(self, forward: Forward, bucket: Bucket, keys: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        self._forward = forward
        self._bucket = bucket
        self._keys = keys
        self._values = values

    @property
    def launch_computes(self) -> bool:
        return True

    def launch(self, step: Step) -> ReferencePending:
        assert step.carried is None, "run one step at a time"
        assert step.num_rows <= self._bucket.num_rows
        assert step.num_tokens <= self._bucket.num_tokens
        scored_logits: list[torch.Tensor] = []
        scoring = None
        if step.scored is not None:

            def take(logits: torch.Tensor) -> None:
                scored_logits.append(logits.clone())
                logits.fill_(torch.nan)  # as a device with planned buffers overwrites them

            indices, size = torch.from_numpy(step.scored.indices), self._bucket.num_rows
            scoring = Scoring(tuple(indices[start : start + size] for start in range(0, len(indices), size)), take)
        tensors = StepTensors(
            token_ids=torch.from_numpy(step.token_ids),
            positions=torch.from_numpy(step.positions),
            sample_indices=torch.from_numpy(step.sample_indices),
            scoring=scoring,
        )
        with torch.inference_mode():
            logits = self._forward(ReferenceOps(step, self._keys, self._values), tensors)
        assert logits.dtype == torch.float32
        assert len(logits) == len(step.sample_indices)
        result = _sample(step, logits)
        if step.scored is not None:
            scores = map(_score, torch.cat(scored_logits), step.scored.token_ids, step.scored.num_logprobs)
            result = replace(result, scores=tuple(scores))
        return ReferencePending(result, logits)


class ReferenceEncodeProgram:
    """Runs the model code anew for every encode pass."""

    def __init__(self, forward: EncodeForward, bucket: EncodeBucket) -> None:
        self._forward = forward
        self._bucket = bucket

    def launch(self, step: EncodeStep) -> ReferenceVectors:
        assert step.num_texts <= self._bucket.num_texts
        assert step.num_tokens <= self._bucket.num_tokens
        tensors = EncodeTensors(
            token_ids=torch.from_numpy(step.token_ids),
            positions=torch.from_numpy(step.positions),
            token_types=torch.from_numpy(step.token_types),
        )
        ops = ReferenceOps(None, [], [])
        ops.encode_step = step
        with torch.inference_mode():
            return ReferenceVectors(self._forward(ops, tensors).numpy().copy())


def _sample(step: Step, logits: torch.Tensor) -> StepResult:
    """Draws a token for each sample; not poot's random numbers, but a function of (seed, choice, position) too."""
    sampling = step.sampling
    token_ids: list[int] = []
    logprobs: list[SampleLogprobs | None] = []
    failed: set[int] = set()
    for index, row in enumerate(logits):
        allowed = row.clone()
        allowed[list(sampling.banned[index])] = -torch.inf
        if not row.isfinite().all() or not allowed.isfinite().any():
            failed.add(index)
            token_ids.append(0)
            logprobs.append(None)
            continue
        temperature = float(sampling.temperature[index])
        if temperature == 0.0:
            token_id = int(allowed.argmax())
        else:
            token_id = _draw(step, index, allowed / temperature)
        token_ids.append(token_id)
        wanted = sampling.num_logprobs[index]
        if wanted is None:
            logprobs.append(None)
            continue
        logprobs.append(_score(row, token_id, wanted))
    return StepResult(tuple(token_ids), tuple(logprobs), frozenset(failed))


def _score(row: torch.Tensor, token_id: int, count: int) -> SampleLogprobs:
    logprob = row.double().log_softmax(-1)
    order = sorted(range(len(logprob)), key=lambda token: (-float(logprob[token]), token))[:count]
    return SampleLogprobs(float(logprob[token_id]), tuple((token, float(logprob[token])) for token in order))


def _draw(step: Step, index: int, logits: torch.Tensor) -> int:
    sampling = step.sampling
    probabilities = logits.double().softmax(-1)
    order = torch.argsort(probabilities, descending=True, stable=True)
    ordered = probabilities[order]
    keep = torch.ones(len(ordered), dtype=torch.bool)
    if sampling.top_k[index]:
        keep[int(sampling.top_k[index]) :] = False
    keep &= ordered.cumsum(0) - ordered < float(sampling.top_p[index])
    keep &= ordered >= float(sampling.min_p[index]) * ordered[0]
    entropy = [int(sampling.seed[index]), int(sampling.choice[index]), int(sampling.position[index])]
    weights = torch.where(keep, ordered, 0.0).numpy()
    return int(order[np.random.default_rng(entropy).choice(len(weights), p=weights / weights.sum())])


class ReferenceDevice:
    """See the module. `name` is "reference", which no --backend spells."""

    name = "reference"
    description = "plain torch reference"

    def __init__(self, available_bytes: int = 2**33) -> None:
        self._available_bytes = available_bytes
        self._weight_bytes = 0
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def memory(self) -> MemoryBudget:
        return MemoryBudget(total_bytes=self._available_bytes, available_bytes=self._available_bytes)

    def linear(
        self,
        weights: Sequence[Weight],
        bias: Sequence[torch.Tensor | None] | None = None,
        *,
        for_texts: bool = False,
    ) -> ReferenceLinear:
        parts = [unpack(weight) for weight in weights]
        stacked_bias = None
        if bias is not None and any(part is not None for part in bias):
            stacked_bias = torch.cat(
                [torch.zeros(len(part)) if b is None else b for part, b in zip(parts, bias, strict=True)]
            )
        return ReferenceLinear(self._held(torch.cat(parts)), stacked_bias)

    def embedding(self, weight: Weight) -> ReferenceEmbedding:
        return ReferenceEmbedding(self._held(unpack(weight)))

    def output_head(self, table: Embedding) -> ReferenceLinear:
        assert isinstance(table, ReferenceEmbedding)
        return ReferenceLinear(table.weight, None)

    def vector(self, weight: Weight, *, offset: float = 0.0) -> torch.Tensor:
        return self._held(unpack(weight) + offset)

    def _held(self, tensor: torch.Tensor) -> torch.Tensor:
        self._weight_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def step_bytes(self, bucket: Bucket, *, spec_sizes: Mapping[str, int]) -> int:
        return bucket.num_tokens * sum(spec_sizes.values()) * 4

    def kv_bytes(self, layout: KvLayout) -> int:
        slots = layout.num_blocks * KV_BLOCK_SIZE
        return sum(2 * 4 * slots * num_kv_heads * head_dim for num_kv_heads, head_dim in layout.layers)

    def allocate_kv(self, layout: KvLayout) -> None:
        slots = layout.num_blocks * KV_BLOCK_SIZE
        # NaN shows at once when a position is read that was never written.
        for pool in (self._keys, self._values):
            pool[:] = [torch.full((slots, heads, dim), torch.nan) for heads, dim in layout.layers]

    def record(self, forward: Forward, bucket: Bucket) -> Program:
        return ReferenceProgram(forward, bucket, self._keys, self._values)

    def encode_bytes(self, bucket: EncodeBucket, *, spec_sizes: Mapping[str, int]) -> int:
        return bucket.num_tokens * sum(spec_sizes.values()) * 4

    def record_encode(self, forward: EncodeForward, bucket: EncodeBucket) -> ReferenceEncodeProgram:
        return ReferenceEncodeProgram(forward, bucket)

    def time_steps(self, config: TimingConfig) -> TimingLog:
        return TimingLog(config, measures_device=False, perturbs=False)

    def statistics(self) -> dict[str, Any]:
        return {"kernels": "reference"}
