"""The cpu device: weights as views of the mapped file, a KV pool in f32, and programs that are plain calls."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

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
    LongArray,
    MemoryBudget,
    Ops,
    Program,
    Step,
    StepResult,
    StepTensors,
    Weight,
)
from poot.devices.cpu_attention import QUERY_TILE
from poot.devices.cpu_encode import CpuPass, DonePass, prepare_pass
from poot.devices.cpu_ops import MAX_KERNEL_QUERIES, TILE_ELEMENTS, CpuOps
from poot.devices.cpu_step import as_tensor, prepare
from poot.devices.cpu_text_attention import QUERY_TILE as TEXT_QUERY_TILE
from poot.devices.encode import EncodeBucket, EncodeForward, EncodeProgram, EncodeStep, EncodeTensors, Pooling
from poot.devices.kernels.dequantize import dequantize
from poot.devices.kernels.native import load_native
from poot.devices.memory import cpu_memory
from poot.devices.packed import PackedEmbedding, PackedLinear, Segment, pack_embedding, pack_linear, prepack_linear
from poot.devices.processor import num_threads, processor_name
from poot.devices.sampler import Scorer, sample
from poot.devices.timing import StepTimer, TimedOps, TimingLog
from poot.devices.workspace import Workspace

logger = logging.getLogger("poot.devices")


class CpuDevice:
    """The processor, computing in f32.

    Args:
        use_native: false leaves the native kernels out, as where they could not be built.
        threads: how many to compute with; None takes as many as the process may run at once. It is set for all of
            torch, which has one number for the process.
    """

    def __init__(self, *, use_native: bool = True, threads: int | None = None) -> None:
        self._num_threads = num_threads() if threads is None else threads
        torch.set_num_threads(self._num_threads)
        self._native = load_native() if use_native else None
        if self._native is None:
            logger.warning(
                "native kernels are not available: every step dequantizes its weights in torch, "
                "which makes decoding several times slower"
            )
        self._workspace = Workspace()
        self._ops = CpuOps(self._native, self._num_threads, self._workspace)
        self._weight_bytes = 0
        self._num_slots = 0
        self._timer = StepTimer()

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def description(self) -> str:
        return f"{processor_name()}, {self._num_threads} thread{'s' if self._num_threads > 1 else ''}"

    def memory(self) -> MemoryBudget:
        return cpu_memory()

    def linear(
        self,
        weights: Sequence[Weight],
        bias: Sequence[torch.Tensor | None] | None = None,
        *,
        for_texts: bool = False,
    ) -> Linear:
        self._weight_bytes += sum(weight.num_bytes for weight in weights)
        packed = pack_linear(weights, bias)
        if for_texts:
            packed = prepack_linear(packed)
            if packed.prepacked is not None:
                self._weight_bytes += 4 * packed.in_features * packed.out_features
        return packed

    def embedding(self, weight: Weight) -> Embedding:
        self._weight_bytes += weight.num_bytes
        return pack_embedding(weight)

    def output_head(self, table: Embedding) -> Linear:
        packed = cast("PackedEmbedding", table)
        segment = Segment(packed.format, packed.data, 0, packed.num_embeddings, None)
        return PackedLinear((segment,), packed.dim, packed.num_embeddings)

    def vector(self, weight: Weight, *, offset: float = 0.0) -> torch.Tensor:
        vector = dequantize(weight.format, weight.data).reshape(-1).clone().add_(offset)
        self._weight_bytes += vector.numel() * vector.element_size()
        return vector

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def step_bytes(self, bucket: Bucket, *, spec_sizes: Mapping[str, int]) -> int:
        hidden, intermediate = spec_sizes["hidden_size"], spec_sizes["intermediate_size"]
        vocab, positions = spec_sizes["vocab_size"], spec_sizes["max_positions"]
        if bucket.max_positions is None:  # then `record` allows a row the whole pool
            positions *= bucket.num_rows
        heads = spec_sizes["num_heads"] * spec_sizes["head_dim"]
        floats = (
            # embedding and its packed rows, two norms, a linear of hidden_size, gathered rows, one temporary
            bucket.num_tokens * hidden * 7
            # query, key and value together, two query norms and two key norms, rope's temporaries, attention twice
            + bucket.num_tokens * heads * 11
            # gate and up, the gated product, one temporary
            + bucket.num_tokens * intermediate * 4
            # logits, and the sampler's ten arrays of one row at a time, of up to eight bytes an element
            + vocab * (bucket.num_samples + 20)
            # keys and values of a row gathered from their blocks
            + 2 * (positions + KV_BLOCK_SIZE) * heads
            # attention masks, one for full attention and one for a window
            + 2 * QUERY_TILE * (positions + QUERY_TILE)
            # soft-capped scores and their copies
            + 3 * 4 * 1024 * 1024
            # a tile of dequantized weights; torch's dequantization works in up to 1.5 times its result
            + 5 * max(TILE_ELEMENTS, hidden, intermediate, heads) // 2
        )
        return floats * 4 + _LIBRARY_BYTES

    def allocate_kv(self, layout: KvLayout) -> None:
        assert not self._num_slots, "the KV pool is allocated once"
        self._num_slots = layout.num_blocks * KV_BLOCK_SIZE
        # Written through, so that the memory is really there before the listener opens.
        keys, values = (
            tuple(torch.empty((self._num_slots, heads, dim)).zero_() for heads, dim in layout.layers) for _ in range(2)
        )
        self._ops.use_pool(keys, values)

    def kv_bytes(self, layout: KvLayout) -> int:
        values = sum(heads * dim for heads, dim in layout.layers)
        return 2 * 4 * layout.num_blocks * KV_BLOCK_SIZE * values

    def record(self, forward: Forward, bucket: Bucket) -> Program:
        """Prepares `forward`: a trace of it sizes and allocates every buffer of a step of up to `bucket`.

        The trace computes nothing. All programs of a device share one workspace, as one step runs at a time.
        """
        assert self._num_slots, "the KV pool is allocated before programs are recorded"
        self._ops.begin_trace(min(bucket.max_positions or self._num_slots, self._num_slots))
        try:
            with torch.inference_mode():
                forward(
                    self._ops,
                    StepTensors(
                        token_ids=torch.zeros(bucket.num_tokens, dtype=torch.int64),
                        positions=torch.zeros(bucket.num_tokens, dtype=torch.int64),
                        sample_indices=torch.zeros(bucket.num_samples, dtype=torch.int64),
                    ),
                )
        finally:
            self._ops.end_trace()
        max_kernel_queries = 0 if self._native is None else MAX_KERNEL_QUERIES
        return _CpuProgram(forward, bucket, self._ops, max_kernel_queries, self._timer)

    def encode_bytes(self, bucket: EncodeBucket, *, spec_sizes: Mapping[str, int]) -> int:
        hidden, intermediate = spec_sizes["hidden_size"], spec_sizes["intermediate_size"]
        num_heads, head_dim = spec_sizes["num_heads"], spec_sizes["head_dim"]
        heads = num_heads * head_dim
        floats = (
            # embeddings of tokens, positions and types with their packed rows, norms, sums, a linear, one temporary
            bucket.num_tokens * hidden * 10
            # query, key and value together, query and key norms, rope's temporaries, attention twice
            + bucket.num_tokens * heads * 11
            # gate and up, the product, one temporary
            + bucket.num_tokens * intermediate * 4
            # pooled vectors, a head's layers
            + bucket.num_texts * hidden * 4
            # a tile's mask for each head, and soft-capped scores with their copies
            + 4 * num_heads * TEXT_QUERY_TILE * bucket.max_text_tokens
            # a tile of dequantized weights; torch's dequantization works in up to 1.5 times its result
            + 5 * max(TILE_ELEMENTS, hidden, intermediate, heads) // 2
        )
        return floats * 4 + _LIBRARY_BYTES

    def record_encode(self, forward: EncodeForward, bucket: EncodeBucket) -> EncodeProgram:
        """Prepares `forward` as `record` does: a trace sizes and allocates the buffers of a pass of up to `bucket`."""
        self._ops.begin_trace(0)
        self._ops.begin_pass(CpuPass((), ((Pooling.MEAN, 0, 1),) * bucket.num_texts))
        try:
            with torch.inference_mode():
                zeros = torch.zeros(bucket.num_tokens, dtype=torch.int64)
                forward(self._ops, EncodeTensors(token_ids=zeros, positions=zeros, token_types=zeros))
        finally:
            self._ops.end_trace()
        return _CpuEncodeProgram(forward, bucket, self._ops)

    def time_steps(self, config: TimingConfig) -> TimingLog:
        """As `Device.time_steps`: marks of the host's clock around each operation, as the processor has no other.

        The operations run one after another all the same, so nothing is submitted differently.
        """
        logger.info(
            "device timing: the processor has no clock beside the host's: device time stays unknown, and no timestamp "
            "query is ever in flight"
        )
        log = TimingLog(config, measures_device=False, perturbs=False)
        self._timer.log = log
        return log

    def statistics(self) -> dict[str, Any]:
        return {
            "kernels": "torch" if self._native is None else f"native {self._native.isa}",
            "threads": self._num_threads,
            "instruction_set": torch.backends.cpu.get_cpu_capability().lower(),
            "workspace_bytes": self._workspace.num_bytes + self._ops.mask_bytes(),
        }


# What the matrix library keeps for itself: packed panels for each thread.
_LIBRARY_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Done:
    """A step that has run."""

    result: StepResult

    def tokens(self) -> StepResult:
        return self.result


@dataclass(frozen=True, slots=True)
class _CpuEncodeProgram:
    """An encode pass as a plain call, as `_CpuProgram` is a step."""

    forward: EncodeForward
    bucket: EncodeBucket
    ops: CpuOps

    def launch(self, step: EncodeStep) -> DonePass:
        assert step.num_tokens <= self.bucket.num_tokens, (step.num_tokens, self.bucket)
        assert step.num_texts <= self.bucket.num_texts, (step.num_texts, self.bucket)
        with torch.inference_mode():
            self.ops.begin_pass(prepare_pass(step))
            tensors = EncodeTensors(
                token_ids=as_tensor(step.token_ids, np.int64),
                positions=as_tensor(step.positions, np.int64),
                token_types=as_tensor(step.token_types, np.int64),
            )
            return DonePass(self.forward(self.ops, tensors).numpy().copy())


@dataclass(slots=True)
class _CpuProgram:
    """`forward` as a plain call: `launch` runs the whole step, and `tokens` only hands over its result."""

    forward: Forward
    bucket: Bucket
    ops: CpuOps
    max_kernel_queries: int
    timer: StepTimer
    # What the last step drew.
    drawn: LongArray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def launch_computes(self) -> bool:
        return True

    def launch(self, step: Step) -> _Done:
        assert step.num_tokens <= self.bucket.num_tokens, (step.num_tokens, self.bucket)
        assert step.num_rows <= self.bucket.num_rows, (step.num_rows, self.bucket)
        step = step.resolve(self.drawn)
        self.drawn = np.zeros(len(step.sample_indices), np.int64)
        scorer = None if step.scored is None else Scorer(step.scored)
        with torch.inference_mode():
            self.ops.begin(prepare(step, self.max_kernel_queries))
            tensors = StepTensors(
                token_ids=as_tensor(step.token_ids, np.int64),
                positions=as_tensor(step.positions, np.int64),
                sample_indices=as_tensor(step.sample_indices, np.int64),
                scoring=None if scorer is None else scorer.scoring(self.bucket.num_rows),
            )
            result = self._compute(tensors, step)
            self.drawn[:] = result.token_ids
            return _Done(result if scorer is None else replace(result, scores=tuple(scorer.scores)))

    def _compute(self, tensors: StepTensors, step: Step) -> StepResult:
        log = self.timer.log
        record = None if log is None else log.begin_step(step.num_tokens)
        if log is None or record is None:
            return sample(self.forward(self.ops, tensors), step.sampling)
        logits = self.forward(TimedOps.around(cast("Ops", self.ops), record), tensors)
        result = record.run("sample", sample, logits, step.sampling)
        log.end_step(record)
        return result
