"""The vocabulary of model code on the cpu, in f32: native kernels where the processor has them, torch elsewhere.

A linear map of few rows reads the packed weights directly, in a native kernel. For many rows a tile of the weights is
dequantized into one scratch buffer and multiplied by sgemm, so that no second copy of the model ever exists.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F

from poot.devices.base import KV_BLOCK_SIZE, Embedding, Linear, RopeTable
from poot.devices.cpu_attention import attend, mask_template, plan_softcapped, reach_of
from poot.devices.cpu_step import ChunkRow, CpuStep
from poot.devices.cpu_text_ops import CpuTextOps
from poot.devices.formats import Format
from poot.devices.kernels.dequantize import dequantize
from poot.devices.kernels.native import NativeKernels
from poot.devices.packed import PackedEmbedding, PackedLinear, Segment
from poot.devices.workspace import Workspace

# Most rows that the native packed kernel multiplies faster than dequantizing and sgemm do. Measured on one AVX-512
# core: the two meet between 16 and 24 rows for every format and for matrices of 0.9 to 4 million weights.
MAX_NATIVE_ROWS = 16

# Most queries of a row that the native attention kernel takes; from 3 on torch's fused attention is faster.
MAX_KERNEL_QUERIES = 2

# Elements of the dequantization scratch: 8 MiB, which stays in the processor's last cache while sgemm reads it.
TILE_ELEMENTS = 2 * 1024 * 1024


class CpuOps(CpuTextOps):
    """`Ops` over a workspace and a KV pool. One step at a time; `begin` says which.

    Results are buffers of the workspace: valid until the next operation of the same name and shape (a norm's until
    the next but one, so that query and key norms of one shape may stand side by side).
    """

    def __init__(self, native: NativeKernels | None, num_threads: int, workspace: Workspace) -> None:
        self._native = native
        self._num_threads = num_threads
        self._workspace = workspace
        self._keys: tuple[torch.Tensor, ...] = ()
        self._values: tuple[torch.Tensor, ...] = ()
        self._max_positions = 0
        self._masks: dict[int | None, torch.Tensor] = {}
        self._step: CpuStep | None = None
        self._norm_turn = False

    def use_pool(self, keys: tuple[torch.Tensor, ...], values: tuple[torch.Tensor, ...]) -> None:
        """Takes the KV pool: for each layer f32 `[num_slots, num_kv_heads, head_dim]`."""
        self._keys, self._values = keys, values

    def begin_trace(self, max_positions: int) -> None:
        """Operations that follow only take their buffers. A row has at most `max_positions`."""
        self._workspace.is_tracing = True
        if max_positions > self._max_positions:
            self._max_positions = max_positions
            self._masks.clear()

    def end_trace(self) -> None:
        self._workspace.is_tracing = False

    def begin(self, step: CpuStep) -> None:
        """Operations that follow belong to `step`."""
        self._step = step

    def mask_bytes(self) -> int:
        return sum(mask.numel() * mask.element_size() for mask in self._masks.values())

    # Weights

    def embed(self, table: Embedding, token_ids: torch.Tensor) -> torch.Tensor:
        return self._rows("embed", table, token_ids)

    def embed_added(self, table: Embedding, token_ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x.add_(self._rows("embed added", table, token_ids))

    def _rows(self, name: str, table: Embedding, token_ids: torch.Tensor) -> torch.Tensor:
        """The table's rows in the buffer `name`, `[num_tokens, dim]`."""
        packed = cast("PackedEmbedding", table)
        num_tokens = token_ids.shape[0]
        out = self._workspace.take(name, num_tokens, (packed.dim,))
        if packed.format is Format.F32:
            if not self._workspace.is_tracing:
                torch.index_select(packed.data, 0, token_ids, out=out)
            return out
        rows = self._workspace.take("embed packed", num_tokens, tuple(packed.data.shape[1:]), packed.data.dtype)
        if not self._workspace.is_tracing:
            torch.index_select(packed.data, 0, token_ids, out=rows)
            self._dequantize(packed.format, rows, out)
        return out

    def linear(self, weight: Linear, x: torch.Tensor) -> torch.Tensor:
        packed = cast("PackedLinear", weight)
        num_rows = x.shape[0]
        if packed.prepacked is not None:
            # A trace only wants the shape: the product is a fresh tensor.
            return (
                torch.empty(num_rows, packed.out_features)
                if self._workspace.is_tracing
                else packed.prepacked.multiply(x)
            )
        out = self._workspace.take("linear", num_rows, (packed.out_features,))
        if self._workspace.is_tracing:
            self._plan_linear(packed)
        elif num_rows:
            if self._native is not None and num_rows <= MAX_NATIVE_ROWS:
                for segment in packed.segments:
                    columns = self._columns(packed, segment, num_rows, out)
                    self._native.linear(segment.format, segment.data, x, columns, segment.bias, self._num_threads)
            else:
                for segment in packed.segments:
                    self._multiply_tiles(segment, x, out)
        return out

    def _columns(self, packed: PackedLinear, segment: Segment, num_rows: int, out: torch.Tensor) -> torch.Tensor:
        """`out[:, start:stop]` of a segment, remembered from step to step."""
        if segment.stop - segment.start == packed.out_features:
            return out
        key = ("linear", num_rows, (packed.out_features, segment.start, segment.stop), torch.float32)
        columns = self._workspace.column(key)
        if columns is None:
            columns = out[:, segment.start : segment.stop]
            self._workspace.remember(key, columns)
        return columns

    def _plan_linear(self, packed: PackedLinear) -> None:
        for segment in packed.segments:
            if segment.format is not Format.F32:
                rows = min(_tile_rows(packed.in_features), segment.stop - segment.start)
                self._workspace.take("dequantized", rows * packed.in_features, ())

    def _multiply_tiles(self, segment: Segment, x: torch.Tensor, out: torch.Tensor) -> None:
        in_features = x.shape[1]
        num_outputs = segment.stop - segment.start
        tile_rows = num_outputs if segment.format is Format.F32 else _tile_rows(in_features)
        for start in range(0, num_outputs, tile_rows):
            stop = min(start + tile_rows, num_outputs)
            tile = segment.data[start:stop]
            if segment.format is not Format.F32:
                size = (stop - start) * in_features
                scratch = self._workspace.take("dequantized", size, ()).view(stop - start, in_features)
                self._dequantize(segment.format, tile, scratch)
                tile = scratch
            columns = out[:, segment.start + start : segment.start + stop]
            if segment.bias is None:
                torch.mm(x, tile.t(), out=columns)
            else:
                torch.addmm(segment.bias[start:stop], x, tile.t(), out=columns)

    def _dequantize(self, format: Format, data: torch.Tensor, out: torch.Tensor) -> None:
        if self._native is None:
            dequantize(format, data, out)
        else:
            self._native.dequantize(format, data, out, self._num_threads)

    # Norms and element-wise operations

    def _threads(self, num_rows: int) -> int:
        """Threads for an element-wise kernel: waking the others costs more than a few rows take."""
        return self._num_threads if num_rows > MAX_NATIVE_ROWS else 1

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        features = tuple(x.shape[1:])
        if self._workspace.is_tracing:
            self._workspace.take("norm a", x.shape[0], features)
            return self._workspace.take("norm b", x.shape[0], features)
        self._norm_turn = not self._norm_turn
        out = self._workspace.take("norm a" if self._norm_turn else "norm b", x.shape[0], features)
        if self._native is not None:
            if not x.is_contiguous():
                x = out.copy_(x)
            self._native.rms_norm(x, weight, eps, out, self._threads(x.shape[0]))
            return out
        torch.mul(x, x, out=out)
        factor = out.mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
        torch.mul(x, factor, out=out)
        return out if weight is None else out.mul_(weight)

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def add(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x.add_(y, alpha=scale)

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x.mul_(factor)

    def softcap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        return x.div_(cap).tanh_().mul_(cap)

    def gather(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        out = self._workspace.take("gather", len(indices), tuple(x.shape[1:]))
        if not self._workspace.is_tracing:
            torch.index_select(x, 0, indices, out=out)
        return out

    def gated_silu(self, gate_up: torch.Tensor) -> torch.Tensor:
        half = gate_up.shape[1] // 2
        out = self._workspace.take("gated", gate_up.shape[0], (half,))
        if self._workspace.is_tracing:
            return out
        if self._native is not None:
            self._native.gated_silu(gate_up, out, self._threads(gate_up.shape[0]))
            return out
        gate = gate_up[:, :half]
        return torch.sigmoid(gate, out=out).mul_(gate).mul_(gate_up[:, half:])

    def gated_gelu_tanh(self, gate_up: torch.Tensor) -> torch.Tensor:
        half = gate_up.shape[1] // 2
        out = self._workspace.take("gated", gate_up.shape[0], (half,))
        if self._workspace.is_tracing:
            return out
        if self._native is not None:
            self._native.gated_gelu_tanh(gate_up, out, self._threads(gate_up.shape[0]))
            return out
        return torch.mul(F.gelu(gate_up[:, :half], approximate="tanh"), gate_up[:, half:], out=out)

    def rope(self, x: torch.Tensor, table: RopeTable, positions: torch.Tensor) -> torch.Tensor:
        if self._workspace.is_tracing:
            return x
        if self._native is not None:
            self._native.rope(x, table, positions)
            return x
        cos = table.cos.index_select(0, positions).unsqueeze(1)
        sin = table.sin.index_select(0, positions).unsqueeze(1)
        rotary = x[..., : table.rotary_dim]
        if table.interleaved:
            first, second = rotary[..., 0::2], rotary[..., 1::2]
        else:
            first, second = rotary.chunk(2, dim=-1)
        rotated = first * cos - second * sin
        second.mul_(cos).add_(first * sin)
        first.copy_(rotated)
        return x

    # Attention

    def kv_write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        if self._workspace.is_tracing:
            return
        assert self._step is not None
        self._keys[layer].index_copy_(0, self._step.slots, key)
        self._values[layer].index_copy_(0, self._step.slots, value)

    def attention(
        self, layer: int, query: torch.Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> torch.Tensor:
        num_tokens, num_heads, head_dim = query.shape
        out = self._workspace.take("attention", num_tokens, (num_heads * head_dim,))
        keys, values = self._keys[layer], self._values[layer]
        if self._workspace.is_tracing:
            self._plan_attention(keys, window, softcap)
            return out
        assert self._step is not None
        for group in self._step.groups:
            if isinstance(group, ChunkRow):
                rows = slice(group.first, group.last)
                chunk_out = out[rows].view(-1, num_heads, head_dim)
                self._attend_chunk(group, query[rows], keys, values, chunk_out, scale, window, softcap)
                continue
            assert self._native is not None
            is_whole = group.last - group.first == num_tokens
            self._native.attention(
                query if is_whole else query[group.first : group.last],
                keys,
                values,
                group.block_tables,
                group.query_starts,
                group.context_lengths,
                scale=scale,
                window=window,
                softcap=softcap,
                out=out if is_whole else out[group.first : group.last],
                threads=self._num_threads,
            )
        return out

    def _plan_attention(self, keys: torch.Tensor, window: int | None, softcap: float | None) -> None:
        if window not in self._masks:
            self._masks[window] = mask_template(window, self._max_positions)
        num_blocks = -(-self._max_positions // KV_BLOCK_SIZE)
        block = (KV_BLOCK_SIZE * keys[0].numel(),)
        self._workspace.take("gathered keys", num_blocks, block)
        self._workspace.take("gathered values", num_blocks, block)
        if softcap is not None:
            plan_softcapped(self._workspace)

    def _attend_chunk(
        self,
        chunk: ChunkRow,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> None:
        first_position = chunk.context_length - (chunk.last - chunk.first)
        first_seen = max(0, first_position - reach_of(window, self._max_positions))
        first_block = first_seen // KV_BLOCK_SIZE
        first_key_position = first_block * KV_BLOCK_SIZE
        if chunk.first_slot is None:
            keys = self._gathered("gathered keys", keys, chunk.blocks[first_block:])
            values = self._gathered("gathered values", values, chunk.blocks[first_block:])
        else:
            seen = slice(chunk.first_slot + first_key_position, chunk.first_slot + chunk.context_length)
            keys, values = keys[seen], values[seen]
        attend(
            query,
            keys,
            values,
            out,
            first_position=first_position,
            first_key_position=first_key_position,
            scale=scale,
            window=window,
            softcap=softcap,
            mask=self._masks[window],
            workspace=self._workspace,
        )

    def _gathered(self, name: str, pool: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """A row's keys or values, copied together from its blocks, `[num_blocks * KV_BLOCK_SIZE, heads, head_dim]`."""
        _, num_kv_heads, head_dim = pool.shape
        out = self._workspace.take(name, len(blocks), (KV_BLOCK_SIZE * num_kv_heads * head_dim,))
        torch.index_select(pool.view(-1, out.shape[1]), 0, blocks, out=out)
        return out.view(-1, num_kv_heads, head_dim)


def _tile_rows(in_features: int) -> int:
    return max(1, TILE_ELEMENTS // in_features)
