"""The device interface: what model code and the engine's runner may ask of any backend.

Model code speaks `Ops` over opaque handles and torch tensors. The runner records one program for each bucket before
serving and launches it with a `Step`. A device has never heard of a sequence: it sees rows, slots and positions.

Shapes: `num_tokens` is all tokens of a step over all its rows, `num_rows` the rows that take part, `num_samples` the
tokens drawn: one for each row whose chunk reaches its newest token, and one more for each proposed token it verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from poot.devices.formats import Format
from poot.devices.penalties import LogitEdits

if TYPE_CHECKING:  # it builds on this file
    from poot.config import TimingConfig
    from poot.devices.encode import EncodeBucket, EncodeForward, EncodeProgram
    from poot.devices.timing import TimingLog

# Positions per KV block. vLLM and SGLang's paged kernels use 16 as well; smaller blocks share more of a prefix and
# cost longer block tables.
KV_BLOCK_SIZE = 16

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor as its file stores it: a view of the mapped file until a device takes it.

    Attributes:
        name: the tensor's name in the file.
        shape: row-major; a linear weight is `(out_features, in_features)`.
        format: how the bytes are laid out.
        data: dense: a tensor of `shape`; packed: uint8 `[rows, row_bytes]`, rows being the product of all dimensions
            but the last. Read-only.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    data: torch.Tensor

    @property
    def num_bytes(self) -> int:
        return self.data.numel() * self.data.element_size()


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingBatch:
    """Sampling parameters of the tokens to be drawn, each array `[num_samples]`.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        min_p: 0 is off.
        seed: the request's seed.
        choice: index of the choice within its request.
        position: position of the token to be drawn, the counter of its random number.
        banned: token ids that may not be drawn, for each sample (the stop ids below min_tokens).
        num_logprobs: how many top log-probabilities to report, None for none at all, for each sample.
        edits: bias and penalties of each sample, None where it has none; empty where no sample has any.
    """

    temperature: FloatArray
    top_k: IntArray
    top_p: FloatArray
    min_p: FloatArray
    seed: npt.NDArray[np.uint64]
    choice: IntArray
    position: IntArray
    banned: tuple[tuple[int, ...], ...]
    num_logprobs: tuple[int | None, ...]
    edits: tuple[LogitEdits | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Tokens whose next token is known, and is to be given a log-probability: those of an echoed prompt.

    Attributes:
        indices: int64 `[num_scored]`: tokens of the step.
        token_ids: the next token of each.
        num_logprobs: top log-probabilities to report beside it, for each.
    """

    indices: LongArray
    token_ids: tuple[int, ...]
    num_logprobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CarriedTokens:
    """Tokens of a step that the step launched just before it draws: the host does not know them yet.

    Attributes:
        indices: int64 `[num_carried]`: tokens of this step.
        samples: int64 `[num_carried]`: for each, which of the tokens drawn by the step before it is. A step that
            failed, or a sample that did, counts as token 0.
    """

    indices: LongArray
    samples: LongArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Every value that changes from step to step.

    Rows are laid end to end: row r owns tokens `query_starts[r]` to `query_starts[r + 1]`, which are its positions
    `context_lengths[r] - query_length` to `context_lengths[r]`.

    Attributes:
        token_ids: int64 `[num_tokens]`.
        positions: int64 `[num_tokens]`.
        slots: int64 `[num_tokens]`: KV slot (block * KV_BLOCK_SIZE + offset) each token is written to.
        query_starts: int32 `[num_rows + 1]`.
        context_lengths: int32 `[num_rows]`, the tokens of this step included.
        block_tables: int32 `[num_rows, max_blocks]`; entries past a row's last block are 0 and never read.
        sample_indices: int64 `[num_samples]`: tokens whose logits are drawn from, in row order.
        sampling: parameters of those samples.
        scored: further tokens whose logits are looked at, of any number, or None.
        carried: which of `token_ids` the device knows better, or None; what stands there means nothing.
    """

    token_ids: LongArray
    positions: LongArray
    slots: LongArray
    query_starts: IntArray
    context_lengths: IntArray
    block_tables: IntArray
    sample_indices: LongArray
    sampling: SamplingBatch
    scored: ScoredTokens | None = None
    carried: CarriedTokens | None = None

    def resolve(self, drawn: LongArray) -> Step:
        """This step with its carried tokens filled in; `drawn` int64 `[num_samples]` are those of the step before."""
        if self.carried is None:
            return self
        token_ids = self.token_ids.copy()
        token_ids[self.carried.indices] = drawn[self.carried.samples]
        return replace(self, token_ids=token_ids, carried=None)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.context_lengths)


@dataclass(frozen=True, slots=True)
class SampleLogprobs:
    """Log-probabilities under the model's own distribution (before temperature and filters) at one position.

    `top` holds (token id, logprob), most likely first, ties by lower id.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The tokens drawn by one step, `[num_samples]`, with log-probabilities where they were asked for.

    Attributes:
        failed: samples (indices into `token_ids`) whose logits hold a NaN or an infinity, or of which every token is
            banned. Their token id is 0 and means nothing; only their own sequences fail.
        scores: of the step's scored tokens, `[num_scored]`.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[SampleLogprobs | None, ...]
    failed: frozenset[int] = frozenset()
    scores: tuple[SampleLogprobs, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """The largest step a program is recorded for.

    Attributes:
        max_positions: the most a row's context may hold; None stands for the whole KV pool.
        samples_a_row: most tokens a row draws: more than one where proposed tokens are verified.
    """

    num_rows: int
    num_tokens: int
    max_positions: int | None = None
    samples_a_row: int = 1

    @property
    def num_samples(self) -> int:
        return self.num_rows * self.samples_a_row


@dataclass(frozen=True, kw_only=True, slots=True)
class KvLayout:
    """The KV pool's shape, the same for every layer of one head geometry.

    `layers` lists (num_kv_heads, head_dim) for each layer. Values are f32 on cpu.
    """

    num_blocks: int
    layers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines for rotary embedding, f32 `[max_positions, rotary_dim / 2]`, attention factor included.

    `interleaved` rotates pairs (2i, 2i+1) (GGUF's llama layout) instead of (i, i + rotary_dim / 2) (Hugging Face's).
    """

    cos: torch.Tensor
    sin: torch.Tensor
    rotary_dim: int
    interleaved: bool


class Activation(Enum):
    """An element-wise function. GELU is by the error function, GELU_TANH its usual approximation."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    SILU = "silu"
    TANH = "tanh"


class Linear(Protocol):
    """A prepared linear map, opaque to model code. Several weights with the same input may be fused in one."""

    @property
    def in_features(self) -> int: ...
    @property
    def out_features(self) -> int: ...


class Embedding(Protocol):
    """A prepared token embedding table, opaque to model code."""

    @property
    def num_embeddings(self) -> int: ...
    @property
    def dim(self) -> int: ...


class Ops(Protocol):
    """The vocabulary of model code. Activations are f32 `[num_tokens, features]`.

    A result may be a buffer of the plan: it stays valid until the next operation of the same name and shape, so model
    code uses it at once or adds it to the residual.
    """

    def embed(self, table: Embedding, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows of `table`, `[num_tokens, dim]`."""

    def linear(self, weight: Linear, x: torch.Tensor) -> torch.Tensor:
        """`x @ weight.T + bias`, `[num_tokens, out_features]`, accumulated in f32."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        """RMSNorm over the last dimension (Zhang and Sennrich 2019), any leading shape."""

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        """LayerNorm over the last dimension."""

    def add(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """`x + scale * y`; may reuse the memory of x."""

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """`factor * x`; may reuse the memory of x."""

    def rope(self, x: torch.Tensor, table: RopeTable, positions: torch.Tensor) -> torch.Tensor:
        """Rotates the first `rotary_dim` of every head of x `[num_tokens, num_heads, head_dim]`; may work in place."""

    def kv_write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Stores this step's keys and values, `[num_tokens, num_kv_heads, head_dim]`, at the step's slots."""

    def attention(
        self, layer: int, query: torch.Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> torch.Tensor:
        """Causal attention of query `[num_tokens, num_heads, head_dim]` over the paged KV of each token's own row.

        A token at position p sees positions max(0, p - window + 1) to p. `softcap` c bends scores to
        c * tanh(score / c). Returns `[num_tokens, num_heads * head_dim]`.
        """

    def gated_silu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`silu(gate) * up` of `[num_tokens, 2 * n]` laid out gate first."""

    def gated_gelu_tanh(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`gelu_tanh(gate) * up` of `[num_tokens, 2 * n]` laid out gate first."""

    def softcap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        """`cap * tanh(x / cap)`; may reuse the memory of x."""

    def gather(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Rows of x at `indices`, `[num_samples, features]`."""

    def text_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        reach: tuple[int | None, int | None],
        softcap: float | None = None,
        distance_bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention within each text of an encode pass; no KV pool is read or written.

        Args:
            query: `[num_tokens, num_heads, head_dim]`; key, value: `[num_tokens, num_kv_heads, head_dim]`; may be
                strided views of one tensor.
            reach: how many positions (before, after) its own a token sees, None for all: (None, None) in an encoder,
                (None, 0) in a decoder, (window - 1, 0) in one with a sliding window.
            softcap: bends scores as in `attention`.
            distance_bias: f32 `[num_heads, 2 * R + 1]`, added to scores: entry R + d at a key d positions after the
                query, d being cut to -R to R.

        Returns:
            `[num_tokens, num_heads * head_dim]`.
        """

    def embed_added(self, table: Embedding, token_ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`x + embed(table, token_ids)`; may reuse the memory of x. For tables of positions and token types."""

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        """One vector a text of an encode pass, `[num_texts, features]`, from x `[num_tokens, features]`.

        By each text's pooling: the mean of its tokens from its pool start on, its first token or its last.
        """

    def activate(self, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        """The activation of every element; may reuse the memory of x."""

    def linear_activated(self, weight: Linear, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        """`activate(linear(weight, x), kind)`, as one operation where the device has it."""

    def linear_added(self, weight: Linear, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`linear(weight, x) + residual`, as one operation where the device has it; may reuse residual's memory."""

    def gated_gelu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`gelu(gate) * up`, gelu by the error function, of `[num_tokens, 2 * n]` laid out gate first."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """Logits of more tokens than a program's buffers hold, taken a few at a time.

    Attributes:
        slices: int64 tensors of indices into the step's tokens, none longer than the program's num_rows.
        take: is given the logits of each slice, f32 `[len(slice), vocab_size]`, in order, and is done with them when it
            returns.
    """

    slices: tuple[torch.Tensor, ...]
    take: Callable[[torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What model code sees of a step: device tensors, `[num_tokens]` and `[num_samples]`.

    `scoring` names tokens whose logits are wanted beside the samples', before them.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    sample_indices: torch.Tensor
    scoring: Scoring | None = None


# The engine's model code: logits f32 `[num_samples, vocab_size]` of one step.
Forward = Callable[[Ops, StepTensors], torch.Tensor]


class Pending(Protocol):
    """A step in flight on the device."""

    def tokens(self) -> StepResult:
        """Waits for the step and gives its tokens. Blocks the calling thread."""


class Program(Protocol):
    """One recorded bucket."""

    @property
    def launch_computes(self) -> bool:
        """Whether a step is over when `launch` returns, so that `tokens` of what it returns never blocks."""

    def launch(self, step: Step) -> Pending:
        """Fills the step buffer and starts the step, after those launched before. Never allocates device memory.

        The tokens of the step launched before need not have been asked for.
        """


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes of device memory: `total_bytes` in all, `available_bytes` that a plan may use now."""

    total_bytes: int
    available_bytes: int


class Device(Protocol):
    """One backend on one device. Everything that allocates happens before serving."""

    @property
    def name(self) -> str:
        """The backend's name as --backend spells it."""

    @property
    def description(self) -> str:
        """The device in words, for the log and /health."""

    def memory(self) -> MemoryBudget: ...

    def linear(
        self,
        weights: Sequence[Weight],
        bias: Sequence[torch.Tensor | None] | None = None,
        *,
        for_texts: bool = False,
    ) -> Linear:
        """Prepares `weights`, stacked along out_features, as one linear map.

        Args:
            bias: one entry a weight.
            for_texts: the map serves encode passes, many tokens at a time: the device may lay dense weights out anew
                for them, in memory of its own.
        """

    def embedding(self, weight: Weight) -> Embedding: ...

    def output_head(self, table: Embedding) -> Linear:
        """The tied output head: the embedding table as a linear map, sharing its memory."""

    def vector(self, weight: Weight, *, offset: float = 0.0) -> torch.Tensor:
        """A norm weight or bias as f32 on the device, `offset` added (Gemma stores norm weights minus one)."""

    def weight_bytes(self) -> int:
        """Bytes held by everything prepared so far."""

    def step_bytes(self, bucket: Bucket, *, spec_sizes: Mapping[str, int]) -> int:
        """An upper bound of one step's working memory.

        `spec_sizes` holds hidden_size, intermediate_size, vocab_size, max_positions, num_heads and head_dim.
        """

    def allocate_kv(self, layout: KvLayout) -> None:
        """Allocates the KV pool. Called once, before `record`."""

    def kv_bytes(self, layout: KvLayout) -> int: ...

    def record(self, forward: Forward, bucket: Bucket) -> Program:
        """Prepares `forward` for steps of up to `bucket`. Called before serving, after `allocate_kv`."""

    def encode_bytes(self, bucket: EncodeBucket, *, spec_sizes: Mapping[str, int]) -> int:
        """An upper bound of one encode pass's working memory; `spec_sizes` as in `step_bytes`."""

    def record_encode(self, forward: EncodeForward, bucket: EncodeBucket) -> EncodeProgram:
        """Prepares `forward` for passes of up to `bucket`. Called before serving; needs no KV pool."""

    def time_steps(self, config: TimingConfig) -> TimingLog:
        """Keeps the detail of the decode steps launched from now on, in a new log that any thread may read.

        Called between steps. Never called, no step reads a clock.
        """

    def statistics(self) -> dict[str, Any]:
        """Figures for /metrics and /health, such as the kernels in use."""
