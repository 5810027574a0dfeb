"""Weights as the cpu device holds them: views of the mapped file, packed as stored.

The file's resident pages are the only copy of the weights. A linear map of several tensors is a list of segments side
by side in out_features, each in its own format, so fusing query, key and value copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from poot.devices.base import Weight
from poot.devices.formats import Format
from poot.devices.kernels.dequantize import dequantize
from poot.devices.prepacked import Prepacked, is_available, prepack


@dataclass(frozen=True, slots=True)
class Segment:
    """One tensor of a linear map, giving outputs `start` to `stop`.

    `data` is uint8 `[stop - start, row_bytes]`, or `[stop - start, in_features]` of the format's dtype if dense.
    """

    format: Format
    data: torch.Tensor
    start: int
    stop: int
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """A linear map `[out_features, in_features]` in segments. A segment's bias is f32 `[stop - start]` or None.

    `prepacked` is the whole map once more, laid out for many rows; None where it was not asked for or is not dense.
    """

    segments: tuple[Segment, ...]
    in_features: int
    out_features: int
    prepacked: Prepacked | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PackedEmbedding:
    """An embedding table `[num_embeddings, dim]` as stored."""

    format: Format
    data: torch.Tensor
    num_embeddings: int
    dim: int


def pack_linear(weights: Sequence[Weight], biases: Sequence[torch.Tensor | None] | None) -> PackedLinear:
    """`weights`, each `[out_features, in_features]`, as one linear map over the same input."""
    assert weights, "a linear map needs a weight"
    assert biases is None or len(biases) == len(weights), "one bias entry for each weight"
    segments: list[Segment] = []
    start = 0
    for index, weight in enumerate(weights):
        rows, in_features = weight.shape
        assert in_features == weights[0].shape[1], [w.shape for w in weights]
        bias = None if biases is None else biases[index]
        if bias is not None:
            bias = bias.to(torch.float32).contiguous()
            assert bias.shape == (rows,), (weight.name, bias.shape)
        segment = Segment(weight.format, weight.data, start, start + rows, bias)
        joined = _joined(segments[-1], segment) if segments else None
        if joined is None:
            segments.append(segment)
        else:
            segments[-1] = joined
        start += rows
    return PackedLinear(tuple(segments), weights[0].shape[1], start)


def prepack_linear(linear: PackedLinear) -> PackedLinear:
    """`linear` with its copy for many rows, where all of it is dense and this torch can."""
    if not is_available() or not all(segment.format.is_dense for segment in linear.segments):
        return linear
    whole = torch.cat([dequantize(segment.format, segment.data) for segment in linear.segments])
    bias = None
    if any(segment.bias is not None for segment in linear.segments):
        bias = torch.cat(
            [
                torch.zeros(segment.stop - segment.start) if segment.bias is None else segment.bias
                for segment in linear.segments
            ]
        )
    return replace(linear, prepacked=prepack(whole, bias))


def _joined(first: Segment, second: Segment) -> Segment | None:
    """Both segments as one, where `second` begins at the byte of the file at which `first` ends; else None.

    Gate and up projections often lie so. One segment is one kernel call, with one wait for its threads.
    """
    if first.format is not second.format or first.bias is not None or second.bias is not None:
        return None
    one, other = first.data, second.data
    is_next = (
        one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        and one.is_contiguous()
        and other.is_contiguous()
        and one.storage_offset() + one.numel() == other.storage_offset()
    )
    if not is_next:
        return None
    data = one.as_strided((len(one) + len(other), one.shape[1]), one.stride())
    return Segment(first.format, data, first.start, second.stop, None)


def pack_embedding(weight: Weight) -> PackedEmbedding:
    """The table `weight`, `[num_embeddings, dim]`."""
    num_embeddings, dim = weight.shape
    return PackedEmbedding(weight.format, weight.data, num_embeddings, dim)
